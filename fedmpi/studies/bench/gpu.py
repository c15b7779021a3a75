"""All that only a GPU can show, measured by one command within 10 minutes and written into one file.

    python jobs/bench.py gpu [section.key=value ...] [--out gpu.md] [--only speed,energy] [--dry-run]

It needs one GPU. Sections: the machine; the tests that need a GPU; the bits of runs on 1 and 3 ranks; images per
second of ResNet-18 in batches of 64 for each rank ratio, as fedmpi computes them, replayed as CUDA graphs, and in a
loop written by hand; the memory that these take; images per second of 1, 2 and 3 workers on the one GPU; FedHM's
factorization there and on the CPU; copies of an upload; energy by NVML. Each is a process of its own. One that fails
says so in its section, the next one goes on, and the exit code is 1. A test that fails and bits that differ are
failures, too.

The sections share the 10 minutes: machine 20 s, tests 110 s, bits 90 s, speed 110 s, memory 40 s, workers 105 s,
factorization 60 s, copies 20 s, energy 45 s. This is estimated for a V100 or an H100; none was at hand. A section may
also use what those before it have left over. One that needs still more is ended and counts as failed, and those after
it keep their shares. Where starts are slow, `tests`, `bits` and `workers` are cut first, because they start many
runs; on a slow GPU `speed` and `workers` are. Sections that --only names have all 10 minutes.

Words change the settings of all sections, but for what a section sets itself: `bits` mpi.exchange and
train.cuda_graph; `speed` train.precision; `workers` train.cuda_graph, rounds, clients.per_round and data.num_train;
`factorization` method.solver and mpi.factorization. The method is fedhm.

Without a GPU, or with --dry-run, all of it is done on the CPU with tiny nets, to see that it works, and may take an
hour; then "not measured (dry run)" stands in place of every number and result.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

import fedmpi
from fedmpi.command.manners import Parser, called_as, file_to_write, run_command
from fedmpi.config.load import only_overrides
from fedmpi.errors import ConfigError
from fedmpi.store.files import write_text
from fedmpi.studies.arguments import absolute
from fedmpi.studies.bench import gpu_runs, gpu_steps
from fedmpi.studies.bench.sections import DRY, Lines, Measuring, SectionError
from fedmpi.studies.launch import end

_FULL = """rounds=2 data.name=synthetic data.shape=[3,32,32] data.classes=10 data.num_train=1280 data.num_test=100
    partition.name=iid clients.count=10 clients.per_round=4 model.name=resnet18 method.name=fedhm
    train.augment=false train.masked_loss=false train.batch_size=64
    train.local_epochs=2 evaluation.every=1000000 output.tensorboard=false output.report=false output.progress=plain
    mpi.device=cuda mpi.server_device=cuda"""
_TINY = """data.shape=[1,8,8] data.num_train=80 data.num_test=8 model.width=0.125 model.blocks=[1,1] train.batch_size=4
    train.local_epochs=1 mpi.device=cpu mpi.server_device=cpu"""
_METHOD = "fedhm"
# After what has failed mpirun adds some ten lines.
_LAST_LINES = 30


_TOTAL_S, _DRY_TOTAL_S = 600.0, 3600.0


class Section(NamedTuple):
    """Its title, what measures it, and its share of `_TOTAL_S`."""

    title: str
    lines: Lines
    share_s: float


SECTIONS = {
    "machine": Section("Machine", gpu_runs.machine, 20),
    "tests": Section("Tests that need a GPU", gpu_runs.tests, 110),
    "bits": Section("Bits on 1 and 3 ranks", gpu_runs.bits, 90),
    "speed": Section("Images per second", gpu_steps.speed, 110),
    "memory": Section("Peak memory of the GPU", gpu_steps.memory, 40),
    "workers": Section("Several workers on one GPU", gpu_runs.workers, 105),
    "factorization": Section("Factorization", gpu_steps.factorization, 60),
    "copies": Section("Copies of an upload", gpu_steps.copies, 20),
    "energy": Section("Energy", gpu_steps.energy_of_steps, 45),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 if a section failed, or 2 for a user's mistake."""
    return run_command(lambda: _bench(_arguments(argv)))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("jobs/bench.py gpu", __doc__)
    parser.add_argument("what", choices=["gpu"])
    parser.add_argument("words", nargs="*", metavar="section.key=value", help="on top of the settings of all sections")
    parser.add_argument("--out", type=Path, default=Path("gpu.md"), help="the file (default gpu.md); replaced if there")
    parser.add_argument("--only", type=_names, default=list(SECTIONS), help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with tiny nets and no numbers")
    parser.add_argument("--child", choices=SECTIONS, help=argparse.SUPPRESS)
    arguments = parser.parse_intermixed_args(argv)
    arguments.overrides = only_overrides(arguments.words)
    arguments.dry_run |= not torch.cuda.is_available()
    _check(arguments)
    return arguments


def _check(arguments: argparse.Namespace) -> None:
    """Raises `UserError` for a mistake, before anything is measured."""
    if (name := _measuring(arguments).config.method.name) != _METHOD:
        raise ConfigError("method.name", f"this benchmark is of {_METHOD} alone, got {name!r}; leave the word out")
    if not arguments.child:
        arguments.out = file_to_write("--out", absolute(arguments.out))


def _names(text: str) -> list[str]:
    if unknown := [name for name in text.split(",") if name not in SECTIONS]:
        raise argparse.ArgumentTypeError(f"no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if name in text.split(",")]


def _measuring(arguments: argparse.Namespace) -> Measuring:
    words = [*_FULL.split(), *(_TINY.split() if arguments.dry_run else ()), *arguments.overrides]
    return Measuring(tuple(words), arguments.dry_run)


def _bench(arguments: argparse.Namespace) -> int:
    if arguments.child:
        return _measured(SECTIONS[arguments.child].lines, _measuring(arguments))
    more = [*arguments.overrides, *(["--dry-run"] if arguments.dry_run else ())]
    child = [sys.executable, "-m", "fedmpi.studies.bench.gpu", "gpu", *more, "--child"]
    asked = {name: (SECTIONS[name].title, [*child, name], SECTIONS[name].share_s) for name in arguments.only}
    only = ["--only", ",".join(asked)] if len(asked) < len(SECTIONS) else []
    command = shlex.join([*called_as("jobs/bench.py"), "gpu", *more, *only])
    total_s = _DRY_TOTAL_S if arguments.dry_run else _TOTAL_S
    return written(arguments.out, command, asked, total_s, is_dry=arguments.dry_run)


def _measured(lines: Lines, measuring: Measuring) -> int:
    """Prints a section. The exit code: 1 if it has failed, with why as the last line of stderr."""
    try:
        print(*lines(measuring), sep="\n")
    except SectionError as error:
        print(*error.lines, sep="\n")
        print(error, file=sys.stderr)
        return 1
    return 0


def written(
    out: Path, command: str, asked: Mapping[str, tuple[str, list[str], float]], total_s: float, *, is_dry: bool
) -> int:
    """Runs the command of each section (its title, command and share of `total_s`) and writes what they print into
    `out`, which is complete after each. The exit code: 1 if one has failed, else 0. Raises `RunDirError` for a file
    that cannot be written.
    """
    shares, begun = {name: share_s for name, (*_, share_s) in asked.items()}, time.perf_counter()
    lines = [f"# fedmpi {fedmpi.__version__} on {'no GPU (dry run)' if is_dry else 'a GPU'}", "", f"    {command}"]
    write_text(out, "\n".join([*lines, ""]))  # what cannot be written is known at once
    failed = []
    for name, (title, words, share_s) in asked.items():
        started = time.perf_counter()
        del shares[name]
        limit_s = max(share_s, total_s - (started - begun) - sum(shares.values()))
        found, complaints, problem = _printed(words, limit_s)
        took = DRY if is_dry else f"{time.perf_counter() - started:.0f} s"
        if problem:
            failed.append(name)
            said = [f"    {line}" for line in complaints[-_LAST_LINES:]]
            found = [
                f"**This section failed: {problem}**",
                *([""] if said else []),
                *said,
                *([""] if found else []),
                *found,
            ]
        section = ["", f"## {title}", "", *found, "", f"Time: {took}."]
        print(*section, sep="\n", flush=True)
        lines += section
        write_text(out, "\n".join([*lines, ""]))
    print(f"\nwritten to {out}", *(f"; failed: {', '.join(failed)}" for _ in failed[:1]), sep="")
    return 1 if failed else 0


def _printed(words: Sequence[str], limit_s: float) -> tuple[list[str], list[str], str]:
    """What a command prints, what it complains of, and how it failed, if it did."""
    # Files, because a process that it leaves behind would keep a pipe open.
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as said:
        # A session of its own, so that an mpirun that it has started ends with it.
        process = subprocess.Popen(words, stdout=printed, stderr=said, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = process.wait(limit_s)
            problem = f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            problem = f"it took longer than {limit_s:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            end(process)
        for file in printed, said:
            file.seek(0)
        return printed.read().rstrip().splitlines(), said.read().rstrip().splitlines(), problem


if __name__ == "__main__":
    sys.exit(main())
