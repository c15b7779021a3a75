"""Makes a grid of runs - settings x methods x seeds - and one report of them.

    fedmpi grid FILE [--only TEXT] [--seeds 0,1] [--jobs N] [--ranks R] [section.key=value ...]
    fedmpi grid FILE --list | --report
    fedmpi grid FILE [--ranks R] --slurm [time=04:00:00 gres=gpu:4 ...]
    fedmpi grid --methods fedavg,fedhm|all --seeds 0,1,2 [CONFIG] [section.key=value ...]

FILE is a YAML with methods, seeds, measures and questions; fedmpi/results/README.md says how to write one. Runs that
are finished are not made again, and interrupted ones continue: after a Ctrl-C the same command does the rest. A run
that fails ends no other. The report is made of what is finished: report.md, table.tex, values.csv and figures in
--results, out of records.json.gz there, to which the runs in --out are added first.

--slurm writes job.sbatch in --out, an array with a task for each run that is left, with these long options of sbatch
(array=%4: four runs at a time). Of a grid with tuning these are the tuning runs; when they are finished, the same
command does the final runs.

--methods makes a grid file of each method on CONFIG, or else of the shipped config of each method on digits, or of
configs by their paths, and writes it to --out. package.module:Class is a method of your own, on CONFIG or on fedavg's.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmpi.command.manners import Parser, run_command, show
from fedmpi.config import explain, yaml_text
from fedmpi.config.address import CONFIGS, is_address, label, located
from fedmpi.config.load import without_overrides
from fedmpi.config.schema import Config
from fedmpi.config.yaml_text import Tree
from fedmpi.errors import FAILED, ConfigError, RunDirError
from fedmpi.mpi import mpirun
from fedmpi.registry import is_in_full
from fedmpi.report import table_text
from fedmpi.report.terminal import warn
from fedmpi.results import archive, launch, printed
from fedmpi.results.archive import RunRecord
from fedmpi.results.grid_file import Grid, GridRun, config_of, finals, grid_of, not_alike, read, trials
from fedmpi.results.launch import Job
from fedmpi.results.printed import has_words
from fedmpi.running.made_with import user_code
from fedmpi.store import manifest
from fedmpi.store.files import make_folder, read_json, write_text
from fedmpi.store.run_dir import RunDir

if TYPE_CHECKING:
    from fedmpi.results.answers import Choices, Results

_DIGEST = "grid.json"  # among the runs of a grid with questions


@dataclass(frozen=True)
class GridFolder:
    """A grid with the folders of its runs and of its results, and what the command line changes in all its runs."""

    grid: Grid
    out: Path
    results: Path
    words: Sequence[str] = ()

    @cached_property
    def _archive(self) -> tuple[str, list[RunRecord]]:
        return archive.read(self.results)

    @cached_property
    def recorded(self) -> dict[GridRun, RunRecord]:
        """Keeps the records in the results' folder; `records` adds those of runs that have finished since."""
        return {record.run: record for record in self._archive[1]}

    def folder_of(self, run: GridRun) -> RunDir:
        return RunDir(self.out / run.name)

    def refuse_changed(self) -> None:
        """Raises RunDirError where the questions, or what they rest on, have changed since the first run began."""
        digests = {self._archive[0], str((read_json(self.out / _DIGEST) or {}).get("digest", ""))}
        if self.grid.questions and digests - {"", self.grid.digest}:
            raise self._changed("the file has changed since its runs were begun")

    def _changed(self, what: str) -> RunDirError:
        return RunDirError(str(self.grid.path), f"{what}; restore it, or name the new grid anew")

    def fix(self, jobs: Mapping[GridRun, Job]) -> None:
        """Notes the digest of a grid with questions before these runs begin.

        Raises RunDirError where runs that are to be compared with these were made with other configs or other code.
        """
        if not self.grid.questions:
            return
        began = {run: record.config for run, record in self.recorded.items()}
        for run, job in jobs.items():
            if job.run().starts:
                began[run] = archive.fingerprint(job.config, manifest.user_code(job.folder))
        for run, job in {**self.jobs([*self.recorded]), **jobs}.items():
            now = archive.fingerprint(job.config, user_code(job.config, as_loaded=False))
            if began.get(run, now) != now:
                what = "a config, one that it starts from, or code that it names"
                raise self._changed(f"{what} has changed since run {run.name} was begun")
        write_text(make_folder(self.out) / _DIGEST, json.dumps({"digest": self.grid.digest}) + "\n")

    def config(self, run: GridRun) -> Config:
        """Returns the config of a run. Raises ConfigError for a setting that no config can have."""
        try:
            return config_of(self.grid, run, self.words)
        except ConfigError as error:
            where = f"{self.grid.path}, method {run.method} in setting {run.setting}"
            raise ConfigError(where, *error.problems) from None

    def jobs(self, runs: Sequence[GridRun]) -> dict[GridRun, Job]:
        """Reads the config of each run. Raises `UserError`: a setting that no config can have, or another run in the
        folder.
        """
        jobs = {}
        for run in runs:
            jobs[run] = Job(self.folder_of(run), self.config(run))
            jobs[run].refuse_other()
        return jobs

    def records(self, runs: Sequence[GridRun]) -> dict[GridRun, RunRecord]:
        """Returns those of these runs that are finished, from the archive or from their folders."""
        new = [run for run in runs if run not in self.recorded and self.folder_of(run).has_config()]
        for run, job in self.jobs(new).items():
            if job.run().is_finished:
                is_first = run.phase == "final" and run.seed == self.grid.seeds[0]
                is_whole = is_first or bool(self.grid.printed)
                self.recorded[run] = archive.record_run(run, job, all_diagnostics=is_whole)
        return {run: self.recorded[run] for run in runs if run in self.recorded}

    def choices(self) -> Choices:
        from fedmpi.results.answers import choose

        return choose(self.grid, self.records(trials(self.grid)))

    def finals(self) -> list[GridRun]:
        """Lists the final runs; with tuning none before all trials are finished."""
        choices = self.choices()
        if self.grid.tuning is not None and not choices:
            return []
        return finals(self.grid, {key: choice.trial for key, choice in choices.items()})

    def finished(self) -> dict[GridRun, RunRecord]:
        return self.records([*trials(self.grid), *self.finals()])

    def collect(self) -> Results:
        """Returns all finished runs with the answers that they give. Raises RunDirError where no run is finished."""
        from fedmpi.results.answers import Results, answer_all

        finished = self.finished()
        if not finished and self.grid.methods:
            problem = f"no run is finished, neither in {self.out} nor in {self.results}"
            raise RunDirError(str(self.grid.path), problem)
        # One run of each setting and method says what its config is.
        examples = {(run.setting, run.method): run for run in finished if run.phase == "final"}
        configs: dict[str, dict[str, Config]] = {}
        for run, job in self.jobs([*examples.values()]).items():
            configs.setdefault(run.setting, {})[run.method] = job.config
        records = list(finished.values())
        return Results(self.grid, self.choices(), records, answer_all(self.grid, records), configs, self.words)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 if a run failed, 2 for a user's mistake, 75 if runs are to continue, 130 if
    interrupted.
    """
    return run_command(lambda: _grid(argv))


def _grid(argv: Sequence[str] | None) -> int:
    arguments = _arguments(argv)
    folder = _folder(arguments)
    folder.refuse_changed()
    if arguments.list:
        runs = [*trials(folder.grid), *(folder.finals() or finals(folder.grid, {}))]
        show("\n".join(run.name for run in _chosen(folder.grid, runs, arguments)))
        return 0
    code = 0 if arguments.report else _make(folder, arguments)
    if arguments.slurm is None and (code == 0 or (code == FAILED and folder.finished())):
        _report(folder)
    return code


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("fedmpi grid", __doc__)
    parser.add_argument("words", nargs="*", metavar="FILE | CONFIG | section.key=value")
    parser.add_argument("--methods", help="names or paths, with commas, or all: makes a grid file of them")
    parser.add_argument("--seeds", type=_seeds, help="of the final runs (default: those of the file, or 0,1,2)")
    only = "runs in whose names, or in whose cells of a paper's tables, all words of TEXT stand"
    parser.add_argument("--only", default="", metavar="TEXT", help=only)
    parser.add_argument("--jobs", type=int, help="runs at a time (default: as many as there are cores for)")
    parser.add_argument("--ranks", type=int, default=1, help="of each run; 1 is without mpirun (default 1)")
    parser.add_argument("--launcher", help="what starts the ranks, as 'srun -n {ranks}' (default mpirun)")
    parser.add_argument("--out", type=Path, help="the folder of all runs (default runs/grid-NAME)")
    parser.add_argument("--results", type=Path, help="the folder of records and report (default OUT/results)")
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--list", action="store_true", help="run nothing, name the folders of the runs")
    does.add_argument("--report", action="store_true", help="run nothing, make the report of what there is")
    what = "write the Slurm job of the runs, with these long options of sbatch (array=%%4: four runs at a time)"
    does.add_argument("--slurm", nargs="*", type=launch.sbatch_option, metavar="KEY=VALUE", help=what)
    arguments = parser.parse_intermixed_args(argv)
    for name in ("jobs", "ranks"):
        number = getattr(arguments, name)
        if number is not None and number < 1:
            raise ConfigError(f"--{name}", f"expected a number above 0, got {number}")
    return arguments


def _seeds(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,18}(,\d{1,18})*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"expected whole numbers >= 0, as 0,1,2, got {text!r}")
    return tuple(dict.fromkeys(map(int, text.split(","))))


def _folder(arguments: argparse.Namespace) -> GridFolder:
    """Returns the grid that the command line names, and where it lies."""
    files, arguments.words = without_overrides(arguments.words)
    if len(files) > 1 or not (files or arguments.methods):
        got = ", ".join(sorted(files)) or "nothing"
        raise ConfigError("command line", f"expected one grid file, or --methods, got {got}")
    if any(re.match(r"\s*seed\s*=", word) for word in arguments.words):
        raise ConfigError("command line", "seed would be overridden; the seeds are given by --seeds")
    arguments.file = Path(located(files[0])) if files else None
    name = "digits" if arguments.file is None else arguments.file.stem
    out = arguments.out or Path("runs") / f"grid-{name}"
    if RunDir(out).holds_run():
        raise RunDirError(str(out), "holds a run, and a grid has a folder for each of its runs; take another --out")
    grid = _simple_grid(arguments, out) if arguments.methods else read(arguments.file)
    seeds = tuple(dict.fromkeys([*grid.seeds, *(arguments.seeds or ())]))
    if grid.questions and seeds != grid.seeds:
        raise ConfigError("--seeds", f"{arguments.seeds} are not all seeds of {grid.path}, which has questions")
    ours = CONFIGS.with_name("jobs") / "studies"
    is_ours = grid.path.resolve().parent == CONFIGS / "studies" and ours.is_dir() and not arguments.words
    results = arguments.results or (ours / grid.path.stem if is_ours else out / "results")
    grid = grid.model_copy(update={"seeds": seeds})
    return GridFolder(grid, out, results, arguments.words)


def _simple_grid(arguments: argparse.Namespace, out: Path) -> Grid:
    methods: dict[str, dict[str, Any]] = {}
    for name, section in _methods(arguments.methods, arguments.file):
        if name in methods:
            raise ConfigError("--methods", f"{name} is named twice, and its runs would share a folder")
        methods[name] = section
    document = {"title": "Methods compared", "methods": methods, "seeds": list(arguments.seeds or (0, 1, 2))}
    path = out.resolve() / "grid.yaml"
    grid = grid_of(path, Tree.of(document, str(path)))
    of_one_seed = [run for run in finals(grid, {}) if run.seed == grid.seeds[0]]
    for run in of_one_seed:  # a mistake leaves the file of an earlier grid as it is
        GridFolder(grid, out, out, arguments.words).config(run)
    make_folder(path.parent)
    write_text(path, yaml_text.dump(document))
    return grid


def _methods(names: str, base: Path | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the name of each method and its section: a config of its own, or the base config with its name."""
    shipped = {path.stem.removesuffix("_digits"): path for path in sorted(CONFIGS.glob("*_digits.yaml"))}
    known = [name for name in shipped if not name.startswith("base")]
    for word in known if names == "all" else names.split(","):
        if is_address(word):
            yield label(word), {"config": located(str(Path(word).resolve()))}
        elif base is not None or is_in_full(word):  # a method of the user's own has no shipped config
            config = shipped["fedavg"] if base is None else base.resolve()
            yield re.sub(r"[.:]", "-", word)[-40:], {"config": str(config), "set": {"method": {"name": word}}}
        elif word in known:
            yield word, {"config": str(shipped[word])}
        else:
            problem = f"no method {yaml_text.found(word)}.{explain.suggest(word, known)}"
            raise ConfigError("--methods", f"{problem} Known: {', '.join(known)}, package.module:Class or a path")


def _chosen(grid: Grid, runs: Sequence[GridRun], arguments: argparse.Namespace) -> list[GridRun]:
    """Returns the runs of `--only` and of `--seeds`; trials count as the runs of every seed."""
    in_cells = printed.runs(grid.printed, arguments.only)
    chosen = []
    for run in runs:
        is_named = has_words(f"{run.phase} {run.setting} {run.method} seed{run.seed}", arguments.only)
        if (run.address in in_cells if grid.printed else is_named) and (
            not arguments.seeds or run.phase == "tuning" or run.seed in arguments.seeds
        ):
            chosen.append(run)
    if runs and not chosen:
        known = ", ".join(dict.fromkeys(run.method for run in runs))
        raise ConfigError("--only", f"no run has {arguments.only!r} in its name; methods: {known}")
    return chosen


def _make(folder: GridFolder, arguments: argparse.Namespace) -> int:
    """Makes what is left of the trials, then of the final runs, or writes the job of the first of these that are left.
    Returns the exit code.
    """
    for phase in ("tuning", "final"):
        all_runs = trials(folder.grid) if phase == "tuning" else folder.finals()
        chosen = _chosen(folder.grid, all_runs, arguments)
        here = [run for run in chosen if run not in folder.recorded or folder.folder_of(run).has_config()]
        by_run = folder.jobs(here)
        jobs = [*by_run.values()]
        if all(job.run().is_finished for job in jobs):
            continue
        folder.fix(by_run)
        for line in not_alike({run.method: job.config for run, job in by_run.items()} if arguments.methods else {}):
            warn(line)
        start = {"ranks": arguments.ranks, "launcher": arguments.launcher}
        if arguments.slurm is not None:
            launch.write_slurm_job(jobs, folder.out.resolve(), options=arguments.slurm, **start)
            return 0
        at_once = arguments.jobs or max(1, mpirun.cores() // arguments.ranks)
        code = launch.make(jobs, at_once=at_once, **start)
        if code:
            return code
    if arguments.slurm is not None:
        show("all runs are finished; no job is written")
    return 0


def _report(folder: GridFolder) -> None:
    from fedmpi.results import figure, grid_report

    results = folder.collect()
    if archive.read(folder.results) != (folder.grid.digest, results.runs):  # else the file stays as it was written
        archive.write(make_folder(folder.results), folder.grid.digest, results.runs)
    figures = grid_report.figures_of(results)
    for name, panels in figures.items():
        drawn = figure.compose(panels, share_y=name.endswith(("-curves.svg", "-energy.svg")))
        figure.save(drawn, folder.results / name)
    texts = grid_report.texts(results)
    for name, text in texts.items():
        write_text(folder.results / name, text)
    if not results.answers:
        for table in grid_report.tables(results).values():
            print(table.title)
            table_text.print_lines(table.heads, table.lines, table.num_left)
    print(*(grid_report.sentence(folder.grid, answer) for answer in results.answers), sep="\n")
    print(f"written: {folder.results}/{', '.join([*texts, archive.FILE, *figures])}", flush=True)
