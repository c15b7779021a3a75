"""What a round costs beside the SGD steps in it.

    python jobs/bench.py overhead [section.key=value ...] [--ranks 3] [--pairs 5] [--case small,resnet18,...]

Runs one federated round and then the same SGD steps as bare PyTorch loops on the same processes, in turn, and prints
the median ratio, where the round's time went, and rank 0's CPU time, also as a share of a core; with two ranks or more
rank 0 trains nothing. The bare loop is what one would write without fedmpi: an ordinary module, `torch.optim.SGD`,
images already normalized in memory; no broadcast, no aggregation.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from fedmpi.command.manners import run_command
from fedmpi.federation.assignment import Task
from fedmpi.rounds.state import Setup, plan_phase
from fedmpi.studies.bench.cases import CASES, asked
from fedmpi.studies.bench.on_ranks import launched, of_all, prepared, rounds_of, timed


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for a user's mistake."""
    return run_command(lambda: _bench(_arguments(argv)))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    default = ("small", "resnet18", "resnet18-fedhm")
    return asked(argv, "overhead", __doc__, default=default, ranks=3, pairs="rounds, each with its bare twin")


def _bench(arguments: argparse.Namespace) -> None:
    for name, words in arguments.runs.items():
        _print(name, launched("overhead", words, arguments.ranks, pairs=arguments.pairs))


def _print(name: str, result: dict[str, float]) -> None:
    pairs = f"(pairs {result.pop('lowest'):.3f} to {result.pop('highest'):.3f})"
    times = f"round {result.pop('round_s'):.2f} s, bare {result.pop('bare_s'):.2f} s"
    share = f"rank 0 used {result.pop('root_s'):.2f} s, {100 * result.pop('root_cpu'):.1f} % of a core"
    print(f"{CASES[name][0]}: round / bare loop = {result.pop('ratio'):.3f} {pairs}; {times}; {share}")
    parts = sorted(result.items(), key=lambda part: -part[1])
    shown = (f"{stage} {1000 * seconds:.0f} ms" for stage, seconds in parts if seconds > 5e-4)
    print(f"  mean over ranks: {', '.join(shown)}")


def on_ranks(comm: Any, folder: Path, words: Sequence[str], pairs: int) -> dict[str, float]:
    """What all ranks measure together."""
    return measured(prepared(comm, folder, words), pairs)


def measured(setup: Setup, pairs: int) -> dict[str, float]:
    """Medians of the ratio and of seconds, the lowest and highest ratio, and mean seconds by stage."""
    rounds, bare = rounds_of(setup), BareLoop(setup)
    next(rounds)  # warm-up
    bare.run(1)
    setup.clock.take()
    round_s, bare_s, root_s, splits = [], [], [], []
    for round_number in range(2, pairs + 2):
        cpu = time.process_time()
        round_s.append(timed(setup.comm, lambda: next(rounds)))
        root_s.append(time.process_time() - cpu)
        splits.append(setup.clock.take())
        bare_s.append(timed(setup.comm, partial(bare.run, round_number)))
        setup.clock.take()
    ratios = [one / other for one, other in zip(round_s, bare_s, strict=True)]
    stages = [stage for stage in splits[0] if stage != "wall"]
    means = of_all(setup.comm, [statistics.fmean(split[stage] for split in splits) for stage in stages]).mean(axis=0)
    root_cpu = [used / whole for used, whole in zip(root_s, round_s, strict=True)]
    medians = {"ratio": ratios, "round_s": round_s, "bare_s": bare_s, "root_s": root_s, "root_cpu": root_cpu}
    return {
        **{name: statistics.median(values) for name, values in medians.items()},
        "lowest": min(ratios),
        "highest": max(ratios),
        **dict(zip(stages, means.tolist(), strict=True)),
    }


class BareLoop:
    """The SGD steps of a round, on the same rank for the same clients, as plain PyTorch."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        nets = [setup.method.net(tier.index) for tier in setup.method.tiers]
        self.nets = [net.to(memory_format=torch.channels_last) for net in nets]
        for net in self.nets:
            for parameter in net.parameters():  # factors come as zeros, which would train unlike others
                torch.nn.init.normal_(parameter, std=0.02)
        data = setup.data
        numbers = torch.arange(len(data.train_y))
        self.images = data.train_batch(data.draws(numbers, 1, torch.Generator(), shuffle=False), 0, 0, len(numbers))[0]
        self.labels = data.train_y

    def run(self, round_number: int) -> None:
        phase = self.setup.method.phases(round_number)[0]
        for task in plan_phase(self.setup, round_number, phase).by_rank[self.setup.comm.rank]:
            self._train(task)

    def _train(self, task: Task) -> None:
        train, net = self.setup.config.train, self.nets[task.tier]
        examples = torch.from_numpy(self.setup.partition.client(task.client).copy())
        sgd = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=train.momentum, weight_decay=train.weight_decay)
        net.train()
        for _ in range(train.local_epochs):
            for batch in torch.split(examples[torch.randperm(len(examples))], train.batch_size):
                sgd.zero_grad()
                torch.autograd.backward(functional.cross_entropy(net(self.images[batch]), self.labels[batch]))
                sgd.step()


if __name__ == "__main__":
    sys.exit(main())
