"""Conducts a study: runs that were asked for in a file beforehand, and the answers that they give.

    fedmpi study FILE --status
    fedmpi study FILE --run [--jobs N] [--data-dir DIR] [--out runs/study-NAME]
    fedmpi study FILE --report [--results DIR]

FILE is a YAML with questions, methods, seeds, tuning grid and tests; fedmpi/studies/README.md says how. --run makes the
tuning runs on validation data, chooses each method's trial, then makes the final runs and the report. It makes --jobs
runs at a time, each on one core and nice to other work (default: as many as there are cores). The same command
continues after an interruption; what is finished is not made again.

--report makes the report again: report.md, values.csv and figures in --results, out of records.json.gz there, to which
it first adds what is finished in --out. A file that is not committed is not run, nor is one by code that is not. A file
that has changed since its runs began is refused, also where only a config that it starts from has, or code of one's own
that it names. Of a study in the repository's configs/studies the results are in jobs/studies/NAME, of another one in
--out/results.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedmpi.command.manners import Parser, run_command, show
from fedmpi.config.address import CONFIGS, located
from fedmpi.data.files.source import below_home
from fedmpi.errors import RunDirError, counted
from fedmpi.mpi import mpirun
from fedmpi.results import archive as kept
from fedmpi.results import grid_figures as plots
from fedmpi.results import grid_report as findings
from fedmpi.results import making
from fedmpi.results import tuning as choice
from fedmpi.results.answers import answers
from fedmpi.results.archive import Kept
from fedmpi.results.evidence import smallest_p
from fedmpi.results.grid_file import Study, read
from fedmpi.results.grid_runs import Wanted, finals, jobs_of, run_of, trials
from fedmpi.results.tuning import Choices
from fedmpi.store.files import make_folder, read_json, write_text
from fedmpi.store.manifest import BROUGHT, brought
from fedmpi.store.units import duration
from fedmpi.studies.arguments import number
from fedmpi.studies.launch import Job, stoppable

_CHOICES = "choices.json"
_CHOOSE_AGAIN = "restore it, or remove it to have it written again"


@dataclass(frozen=True)
class Place:
    """A study, where its runs are, and where its results go."""

    study: Study
    out: Path
    results: Path
    data_dir: Path | None = None

    @cached_property
    def archived(self) -> tuple[str, Choices, list[Kept]]:
        return kept.read(self.results)

    def check(self) -> None:
        """Raises RunDirError where the file, or a config that it starts from, has changed since a run began."""
        digest, _, runs = self.archived
        making.refuse_changed(self.study, [*((run.name, digest) for run in runs), *making.noted_in(self.out)])
        notes = {one: making.note_of(run_of(one, self.out)) for one in trials(self.study)}
        began = {one: note.config for one, note in notes.items() if note}
        began |= {run.wanted: run.config for run in runs}
        asked = self.jobs(list(began))
        found = ((job.run.folder.path.name, began[one], job.config) for one, job in asked)
        making.refuse_other_configs(self.study, found)

    def jobs(self, wanted: Sequence[Wanted]) -> list[tuple[Wanted, Job]]:
        """Each run with its config. Raises `UserError`: as `jobs_of` does, or the user's code has changed since one of
        them began.
        """
        known = {run.wanted: run.made_with.get(BROUGHT, {}) for run in self.archived[2]}
        found = list(jobs_of(self.study, wanted, self.out, self.data_dir))
        sources = ((job, then) for one, job in found for then in (brought(job.run.folder), known.get(one, {})))
        making.refuse_other_sources(self.study, sources)
        return found

    def choices(self) -> Choices:
        """What was chosen on validation data; empty if nothing has been yet. Raises RunDirError for a damaged file."""
        found = read_json(self.out / _CHOICES)
        choices: Choices = found if isinstance(found, dict) else self.archived[1]
        if not choice.is_possible(self.study, choices):
            raise RunDirError(str(self.out / _CHOICES), f"is damaged; {_CHOOSE_AGAIN}")
        return choices

    def choose(self) -> Choices:
        """Chooses once, and notes it, as soon as all tuning runs are there. Raises RunDirError before that."""
        if self.study.asked.tuning is None or self.choices():
            return self.choices()
        chosen = choice.choose(self.study, self.collect(trials(self.study)))
        write_text(make_folder(self.out) / _CHOICES, json.dumps(chosen, indent=1) + "\n")
        return chosen

    def finals(self) -> list[Wanted]:
        """The final runs. Raises RunDirError before all tuning runs are there."""
        return finals(self.study, choice.numbers(self.choose()))

    def wanted(self) -> list[Wanted]:
        """All runs; the final ones only when it is known with which settings."""
        chosen = self.choices()
        known = chosen or self.study.asked.tuning is None
        return [*trials(self.study), *(finals(self.study, choice.numbers(chosen)) if known else [])]

    def collect(self, wanted: Sequence[Wanted]) -> list[Kept]:
        """Those of these runs that are finished, out of their folders or out of the kept records."""
        known = {run.wanted: run for run in self.archived[2]}
        new = [one for one in wanted if one not in known and run_of(one, self.out).has_begun()]
        first = self.study.asked.seeds[0]
        found = {one: kept.noted(one, job, first) for one, job in self.jobs(new)}
        both = {**known, **{one: run for one, run in found.items() if run is not None}}
        return [both[one] for one in wanted if one in both]


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 if a run failed, 2 for a user's mistake, 130 if interrupted."""
    given = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: stoppable(lambda: _study(given), "--status shows how far they are"))


def _study(given: Sequence[str]) -> int:
    arguments = _arguments(given)
    study = read(Path(located(str(arguments.file))))
    out = arguments.out or Path("runs") / f"study-{study.name}"
    is_ours = study.path.resolve().parent == CONFIGS / "studies" and CONFIGS.with_name("setup.cfg").is_file()
    results = arguments.results or (CONFIGS.with_name("jobs") / "studies" / study.name if is_ours else out / "results")
    data_dir = arguments.data_dir and below_home(str(arguments.data_dir)).resolve()
    place = Place(study, out, results, data_dir)
    place.check()
    if arguments.status:
        show("\n".join(_status(place)))
        return 0
    if arguments.run:
        making.refuse_uncommitted(study.path)
    if arguments.run and (_make(place, trials(study), arguments.jobs) or _make(place, place.finals(), arguments.jobs)):
        return 1
    _report(place)
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("fedmpi study", __doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    does = parser.add_mutually_exclusive_group(required=True)
    does.add_argument("--run", action="store_true", help="make what is left of all runs, then the report")
    does.add_argument("--report", action="store_true", help="run nothing, make the report of what there is")
    does.add_argument("--status", action="store_true", help="how far the runs are")
    cores = mpirun.cores()
    parser.add_argument(
        "--jobs", type=number(int, 1), default=cores, help=f"runs at a time (default {cores}, the cores)"
    )
    parser.add_argument("--data-dir", type=Path, help="data.root of every run")
    parser.add_argument("--out", type=Path, help="the folder of all runs (default runs/study-NAME)")
    parser.add_argument("--results", type=Path, help="the folder of records, tables and figures")
    return parser.parse_args(argv)


def _make(place: Place, wanted: Sequence[Wanted], at_once: int) -> bool:
    """Makes what is left of these runs; whether some of them did not finish."""
    known = {run.wanted for run in place.archived[2]}
    all_jobs = place.jobs([one for one in wanted if one not in known])
    left = [job for _, job in all_jobs if not job.run.is_finished()]
    if left:
        making.refuse_uncommitted_code(job.config for job in left)
    for count, (job, how) in enumerate(making.make(place.study, left, at_once), 1):
        print(f"[{count}/{len(left)}] {job.run.name} seed {job.run.seed}: {how}", flush=True)
    failed = sum(not job.run.is_finished() for job in left)
    if failed:
        print(f"not finished: {counted(failed, 'run')}; the same command tries again", file=sys.stderr)
    return failed > 0


def _report(place: Place) -> None:
    """Raises RunDirError where no run is finished, or where another trial was noted than the runs choose."""
    study, choices, tuned = place.study, place.choices(), place.collect(trials(place.study))
    if choices and choice.numbers(choices) != choice.numbers(choice.choose(study, tuned)):
        raise RunDirError(str(place.out / _CHOICES), f"notes other trials than the tuning runs choose; {_CHOOSE_AGAIN}")
    runs = place.collect(place.wanted())
    if not runs and any(not question.undecidable for question in study.asked.questions):
        raise RunDirError(str(study.path), f"no run is finished, neither in {place.out} nor in {place.results}; --run")
    kept.write(make_folder(place.results), study.digest, choices, runs)
    found = answers(study, runs)
    drawn = plots.draw(study, runs, found, place.results)
    firsts = {(run.wanted.setting, run.wanted.method): run.wanted for run in runs if run.wanted.phase == "final"}
    warned = findings.warnings(study, place.jobs(list(firsts.values())))
    write_text(place.results / "report.md", findings.report(study, choices, runs, found, drawn, warned))
    write_text(place.results / "values.csv", findings.by_seed(study, runs))
    print(*(findings.sentence(study, answer) for answer in found), sep="\n")
    print(f"written: {place.results}/{', '.join(['report.md', 'values.csv', kept.FILE, *drawn])}", flush=True)


def _status(place: Place) -> Iterator[str]:
    study, known = place.study, {run.wanted for run in place.archived[2]}
    asked, chosen = study.asked, place.choices()
    yield f"{study.path}: {asked.title}"
    counts: Counter[tuple[str, bool]] = Counter()
    all_wanted = [*trials(study), *finals(study, choice.numbers(chosen))]
    times_s: list[tuple[float, str]] = []
    for wanted in all_wanted:
        run = run_of(wanted, place.out)
        begun = run.has_begun()
        counts[wanted.phase, wanted in known or (begun and run.is_finished())] += 1
        if begun:
            spent_s = sum(record.get("seconds", {}).get("wall", 0.0) for record in run.records)
            times_s.append((spent_s, run.folder.path.name))
    for phase in ("tuning", "final"):
        done, left = counts[phase, True], counts[phase, False]
        yield f"{phase} runs: {done} of {done + left} finished"
    if times_s:
        longest_s, name = max(times_s)
        mean_s = sum(seconds for seconds, _ in times_s) / len(times_s)
        left = sum(count for (_, is_finished), count in counts.items() if not is_finished)
        yield f"rounds of a run took {duration(mean_s)} on average; some {duration(left * mean_s)} of one core are left"
        if longest_s > asked.longest_run_s:
            yield f"careful: {name} took {duration(longest_s)}; the file allows {duration(asked.longest_run_s)}"
    tests = asked.num_tests
    best = smallest_p(len(asked.seeds), tests)
    if tests:
        kind = "descriptive: it is above" if best > asked.alpha else "it is not above"
        yield f"{tests} tests over {len(asked.seeds)} seeds: the smallest adjusted p-value is {best:.2g}"
        yield f"{kind} the level {asked.alpha:g}"
