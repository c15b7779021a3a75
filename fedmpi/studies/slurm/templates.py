"""The sbatch file of a run, or of a sweep as an array: one task a run. Pure text; nothing is submitted here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from fedmpi.studies.slurm.options import default_launcher, default_options, option_lines, ranges


@dataclass(frozen=True)
class Batch:
    """What the file is made of. `numbers` are those of the runs to make, from 1; the others are named, too."""

    name: str
    command: Sequence[str]
    """That wrote the file, from the project's folder."""
    runs: Sequence[Sequence[str]]
    """The arguments of `python -m fedmpi.main` for each run, `--run-dir` among them."""
    numbers: Sequence[int]
    ranks: int
    folder: str
    """Of the logs."""
    project: str
    max_at_once: int | None = None
    options: Sequence[str] = ()
    """`partition=gpu`, `gres=gpu:1`: more lines for sbatch, the last of an option counts."""
    launcher: str | None = None


_TEMPLATE = """\
#!/bin/bash
# {name}: {what}. Written by
#     {command}
# Submitted again, it goes on with what is not finished.
#
# To edit: what your site calls its partitions and accounts, the GPUs of a node (--sbatch-option partition=...,
# gres=gpu:4 write such lines), the time (a run that does not fit saves, goes back into the queue, and goes on
# where it was), and below the modules to load.
{options}
cd {project}
source slurm/life_cycle.sh
# module load openmpi
source .venv/bin/activate

{runs}

# Where the site has it, in place of mpirun and its options: srun --mpi=pmix -n {ranks}
resumable {launcher} python -m fedmpi.main "${{run[@]}}" --resume
"""


def sbatch(batch: Batch) -> str:
    """The file for sbatch."""
    is_array = len(batch.runs) > 1
    tasks = ranges(batch.numbers) if is_array else ""
    options = default_options(batch.name, batch.ranks, batch.folder, tasks, batch.max_at_once)
    runs = [f"run=({shlex.join(run)})" for run in batch.runs]
    cases = [f"  {number}) {run} ;;" for number, run in enumerate(runs, 1)]
    return _TEMPLATE.format(
        name=batch.name,
        what=f"{len(batch.numbers)} of {len(batch.runs)} runs, one array task each" if is_array else "one run",
        command=shlex.join(batch.command),
        options=option_lines(options, batch.options),
        project=shlex.quote(batch.project),
        runs="\n".join(["case $SLURM_ARRAY_TASK_ID in", *cases, "esac"] if is_array else runs),
        ranks=batch.ranks,
        launcher=batch.launcher or default_launcher(batch.ranks),
    )
