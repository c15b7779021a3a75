"""A table or figure of a paper, with our numbers beside its own.

    python jobs/reproduce.py fedhm:table3 [section.key=value ...] [--only TEXT ...] [--seeds 0,1,2] [--ranks 3]
        [--budget 0.05] [--data-dir DIR] [--out reproduced] [--collect | --list | --run K]
    python jobs/reproduce.py --list

`--list` names all tables and figures, and with a name its runs. Each run (a config under `configs/`,
what the table sets on it, a seed) has a folder and a log of its own in `--out`/runs, whichever table it
is for: what is finished is not made again, what was interrupted continues. A run that fails ends no
other, and the exit code is 1.

`--only` takes the cells in whose block, column, row or run all words of a TEXT stand (several TEXTs:
of any of them). `--budget` multiplies rounds (with milestones) and local epochs, each at least 1, for
a small machine: `0.05`, or `rounds=0.05,epochs=0.1`; the table says so, and such runs are apart from
others. The steps of the learning rate keep their order and stay before the last round; the table says
which had no room. `--collect` runs nothing and makes the table of what is there.

The table is `table.md` and, exact, `table.csv` in `--out`/fedhm-table3; a figure is `figure.png` and
`figure.svg`, too, and the points that it shows are `figure.csv`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedmpi import papers
from fedmpi.command.manners import Parser, run_command
from fedmpi.config.load import without_overrides
from fedmpi.data.dataset import load_data
from fedmpi.data.files import below_home
from fedmpi.errors import TO_CONTINUE, ConfigError, counted
from fedmpi.mpi.mpirun import start_words
from fedmpi.report import table_text
from fedmpi.report.ending import unless_all_saved
from fedmpi.report.records import rounds_done
from fedmpi.report.terminal import printable, wrapped
from fedmpi.store.files import make_folder, write_text
from fedmpi.studies import tables
from fedmpi.studies.arguments import SEEDS, absolute, add_run_arguments, changes, number
from fedmpi.studies.launch import Job, is_stopped, make, stoppable
from fedmpi.studies.reproduction import Budget, Named, Request, chosen, every, find, runs_of


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 if a run failed, 2 for a user's mistake, 75 if a run is to continue, 130 if interrupted."""
    given = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: stoppable(lambda: _reproduce(given)))


def _reproduce(given: Sequence[str]) -> int:
    arguments = _arguments(given)
    if arguments.name is None:
        for named in every():
            count = len(named.table.runs)
            print(f"{named.name:18} {count:3} run{'s' if count != 1 else ' '}  {named.table.title}")
        return 0
    named = find(arguments.name)
    data_dir = arguments.data_dir and below_home(str(arguments.data_dir)).resolve()
    request = Request(absolute(arguments.out), arguments.budget, changes(arguments.overrides), data_dir)
    wanted = _wanted(named, arguments)
    if arguments.list:
        _list_runs(named, request, wanted)
        return 0
    starter = [] if arguments.collect else start_words(arguments.ranks, arguments.launcher)
    jobs = [request.job_of(run, seed) for run, seed in wanted]  # what is asked for must make sense, whatever is done
    if not arguments.collect:
        _check_data(jobs)
        make_folder(request.runs_dir)
        for job in make(jobs, starter, arguments.ranks):
            if is_stopped(job):
                return TO_CONTINUE
    if arguments.run is None:  # a task of an array leaves the table to others
        _show(named, request, arguments)
    return 0 if arguments.collect or all(job.run.is_finished() for job in jobs) else 1


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("jobs/reproduce.py", __doc__)
    parser.add_argument("words", nargs="*", metavar="PAPER:TABLE | section.key=value", help="see --list for the tables")
    parser.add_argument("--only", nargs="+", action="extend", default=[], metavar="TEXT")
    add_run_arguments(parser)
    parser.add_argument("--launcher", help="what starts the ranks, as 'srun -n {ranks}' (default mpirun)")
    parser.add_argument("--budget", type=Budget.read, default=Budget(), help="0.05, or rounds=0.05,epochs=0.1")
    parser.add_argument("--data-dir", type=Path, help="data.root of every run")
    parser.add_argument("--out", type=Path, default=Path("reproduced"), help="default reproduced")
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--collect", action="store_true", help="run nothing, make the table of what is there")
    does.add_argument("--list", action="store_true", help="name all tables and figures, or the runs of one")
    does.add_argument("--run", type=number(int, 1), metavar="K", help="make the Kth run only, as --list counts them")
    arguments = parser.parse_intermixed_args(argv)
    # No cell has a = in its labels, so a word with one is an override even behind --only.
    arguments.only, last = without_overrides(arguments.only)
    names, overrides = without_overrides(arguments.words)
    if len(names) > 1:
        raise ConfigError("command line", f"one table or figure is allowed, got {', '.join(names)}")
    arguments.name, arguments.overrides = next(iter(names), None), [*overrides, *last]
    if arguments.name is None and not arguments.list:
        raise ConfigError("command line", "expected a table or figure, as fedhm:table3; --list names all")
    return arguments


def _wanted(named: Named, arguments: argparse.Namespace) -> list[tuple[papers.Run, int]]:
    """The runs in the order in which `--run` counts them: all of the first seed first. Raises `ConfigError`."""
    cells = chosen(named.table, arguments.only)
    if not cells:
        columns = dict.fromkeys(cell.column for cell in named.table.cells)
        text = f"nothing in {named.name} has {' or '.join(map(repr, arguments.only))}; columns: {', '.join(columns)}"
        raise ConfigError("--only", text)
    runs = runs_of(named.table, cells)
    wanted = [(run, seed) for seed in arguments.seeds or SEEDS for run in runs]
    if arguments.run is None:
        return wanted
    if arguments.run > len(wanted):
        raise ConfigError("--run", f"no run {arguments.run}; {named.name} has {len(wanted)} with these options")
    return wanted[arguments.run - 1 : arguments.run]


def _check_data(jobs: Sequence[Job]) -> None:
    """Reads each data set that is still needed, once: what is missing is told now. Raises `UserError`."""
    needed = [job.config.data for job in jobs if not job.run.is_finished()]
    for options in {options.model_dump_json(): options for options in needed}.values():
        load_data(options)


def _list_runs(named: Named, request: Request, wanted: Sequence[tuple[papers.Run, int]]) -> None:
    print(f"{named.name}: {named.table.title}\n{request.budget if wanted else 'no run is needed'}")
    for place, (run, seed) in enumerate(wanted, 1):
        one, state = request.run_of(run, seed), "not run"
        if one.has_begun():
            done = rounds_done(one.records)
            not_saved = unless_all_saved(done, one.folder.last_saved())
            state = "finished" if one.is_finished() else f"{counted(done, 'round')} done{not_saved}"
        print(" ".join([f"{place:4}  {state:18} {run.config}", *run.overrides, f"seed={seed}"]))


def _show(named: Named, request: Request, arguments: argparse.Namespace) -> None:
    """Prints the chosen part of the table; writes all of it, and the figure, beside the runs."""
    folder = make_folder(request.table_dir(named))
    archive = tables.Archive(named, request, arguments.seeds if arguments.collect else None)
    results, pictures = tables.collect(archive), []
    if named.table.axes is not None:
        from fedmpi.studies import figures  # matplotlib takes a second

        pictures = figures.draw(archive, folder)
    write_text(folder / "table.md", tables.text_of(named, request, results).markdown(pictures))
    write_text(folder / "table.csv", tables.comma_separated(named.table, results, request.made_with))
    cells = chosen(named.table, arguments.only)
    shown = tables.text_of(named, request, [result for result in results if result.cell in cells])
    print(printable(shown.title, sys.stdout))
    if shown.lines:
        table_text.print_lines(tables.HEADS, shown.lines, tables.NUM_LEFT, sys.stdout)
    print(*(printable(line, sys.stdout) for line in wrapped(*shown.head, *shown.footnotes)), sep="\n")
    if named.table.runs and not any(result.seeds for result in results):
        counted = "overrides, --budget and --seeds count"
        print(f"no run of {named.name} with these options is in {request.runs_dir}; {counted}")
    print(f"written: {folder}/{', '.join(['table.md', 'table.csv', *pictures])}", flush=True)
