"""What adding up costs.

    python jobs/bench.py aggregate [section.key=value ...] [--pairs 5] [--case resnet18,resnet18-fedhm,...]

Prints what lifting and adding a cohort's uploads takes on one core, in nanoseconds a number of the server's tensors,
against plain copies of as many float32 numbers, in turn in one process.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedmpi.command.manners import run_command
from fedmpi.federation.assignment import Assignment, Task
from fedmpi.methods.protocol import copy_into
from fedmpi.rounds.client import simulate_client
from fedmpi.rounds.exchange import ClientResult, Exchange, open_exchange
from fedmpi.rounds.publish import publish
from fedmpi.rounds.recovering import open_phase
from fedmpi.rounds.state import Published, Setup, plan_phase
from fedmpi.running.resuming import initial_state
from fedmpi.studies.bench.cases import CASES, asked
from fedmpi.studies.bench.on_ranks import launched, prepared
from fedmpi.tensors import Layout, Params

WORDS = ("clients.per_round=10", "data.num_train=40", "train.batch_size=4", "train.local_epochs=1")
"""Clients train hardly at all: only what they send matters here."""
# Of each number 4 bytes of the upload are read, 8 of the sum are read and 8 written; a copy reads and writes 4.
_SUM_BYTES, _COPY_BYTES = 20, 8
_DEFAULT = ("resnet18", "resnet18-fedhm", "resnet18-heterofl", "resnet18-topk")
# The main job's partition needs more examples than are trained on here.
_CASES = tuple(name for name in CASES if name != "digits-fedhm")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for a user's mistake."""
    return run_command(lambda: _bench(_arguments(argv)))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    pairs = "sums of each case, each with its copies"
    return asked(argv, "aggregate", __doc__, default=_DEFAULT, allowed=_CASES, on_top=WORDS, pairs=pairs)


def _bench(arguments: argparse.Namespace) -> None:
    for name, words in arguments.runs.items():
        print(f"{CASES[name][0]}: {shown(launched('aggregate', words, pairs=arguments.pairs))}", flush=True)


def on_ranks(comm: Any, folder: Path, words: Sequence[str], pairs: int) -> dict[str, float]:
    """What the one process measures."""
    return measured(prepared(comm, folder, words), pairs)


def measured(setup: Setup, pairs: int) -> dict[str, float]:
    """Nanoseconds a number: `add` (lift and add), `mean` (of the server's numbers, once a phase), and `copy`."""
    state, phase = initial_state(setup, None), setup.method.phases(1)[0]
    published, planned = publish(setup, state, 1, 0), plan_phase(setup, 1, phase)
    results = [_kept(setup, task, simulate_client(setup, task, published)) for task in planned.tasks]
    numbers = sum(_num_lifted(setup, planned, published, results))
    held = sum(value.numel() for value in state.params.values())
    source, target = torch.randn(numbers // len(results)), torch.zeros(numbers // len(results))
    times: dict[str, list[float]] = {"add": [], "mean": [], "copy": []}
    for _ in range(pairs + 1):
        exchange = open_exchange("reduce", open_phase(setup, planned, published))
        times["add"].append(_seconds(partial(_post, exchange, planned, results)) / numbers)
        times["mean"].append(_seconds(partial(exchange.finish, state.params)) / held)
        times["copy"].append(_seconds(lambda: [target.copy_(source) for _ in results]) / numbers)
    medians = {kind: 1e9 * statistics.median(found[1:]) for kind, found in times.items()}
    spread = {"lowest": 1e9 * min(times["add"][1:]), "highest": 1e9 * max(times["add"][1:])}
    return {**medians, **spread, "numbers": numbers / len(results)}


def shown(result: Mapping[str, float]) -> str:
    """The result as one line."""
    add, copy = result["add"], result["copy"]
    spread = f"({result['lowest']:.2f} to {result['highest']:.2f})"
    return (
        f"lift and add {add:.2f} ns a number {spread}, {_SUM_BYTES / add:.1f} GB/s; a copy {copy:.2f} ns, "
        f"{_COPY_BYTES / copy:.1f} GB/s; the mean {result['mean']:.2f} ns, once a round; "
        f"{1e-6 * result['numbers']:.2f} M numbers a client"
    )


def _post(exchange: Exchange, planned: Assignment, results: Sequence[ClientResult]) -> None:
    for task, result in zip(planned.tasks, results, strict=True):
        exchange.post(task, result)


def _kept(setup: Setup, task: Task, result: ClientResult) -> ClientResult:
    """A copy that lies in memory as a message does: the next client trains in the same net."""
    report, upload = result
    assert upload is not None
    layout = Layout.of(setup.method.upload_specs(task.tier, task))
    copied: Params = layout.views(layout.new_buffer())
    copy_into(copied, upload)
    return report, copied


def _num_lifted(setup: Setup, planned: Assignment, published: Published, results: list[ClientResult]) -> list[int]:
    """How many numbers of the server's tensors each upload stands for."""
    client_of = open_phase(setup, planned, published).client_of
    return [
        sum(value.numel() for _, value in setup.method.lift(upload or {}, client_of(task, report.memory_digest)))
        for task, (report, upload) in zip(planned.tasks, results, strict=True)
    ]


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
