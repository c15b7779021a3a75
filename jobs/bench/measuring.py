"""Helps the benchmarks: cases, command lines, measurements in turn, processes on several ranks, and a bare loop."""

import argparse
import inspect
import itertools
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmpi.config.load import load
from fedmpi.errors import UserError
from fedmpi.learning import loss_scale
from fedmpi.mpi.mpirun import environment, start_words
from fedmpi.mpi.starting import world
from fedmpi.rounds.state import ServerState, Setup
from fedmpi.running.resuming import initial_state
from fedmpi.running.start import prepare
from fedmpi.store.run_dir import RunDir
from fedmpi.train_round import train_round

# Else the next import warns on each machine that has CUDA's compiler and no GPU.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
from torch.utils import benchmark  # noqa: E402

LONG = "rounds=1000000 evaluation.every=1000000 train.augment=false output.tensorboard=false"
_IMAGES = f"""{LONG} partition.name=iid clients.count=10 clients.per_round=4 data.num_test=100 data.name=synthetic
    data.classes=10 train.masked_loss=false model.name=resnet18"""
_SMALL = f"""{_IMAGES} data.shape=[1,8,8] data.num_train=960 model.width=0.25 model.blocks=[1,1,1,1]
    train.batch_size=32 train.local_epochs=10"""
_LARGE = f"{_IMAGES} data.shape=[3,32,32] data.num_train=1280 train.batch_size=64 train.local_epochs=2"
CASES = {
    "small": ("small CNN (8x8 inputs), FedAvg", f"{_SMALL} method.name=fedavg"),
    "small-fedhm": ("small CNN (8x8 inputs), FedHM", f"{_SMALL} method.name=fedhm"),
    "resnet18": ("ResNet-18, FedAvg", f"{_LARGE} method.name=fedavg"),
    # A client of each tier in every round: how long rank 0's factorization is waited for depends on the cohort's tiers.
    "resnet18-fedhm": ("ResNet-18, FedHM", f"{_LARGE} method.name=fedhm clients.count=4 data.num_train=512"),
    "resnet18-heterofl": ("ResNet-18, HeteroFL", f"{_LARGE} method.name=heterofl"),
    "resnet18-topk": ("ResNet-18, top-k", f"{_LARGE} method.name=topk"),
}
"""Title and overrides of each case. The overrides come on top of the packaged default, which is the main job."""
SPREAD = "lowest - highest"
_ON_RANK = "--on-rank"


def numbers(text: str) -> list[int]:
    """Reads `1,3,5`."""
    return [int(part) for part in text.split(",")]


def some_of(allowed: Collection[str]) -> Callable[[str], list[str]]:
    """Returns the type of an argument that names some of `allowed`."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in allowed]:
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r}; there are {', '.join(allowed)}")
        return names

    return read


def parser(doc: str | None, case: str = "", pairs: int = 5, ranks: int = 0) -> argparse.ArgumentParser:
    """Returns a parser that takes overrides; these are the defaults of `--case`, `--pairs` and `--ranks`, where the
    benchmark has them.
    """
    raw = argparse.RawDescriptionHelpFormatter
    found = argparse.ArgumentParser(description=doc, formatter_class=raw, allow_abbrev=False)
    found.add_argument("words", nargs="*", metavar="section.key=value", help="on top of the benchmark's own settings")
    if case:
        help_case = f"of {', '.join(CASES)} (default {case})"
        found.add_argument("--case", type=some_of(CASES), default=case.split(","), help=help_case)
    if pairs:
        found.add_argument("--pairs", type=int, default=pairs, help=f"turns (default {pairs})")
    if ranks:
        found.add_argument("--ranks", type=int, default=ranks, help=f"rank 0 and the workers (default {ranks})")
    return found


def settings(arguments: argparse.Namespace, given: str) -> list[str]:
    """Returns the settings `given` with the user's overrides on top. Raises `ConfigError` for a mistake."""
    words = [*given.split(), *arguments.words]
    load(None, words)
    return words


def ratios(ours: Sequence[float], others: Sequence[float]) -> list[float]:
    """Returns the ratio of two measurements in each turn."""
    return [one / other for one, other in zip(ours, others, strict=True)]


def spread(values: Sequence[float], digits: str = ".2f", unit: str = "") -> list[str]:
    """Returns the cells of a table: the median, and the lowest and the highest."""
    return [f"{statistics.median(values):{digits}}{unit}", f"{min(values):{digits}} - {max(values):{digits}}{unit}"]


def ratio_text(ours: Sequence[float], others: Sequence[float]) -> str:
    """Returns the median ratio with its spread as words."""
    found = ratios(ours, others)
    return f"{statistics.median(found):.3f} (pairs {min(found):.3f} to {max(found):.3f})"


def in_turn(measures: Mapping[str, Callable[[], Any]], turns: int) -> dict[str, list[Any]]:
    """Takes every measurement once a turn, one after the other, so that a slow minute of the machine hits all alike.
    The first turn warms up and does not count.
    """
    found: dict[str, list[Any]] = {name: [] for name in measures}
    for turn in range(1 + turns):
        for name, measure in measures.items():
            value = measure()
            if turn:
                found[name].append(value)
    return found


def seconds(action: Callable[[], object]) -> float:
    """Returns the time of one call, until an accelerator is done, too."""
    started = benchmark.timer()
    action()
    return benchmark.timer() - started


def seconds_together(comm: Any, action: Callable[[], object]) -> float:
    """Returns the time from the moment all ranks are there until the last of them is done."""
    comm.wait_for_all()
    return seconds(lambda: (action(), comm.wait_for_all()))


def pss_bytes(job: psutil.Process, program: str = "") -> int:
    """Sums the proportional sizes of a process and all that it has started, or of those of them that run `program`."""
    total = 0
    with suppress(psutil.Error):  # it has just ended
        for process in [job, *job.children(recursive=True)]:
            with suppress(psutil.Error):
                if not program or process.cmdline()[:1] == [program]:
                    total += process.memory_full_info().pss
    return total


def start(main: Callable[[], None]) -> NoReturn:
    """Runs a benchmark; in a process that `launched` has started, the function that it names."""
    if sys.argv[1:2] == [_ON_RANK]:
        sys.exit(_on_rank(*sys.argv[2:]))
    try:
        sys.exit(main())
    except UserError as error:
        print(error.text(), file=sys.stderr)
        sys.exit(error.exit_code)


def launched(measure: Callable[..., Any], words: Sequence[str], ranks: int = 1, **more: object) -> Any:
    """Calls `measure(comm, folder, words, **more)` on so many new ranks; returns rank 0's result. Ends this program
    with their exit code where they fail: they have said why.
    """
    program = [str(inspect.getsourcefile(measure)), _ON_RANK, measure.__name__, json.dumps([list(words), more])]
    command = [*start_words(ranks), sys.executable, *program]
    done = subprocess.run(command, env=environment(ranks), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout.strip().splitlines()[-1])


def _on_rank(name: str, given: str) -> int:
    comm: Any = world()
    words, more = json.loads(given)
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = getattr(sys.modules["__main__"], name)(comm, Path(folder), words, **more)
    except BaseException:
        traceback.print_exc()
        comm.abort(1)
        raise
    if comm.is_root:
        print(json.dumps(result), flush=True)
    return 0


def prepared(comm: Any, folder: Path, words: Sequence[str]) -> Setup:
    """Sets up a run with these overrides of the main job."""
    return prepare(load(None, words), comm, RunDir(folder))


def rounds_of(setup: Setup) -> Iterator[ServerState]:
    """Trains a round with each step of the iterator, and yields the state after it."""
    state, published = initial_state(setup, None), None
    for number in itertools.count(1):
        state, published, _ = train_round(setup, number, state, published)
        yield state


def of_all(comm: Any, values: Sequence[float]) -> np.ndarray:
    """Returns (ranks, values), the values of all ranks."""
    return np.array(comm.allgather_object(values), dtype=float)


class BareLoop:
    """Trains as one would without fedmpi: plain modules, `torch.optim.SGD`, normalized images in memory."""

    def __init__(self, setup: Setup, tiers: Iterable[int]) -> None:
        self._train, self._device, self._nets = setup.config.train, setup.data.device, dict[int, nn.Module]()
        for number in tiers:
            net = setup.method.net(number)
            for parameter in net.parameters():  # factors come as zeros, which would train unlike others
                nn.init.normal_(parameter, std=0.02)
            self._nets[number] = net.to(self._device).to(memory_format=torch.channels_last)
        whole = setup.data.draws(np.arange(len(setup.data.train_y)), 1, torch.Generator(), shuffle=False)
        self._images, self._labels = setup.data.train_batch(whole, 0, 0, len(setup.data.train_y))

    def train(self, tier: int, batches: Iterable[Tensor]) -> None:
        """Takes a step for each batch, numbers of examples, as a client does: with a new optimizer."""
        net, train = self._nets[tier].train(), self._train
        sgd = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=train.momentum, weight_decay=train.weight_decay)
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(train.precision)
        scaler = torch.amp.GradScaler(self._device.type, init_scale=loss_scale.INITIAL, enabled=dtype == torch.float16)
        for batch in batches:
            sgd.zero_grad()
            with torch.autocast(self._device.type, dtype, enabled=dtype is not None):
                loss = functional.cross_entropy(net(self._images[batch]), self._labels[batch])
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(sgd)
            scaler.update()

    def steps(self, tier: int, count: int) -> None:
        """Takes so many steps, of whole batches of any examples."""
        self.train(tier, torch.randint(len(self._labels), (count, self._train.batch_size)).to(self._device))
