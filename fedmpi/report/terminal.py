"""Lines of at most 80 columns, and one line that updates itself where a stream shows it.

Such a line ends in a carriage return. Launchers forward whole lines only (Open MPI's prterun, tried), so under one of
them it would show nothing until the run ends, although rank 0 has a pseudo terminal as its stdout there.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import textwrap
from collections.abc import Mapping
from typing import TextIO

# One variable of each launcher that `fedmpi.mpi.launch` knows, and of srun, which may start a process without MPI.
_LAUNCHED = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "PMIX_RANK", "SLURM_STEP_ID")
_DUMB = ("dumb", "unknown")
DEFAULT_COLUMNS = 80
ERASED = "\r\x1b[2K"
"""Erases the line of a terminal that the cursor is in."""
_BEFORE_A_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGTP]?B|[kMGTP]|s)\b|%)")
_NO_BREAK = "\xa0"


def columns_of_terminal(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> int:
    """Returns the width in columns of the terminal that `stream` writes to; 0 where no line can be updated.

    The standard output of a process that was started without one is None.
    """
    if stream is None or environ.get("TERM") in _DUMB or any(name in environ for name in _LAUNCHED):
        return 0
    with contextlib.suppress(OSError, ValueError):  # a closed stream raises ValueError
        if stream.isatty():
            with contextlib.suppress(OSError):
                return os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
            return DEFAULT_COLUMNS
    return 0


def instead_of_live_line(text: str) -> str:
    """Returns `text` for stderr, where it is a terminal, in place of the live line that stdout may have there."""
    return f"{ERASED}{text}" if columns_of_terminal(sys.stderr) else text


def wrapped(*texts: str, hang: int = 2) -> list[str]:
    """Returns the texts as lines of at most 80 columns; a continuation line is indented by `hang` more columns.

    A number stays with its unit. A word that is too long, such as a path, gets a line of its own and is not cut.
    """
    wrapper = textwrap.TextWrapper(DEFAULT_COLUMNS, break_long_words=False, break_on_hyphens=False)
    lines: list[str] = []
    for text in texts:
        wrapper.subsequent_indent = " " * (len(text) - len(text.lstrip()) + hang)
        lines += wrapper.wrap(_BEFORE_A_UNIT.sub(_NO_BREAK, text))
    return [line.replace(_NO_BREAK, " ") for line in lines]


def warn(text: str) -> None:
    """Prints `warning: ` and the text to stderr, in place of a live line; where stderr is gone it does nothing.

    Every warning goes this way, whatever `output.progress` is: a warning must be seen.
    """
    lines = "\n".join(wrapped(f"warning: {text}"))
    with contextlib.suppress(OSError, ValueError):
        print(instead_of_live_line(lines), file=sys.stderr, flush=True)


def filled(text: str) -> str:
    """Returns a text, such as a docstring, with its paragraphs in lines of at most 80 columns.

    The lines of a paragraph with indented ones, such as a table, stay apart.
    """
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        is_table = any(line.startswith(" ") for line in paragraph.splitlines())
        parts = paragraph.splitlines() if is_table else [" ".join(paragraph.split())]
        lines += [*wrapped(*parts, hang=4 if is_table else 0), ""]
    return "\n".join(lines[:-1])


def folded(text: str) -> str:
    """Returns `to continue: COMMAND`; of a text that is longer than 80 columns the command stands on its own line."""
    if len(text) <= DEFAULT_COLUMNS:
        return text
    prose, _, command = text.partition(": ")
    return "\n".join([*wrapped(f"{prose}:"), f"  {command}"])


def as_message(text: str) -> str:
    """Returns a message in lines of at most 80 columns; its last words may be `; to continue: COMMAND` (`folded`)."""
    prose, then, command = text.partition("; to continue")
    lines = wrapped(*prose.splitlines())
    if then:
        lines.append(folded(f"to continue{command}"))
    return "\n".join(lines)
