"""Measures what a round costs beside the SGD steps in it.

    python jobs/bench/overhead.py [section.key=value ...] [--ranks 3] [--pairs 5] [--case small,resnet18,...]

It trains one federated round and then the same SGD steps as bare PyTorch loops on the same processes, in turn. It
prints the median ratio, where the round's time went, and rank 0's CPU time. With two ranks or more rank 0 trains
nothing. The bare loop is what one would write without fedmpi: no broadcast, no aggregation.
"""

import statistics
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import measuring
import torch
from measuring import CASES, BareLoop, ratio_text, seconds_together

from fedmpi.rounds.state import Setup, plan_phase


def main() -> None:
    arguments = measuring.parser(__doc__, "small,resnet18,resnet18-fedhm", ranks=3).parse_intermixed_args()
    runs = {name: measuring.settings(arguments, CASES[name][1]) for name in arguments.case}
    for name, words in runs.items():
        found = measuring.launched(measure, words, arguments.ranks, pairs=arguments.pairs)
        times = f"round {found['round_s']:.2f} s, bare {found['bare_s']:.2f} s"
        share = f"rank 0 used {found['root_s']:.2f} s, {100 * found['root_cpu']:.1f} % of a core"
        print(f"{CASES[name][0]}: round / bare loop = {found['ratio']}; {times}; {share}")
        parts = sorted(found["stages"].items(), key=lambda part: -part[1])
        stages = [f"{stage} {1000 * stage_s:.0f} ms" for stage, stage_s in parts if stage_s > 5e-4]
        print(f"  mean over ranks: {', '.join(stages)}", flush=True)


def measure(comm: Any, folder: Path, words: Sequence[str], pairs: int) -> dict[str, Any]:
    """Returns the ratio as words, medians of seconds, and mean seconds by stage."""
    setup = measuring.prepared(comm, folder, words)
    rounds, bare = measuring.rounds_of(setup), BareLoop(setup, range(len(setup.method.tiers)))
    root_s, splits = list[float](), list[dict[str, float]]()

    def federated() -> float:
        setup.clock.take()
        cpu = time.process_time()
        round_s = seconds_together(comm, lambda: next(rounds))
        root_s.append(time.process_time() - cpu)
        splits.append(setup.clock.take())
        return round_s

    def by_hand() -> float:
        return seconds_together(comm, lambda: train_bare(setup, bare, len(splits)))

    found = measuring.in_turn({"round": federated, "bare": by_hand}, pairs)
    stages = [stage for stage in splits[0] if stage != "wall"]
    own = [statistics.fmean(split[stage] for split in splits[1:]) for stage in stages]
    return {
        "ratio": ratio_text(found["round"], found["bare"]),
        "round_s": statistics.median(found["round"]),
        "bare_s": statistics.median(found["bare"]),
        "root_s": statistics.median(root_s[1:]),
        "root_cpu": statistics.median(cpu / wall for cpu, wall in zip(root_s[1:], found["round"], strict=True)),
        "stages": dict(zip(stages, measuring.of_all(comm, own).mean(axis=0).tolist(), strict=True)),
    }


def train_bare(setup: Setup, bare: BareLoop, round_number: int) -> None:
    """Takes the SGD steps of a round on the same rank for the same clients."""
    train, phase = setup.config.train, setup.method.phases(round_number)[0]
    for task in plan_phase(setup, round_number, phase).by_rank[setup.comm.rank]:
        examples = torch.from_numpy(setup.partition.client(task.client).copy())
        epochs = (examples[torch.randperm(len(examples))] for _ in range(train.local_epochs))
        bare.train(task.tier, chain.from_iterable(epoch.split(train.batch_size) for epoch in epochs))


if __name__ == "__main__":
    measuring.start(main)
