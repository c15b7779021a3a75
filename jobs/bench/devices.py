"""Fits the clock of devices (`fedmpi/devices`) on FedHM's tiers as they run here, and predicts other methods' steps.

    python jobs/bench/devices.py [--turns 5]
    python jobs/bench/devices.py --clock CONFIG [key=value ...]     # instead: how much CPU time the clock adds to a run

A turn is a client's local training in one thread, in CPU seconds; cases are interleaved, and the shortest of their
turns counts. Four constants (MACs and bytes a second, fixed costs of a step and of a layer) are fitted to FedHM's turns
by least squares of logarithms; the fifth, `lanes`, is that of the processor, and the model without it (one lane) stands
beside. Mini-batches of 32 and of 4 tell fixed costs from traffic. The yardstick is a line a + b MACs that is fitted to
FedHM's turns with mini-batches of 32; all others that it predicts have these, too.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import fedmpi
from fedmpi.config.load import load
from fedmpi.devices.fleet import Fleet
from fedmpi.devices.profiles import Profile
from fedmpi.methods.values import ClientLoad
from fedmpi.mpi.communicator import SerialComm
from fedmpi.rounds.client import local_work
from fedmpi.rounds.publish import publish
from fedmpi.rounds.state import ServerState, client_of
from fedmpi.running import start
from fedmpi.store.run_dir import RunDir

COMMON = """
    data.name=synthetic data.shape=[3,32,32] data.num_train=256 data.num_test=32 partition.name=iid clients.count=4
    clients.per_round=4 model.name=resnet18 train.local_epochs=1 mpi.device=cpu devices.name=classes
    clients.tier_blocks=[1,1,1,1] devices.classes=[server]
""".split()
FITTED = "method.name=fedhm method.rank_ratio=[1,0.5,0.25,0.125]"
PREDICTED = (
    "method.name=heterofl method.widths=[1,0.5,0.25,0.125]",
    "method.name=prism method.keep_ratio=[0.8,0.6,0.4,0.2]",
)
_LANES = {"AVX2": 8, "AVX512": 16}
"""float32 numbers in a vector of the processor; 4 elsewhere (NEON)."""


@dataclass
class Case:
    """A tier of a method, how to train it once, and the seconds that took."""

    name: str
    fleet: Fleet
    load: ClientLoad
    train: Callable[[], object]
    macs: int
    turn_s: float = math.inf

    def predicted_s(self, profile: Profile) -> float:
        return self.fleet.parts_on(profile, self.load, 1).compute_ns / 1e9


def cases_of(words: str, folder: Path, width: float, batch_size: int = 32) -> list[Case]:
    """Sets the method's tiers up, a client each."""
    config = load(None, [*COMMON, f"model.width={width}", f"train.batch_size={batch_size}", *words.split()])
    setup = start.prepare(config, SerialComm(), RunDir(folder))
    assert setup.fleet is not None
    state = ServerState(setup.method.initial_state())
    published = publish(setup, state, 1, 0)
    cases = []
    for task in published.plan.tasks:
        client = client_of(setup, task, published, None)
        trainer = setup.trainers[task.tier]
        setup.method.narrow(published.params, task.tier, trainer.net.params, client)

        train = partial(setup.method.train, trainer, client)
        name = f"{config.method.name} {setup.method.tiers[task.tier].name}"
        load_of = ClientLoad(task.tier, task.num_examples)
        macs = setup.fleet.nets[task.tier].macs
        cases.append(Case(name, setup.fleet, load_of, lambda go=train, of=client: go(local_work(setup, of)), macs))
    return cases


def fitted(cases: list[Case], lanes: int) -> Profile:
    """Fits the constants one after the other, by ever smaller factors."""
    profile = replace(cases[0].fleet.server, step_ns=100_000, layer_ns=10_000, lanes=lanes)

    def error(profile: Profile) -> float:
        return sum(math.log(case.predicted_s(profile) / case.turn_s) ** 2 for case in cases)

    for factor in (8.0, 4.0, 2.0, 1.5, 1.2, 1.1, 1.05, 1.02) * 4:
        for name in ("macs_per_s", "memory_bytes_per_s", "step_ns", "layer_ns"):
            own = getattr(profile, name)
            tried = [replace(profile, **{name: max(1, round(own * by))}) for by in (1 / factor, 1.0, factor)]
            profile = min(tried, key=error)
    return profile


def share_of_clock(words: list[str]) -> tuple[float, float]:
    """Makes a run with devices in this process. Returns the CPU seconds of the clock's calls, and of all else."""
    clock_s = 0.0

    def timed(call: Callable[..., object]) -> Callable[..., object]:
        @wraps(call)
        def timing(*arguments: object) -> object:
            nonlocal clock_s
            began_s = time.process_time()
            result = call(*arguments)
            clock_s += time.process_time() - began_s
            return result

        return timing

    for name in ("tier", "is_late", "turn", "round_record"):  # what a round calls; none calls another
        setattr(Fleet, name, timed(getattr(Fleet, name)))
    config = load(words[0], words[1:])
    with TemporaryDirectory() as folder:
        began_s = time.process_time()
        fedmpi.run(config, Path(folder) / "run")
        return clock_s, time.process_time() - began_s - clock_s


def main() -> None:
    """Prints each case: measured, predicted by the model with and without lanes, predicted by the line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--width", type=float, default=0.25, help="of the ResNet-18")
    parser.add_argument("--clock", nargs="+", metavar="CONFIG", help="a config with devices, and overrides")
    arguments = parser.parse_args()
    if arguments.clock:
        clock_s, others_s = share_of_clock(arguments.clock)
        print(f"clock {clock_s:.4f} s of CPU time, all else {others_s:.1f} s: {100 * clock_s / others_s:.3f} % more")
        return
    with TemporaryDirectory() as folder:
        own = cases_of(FITTED, Path(folder), arguments.width)
        small = cases_of(FITTED, Path(folder), arguments.width, 4)
        others = [case for words in PREDICTED for case in cases_of(words, Path(folder), arguments.width)]
        for _ in range(arguments.turns):
            for case in (*own, *small, *others):
                began_s = time.process_time()
                case.train()
                case.turn_s = min(case.turn_s, time.process_time() - began_s)
    profile = fitted([*own, *small], _LANES.get(torch.backends.cpu.get_cpu_capability(), 4))
    one_lane = fitted([*own, *small], 1)
    slope, level = np.polyfit([case.macs for case in own], [case.turn_s for case in own], 1)
    print(
        f"fitted: {profile.macs_per_s / 1e9:.2f} GMAC/s, {profile.memory_bytes_per_s / 1e9:.2f} GB/s, "
        f"{profile.step_ns / 1e3:.0f} us a step, {profile.layer_ns / 1e3:.1f} us a layer and pass; "
        f"{profile.lanes} lanes"
    )
    print(f"{'case':16} {'MACs':>12} {'measured':>10} {'model':>8} {'one lane':>9} {'line':>8}")
    for case in (*own, *others):
        predicted_s = [case.predicted_s(profile), case.predicted_s(one_lane), level + slope * case.macs]
        model, without, line = (100 * (seconds / case.turn_s - 1) for seconds in predicted_s)
        print(f"{case.name:16} {case.macs:12,} {case.turn_s:8.4f} s {model:+7.1f}% {without:+8.1f}% {line:+7.1f}%")


if __name__ == "__main__":
    main()
