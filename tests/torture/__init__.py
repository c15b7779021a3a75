"""Long versions of the hardest tests: fuzzed configs and files, random combinations, ranks killed at random moments.

Each program is run from the folder of the project:

    python -m tests.torture.fuzz_files      damaged files: refused in one line, in bounded memory
    python -m tests.torture.random_runs     random combinations: the same bits on any ranks
    python -m tests.torture.kill_ranks      killed and stopped ranks: the same bytes as a quiet run

Here is what they share.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from fedmpi.errors import RunDirError
from fedmpi.report.table_text import print_lines
from fedmpi.store.files import writing

Outcome = TypeVar("Outcome")


def new_folder(given: Path | None) -> Path:
    """`--folder`, or a temporary one, for what runs leave. Raises `RunDirError` where there is something in it."""
    folder = (given or Path(tempfile.mkdtemp(prefix="fedmpi-torture-"))).resolve()
    if folder.exists() and any(folder.iterdir()):
        raise RunDirError(str(folder), "is not empty; take a new --folder")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def leave(folder: Path, given: Path | None, *, has_failed: bool) -> int:
    """The exit code; a temporary folder goes where nothing has failed."""
    if has_failed:
        print(f"what the runs left: {folder}")
    elif given is None:
        shutil.rmtree(folder)
    return int(has_failed)


def print_groups(
    head: str,
    outcomes: Sequence[Outcome],
    group_of: Callable[[Outcome], str],
    columns: Mapping[str, Callable[[Sequence[Outcome]], object]],
) -> None:
    """A row for each group of outcomes, by name, and one for all together."""
    groups = sorted({group_of(outcome) for outcome in outcomes})
    rows = []
    for group in [*groups, "all"]:
        mine = [outcome for outcome in outcomes if group in ("all", group_of(outcome))]
        rows.append([group, *(str(tell(mine)) for tell in columns.values())])
    print_lines([head, *columns], rows, 1, sys.stdout)
