"""Trained nets for use without fedmpi: a tier's or a client's net of a saved round, in one file.

`fedmpi export RUN --tier 0.25` (see `__main__`). Here is how an export is asked for; this loads no torch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

from fedmpi.errors import ConfigError

FormatName = Literal["pt2", "safetensors", "onnx"]
Round = Literal["last", "best"] | int
"""A saved round: the last one, the one of the highest mean accuracy, or by its number."""


def format_of(out: str | os.PathLike[str] | None, asked: FormatName | None) -> FormatName:
    """Returns the format of a file: the one asked for, else that of the file's ending, else pt2.

    Raises ConfigError where the ending is another format's, or nobody's. A name may end in a number: `net-0.25`.
    """
    ending = Path(out or "").suffix
    by_ending: dict[str, FormatName] = {f".{name}": name for name in get_args(FormatName)}
    if ending not in by_ending and ending[1:2].isalpha():
        raise ConfigError("--out", f"no format ends in {ending}; allowed: {', '.join(by_ending)}, or no ending")
    found = by_ending.get(ending)
    if asked and found and asked != found:
        raise ConfigError("--out", f"ends in {ending}, but the format is {asked}; leave one of them out")
    return asked or found or "pt2"


def tier_name(tier: str | float) -> str:
    """Returns `0.5` for 0.5, as the records have it."""
    return tier if isinstance(tier, str) else f"{tier:g}"
