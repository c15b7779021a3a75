"""Code that uses an exported file, whole: it runs as it is printed, on an input of zeros."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmpi.config import yaml_text
from fedmpi.data.dataset import DataInfo
from fedmpi.export.formats import Format
from fedmpi.export.trained import TrainedNet


def usage(path: Path, trained: TrainedNet, form: Format, overrides: Sequence[str] = ()) -> str:
    """Loads the file at `path`, prepares examples as the run did, and prints the classes of them. `overrides` are the
    command's."""
    code = form.SNIPPET.format(path=str(path), made=_made(trained, overrides))
    imports = [line for line in code.splitlines() if line.startswith(("import ", "from "))]
    rest = [line for line in code.splitlines() if line not in imports]
    return "\n".join([*imports, *_inputs(trained.saved.setup.data.info, form), *rest])


def _made(trained: TrainedNet, overrides: Sequence[str]) -> str:
    """The expression that opens the run and makes the net again."""
    given = {key: yaml_text.parse(value).value for key, _, value in (word.partition("=") for word in overrides)}
    run = ", ".join(map(repr, [str(trained.saved.path), *([given] if given else [])]))
    kind, _, name = trained.name.partition(" ")
    said = f"{trained.saved.number}, {trained.form!r}"
    if kind == "tier":
        return f"fedmpi.open_run({run}).net({name!r}, {said})"
    return f"fedmpi.open_run({run}).client_net({name}, {said}{', cut=True' if trained.is_cut else ''})"


def _inputs(info: DataInfo, form: Format) -> list[str]:
    """Lines that make `x`: zeros of the right shape and type, prepared as the run does it."""
    kind = f"{form.ARRAYS}.{'int64' if info.kind == 'tokens' else 'float32'}"
    shape = ", ".join(map(str, (1, *info.example_shape)))
    lines = ["# your examples, any number", f"x = {form.ARRAYS}.zeros(({shape}), dtype={kind})"]
    if info.kind != "image":
        return lines
    if not (info.mean or info.std):
        return [*lines, "x = x / 255"]
    made = "tensor" if form.ARRAYS == "torch" else "array"
    mean, std = (
        f"{form.ARRAYS}.{made}({list(values)}, dtype={kind}).reshape(-1, 1, 1)" for values in (info.mean, info.std)
    )
    return [*lines, f"mean = {mean}", f"std = {std}", "x = (x / 255 - mean) / std"]
