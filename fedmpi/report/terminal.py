"""What a stream shows of our lines: signs that its encoding has, and on a terminal one line that updates itself.

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
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.live import Live

# One variable of each launcher that `fedmpi.mpi.launch` knows, and of srun, which may start a process without MPI.
_LAUNCHED = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "PMIX_RANK", "SLURM_STEP_ID")
_DUMB = ("dumb", "unknown")
DEFAULT_COLUMNS = 80
NO_BREAK = "\xa0"
_BEFORE_A_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGTP]B?|B|MACs|m?s)\b|%)")
_SHELL_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
_FOLD = " \\"


def columns_of_terminal(stream: TextIO, environ: Mapping[str, str] = os.environ) -> int:
    """The width in columns of the terminal that `stream` writes to; 0 where no line can be updated."""
    if environ.get("TERM") in _DUMB or any(name in environ for name in _LAUNCHED):
        return 0
    with contextlib.suppress(OSError, ValueError):  # a closed stream says ValueError
        if stream.isatty():
            with contextlib.suppress(OSError):
                return os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
            return DEFAULT_COLUMNS
    return 0


def instead_of_live_line(text: str) -> str:
    """`text` for stderr, where it is a terminal, in place of the live line that stdout may have there; that one is
    shown again below it.
    """
    return f"\r\x1b[2K{text}" if sys.stderr is not None and columns_of_terminal(sys.stderr) else text


def wrapped(*texts: str, hang: int = 2) -> list[str]:
    """The texts as lines of at most 80 columns. A continuation line is indented by `hang` more columns. A number stays
    with its unit. A word that is too long, such as a path, gets a line of its own and is not cut.
    """
    wrapper = textwrap.TextWrapper(DEFAULT_COLUMNS, break_long_words=False, break_on_hyphens=False)
    lines: list[str] = []
    for text in texts:
        wrapper.subsequent_indent = " " * (_indent(text) + hang)
        lines += wrapper.wrap(_BEFORE_A_UNIT.sub(NO_BREAK, text))
    return [line.replace(NO_BREAK, " ") for line in lines]


def warning(text: str) -> str:
    """`warning: ` and the text, in lines of at most 80 columns."""
    return "\n".join(wrapped(f"warning: {text}"))


def filled(text: str) -> str:
    """A text of several paragraphs, such as a docstring, in lines of at most 80 columns. Lines that are indented, as
    those of a table, stay apart; what continues one is indented further, and stands below its last column.
    """
    paragraphs: list[str] = []
    for line in text.splitlines():
        before = paragraphs[-1] if paragraphs else ""
        if before.strip() and line.strip() and _indent(line) in (0, *range(_indent(before) + 4, DEFAULT_COLUMNS)):
            paragraphs[-1] = f"{before} {line.strip()}"
        else:
            paragraphs.append(line)
    return "\n".join(line for one in paragraphs for line in wrapped(one, hang=_hang(one)) or [""])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _hang(line: str) -> int:
    """How much further the text of an indented line is indented that begins with a name and two blanks, as an option
    does; 4 without these, and 0 for a line that is not indented.
    """
    found = re.match(r" +\S+(?: \S+)*  +", line)
    return 0 if not _indent(line) else found.end() - _indent(line) if found else 4


def folded(text: str) -> str:
    """`to continue: COMMAND` in lines of at most 80 columns. Of a longer text the command begins on a line of its own,
    and a shell takes its lines for one: all but the last end in a backslash.
    """
    if len(text) <= DEFAULT_COLUMNS:
        return text
    said, _, command = text.partition(": ")
    lines = [" "]
    for word in _SHELL_WORD.findall(command):
        if len(lines[-1]) + 1 + len(word) + len(_FOLD) > DEFAULT_COLUMNS and lines[-1].strip():
            lines.append("   ")
        lines[-1] += f" {word}"
    return "\n".join([*wrapped(f"{said}:"), f"{_FOLD}\n".join(lines)])


def as_message(text: str) -> str:
    """A message in lines of at most 80 columns, whose last words may be a command for a shell (`folded`)."""
    said, then, command = text.partition("; to continue")
    lines = [line for paragraph in said.splitlines() for line in wrapped(paragraph)]
    return "\n".join([*lines, *([folded(f"to continue{command}")] if then else [])])


def printable(text: str, stream: TextIO) -> str:
    """`text` without what the stream's encoding has no sign for."""
    encoding = getattr(stream, "encoding", None) or "ascii"
    return text.encode(encoding, errors="replace").decode(encoding)


class Screen:
    """A stream that people read; with `columns`, a terminal's width, its last line updates itself.

    Raises OSError or ValueError where the stream can no longer be written.
    """

    def __init__(self, stream: TextIO, columns: int) -> None:
        self._stream, self._columns = stream, columns
        self._live: Live | None = None

    @property
    def is_live(self) -> bool:
        return self._columns > 0

    def print(self, line: str) -> None:
        """A line of its own, above the live one."""
        text = printable(line, self._stream)
        if self._live is None:
            print(text, file=self._stream, flush=True)
        else:
            self._live.console.print(text, soft_wrap=True)

    def update(self, line: str) -> None:
        """Shows `line` as the live line."""
        from fedmpi.report.console import live_line, one_line  # rich loads only where a terminal wants it

        if self._live is None:
            self._live = live_line(self._stream, self._columns)
            self._live.start()
        self._live.update(one_line(printable(line, self._stream)), refresh=True)

    def close(self) -> None:
        """The live line is gone."""
        if self._live is not None:
            self._live.stop()
