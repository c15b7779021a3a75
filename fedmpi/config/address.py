"""The address of a config: a YAML file (`fedhm_digits.yaml`), or a cell of one (`table3.yaml@cifar10_iid_fedhm`)."""

from __future__ import annotations

import contextlib
import os
import re
from difflib import get_close_matches
from pathlib import Path

_CELL = re.compile(r"(.*\.ya?ml)@([^/]*)", re.DOTALL)


def file_and_cell(address: str | os.PathLike[str]) -> tuple[str, str | None]:
    """The file's path, and the cell's name or None. Only what follows `.yaml@` is a cell: any path may have an @."""
    text = os.fspath(address)
    found = _CELL.fullmatch(text)
    return (found[1], found[2]) if found else (text, None)


def is_address(word: str) -> bool:
    """Does the word name a YAML file or a cell of one, by its ending?"""
    return file_and_cell(word)[0].endswith((".yaml", ".yml"))


def _shipped() -> Path:
    package = Path(__file__).resolve().parents[1]
    checkout = package.with_name("configs")
    return checkout if (package.with_name("setup.cfg")).is_file() else package / "configs"


CONFIGS = _shipped()
"""The folder of the configs that come with fedmpi: that of a checkout, or of the installed package."""


def located(word: str) -> str:
    """The address that a word of a command line means: its own, where such a file is, else that of a config that comes
    with fedmpi: `fedhm_digits`, `configs/fedhm_digits.yaml` or `fedhm/table3@cifar10_iid_fedhm`."""
    file, cell = file_and_cell(word)
    if not is_address(word):
        name, _, cell_of_name = word.partition("@")
        file, cell = f"{name}.yaml", cell_of_name or None
    if exists(word):
        return word
    own = CONFIGS / file.removeprefix("configs/")
    if not own.is_file():
        return str(CONFIGS / renamed(word)) if renamed(word) else word
    return str(own) if cell is None else f"{own}@{cell}"


def renamed(word: str) -> str:
    """The address, below `CONFIGS`, of a cell that came with fedmpi as a file of its own: `FILE.yaml@CELL` for
    `FILE_CELL`. A run's folder still has that name. Empty where no shipped file has such a cell, or several have, or
    where there is such a file.
    """
    name = word.removeprefix("configs/").removesuffix(".yaml")
    leaves = os.path.isabs(name) or ".." in Path(name).parts
    if leaves or exists(word) or os.path.isfile(CONFIGS / f"{name}.yaml"):
        return ""
    folder, _, last = name.rpartition("/")
    parted = ((last[:place], last[place + 1 :]) for place, sign in enumerate(last) if sign == "_")
    places = ((CONFIGS / folder / f"{file}.yaml", cell) for file, cell in parted)
    found = [
        f"{path.relative_to(CONFIGS)}@{cell}" for path, cell in places if os.path.isfile(path) and cell in _cells(path)
    ]
    return found[0] if len(found) == 1 else ""


def exists(address: str) -> bool:
    """Is there a file, or anything else, at the address? Whether it has the cell is for its reader to say."""
    return os.path.exists(file_and_cell(address)[0])


def suggestion(word: str) -> str:
    """Names the config whose name, or whose cell's name, is like `word`: one in the folder that `word` names, else one
    that comes with fedmpi. Empty if none is.
    """
    if close := get_close_matches(file_and_cell(Path(word).name)[0].removesuffix(".yaml"), own := _own(word), n=1):
        return f"did you mean '{own[close[0]]}'?"
    files = {str(path.relative_to(CONFIGS).with_suffix("")): path for path in sorted(CONFIGS.rglob("*.yaml"))}
    cell = word.rpartition("@")[2]
    for name, path in files.items():
        if cell in _cells(path):
            return f"did you mean '{name}.yaml@{cell}'?"
    asked = file_and_cell(word)[0].removeprefix("configs/").removesuffix(".yaml")
    close = get_close_matches(asked, files, 1, 0.75) or get_close_matches(Path(asked).name, files, 1, 0.75)
    return f"did you mean '{close[0]}.yaml'?" if close else ""


def _own(word: str) -> dict[str, Path]:
    """The YAML files of the folder that `word` names, by their names without ending."""
    with contextlib.suppress(OSError, ValueError):
        return {path.stem: path for path in sorted(Path(word).parent.iterdir()) if is_address(path.name)}
    return {}


def _cells(path: Path) -> list[str]:
    """The names of a shipped file's cells."""
    _, _, cells = path.read_text().partition("\ncells:\n")
    return re.findall(r"^  ([\w-]+):", re.split(r"^\w", cells, maxsplit=1, flags=re.MULTILINE)[0], re.MULTILINE)


def label(address: str | os.PathLike[str]) -> str:
    """What a run's folder is called after: `table3_cifar10_iid_fedhm` for `fedhm/table3.yaml@cifar10_iid_fedhm`."""
    file, cell = file_and_cell(address)
    return Path(file).stem if cell is None else f"{Path(file).stem}_{cell}"
