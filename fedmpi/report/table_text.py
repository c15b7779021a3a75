"""Tables of text: for a terminal, and for Markdown."""

import shutil
import sys
from collections.abc import Sequence

from fedmpi.report.terminal import COLUMNS

Line = Sequence[str]
_BETWEEN = "  "


def print_lines(heads: Line, lines: Sequence[Line], num_left: int) -> None:
    """Prints `text_lines`, as wide as the terminal is, or 80 columns, with a line below the heads."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    columns = max(shutil.get_terminal_size().columns, COLUMNS) if is_terminal else COLUMNS
    print(*text_lines(heads, lines, num_left, columns, rule="-"), sep="\n", flush=True)


def text_lines(
    heads: Line, lines: Sequence[Line], num_left: int, columns: int = COLUMNS, *, rule: str = ""
) -> list[str]:
    """Returns a table whose first `num_left` columns are text; the others stand to the right, two spaces apart.

    Where it would be wider than `columns`, the texts stand above the rest of their line. A `rule` is repeated below the
    heads.
    """
    rows = [heads, *lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    is_folded = sum(widths) + len(_BETWEEN) * (len(widths) - 1) > columns
    table = []
    for row in rows:
        texts = [cell.ljust(width) for cell, width in zip(row[:num_left], widths, strict=False)]
        numbers = [cell.rjust(width) for cell, width in zip(row[num_left:], widths[num_left:], strict=True)]
        if is_folded:
            table += [", ".join(row[:num_left]), _BETWEEN + _BETWEEN.join(numbers)]
        else:
            table.append(_BETWEEN.join([*texts, *numbers]).rstrip())
    if rule:
        table.insert(2 if is_folded else 1, rule * min(columns, max(map(len, table))))
    return table


def markdown_lines(heads: Line, lines: Sequence[Line], num_left: int) -> list[str]:
    """Returns a table in Markdown, whose first `num_left` columns stand to the left."""
    marks = ["---"] * num_left + ["---:"] * (len(heads) - num_left)
    texts = []
    for line in (heads, marks, *lines):
        escaped = [cell.replace("|", "\\|") for cell in line]
        texts.append(f"| {' | '.join(escaped)} |")
    return texts
