"""fedmpi show [RUN ...] [--watch | --html | --figure FILE | --csv FILE]

Shows runs; RUN is a run's folder, finished or not, or a folder of them (by default `runs`). Without options: how far
they are, in a table with each run's state, job, starts, ranks, rounds and accuracy. All is read from the folders, so it
needs no Slurm.

--watch repeats the table every two seconds, until Ctrl-C. --html writes a page of each run that works offline,
RUN/report/report.html. --figure draws a figure for a paper, as .pdf, .svg or .png: a line for
each setting, the mean of its seeds, with a band from the lowest to the highest; a panel for each --tier. --csv writes
every number of every round, and who was drawn with what.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmpi.command.manners import Parser, file_to_write, run_command, show
from fedmpi.errors import INTERRUPTED, ConfigError, UserError
from fedmpi.report import table_text
from fedmpi.report.records import by_ranks, scalars
from fedmpi.report.terminal import warn
from fedmpi.results.run import Run, read_runs
from fedmpi.store.files import write_text
from fedmpi.store.run_dir import runs_below
from fedmpi.store.units import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADS = ("run", "state", "job", "starts", "ranks", "round", "accuracy")
_WATCH_EVERY_S = 2.0
_CLEAR = "\x1b[H\x1b[2J"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 2 for a mistake of the user, 130 after Ctrl-C."""
    parser = Parser("fedmpi show", __doc__)
    parser.add_argument("runs", nargs="*", type=Path, default=[Path("runs")], metavar="RUN")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--watch", action="store_true", help="repeat the table, until Ctrl-C")
    what.add_argument("--html", action="store_true", help="a page of each run")
    what.add_argument("--figure", metavar="FILE", help="the figure; the ending says the format")
    what.add_argument("--csv", metavar="FILE", help="a row for each round of each run")
    parser.add_argument(
        "--x", choices=("rounds", "bytes", "macs", "simulated_s", "simulated_j"), help="of a figure; default rounds"
    )
    parser.add_argument("--y", choices=("accuracy", "loss"), help="of a figure; default accuracy")
    tier = "a net's name, for a panel of it; repeat --tier for more panels (default: each setting's largest net)"
    parser.add_argument("--tier", action="append", metavar="NAME", help=tier)
    names = "of a figure's lines, in their order; stands behind RUN"
    parser.add_argument("--names", nargs="+", metavar="NAME", help=names)
    parser.add_argument("--width", type=float, metavar="INCHES", help="of a figure")
    limits = "of a figure; accuracies are shares"
    parser.add_argument("--ylim", nargs=2, type=float, metavar=("LOW", "HIGH"), help=limits)
    return run_command(lambda: _show(**vars(parser.parse_intermixed_args(argv))))


def _show(runs: Sequence[Path], watch: bool, html: bool, figure: str | None, csv: str | None, **options: Any) -> int:
    given = {name: value for name, value in options.items() if value is not None}
    if given and not figure:
        raise ConfigError(f"--{next(iter(given))}", "belongs to a figure; add --figure FILE.pdf")
    if html:
        _write_html(runs)
    elif figure:
        _write_figure(runs, figure, **given)
        show(figure)
    elif csv:
        path = file_to_write("--csv", csv)
        write_text(path, rounds_as_csv(read_runs(runs)[0]))
        show(csv)
    elif watch:
        return _watch(runs)
    else:
        print_status(runs)
    return 0


def _watch(folders: Sequence[Path]) -> int:
    try:
        while True:
            if sys.stdout.isatty():
                print(_CLEAR, end="")
            print_status(folders)
            sys.stdout.flush()
            time.sleep(_WATCH_EVERY_S)
    except KeyboardInterrupt:
        return INTERRUPTED  # without a message: the user was told to end it so


def print_status(folders: Sequence[Path]) -> None:
    """Prints a line for each run below the folders, and how many there are in each state. Raises UserError."""
    rows = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(str(folder), "is not a folder; name run directories, or a folder of them")
        rows += [_status(Run(run_dir.path)) for run_dir in runs_below(folder)]
    if not rows:
        print("no runs there")
        return
    table_text.print_lines(_HEADS, rows, 3)
    states = Counter(row[1] for row in rows)
    print(", ".join(f"{count} {state}" for state, count in states.items()))


def _status(run: Run) -> list[str]:
    """Returns the cells under `_HEADS`. A run that cannot be read hides no other."""
    try:
        cells = [
            f"{run.path} (from {run.init_from})" if run.init_from else str(run.path),
            run.state,
            str(run.last_start.get("job") or ""),
            str(len(run.starts)),
            ", ".join(map(str, by_ranks(run.records))),
            f"{run.continues_after}/{run.num_rounds if run.dir.has_config() else '?'}",
            percent(run.best.last[run.tested[0]] if run.tested else None),
        ]
    except (UserError, ValueError, TypeError, LookupError, AttributeError) as error:
        text = error.text() if isinstance(error, UserError) else f"{run.path}: {type(error).__name__}: {error}"
        print(f"unreadable: {text}", file=sys.stderr, flush=True)
        cells = [str(run.path), "unreadable", *[""] * (len(_HEADS) - 2)]
    return [cell or "-" for cell in cells]


def _write_html(paths: Sequence[Path]) -> None:
    from fedmpi.results.page import whole_page

    runs, left_out = read_runs(paths)
    for line in left_out:
        warn(line)
    for run in runs:
        path = run.dir.page_path
        path.parent.mkdir(exist_ok=True)
        write_text(path, whole_page(run))
        show(str(path))


def _write_figure(paths: Sequence[Path], out: str, tier: Sequence[str] = (), **options: Any) -> None:
    from fedmpi.results.figure import FORMATS, save

    path = file_to_write("--figure", out)
    if path.suffix.lower() not in FORMATS:
        raise ConfigError("--figure", f"'{out}' ends in none of {', '.join(FORMATS)}, which choose the format")
    runs, left_out = read_runs(paths)
    save(figure_of(runs, left_out, tiers=tier, **options), path)


def figure_of(
    runs: Sequence[Run],
    left_out: Sequence[str] = (),
    *,
    tiers: Sequence[str] = (),
    x: str = "rounds",
    y: str = "accuracy",
    names: Sequence[str] = (),
    width: float | None = None,
    ylim: Sequence[float] = (),
) -> Figure:
    """Draws the runs. Those that are left out, or not drawn to their last round, are named on stderr. Raises
    ConfigError where nothing of it is recorded.
    """
    from fedmpi.results import figure, frame

    groups = frame.grouped(runs)
    cautions = [*frame.cautions(groups), *left_out]
    panels = frame.panels(groups, tiers, x, y, names)
    drawn = {place for panel in panels for place in panel.lines}
    absent = [group.name for place, group in enumerate(groups) if group.tested and place not in drawn]
    cautions += [f"{name} has no line: it has no {y} of these nets by {x}" for name in absent]
    for line in cautions:
        warn(line)
    composed = figure.compose(panels, share_y=True, width=width)
    if ylim:
        composed.axes[0].set_ylim(*ylim)
    return composed


def rounds_as_csv(runs: Sequence[Run]) -> str:
    """Returns a row for each round of each run: its numbers, and who was drawn with what, as JSON."""
    import pandas as pd

    rows = []
    for run in runs:
        for record in run.records:
            row = {"run": run.name, "seed": run.seed, "round": record["round"]}
            rows.append({**row, "draws": json.dumps(record.get("draws", [])), **dict(scalars(record))})
    return str(pd.DataFrame(rows).to_csv(index=False))
