"""fedmpi list

Names every method, model, data set and partition that a config can use, a line each.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fedmpi import registry
from fedmpi.command.manners import Parser, report, run_command, show
from fedmpi.errors import UserError
from fedmpi.mpi.launch import claimed

_TITLES = {"method": "methods", "model": "models", "data": "data sets", "partition": "partitions"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command on rank 0; returns the exit code."""
    rank = 0
    try:
        rank, _ = claimed()
        Parser("fedmpi list", __doc__).parse_args(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        return report(error, rank)
    return run_command(lambda: show(listing())) if rank == 0 else 0


def listing() -> str:
    """Returns the built-in names with their summaries."""
    width = max(len(name) for section in _TITLES for name in registry.BUILT_IN[section]) + 4
    lines = []
    for section, title in _TITLES.items():
        lines.append(f"{title} ({section}.name)")
        for name, place in registry.BUILT_IN[section].items():
            shown = f"{name}NAME" if name.endswith(":") else name
            lines.append(f"  {shown:{width}}  {summary(name, place)}")
    return "\n".join(lines)


def summary(name: str, place: str) -> str:
    """Reads what stands below the option `name` of an options class in its source: an import would load torch."""
    source = Path(__file__).parents[1].joinpath(*place.partition(":")[0].split(".")[1:]).with_suffix(".py")
    value = f'"{name}[^"]*"' if name.endswith(":") else f'"{name}"'
    found = re.search(rf'    name: .*{value}.*\n    """([^"]*)"""', source.read_text(encoding="utf-8"))
    return " ".join(found[1].split()).rstrip(".") if found else ""
