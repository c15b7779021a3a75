"""Measures the memory of the ranks of a job, beside that of bare loops (`bare_process.py`).

    python jobs/bench/memory.py [section.key=value ...] [--ranks 3] [--pairs 5] [--case small,resnet18,...]
    python jobs/bench/memory.py --frozen-mb 100 [section.key=value ...] [--ranks 3] [--pairs 5]

Memory is the proportional size (PSS) that Linux counts: it divides what several processes share among them. It prints
the most that all ranks of a run have together, beside as many bare loops. Both train a ResNet-18. With `--frozen-mb` it
prints what a perceptron of that size that is not trained, beside small adapters, adds to the same run of a tiny one.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measuring
import psutil
from measuring import CASES, pss_bytes, ratio_text

from fedmpi.config.load import load
from fedmpi.mpi.mpirun import environment, start_words
from fedmpi.results.run import Run

LOOKS_EVERY_S = 0.03
TWO_ROUNDS = "rounds=2 evaluation.every=1 train.local_epochs=1 clients.count=20 data.num_test=200"
"""Settings on top of a case: two rounds of four clients, each with its test."""
ADAPTERS = """data.name=synthetic data.shape=[1,8,8] data.classes=10 data.num_train=960 partition.name=iid
    train.masked_loss=false model.name=mlp model.trained=none clients.per_round=4 method.name=lora method.ranks=[4,2]
    method.aggregation=fedit"""
TINY_MB = 0.1


def main() -> None:
    parser = measuring.parser(__doc__, "small,resnet18", ranks=3)
    parser.add_argument("--frozen-mb", type=float, help="measures a net of so many MB that is not trained")
    arguments = parser.parse_intermixed_args()
    if arguments.frozen_mb:
        words = measuring.settings(arguments, f"{ADAPTERS} {TWO_ROUNDS}")
        print_frozen_net(arguments.frozen_mb, words, arguments.ranks, arguments.pairs)
        return
    for name in arguments.case:
        title, given = CASES[name]
        words = measuring.settings(arguments, f"{given} {TWO_ROUNDS}")
        print_whole_job(title, words, arguments.ranks, arguments.pairs)


def print_whole_job(title: str, words: Sequence[str], ranks: int, pairs: int) -> None:
    """Prints the median ratio of the sums, and the median sums."""
    settings = bare_settings(words, ranks)
    turns = [(memory_of_job(words, ranks).peak, peak_of_loops(settings, ranks)) for _ in range(pairs)]
    jobs, loops = zip(*turns, strict=True)
    ratio = ratio_text(jobs, loops)
    print(f"{title}: all {ranks} ranks / as many bare loops = {ratio}; {in_mb(jobs)} to {in_mb(loops)}", flush=True)


def print_frozen_net(size_mb: float, words: Sequence[str], ranks: int, pairs: int) -> None:
    """Prints the median sums with the net and with a tiny one, and what all clients of a round get and send."""
    given, least = ([*words, hidden_of(megabytes)] for megabytes in (size_mb, TINY_MB))
    turns = [(memory_of_job(given, ranks), memory_of_job(least, ranks)) for _ in range(pairs)]
    jobs, tiny = zip(*turns, strict=True)
    sums = f"{in_mb(job.later for job in jobs)} after round 1, {in_mb(job.later for job in tiny)} with a tiny net"
    peaks = f"at most, at the start, {in_mb(job.peak for job in jobs)} and {in_mb(job.peak for job in tiny)}"
    last = jobs[-1].record
    moved = f"{1e-6 * (last['protocol_up_bytes'] + last['protocol_down_bytes']):.2f} MB"
    print(f"frozen net of {size_mb:g} MB: all {ranks} ranks {sums}; {peaks}; a round moves {moved}", flush=True)


def in_mb(sizes: Iterable[int]) -> str:
    return f"{1e-6 * statistics.median(sizes):.0f} MB"


def hidden_of(size_mb: float) -> str:
    """Returns the setting of a perceptron of this size, nearly all of it in the seven weights between equal layers."""
    side = round((size_mb * 1e6 / 4 / 7) ** 0.5)
    return f"model.hidden={[side] * 8}".replace(" ", "")


@dataclass(frozen=True)
class JobMemory:
    """The most bytes that all ranks of a job have together: at any time, and after the first round."""

    peak: int
    later: int
    record: Mapping[str, Any]
    """That of the last round."""


def memory_of_job(words: Sequence[str], ranks: int) -> JobMemory:
    """Makes a run and measures it. Ends this program where the run fails."""
    peak = 0
    later = 0
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [*start_words(ranks), sys.executable, "-m", "fedmpi.main", *words, "--run-dir", str(run)]
        job = psutil.Popen(command, env=environment(ranks), stdout=subprocess.DEVNULL)
        while job.poll() is None:
            records = run / "rounds.jsonl"
            has_record = records.is_file() and records.stat().st_size > 0
            size = pss_bytes(job, sys.executable)  # not of mpirun
            peak = max(peak, size)
            later = max(later, size if has_record else 0)
            time.sleep(LOOKS_EVERY_S)
        if job.returncode:
            sys.exit(job.returncode)
        return JobMemory(peak, later, Run(run).records[-1])


def peak_of_loops(settings: Mapping[str, Any], count: int) -> int:
    """Starts bare processes, which stay until all are done; returns the most bytes that they have together."""
    peak = 0
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(__file__).with_name("bare_process.py"))
        command = [sys.executable, program, json.dumps(settings), folder]
        loops = [psutil.Popen(command, stdin=subprocess.PIPE) for _ in range(count)]
        while len(os.listdir(folder)) < count and not any(loop.poll() for loop in loops):
            peak = max(peak, sum(pss_bytes(loop) for loop in loops))
            time.sleep(LOOKS_EVERY_S)
        for loop in loops:
            loop.communicate()  # closes its input
    return peak


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


if __name__ == "__main__":
    measuring.start(main)
