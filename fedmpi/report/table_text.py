"""Tables of text: for a terminal, whatever it can print, for Markdown, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TextIO

from fedmpi.report.terminal import DEFAULT_COLUMNS, columns_of_terminal, printable

Line = Sequence[str]
_BETWEEN = "  "


def print_lines(heads: Line, lines: Sequence[Line], num_left: int, stream: TextIO) -> None:
    """Prints `text_lines`, as wide as the terminal is, or 80 columns, with a line below the heads."""
    is_unicode = (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"
    columns = max(columns_of_terminal(stream), DEFAULT_COLUMNS)  # a line that wraps in a narrow window beats a cut one
    shown = [[printable(cell, stream) for cell in line] for line in lines]
    table = text_lines(heads, shown, num_left, columns, rule="\u2500" if is_unicode else "-")
    print(*table, sep="\n", file=stream, flush=True)


def text_lines(
    heads: Line, lines: Sequence[Line], num_left: int, columns: int = DEFAULT_COLUMNS, *, rule: str = ""
) -> list[str]:
    """A table whose first `num_left` columns are text; the others stand to the right, two spaces apart. Where it would
    be wider than `columns`, the first of these texts, or more of them, stand above the rest of their line, once for
    neighbours that share them. A `rule` is repeated below the heads.
    """
    from rich.cells import cell_len

    rows = [heads, *lines]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    blanks = [len(_BETWEEN) * (len(widths) - above - (above == 0)) for above in range(num_left + 1)]
    all_wide = [sum(widths[above:]) + blank for above, blank in enumerate(blanks)]
    num_above = next((above for above, wide in enumerate(all_wide) if wide <= columns), num_left)
    shown: list[str] = []
    for number, row in enumerate(rows):
        pads = [" " * (width - cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        cells = [
            cell + pad if place < num_left else pad + cell
            for place, (cell, pad) in enumerate(zip(row, pads, strict=True))
        ]
        if num_above and (number < 2 or row[:num_above] != rows[number - 1][:num_above]):
            shown.append(", ".join(row[:num_above]))
        shown.append(_BETWEEN * (num_above > 0) + _BETWEEN.join(cells[num_above:]).rstrip())
        if number == 0 and rule:
            shown.append(rule * min(columns, max(all_wide[num_above], *map(cell_len, shown))))
    return shown


def markdown_lines(heads: Line, lines: Sequence[Line], num_left: int) -> list[str]:
    marks = ("---",) * num_left + ("---:",) * (len(heads) - num_left)
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (heads, marks, *lines)]


def comma_separated(rows: Sequence[Mapping[str, object]]) -> str:
    """The table as CSV: the keys of the first row, then the values of all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([rows[0].keys(), *(row.values() for row in rows)] if rows else [])
    return text.getvalue()
