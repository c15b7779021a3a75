"""python -m fedmpi.doctor [CONFIG.yaml] [section.key=value ...] [--run-dir DIR] [--data-dir D] [--json]

Says whether this machine, container or allocation is ready for a run, alone or under the launcher that a run would
have (mpirun -n 5 python -m fedmpi.doctor): a line for each thing, `ok`, `warning` or `problem`, with what was found and
what to do. At the end all ranks make a run of a few seconds, whose bits must be those of one process.

  CONFIG.yaml, section.key=value   the run that is to be made, for its folders (output.dir, data.root)
  --run-dir DIR                    where runs are to live, instead
  --data-dir D                     the data folder, instead
  --json                           one JSON object instead of the page

Exit code 0: no problem; 1: a problem; 2: a mistake in the words.
"""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedmpi.command.manners import Parser, described, report, say, show
from fedmpi.config.load import load, one_config
from fedmpi.doctor import ranks, run_folder, trial, work
from fedmpi.doctor.finding import Finding, as_json, is_ready, problem, verdict
from fedmpi.errors import LaunchError, UserError
from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.in_turn import SILENT_S, code_in_turn
from fedmpi.mpi.launch import check_launch, claimed
from fedmpi.mpi.serial import SerialComm
from fedmpi.mpi.starting import world

_STARTUP_LIMIT_S = 120.0


def main(argv: Sequence[str] | None = None) -> int:
    rank = 0  # until it is known, every rank speaks
    try:
        rank, _ = claimed()
        return _examined(parse(sys.argv[1:] if argv is None else argv), rank)
    except UserError as error:
        return report(error, rank)


def parse(argv: Sequence[str]) -> Namespace:
    """The command line, with the folders that it or its config names. Raises `ConfigError`."""
    parser = Parser("fedmpi doctor", __doc__)
    parser.add_argument("words", nargs="*", metavar="CONFIG.yaml | section.key=value")
    parser.add_argument("--run-dir", metavar="DIR", type=Path)
    parser.add_argument("--data-dir", metavar="D")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_intermixed_args(argv)
    config = load(*one_config(arguments.words))
    arguments.run_dir = arguments.run_dir or Path(config.output.dir)
    arguments.data_dir = arguments.data_dir or getattr(config.data, "root", None)
    return arguments


def _examined(arguments: Namespace, rank: int) -> int:
    """The exit code, on all ranks."""
    # As for a run: with these, cuBLAS gives the same bits in every run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        check_launch()
        ranks.check_launcher(os.environ)
        comm = world(_STARTUP_LIMIT_S)
    except LaunchError as error:
        return _apart(arguments, rank, error)
    try:
        page = Page(comm, as_json=arguments.json)
        for finding in findings(comm, arguments):
            page.add(finding)
        code = page.close()
    except BaseException as error:  # on this rank alone: the others wait for it
        say(described(error, comm))
        comm.abort(1)
        raise
    return comm.leave(int(comm.allgather_text(str(code))[0]))


class Page:
    """The one place that prints: lines as they are found, or all of them as JSON at the end; rank 0 alone."""

    def __init__(self, comm: Communicator, *, as_json: bool) -> None:
        self._is_silent, self._size, self._as_json = not comm.is_root, comm.size, as_json
        self._findings: list[Finding] = []

    def add(self, finding: Finding) -> None:
        self._findings.append(finding)
        if not self._is_silent and not self._as_json:
            show(finding.line())

    def close(self) -> int:
        """The exit code."""
        if not self._is_silent:
            text = json.dumps(as_json(self._findings, self._size), indent=2) if self._as_json else None
            show(text or verdict(self._findings))
        return 0 if is_ready(self._findings) else 1


def findings(comm: Communicator, arguments: Namespace) -> Iterator[Finding]:
    """All of them, in the order of the page; every rank takes all, and those of rank 0 count."""
    yield from of_the_ranks(comm)
    if comm.is_root:
        yield from run_folder.findings(arguments.run_dir)
    if (finding := run_folder.shared(arguments.run_dir, comm)) is not None:
        yield finding
    yield work.time_limit(os.environ, time.time())
    yield work.data(arguments.data_dir)
    yield trial.same_bits(comm)


def of_the_ranks(comm: Communicator) -> Iterator[Finding]:
    """What the ranks see of their hosts."""
    seen = ranks.see(comm)
    yield ranks.software(seen)
    yield ranks.mpi_library(seen)
    yield ranks.launcher(seen, os.environ, ranks.first_line(["mpirun", "--version"]) if comm.is_root else "")
    yield ranks.losses(seen, os.environ)
    yield ranks.cores(seen, ranks.container_quota())
    yield ranks.gpus(seen, has_driver=Path("/proc/driver/nvidia/version").exists())
    yield ranks.torch_build(seen)


def _apart(arguments: Namespace, rank: int, error: LaunchError) -> int:
    """The page where the ranks do not find each other: rank 0 prints its one problem, the others give it time to."""
    if rank > 0:
        return code_in_turn(rank, 1, SILENT_S)
    page = Page(SerialComm(), as_json=arguments.json)
    page.add(problem("launcher", "; ".join(error.problems), "see the table of MPI libraries in slurm/README.md"))
    return code_in_turn(rank, page.close())


if __name__ == "__main__":
    sys.exit(main())
