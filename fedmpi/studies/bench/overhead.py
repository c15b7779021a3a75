"""What a round costs beside the SGD steps in it.

    python jobs/bench.py overhead [section.key=value ...] [--ranks 3] [--pairs 5] [--case small,resnet18,...]
    python jobs/bench.py memory [section.key=value ...] [--ranks 3] [--pairs 5] [--case small,resnet18,...]
    python jobs/bench.py aggregate [section.key=value ...] [--case resnet18,resnet18-fedhm,...]
    python jobs/bench.py factorize [section.key=value ...] [--case cifar10-fedhm,...] [--pairs 5]
    python jobs/bench.py population [section.key=value ...] [--ranks 1]
    python jobs/bench.py scaling --help
    python jobs/bench.py startup --help
    python jobs/bench.py gpu --help

`overhead` runs one federated round and then the same SGD steps as bare PyTorch loops on the same
processes, in turn, and prints the median ratio, where the round's time went, and rank 0's CPU time,
also as a share of a core; with two ranks or more rank 0 trains nothing. The bare loop is what one
would write without fedmpi: an ordinary module, `torch.optim.SGD`, images already normalized in
memory; no broadcast, no aggregation.

`memory` prints the most memory that all ranks of a run have together, counting what they share once,
against as many processes that run a bare loop, in turn (`whole_job`); with --growth also a worker's peak
against that of a bare loop, for cohorts of 10 and of 100 clients, which takes many minutes.

`aggregate` prints what lifting and adding a cohort's uploads takes on one core, in nanoseconds a number
of the server's tensors, against plain copies of as many float32 numbers, in turn in one process.

`factorize` trains rounds of FedHM with `method.solver=auto` and prints for each new state what `auto` and
`gram` take, what the audit of one layer takes after it, while workers train, and by how much auto's squared error
exceeds the other's; try it on real data.

`population` runs the same cohort of 20 clients with two examples each, out of the same two million
examples, for 1,000, 100,000 and 1,000,000 registered clients, and prints start-up (data, partition,
setup, saving the partition), a round, and peak memory, with their ratios.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from fedmpi.command.manners import Parser, complain, run_command
from fedmpi.config.load import load, only_overrides
from fedmpi.errors import UserError
from fedmpi.federation.assignment import Task
from fedmpi.mpi.starting import world
from fedmpi.report.table_text import print_lines
from fedmpi.rounds.recovering import OpenRound
from fedmpi.rounds.state import Setup, plan_phase
from fedmpi.running.resuming import initial_state
from fedmpi.running.start import prepare
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.arguments import number
from fedmpi.studies.bench import aggregate, factorize, whole_job
from fedmpi.studies.launch import environment, launcher, refuse_failure
from fedmpi.train_round import train_round

_LONG = "rounds=1000000 evaluation.every=1000000 train.augment=false output.tensorboard=false data.name=synthetic"
_IMAGES = f"""{_LONG} data.classes=10 data.num_test=100 partition.name=iid train.masked_loss=false
    clients.count=10 clients.per_round=4 model.name=resnet18"""
_SMALL = f"""{_IMAGES} data.shape=[1,8,8] data.num_train=960 model.width=0.25 model.blocks=[1,1,1,1]
    train.batch_size=32 train.local_epochs=10"""
_LARGE = f"{_IMAGES} data.shape=[3,32,32] data.num_train=1280 train.batch_size=64 train.local_epochs=2"
_CIFAR10 = f"""{_LONG.replace("data.name=synthetic", "data.name=cifar10")} data.num_train=1280 data.num_test=100
    partition.name=iid clients.count=10 clients.per_round=4 train.batch_size=64 train.local_epochs=1
    method.name=fedhm"""
_MANY = f"""{_LONG} data.shape=[1,4,4] data.num_train=2000000 data.num_test=1000 partition.name=dirichlet_equal
    partition.alpha=.inf partition.examples=2 model.name=mlp method.name=fedhm clients.tier_assignment=dynamic
    clients.per_round=20"""
CASES = {
    "small": ("small CNN (8x8 inputs), FedAvg", f"{_SMALL} method.name=fedavg"),
    "small-fedhm": ("small CNN (8x8 inputs), FedHM", f"{_SMALL} method.name=fedhm"),
    "resnet18": ("ResNet-18, FedAvg", f"{_LARGE} method.name=fedavg"),
    "resnet18-fedhm": ("ResNet-18, FedHM", f"{_LARGE} method.name=fedhm"),
    "resnet18-heterofl": ("ResNet-18, HeteroFL", f"{_LARGE} method.name=heterofl"),
    "resnet18-topk": ("ResNet-18, top-k", f"{_LARGE} method.name=topk"),
    "cifar10-fedhm": ("ResNet-18 on CIFAR-10, FedHM", f"{_CIFAR10} model.name=resnet18"),
    "cifar10-fedhm34": ("ResNet-34 on CIFAR-10, FedHM", f"{_CIFAR10} model.name=resnet34"),
    "population": ("20 of N clients", _MANY),
}
"""Each benchmark, a method on a net: its title, and its overrides."""
POPULATIONS = (1_000, 100_000, 1_000_000)
# The same data and the same batch of 64 whatever the cohort.
_MEMORY = ("clients.count=100", "data.num_train=6400", "train.local_epochs=1")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for a user's mistake."""
    return run_command(lambda: _bench(_arguments(argv)))


def _bench(arguments: argparse.Namespace) -> int | None:
    if arguments.what == "overhead":
        for name in arguments.case or ("small", "resnet18", "resnet18-fedhm"):
            _print_overhead(name, _launch(arguments, "overhead", name, arguments.pairs))
    elif arguments.what == "memory":
        for name in arguments.case or ("small", "resnet18"):
            words = [*CASES[name][1].split(), *whole_job.WORDS.split(), *arguments.overrides]
            whole_job.print_ratio(CASES[name][0], words, arguments.ranks, arguments.pairs)
            if arguments.growth:
                _print_growth(name, arguments)
    elif arguments.what == "aggregate":
        for name in arguments.case or ("resnet18", "resnet18-fedhm", "resnet18-heterofl", "resnet18-topk"):
            result = _launch(arguments, "aggregate", name, arguments.pairs, ranks=1)
            print(f"{CASES[name][0]}: {aggregate.shown(result)}", flush=True)
    elif arguments.what == "factorize":
        for name in arguments.case or ("resnet18-fedhm",):
            for line in factorize.shown(_launch(arguments, "factorize", name, arguments.pairs, ranks=1)):
                print(f"{CASES[name][0]}: {line}", flush=True)
    elif arguments.what == "population":
        results = {n: _launch(arguments, f"population-{n}", "population", 5) for n in POPULATIONS}
        _print_population(results)
    else:
        return _child(arguments)
    return None


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("jobs/bench.py", __doc__)
    parser.add_argument("what", choices=["overhead", "memory", "aggregate", "factorize", "population", "child"])
    parser.add_argument("words", nargs="*", metavar="section.key=value", help="on top of each case")
    parser.add_argument("--ranks", type=number(int, 1), default=3, help="rank 0 and the workers (default 3)")
    parser.add_argument("--pairs", type=number(int, 1), default=5, help="rounds, each with its bare twin (default 5)")
    parser.add_argument("--case", type=_cases, help=f"of {', '.join(CASES)}")
    parser.add_argument("--growth", action="store_true", help="with memory: for cohorts of 10 and of 100 clients, too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_intermixed_args(argv)
    arguments.overrides = only_overrides(arguments.words, "a case is named by --case")
    for name in arguments.case or CASES:
        load(None, [*CASES[name][1].split(), *arguments.overrides])  # here a mistake is one line
    return arguments


def _cases(text: str) -> list[str]:
    if unknown := set(text.split(",")) - CASES.keys():
        raise argparse.ArgumentTypeError(f"no case {min(unknown)!r}; there are {', '.join(CASES)}")
    return text.split(",")


def _launch(arguments: argparse.Namespace, child: str, case: str, pairs: int, ranks: int = 0) -> dict[str, float]:
    """Runs this module under mpirun (or alone); the last line of its output is the result."""
    ranks = ranks or arguments.ranks
    words = ["child", *arguments.overrides, "--child", child, "--case", case, "--pairs", str(pairs)]
    command = [*launcher(ranks), sys.executable, "-m", "fedmpi.studies.bench.overhead", *words]
    done = subprocess.run(command, env=environment(ranks), stdout=subprocess.PIPE, text=True)
    refuse_failure(done.returncode, command)
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _print_overhead(name: str, result: dict[str, float]) -> None:
    pairs = f"(pairs {result.pop('lowest'):.3f} to {result.pop('highest'):.3f})"
    times = f"round {result.pop('round_s'):.2f} s, bare {result.pop('bare_s'):.2f} s"
    share = f"rank 0 used {result.pop('root_s'):.2f} s, {100 * result.pop('root_cpu'):.1f} % of a core"
    print(f"{CASES[name][0]}: round / bare loop = {result.pop('ratio'):.3f} {pairs}; {times}; {share}")
    parts = sorted(result.items(), key=lambda part: -part[1])
    shown = (f"{stage} {1000 * seconds:.0f} ms" for stage, seconds in parts if seconds > 5e-4)
    print(f"  mean over ranks: {', '.join(shown)}")


def _print_growth(name: str, arguments: argparse.Namespace) -> None:
    bare = _launch(arguments, "bare-memory", name, 1, ranks=1)["peak_bytes"]
    peaks = {cohort: _launch(arguments, f"memory-{cohort}", name, 1)["peak_bytes"] for cohort in (10, 100)}
    ratios = f"{peaks[10] / bare:.2f} at 10 clients a round, {peaks[100] / bare:.2f} at 100"
    print(f"{CASES[name][0]}: worker's peak / bare loop's = {ratios} (bare {bare / 1e6:.0f} MB)")


def _print_population(results: dict[int, dict[str, float]]) -> None:
    first, lines = results[POPULATIONS[0]], []
    for count, result in results.items():
        shown = (f"{result['startup_s']:.3f} s", f"{result['round_s']:.3f} s", f"{result['peak_bytes'] / 1e6:.0f} MB")
        ratios = (result[name] / first[name] for name in ("startup_s", "round_s", "peak_bytes"))
        lines.append([f"{count:,}", *(f"{cell} (x {ratio:.2f})" for cell, ratio in zip(shown, ratios, strict=True))])
    print_lines(["clients", "start-up", "round", "peak memory"], lines, 0, sys.stdout)


def _child(arguments: argparse.Namespace) -> int | None:
    """The exit code of one rank, if there is one to give."""
    comm: Any = world()
    words = [*CASES[arguments.case[0]][1].split(), *arguments.overrides]
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = _measured(comm, arguments.child, words, arguments.pairs, Path(folder))
    except UserError as error:  # all ranks have met it
        complain(error, comm.rank)
        code: int = comm.leave(error.exit_code)
        return code
    except BaseException:
        traceback.print_exc()
        comm.abort(1)
        raise
    if comm.is_root:
        print(json.dumps(result), flush=True)
    return None


def _measured(comm: Any, what: str, words: Sequence[str], pairs: int, folder: Path) -> dict[str, float]:
    kind, _, count = what.rpartition("-")
    if kind == "population":
        return _population(comm, words, int(count), pairs, folder)
    if what == "aggregate":
        return aggregate.measured(_setup(comm, [*words, *aggregate.WORDS], folder), pairs)
    if what == "factorize":
        return factorize.measured(_setup(comm, [*words, *factorize.WORDS], folder), pairs)
    if what == "overhead":
        return _overhead(_setup(comm, words, folder), pairs)
    if what == "bare-memory":
        # The loop's own net and optimizer only.
        BareLoop(replace(_setup(comm, [*words, *_MEMORY, "clients.per_round=4"], folder), trainers=())).run(1)
        return {"peak_bytes": _peak_bytes()}
    next(_rounds(_setup(comm, [*words, *_MEMORY, f"clients.per_round={count}"], folder)))
    peaks = _of_all(comm, [_peak_bytes()])[:, 0]
    return {"peak_bytes": float(peaks[1:].max() if len(peaks) > 1 else peaks.max())}


def _setup(comm: Any, words: Sequence[str], folder: Path) -> Setup:
    return prepare(load(None, words), comm, RunDir(folder))


def _rounds(setup: Setup) -> Iterator[None]:
    """Each step of this iterator is one federated round."""
    opened = OpenRound(1, initial_state(setup, None))
    while True:
        train_round(setup, opened)
        opened = OpenRound(opened.number + 1, opened.state, opened.published)
        yield


def _overhead(setup: Setup, pairs: int) -> dict[str, float]:
    rounds, bare = _rounds(setup), BareLoop(setup)
    next(rounds)  # warm-up
    bare.run(1)
    setup.clock.take()
    round_s, bare_s, root_s, splits = [], [], [], []
    for round_number in range(2, pairs + 2):
        cpu = time.process_time()
        round_s.append(_timed(setup.comm, lambda: next(rounds)))
        root_s.append(time.process_time() - cpu)
        splits.append(setup.clock.take())
        bare_s.append(_timed(setup.comm, partial(bare.run, round_number)))
        setup.clock.take()
    ratios = [one / other for one, other in zip(round_s, bare_s, strict=True)]
    stages = [stage for stage in splits[0] if stage != "wall"]
    means = _of_all(setup.comm, [statistics.fmean(split[stage] for split in splits) for stage in stages]).mean(axis=0)
    root_cpu = [used / whole for used, whole in zip(root_s, round_s, strict=True)]
    medians = {"ratio": ratios, "round_s": round_s, "bare_s": bare_s, "root_s": root_s, "root_cpu": root_cpu}
    return {
        **{name: statistics.median(values) for name, values in medians.items()},
        "lowest": min(ratios),
        "highest": max(ratios),
        **dict(zip(stages, means.tolist(), strict=True)),
    }


def _timed(comm: Any, action: Callable[[], object]) -> float:
    """Seconds from the moment all ranks are there until the last of them is done."""
    comm.wait_for_all()
    started = time.perf_counter()
    action()
    comm.wait_for_all()
    return time.perf_counter() - started


def _of_all(comm: Any, values: Sequence[float]) -> np.ndarray:
    """(ranks, values) on rank 0; its own values elsewhere, where nobody reads them."""
    own = np.array(values, dtype=float)
    rows = comm.gather_rows(own)
    return own[None] if rows is None else np.asarray(rows)


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


def _population(comm: Any, words: Sequence[str], count: int, num_rounds: int, folder: Path) -> dict[str, float]:
    """Seconds until the first round could begin (without loading torch), median seconds of a round, peak memory."""
    importlib.import_module(
        "torch._dynamo"
    )  # torch loads it when a net is first measured: seconds that no client costs
    held = []

    def start() -> None:
        setup = _setup(comm, [*words, f"clients.count={count}"], folder)
        if comm.is_root:
            (folder / "partition.h5").write_bytes(setup.partition.packed())
        held.append(_rounds(setup))

    startup_s = _timed(comm, start)
    next(held[0])  # the first broadcast, and warm-up
    round_s = [_timed(comm, lambda: next(held[0])) for _ in range(num_rounds)]
    peak_bytes = float(_of_all(comm, [_peak_bytes()]).max())
    return {"startup_s": startup_s, "round_s": statistics.median(round_s), "peak_bytes": peak_bytes}


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    sys.exit(main())
