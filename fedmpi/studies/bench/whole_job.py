"""The memory of all ranks of a job, set against that of as many bare loops (`bare`).

    python jobs/bench.py memory [section.key=value ...] [--ranks 3] [--pairs 5] [--case small,resnet18,...] [--growth]

Prints the most memory that all ranks of a run have together, counting what they share once, against as many processes
that run a bare loop, in turn. With --growth also a worker's peak against that of a bare loop, for cohorts of 10 and of
100 clients, which takes many minutes. Bare loops train a ResNet-18, so the run does, too.

A group of processes has what each has for itself (`Pss_Anon` of /proc/PID/smaps_rollup), what they share (`Pss_Shmem`,
or the length of their files without a name where that is more: pages that no process has touched yet count, too), and
the pages of libraries, once (the largest `RssFile`). Their proportional size, `Pss_File`, would be less wherever others
on the machine have the same torch loaded. Looked at all the time, from the start to the end; the largest sum counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fedmpi.command.manners import run_command
from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError
from fedmpi.mpi.launch import launched_as
from fedmpi.mpi.mpirun import environment, start_words
from fedmpi.studies.bench import growth
from fedmpi.studies.bench.cases import CASES, asked, overrides_of
from fedmpi.studies.launch import end, refuse_failure

_LOOKS_EVERY_S = 0.03
_KB = 1024
WORDS = "rounds=2 evaluation.every=1 train.local_epochs=1 clients.count=20 data.num_test=200"
"""On top of a case: two rounds of four clients, each with its test."""
_CASES = tuple(name for name in CASES if name not in ("cifar10-fedhm34", "digits-fedhm"))


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for a user's mistake."""
    return run_command(lambda: _bench(_arguments(argv)))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--growth", action="store_true", help="for cohorts of 10 and of 100 clients, too")

    pairs, default = "runs, each with its bare loops", ("small", "resnet18")
    read = partial(asked, argv, "memory", __doc__, default=default, allowed=_CASES, on_top=WORDS.split())
    arguments = read(ranks=3, pairs=pairs, more=more)
    if arguments.growth:
        overrides_of(arguments.words, ["clients.per_round="])
    for words in arguments.runs.values():
        if (model := load(None, words).model.name) != "resnet18":
            raise ConfigError("model.name", f"the bare loops train resnet18 alone, got {model!r}; leave the word out")
    return arguments


def _bench(arguments: argparse.Namespace) -> None:
    for name, words in arguments.runs.items():
        print_ratio(CASES[name][0], words, arguments.ranks, arguments.pairs)
        if arguments.growth:
            own = [*CASES[name][1].split(), *growth.WORDS, *arguments.overrides]
            growth.print_growth(CASES[name][0], own, arguments.ranks)


@dataclass
class Peak:
    """The most that a group of processes has had, in bytes; `own_bytes` is the most of each process by itself."""

    total_bytes: int = 0
    shared_bytes: int = 0
    """Of that, what processes share beside libraries."""
    library_bytes: int = 0
    own_bytes: dict[int, int] = field(default_factory=dict)

    def look(self, processes: Mapping[int, int]) -> None:
        """`processes`: the rank of each process number."""
        own = shared = library = 0
        files: dict[str, int] = {}
        for pid, rank in processes.items():
            with suppress(OSError, KeyError, ValueError):  # it has just ended
                found, file_bytes = _sizes(f"/proc/{pid}/smaps_rollup"), _sizes(f"/proc/{pid}/status")["RssFile"]
                files |= _unnamed(pid)
                own += found["Pss_Anon"]
                shared += found["Pss_Shmem"]
                library = max(library, file_bytes)
                alone = found["Pss_Anon"] + found["Pss_Shmem"]
                self.own_bytes[rank] = max(self.own_bytes.get(rank, 0), alone)
        shared = max(shared, sum(files.values()))
        if (total := own + shared + library) > self.total_bytes:
            self.total_bytes, self.shared_bytes, self.library_bytes = total, shared, library


def _sizes(path: str) -> dict[str, int]:
    """The lines `Name: number kB`, in bytes."""
    rows = (line.split() for line in Path(path).read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) * _KB for row in rows if row[-1] == "kB"}


def _unnamed(pid: int) -> dict[str, int]:
    """The bytes of each file without a name that the process maps."""
    rows = (line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/memfd:" in line)
    ends = ((row[4], [int(text, 16) for text in row[0].split("-")]) for row in rows)
    return {inode: stop - start for inode, (start, stop) in ends}


def _ranks_below(pid: int) -> dict[int, int]:
    """The rank of each process that this one has started, directly or not; 0 of itself where there is no launcher."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    found: dict[int, int] = {}
    for process in [pid, *_below(pid, parents)]:
        with suppress(OSError):
            words = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
            launched = launched_as(dict(word.partition("=")[::2] for word in words))
            if launched is not None:
                found[process] = launched[0]
    return found or {pid: 0}


def _below(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    for child, parent in parents.items():
        if parent == pid:
            yield child
            yield from _below(child, parents)


def of_job(words: Sequence[str], ranks: int) -> Peak:
    """Makes the run and looks at its ranks. Raises as `refuse_failure` does."""
    peak = Peak()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        command = [*start_words(ranks), sys.executable, "-m", "fedmpi.main", *words, "--run-dir", f"{folder}/run"]
        process = subprocess.Popen(command, env=environment(ranks), stdout=subprocess.DEVNULL)
        stack.callback(end, process)
        while process.poll() is None:
            peak.look(_ranks_below(process.pid))
            time.sleep(_LOOKS_EVERY_S)
        refuse_failure(process.wait(), command)
    return peak


def of_bare_loops(asked: Mapping[str, object], count: int) -> Peak:
    """Starts so many, which stay until all are done. Raises as `refuse_failure` does."""
    peak = Peak()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        command = [sys.executable, "-m", "fedmpi.studies.bench.bare", json.dumps(asked), folder]
        loops = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(count)]
        for loop in loops:
            stack.callback(end, loop)
        while len(os.listdir(folder)) < count:
            peak.look({loop.pid: place for place, loop in enumerate(loops)})
            time.sleep(_LOOKS_EVERY_S)
            for loop in loops:
                refuse_failure(loop.poll() or 0, command)
    return peak


def asked_of_bare(config: Config, ranks: int) -> dict[str, object]:
    """The same data, net and batches, and as many steps as a worker has."""
    model, train, info = config.model, config.train, config.data.used()
    examples = config.rounds * config.clients.per_round * info.num_train / config.clients.count * train.local_epochs
    return {
        "shape": info.example_shape,
        "classes": info.num_classes,
        "num_train": info.num_train,
        "num_test": info.num_test,
        "batch_size": train.batch_size,
        "steps": max(1, round(examples / train.batch_size / max(1, ranks - 1))),
        "width": round(64 * getattr(model, "width", 1.0)),
        "blocks": getattr(model, "blocks", None) or [2, 2, 2, 2],
    }


def print_ratio(title: str, words: Sequence[str], ranks: int, pairs: int) -> None:
    """Measures in turn, and prints the median ratio of the sums, and what rank 0 and the largest worker had at most."""
    asked, found = asked_of_bare(load(None, words), ranks), []
    for _ in range(pairs):
        found.append((of_job(words, ranks), of_bare_loops(asked, ranks)))
    ratios = [job.total_bytes / bare.total_bytes for job, bare in found]
    job, bare = found[ratios.index(statistics.median_low(ratios))]
    workers = [job.own_bytes[rank] for rank in job.own_bytes if rank > 0] or [job.own_bytes[0]]
    sums = job.total_bytes, job.shared_bytes, bare.total_bytes, job.own_bytes[0], max(workers)
    total, shared, beside, of_rank_0, of_worker = (f"{value / 1e6:.0f} MB" for value in sums)
    print(
        f"{title}: all {ranks} ranks / as many bare loops = {statistics.median(ratios):.3f} "
        f"(pairs {min(ratios):.3f} to {max(ratios):.3f}); {total}, {shared} of it shared, to {beside}; libraries apart "
        f"rank 0 has {of_rank_0} at most, a worker {of_worker}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
