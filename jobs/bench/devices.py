"""Fits the clock of devices (`fedmpi/devices`) on FedHM's tiers as they run here, and predicts other methods' steps.

    python jobs/bench/devices.py [--turns 5]
    python jobs/bench/devices.py --printed      # instead: the times and ratios that PriSM and Hermes print
    python jobs/bench/devices.py --clock CONFIG [key=value ...]     # instead: how much CPU time the clock adds to a run

A turn is a client's local training in one thread, in CPU seconds; cases are interleaved, and the shortest of their
turns counts. Four constants (MACs and bytes a second, fixed costs of a step and of a layer) are fitted to FedHM's turns
by least squares of logarithms; the fifth, `lanes`, is that of the processor, and the model without it (one lane) stands
beside. Mini-batches of 32 and of 4 tell fixed costs from traffic. The yardstick is a line a + b MACs that is fitted to
FedHM's turns with mini-batches of 32; all others that it predicts have these, too.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import fedmpi
from fedmpi import costs, methods
from fedmpi.config.address import CONFIGS
from fedmpi.config.load import load
from fedmpi.costs import FLOAT32_BYTES, Costs
from fedmpi.devices.fleet import Fleet
from fedmpi.devices.model import Parts, batch_ns, energy_uj
from fedmpi.devices.profiles import Profile, built_in
from fedmpi.methods.values import ClientLoad
from fedmpi.models import create
from fedmpi.models.surgery.cutting import cut
from fedmpi.models.trial import examples_of
from fedmpi.mpi.communicator import SerialComm
from fedmpi.results.grid_file import load_address
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
_BATCHES = -(-50_000 // 32)
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
        return self.fleet.parts(profile, self.load, 1).compute_ns / 1e9


def cases_of(words: str, folder: Path, width: float, batch_size: int = 32) -> list[Case]:
    """Sets the method's tiers up, a client each."""
    config = load(None, [*COMMON, f"model.width={width}", f"train.batch_size={batch_size}", *words.split()])
    setup = start.prepare(config, SerialComm(), RunDir(folder))
    assert setup.fleet is not None
    state = ServerState(setup.method.initial_state())
    published = publish(setup, state, 1, 0)
    cases = []
    for task in published.plan.tasks:
        client = client_of(setup, task, published)
        trainer = setup.trainers[task.tier]
        setup.method.narrow(published.params, task.tier, trainer.net.params, client)

        train = partial(setup.method.train, trainer, client)
        name = f"{config.method.name} {setup.method.tiers[task.tier].name}"
        load_of = ClientLoad(task.tier, task.num_examples)
        macs = setup.fleet.nets[task.tier].macs
        cases.append(Case(name, setup.fleet, load_of, lambda go=train, of=client: go(local_work(setup, of)), macs))
    return cases


@dataclass
class Printed:
    """A net, and the seconds that a paper prints for its training."""

    net: Costs
    turn_s: float

    def predicted_s(self, profile: Profile) -> float:
        """Of as many mini-batches of 32 as 50,000 examples have; the fit bears any other number."""
        return _BATCHES * batch_ns(profile, self.net.layers, 32, backward=True) / 1e9


def table_11() -> list[Printed]:
    """Returns ResNet-18 and its sub-models of PriSM's Table 11 (arXiv:2208.13141), on one GTX 1080."""
    words = "model.name=resnet18 data.name=cifar10 method.name=orthdrop method.keep_ratio=[0.8,0.6,0.4,0.2]"
    config = load(None, [*words.split(), "method.cut_inputs=true"])
    info = config.data.used()
    method = methods.create(start.method_context(config, info))
    nets = [method.context.make(empty=True), *(method.net(tier.index, empty=True) for tier in method.tiers)]
    seconds = (31.41, 28.39, 23.53, 20.21, 17.55)
    return [Printed(costs.measure(net, examples_of(info)), time) for net, time in zip(nets, seconds, strict=True)]


def left_out(cases: list[Printed]) -> list[tuple[float, float, float]]:
    """Predicts each case from the others: errors of the clock, of a line a + b MACs and of MACs alone."""
    gpu = built_in()["gtx_1080"]
    begins = [replace(gpu, step_ns=step_ns) for step_ns in (gpu.step_ns, 20 * gpu.step_ns)]
    errors = []
    for case in cases:
        others = [other for other in cases if other is not case]
        macs, times = ([other.net.macs for other in others], [other.turn_s for other in others])
        slope, level = np.polyfit(macs, times, 1)
        only = sum(times) / sum(macs)
        predicted_s = (case.predicted_s(fitted(others, *begins)), level + slope * case.net.macs, only * case.net.macs)
        errors.append(tuple(seconds / case.turn_s - 1 for seconds in predicted_s))
    return errors


def hermes_ratios(setting: str, phone: str) -> dict[str, float]:
    """Returns how many times less an inference takes of a net of Hermes's paper that is cut to its printed share."""
    config = load_address(f"{CONFIGS}/papers/hermes.yaml@{setting}/hermes", ["method.prune_rate=0.5"])
    info = config.data.used()
    method = methods.create(start.method_context(config, info))
    generator = torch.Generator().manual_seed(0)
    values = {name: torch.rand(spec.shape, generator=generator) for name, spec in method.model_specs.items()}
    masks = method.pruned(values, method.pruned(values, {}))  # to 0.5, then to the target of 0.3
    whole = create.skeleton(config.model, info)
    nets = [costs.measure(net, info.example_shape) for net in (whole, cut(whole, masks))]
    profile = built_in()[phone]
    times_ns = [batch_ns(profile, net.layers, 1, backward=False) for net in nets]
    energies_uj = [energy_uj(profile, Parts(0, time_ns, 0)) for time_ns in times_ns]
    numbers = {"MACs": [net.macs for net in nets], "parameters": [net.params for net in nets]}
    numbers["memory"] = [FLOAT32_BYTES * net.params + net.activation_bytes for net in nets]
    numbers |= {"latency": times_ns, "energy": energies_uj}
    return {name: before / after for name, (before, after) in numbers.items()}


def print_printed() -> None:
    """Prints what the model says of both papers' figures."""
    cases = table_11()
    errors = left_out(cases)
    print("PriSM, table 11, each from the others:      clock   a + b MACs   MACs alone")
    for case, each in zip(cases, errors, strict=True):
        print(
            f"  {case.net.macs:12,} MACs {case.turn_s:10.2f} s " + "".join(f"{100 * error:+12.1f}%" for error in each)
        )
    print("  the largest " + "".join(f"{100 * max(map(abs, each)):12.1f}%" for each in zip(*errors, strict=True)))
    for setting in ("cifar10", "har"):
        for phone in ("phone_high", "phone_mid", "phone_low"):
            ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in hermes_ratios(setting, phone).items())
            print(f"Hermes, {setting} on {phone}, times less: {ratios}")


def fitted(cases: Sequence[Case | Printed], *begins: Profile) -> Profile:
    """Fits the constants one after the other, by ever smaller factors, without lanes; the best of all beginnings."""

    def error(profile: Profile) -> float:
        return sum(math.log(case.predicted_s(profile) / case.turn_s) ** 2 for case in cases)

    found = []
    for begin in begins:
        profile = begin
        for factor in (8.0, 4.0, 2.0, 1.5, 1.2, 1.1, 1.05, 1.02) * 4:
            for name in ("macs_per_s", "memory_bytes_per_s", "step_ns", "layer_ns"):
                own = getattr(profile, name)
                tried = [replace(profile, **{name: max(1, round(own * by))}) for by in (1 / factor, 1.0, factor)]
                profile = min(tried, key=error)
        found.append(profile)
    return min(found, key=error)


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


def print_measured(turns: int, width: float) -> None:
    """Prints each case: measured, predicted by the model with and without lanes, predicted by the line."""
    with TemporaryDirectory() as folder:
        own = cases_of(FITTED, Path(folder), width)
        small = cases_of(FITTED, Path(folder), width, 4)
        others = [case for words in PREDICTED for case in cases_of(words, Path(folder), width)]
        for _ in range(turns):
            for case in (*own, *small, *others):
                began_s = time.process_time()
                case.train()
                case.turn_s = min(case.turn_s, time.process_time() - began_s)
    lanes = _LANES.get(torch.backends.cpu.get_cpu_capability(), 4)
    profile, one_lane = (
        fitted([*own, *small], replace(own[0].fleet.server, step_ns=100_000, layer_ns=10_000, lanes=each))
        for each in (lanes, 1)
    )
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


def main() -> None:
    """Prints what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--width", type=float, default=0.25, help="of the ResNet-18")
    parser.add_argument("--printed", action="store_true", help="what PriSM and Hermes print, by the model")
    parser.add_argument("--clock", nargs="+", metavar="CONFIG", help="a config with devices, and overrides")
    arguments = parser.parse_args()
    if arguments.printed:
        print_printed()
        return
    if arguments.clock:
        clock_s, others_s = share_of_clock(arguments.clock)
        print(f"clock {clock_s:.4f} s of CPU time, all else {others_s:.1f} s: {100 * clock_s / others_s:.3f} % more")
        return
    print_measured(arguments.turns, arguments.width)


if __name__ == "__main__":
    main()
