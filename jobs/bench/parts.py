"""Measures parts of a run in one process, each beside something to compare it with.

    python jobs/bench/parts.py aggregate | steps [section.key=value ...] [--case ...] [--pairs 5]

aggregate  nanoseconds to lift and add a number of an upload, against plain copies of as many float32 numbers
steps      a training step of each tier against the dense tier's and a bare PyTorch loop's; --precision fp32,bf16
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import measuring
import torch
from measuring import CASES, SPREAD, BareLoop, ratios, spread

from fedmpi.config.load import load
from fedmpi.data.batches import Draws
from fedmpi.federation.assignment import Task
from fedmpi.learning.local import LocalTrainer, MaskedCrossEntropy, plain_step
from fedmpi.methods.protocol import copy_into
from fedmpi.models.surgery.narrowing import fill
from fedmpi.report.table_text import print_lines
from fedmpi.rounds.client import simulate_client
from fedmpi.rounds.exchange import Reduce
from fedmpi.rounds.publish import publish
from fedmpi.rounds.state import ClientReport, client_of
from fedmpi.running.resuming import initial_state
from fedmpi.tensors import Layout, Params

DEFAULTS = {
    "aggregate": "resnet18,resnet18-fedhm,resnet18-heterofl,resnet18-topk",
    "steps": "resnet18-fedhm,resnet18-heterofl",
}
# To aggregate, clients train hardly at all: only what they send matters.
FEW_STEPS = "clients.per_round=10 data.num_train=40 train.batch_size=4 train.local_epochs=1"


def main() -> None:
    part = sys.argv.pop(1) if sys.argv[1:2] and sys.argv[1] in DEFAULTS else ""
    parser = measuring.parser(__doc__, DEFAULTS.get(part, "small"))
    parser.add_argument("--precision", type=measuring.some_of(["fp32", "bf16"]), default=[], help="of steps")
    arguments = parser.parse_intermixed_args()
    if not part:
        parser.error(f"expected a part first: {', '.join(DEFAULTS)}")
    for name in arguments.case:
        title, given = CASES[name]
        print(f"{title}:")
        if part == "steps":
            print_steps(measuring.settings(arguments, given), arguments)
        else:
            print_aggregate(measuring.settings(arguments, f"{given} {FEW_STEPS}"), arguments)


# Lifting and adding uploads.


def print_aggregate(words: Sequence[str], arguments: argparse.Namespace) -> None:
    found = measuring.launched(aggregate, words, pairs=arguments.pairs)
    add, copy = found["add"], found["copy"]
    # Of each number 4 bytes of the upload are read, 8 of the sum are read and 8 written; a copy reads and writes 4.
    print(
        f"lift and add {statistics.median(add):.2f} ns a number ({min(add):.2f} to {max(add):.2f}), "
        f"{20 / statistics.median(add):.1f} GB/s; a copy {statistics.median(copy):.2f} ns, "
        f"{8 / statistics.median(copy):.1f} GB/s; the mean {statistics.median(found['mean']):.2f} ns, once a round; "
        f"{1e-6 * found['numbers']:.2f} M numbers a client",
        flush=True,
    )


def aggregate(comm: Any, folder: Path, words: Sequence[str], pairs: int) -> dict[str, Any]:
    """Returns nanoseconds a number: `add` (lift and add), `mean` (of the server's numbers), and `copy`."""
    setup = measuring.prepared(comm, folder, words)
    method, state = setup.method, initial_state(setup, None)
    published = publish(setup, state, 1, 0)
    exchange = Reduce(setup, published)
    results: list[tuple[tuple[Task], tuple[ClientReport, Params]]] = []
    numbers = 0
    for task in published.plan.tasks:
        report, upload = simulate_client(setup, task, published)
        # As a message, a copy: the next client trains in the same net.
        layout = Layout.of(method.upload_specs(task.tier, task))
        copied: Params = layout.views(layout.new_buffer())
        copy_into(copied, upload or {})
        results.append(((task,), (report, copied)))
        client = client_of(setup, task, published, report.memory_digest)
        numbers += sum(value.numel() for _, value in method.lift(copied, client))
    source, target = torch.randn(numbers // len(results)), torch.zeros(numbers // len(results))
    of_server = sum(value.numel() for value in state.params.values())

    def add() -> float:
        nonlocal exchange
        exchange = Reduce(setup, published)
        return 1e9 * measuring.seconds(lambda: [exchange.post(*each) for each in results]) / numbers

    def mean() -> float:
        return 1e9 * measuring.seconds(lambda: exchange.finish(state.params)) / of_server

    def copy() -> float:
        return 1e9 * measuring.seconds(lambda: [target.copy_(source) for _ in results]) / numbers

    found: dict[str, Any] = dict(measuring.in_turn({"add": add, "mean": mean, "copy": copy}, pairs))
    return found | {"numbers": numbers / len(results)}


# Training steps.


def print_steps(words: Sequence[str], arguments: argparse.Namespace) -> None:
    precisions = arguments.precision or [load(None, words).train.precision]
    found = measuring.launched(steps, words, pairs=arguments.pairs, precisions=precisions)
    head = ["tier", "precision", "a step", SPREAD, "dense / it", SPREAD, "bare / it", SPREAD, "dense MACs / its"]
    print_lines(head, step_lines(found), 2)


def step_lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Returns the lines of a table; all are compared with the dense tier, which comes first, and the bare loop."""
    dense, bare = rows[0], next(row for row in rows if row["tier"] == "bare loop")
    lines = []
    for row in rows:
        taken = spread([1e3 * step_s for step_s in row["seconds"]], ".4g", " ms")
        for yardstick in (dense, bare):
            taken += spread(ratios(yardstick["seconds"], row["seconds"]))
        lines.append([row["tier"], row["precision"], *taken, f"{dense['macs'] / row['macs']:.2f}"])
    return lines


def steps(comm: Any, folder: Path, words: Sequence[str], pairs: int, precisions: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the seconds of a step of each tier and of the bare loop, in each precision; all in the same turns."""
    rows: list[dict[str, Any]] = []
    actions: list[Callable[[], None]] = []
    for precision in precisions:
        setup = measuring.prepared(comm, folder, [*words, f"train.precision={precision}"])
        for number, tier in enumerate(setup.method.tiers):
            # Factors come as zeros, which would train unlike others.
            fill(setup.trainers[number].net.params.values(), torch.Generator().manual_seed(0))
            rows.append({"tier": tier.name, "precision": precision, "macs": setup.macs[number]})
            actions.append(partial(train, setup.trainers[number], 1))
        rows.append({"tier": "bare loop", "precision": precision, "macs": setup.macs[0]})
        actions.append(partial(BareLoop(setup, [0]).steps, 0, 1))
    measures = {str(place): partial(measuring.seconds, action) for place, action in enumerate(actions)}
    found = measuring.in_turn(measures, pairs)
    return [row | {"seconds": found[str(place)]} for place, row in enumerate(rows)]


def train(trainer: LocalTrainer, count: int) -> None:
    """Takes so many steps of whole batches as a client does, without what a method adds to gradients."""
    numbers = torch.arange(count * trainer.train.batch_size).remainder(len(trainer.data.train_y))
    draws: Draws = trainer.data.draws(numbers.numpy(), 1, torch.Generator().manual_seed(0))
    trainer.run(draws, 1e-4, MaskedCrossEntropy(None), plain_step, lambda net: None)


if __name__ == "__main__":
    measuring.start(main)
