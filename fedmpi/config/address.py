"""The address of a config: a YAML file (`fedhm_digits.yaml`), or a cell of one (`table3.yaml@cifar10_iid_fedhm`)."""

from __future__ import annotations

import os
import re
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


def label(address: str | os.PathLike[str]) -> str:
    """What a run's folder is called after: `table3_cifar10_iid_fedhm` for `fedhm/table3.yaml@cifar10_iid_fedhm`."""
    file, cell = file_and_cell(address)
    return Path(file).stem if cell is None else f"{Path(file).stem}_{cell}"
