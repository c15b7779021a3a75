"""The address of a config: a YAML file, or a run of a grid file, as `papers/fedhm.yaml@cifar10_iid/fedhm`."""

import contextlib
import os
import re
from difflib import get_close_matches
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
CONFIGS = _PACKAGE.with_name("configs") if _PACKAGE.with_name("setup.cfg").is_file() else _PACKAGE / "configs"
"""The folder of the configs that come with fedmpi: that of a checkout, or of the installed package."""


def file_and_cell(address: str | os.PathLike[str]) -> tuple[str, str | None]:
    """Returns the file's path, and the cell's name or None. Only what follows `.yaml@` is a cell."""
    text = os.fspath(address)
    match = re.fullmatch(r"(.*\.ya?ml)@([\w-]+/[\w-]+|[^/]*)", text, re.DOTALL)
    return (match[1], match[2]) if match else (text, None)


def is_address(word: str) -> bool:
    """Returns whether the word names a YAML file or a run of one, by its ending."""
    return file_and_cell(word)[0].endswith((".yaml", ".yml"))


def located(word: str) -> str:
    """Returns the address that a word of a command line means: a file of that name, else a config that comes with
    fedmpi: `fedhm_digits`, `configs/fedhm_digits.yaml` or `papers/fedhm@cifar10_iid/fedhm`."""
    if os.path.exists(file_and_cell(word)[0]):
        return word
    name, at, cell = word.partition("@")
    file = CONFIGS / f"{name.removeprefix('configs/').removesuffix('.yaml')}.yaml"
    return f"{file}{at}{cell}" if os.path.isfile(file) else word


def similar_config(word: str) -> str:
    """Returns the config whose name is like `word`: one in the folder that `word` names, else a shipped one; or ''."""
    shipped = (path.relative_to(CONFIGS) for path in CONFIGS.rglob("*.yaml"))
    known = {path.with_suffix("").as_posix(): path.as_posix() for path in shipped}
    with contextlib.suppress(OSError, ValueError):
        known |= {
            path.stem: str(path) for path in Path(word).parent.iterdir() if is_address(path.name) and path.exists()
        }
    asked = file_and_cell(word)[0].removeprefix("configs/").removesuffix(".yaml")
    close = get_close_matches(Path(asked).name, known, 1) or get_close_matches(asked, known, 1, 0.75)
    return known[close[0]] if close else ""


def label(address: str | os.PathLike[str]) -> str:
    """Returns what a run's folder is called after: `fedhm_cifar10_iid_fedhm` for `fedhm.yaml@cifar10_iid/fedhm`."""
    file, cell = file_and_cell(address)
    return Path(file).stem if cell is None else f"{Path(file).stem}_{cell.replace('/', '_')}"
