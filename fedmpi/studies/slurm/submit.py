"""A run or a sweep as a Slurm job, and how far runs are.

    python jobs/submit.py CONFIG.yaml ... [section.key=value ...] [--sweep key=a,b,c ...] [--ranks 5] [--name NAME]
        [--out runs] [--array-max M] [--sbatch-option time=04:00:00 ...] [--launcher "srun --mpi=pmix -n {ranks}"]
        [--submit] [--again]

The first makes one run of each config with each combination of the `--sweep` values, each in a folder of its own
in `--out`/NAME (the first config's name by default). It checks all of them, writes `--out`/NAME/job.sbatch (an array
if there are several) to look at, and hands it to sbatch with `--submit`. The configs stay as they are now, whatever
becomes of their files while the job waits. Finished runs are left out, interrupted ones continue: the same command
again submits what is left. It leaves out runs that run or wait in the queue, too (not with `--again`): squeue says
which jobs there are; where there is no squeue, the run directories do, which do not know of jobs that were cancelled
in the queue or failed before their run began. A value may be a list: lr=0.1,0.2 are two values, blocks=[1,1],[2,2] two
lists.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedmpi.command.manners import Parser, called_as, run_command
from fedmpi.config.address import label
from fedmpi.config.load import parted
from fedmpi.errors import ConfigError
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.arguments import absolute, folder_name, number, short
from fedmpi.studies.launch import Job, planned
from fedmpi.studies.runs import Run
from fedmpi.studies.slurm import job_file, queue


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 2 for a user's mistake, or sbatch's."""
    given = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: _submit(given))


def _submit(given: Sequence[str]) -> int:
    job_file.check_words(given)
    arguments = _arguments(given)
    name = arguments.name or short(label(arguments.configs[0]))
    folder = absolute(arguments.out) / name
    order = job_file.Order(name, [*called_as("jobs/submit.py"), *given], folder, arguments)
    return queue.hand_over(_jobs(arguments, folder), order)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("jobs/submit.py", __doc__)
    parser.add_argument("words", nargs="+", metavar="CONFIG.yaml | section.key=value")
    parser.add_argument("--sweep", action="append", default=[], metavar="key=a,b,c", help="a run for each value")
    parser.add_argument("--ranks", type=number(int, 1), default=5, help="of each run (default 5)")
    parser.add_argument("--name", type=folder_name, help="of the job and its folder")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="default runs")
    parser.add_argument("--launcher", help="what starts the ranks, as 'srun -n {ranks}' (default mpirun)")
    queue.add_arguments(parser)
    arguments = parser.parse_intermixed_args(argv)
    job_file.check_time(arguments.sbatch_option)
    arguments.configs, arguments.overrides = parted(arguments.words)
    if not arguments.configs:
        raise ConfigError("command line", "expected a config, as configs/fedhm_digits.yaml")
    return arguments


def _jobs(arguments: argparse.Namespace, folder: Path) -> list[Job]:
    """All are checked before anything is written. Raises `UserError`."""
    if key := _twice("".join(sweep.partition("=")[0].split()) for sweep in arguments.sweep):
        raise ConfigError("--sweep", f"{key} is given twice; give all its values at once, as {key}=1,2")
    grid = [_values(sweep) for sweep in arguments.sweep]
    jobs = []
    for config, combination in itertools.product(arguments.configs, itertools.product(*grid)):
        path = Path(config).resolve()
        run_dir = RunDir(folder / short("-".join([label(path), *map(_label, combination)])))
        jobs.append(planned(Run(run_dir.path.name, 0, run_dir), path, [*arguments.overrides, *combination]))
    if name := _twice(job.run.name for job in jobs):
        problem = f"two runs would be called {name}; give each value once, and configs names of their own"
        raise ConfigError("--sweep", problem)
    known: dict[str, str] = {}
    for job in jobs:
        name = known.setdefault(repr(job.config.to_dict()), job.run.name)
        if name != job.run.name:
            raise ConfigError("--sweep", f"{name} and {job.run.name} would be the same run")
    return jobs


def _twice(words: Iterable[str]) -> str:
    """The first word that is there more than once; empty if none is."""
    return next((word for word, count in sorted(Counter(words).items()) if count > 1), "")


def _values(sweep: str) -> list[str]:
    """`lr=0.1,0.2` as overrides; a comma within brackets parts nothing. Raises `ConfigError`."""
    key, equals, text = sweep.partition("=")
    depth, values = 0, [""]
    for sign in text:
        depth += (sign in "[{") - (sign in "]}")
        values = [*values, ""] if sign == "," and depth == 0 else [*values[:-1], values[-1] + sign]
    if not (key and equals and all(values)):
        raise ConfigError("--sweep", f"expected section.key=a,b,c, got {sweep!r}")
    return [f"{key}={value}" for value in values]


def _label(override: str) -> str:
    """`train.lr=0.1` as `lr0.1`, `method.rank_ratio=[1,0.5]` as `rank_ratio1_0.5`."""
    key, _, value = override.partition("=")
    return key.strip().rpartition(".")[2] + re.sub(r"[^A-Za-z0-9.+-]+", "_", value).strip("_")
