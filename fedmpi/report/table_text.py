"""Tables of text: for a terminal, whatever it can print, for Markdown, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TextIO

from fedmpi.report.terminal import columns_of_terminal, printable

Line = Sequence[str]


# A line below the heads and nothing else, in signs that every stream has.
_PLAIN_BOX = "    \n    \n -- \n    \n    \n    \n    \n    \n"


def print_lines(heads: Line, lines: Sequence[Line], num_left: int, stream: TextIO) -> None:
    """A table whose first `num_left` columns are text; the others stand to the right, two spaces apart."""
    from rich import box
    from rich.table import Table

    from fedmpi.report.console import PlainConsole

    is_unicode = (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"
    style = box.SIMPLE_HEAD if is_unicode else box.Box(_PLAIN_BOX, ascii=True)
    table = Table(box=style, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < num_left else "right", no_wrap=True)
    shown = [[printable(cell, stream) for cell in line] for line in lines]
    for line in shown:
        table.add_row(*line)
    widths = (max(len(cell) for cell in column) + 2 for column in zip(heads, *shown, strict=True))
    columns = columns_of_terminal(stream)  # a line that wraps in a narrow window beats a cut number
    console = PlainConsole(stream, columns=max(columns, sum(widths)), is_terminal=columns > 0)
    console.print(table)


def markdown_lines(heads: Line, lines: Sequence[Line], num_left: int) -> list[str]:
    marks = ("---",) * num_left + ("---:",) * (len(heads) - num_left)
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (heads, marks, *lines)]


def comma_separated(rows: Sequence[Mapping[str, object]]) -> str:
    """The table as CSV: the keys of the first row, then the values of all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([rows[0].keys(), *(row.values() for row in rows)] if rows else [])
    return text.getvalue()
