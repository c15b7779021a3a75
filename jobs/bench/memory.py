"""Measures the memory of the ranks of a job, beside that of bare loops (`bare_process.py`).

    python jobs/bench/memory.py [section.key=value ...] [--ranks 3] [--pairs 5] [--case small,resnet18,...]

Memory is the proportional size (PSS) that Linux counts: it divides what several processes share among them. It prints
the most that all ranks of a run have together, beside as many bare loops. Both train a ResNet-18.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import measuring
import psutil
from measuring import CASES, Pairs

from fedmpi.config.load import load
from fedmpi.mpi.mpirun import environment, start_words

LOOKS_EVERY_S = 0.03
TWO_ROUNDS = "rounds=2 evaluation.every=1 train.local_epochs=1 clients.count=20 data.num_test=200"
"""Settings on top of a case: two rounds of four clients, each with its test."""


def main() -> None:
    arguments = measuring.parser(__doc__, "small,resnet18", ranks=3).parse_intermixed_args()
    for name in arguments.case:
        title, given = CASES[name]
        words = measuring.settings(arguments, f"{given} {TWO_ROUNDS}")
        print_whole_job(title, words, arguments.ranks, arguments.pairs)


def print_whole_job(title: str, words: Sequence[str], ranks: int, pairs: int) -> None:
    """Prints the median ratio of the sums, and what rank 0 and the largest worker had at most."""
    settings = bare_settings(words, ranks)
    found = [(peak_of_job(words, ranks), peak_of_loops(settings, ranks)) for _ in range(pairs)]
    ratio = Pairs([job.total_bytes for job, _ in found], [loops.total_bytes for _, loops in found])
    job, loops = found[ratio.ratios.index(statistics.median_low(ratio.ratios))]
    print(
        f"{title}: all {ranks} ranks / as many bare loops = {ratio.text()}; {mb(job.total_bytes)}, "
        f"{mb(job.shared_bytes)} of it shared, to {mb(loops.total_bytes)}; libraries apart "
        f"rank 0 has {mb(job.rank_bytes[0])} at most, a worker {mb(job.of_worker())}",
        flush=True,
    )


def peak_of_job(words: Sequence[str], ranks: int) -> Peak:
    """Makes a run and looks at its ranks. Ends this program where the run fails."""
    peak = Peak()
    with tempfile.TemporaryDirectory() as folder:
        command = [*start_words(ranks), sys.executable, "-m", "fedmpi.main", *words, "--run-dir", f"{folder}/run"]
        process = subprocess.Popen(command, env=environment(ranks), stdout=subprocess.DEVNULL)
        while process.poll() is None:
            peak.look(ranks_below(process.pid))
        if process.returncode:
            sys.exit(process.returncode)
    return peak


def peak_of_loops(settings: Mapping[str, Any], count: int) -> Peak:
    """Starts bare processes, which stay until all are done, and looks at them."""
    peak = Peak()
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(__file__).with_name("bare_process.py"))
        command = [sys.executable, program, json.dumps(settings), folder]
        processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(count)]
        while len(os.listdir(folder)) < count and not any(process.poll() for process in processes):
            peak.look({place: process.pid for place, process in enumerate(processes)})
        for process in processes:
            process.communicate()  # closes its input
    return peak


class Peak:
    """The most that a group of processes has had, in bytes."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.shared_bytes = 0
        self.rank_bytes: dict[int, int] = {}
        """By rank, without libraries."""

    def of_worker(self) -> int:
        """Returns that of the largest worker, or of the one process."""
        workers = [num_bytes for rank, num_bytes in self.rank_bytes.items() if rank > 0]
        return max(workers or self.rank_bytes.values())

    def look(self, processes: Mapping[int, int]) -> None:
        """Takes the sizes of these processes now, each a process number by its rank; then waits a moment."""
        total = shared = 0
        for rank, pid in processes.items():
            with suppress(OSError):  # it has just ended
                rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
                sizes = {name.rstrip(":"): 1024 * int(kilobytes) for name, kilobytes, _ in rows}
                total += sizes["Pss"]
                shared += sizes["Pss_Shmem"]
                own = sizes["Pss_Anon"] + sizes["Pss_Shmem"]
                self.rank_bytes[rank] = max(self.rank_bytes.get(rank, 0), own)
        if total > self.total_bytes:
            self.total_bytes = total
            self.shared_bytes = shared
        time.sleep(LOOKS_EVERY_S)


def ranks_below(pid: int) -> dict[int, int]:
    """Returns the process number of each rank that this process has started; itself where there is no mpirun."""
    found: dict[int, int] = {}
    with suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error, KeyError):
                found[int(process.environ()["OMPI_COMM_WORLD_RANK"])] = process.pid
    return found or {0: pid}


def bare_settings(words: Sequence[str], ranks: int) -> dict[str, Any]:
    """Returns the same data, net and batches, and as many steps as a worker has."""
    config = load(None, words)
    model, train, info = config.model, config.train, config.data.used()
    examples = config.rounds * config.clients.per_round * info.num_train / config.clients.count * train.local_epochs
    return {
        "num_train": info.num_train,
        "num_test": info.num_test,
        "shape": info.example_shape,
        "classes": info.num_classes,
        "batch_size": train.batch_size,
        "steps": max(1, round(examples / train.batch_size / max(1, ranks - 1))),
        "width": round(64 * getattr(model, "width", 1.0)),
        "blocks": getattr(model, "blocks", None) or [2, 2, 2, 2],
    }


def mb(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:.0f} MB"


if __name__ == "__main__":
    measuring.start(main)
