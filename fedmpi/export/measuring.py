"""What a net costs where it runs: parameters, multiply-accumulates, time of a pass on one thread, memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from fedmpi import costs
from fedmpi.config.load import Override
from fedmpi.export.formats import Answers
from fedmpi.export.saved import saved_round
from fedmpi.export.smaller import cut_net
from fedmpi.export.trained import TrainedNet, net_of_client

BATCHES = (1, 64)
_WARM_UP, _LEAST, _MOST, _ENOUGH_S = 3, 5, 100, 1.0


@dataclass(frozen=True)
class Latency:
    """Seconds of a pass: the median, and the first and last decile."""

    median_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class Measured:
    params: int
    macs: int
    """Of one example."""
    latency: dict[int, Latency]
    """By batch size; of the file's own runtime."""
    peak_bytes: dict[int, int]
    """By batch size: weights, input, and the most bytes of tensors that are alive at once in a pass of torch's net.
    What an operator needs inside is not seen."""


def measure(trained: TrainedNet, answers: Answers) -> Measured:
    shape = trained.saved.setup.data.info.example_shape
    found = costs.measure(trained.net, shape)
    inputs = {size: trained.example()[:1].expand(size, *shape).clone() for size in BATCHES}
    with torch.no_grad(), _one_thread():
        latency = {size: _latency(answers, batch) for size, batch in inputs.items()}
        peaks = {size: peak_bytes(trained.net, batch) for size, batch in inputs.items()}
    return Measured(found.params, found.macs, latency, peaks)


def speed_up(run: str | Path, overrides: Sequence[Override], client: int = 0) -> float:
    """How much longer an inference of a client's net takes than that of the same net cut, in a finished hermes run."""
    whole = net_of_client(saved_round(run, overrides=overrides), client)
    taken = [measure(net, net.net).latency[1].median_s for net in (whole, cut_net(whole))]
    return taken[0] / taken[1]


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _latency(answers: Answers, inputs: Tensor) -> Latency:
    """At least 5 passes, at most 100, for about a second, after 3 that do not count."""
    taken: list[float] = []
    while len(taken) < _WARM_UP + _LEAST or (sum(taken) < _ENOUGH_S and len(taken) < _MOST):
        started = time.perf_counter()
        answers(inputs)
        taken.append(time.perf_counter() - started)
    deciles = statistics.quantiles(taken[_WARM_UP:], n=10, method="inclusive")
    return Latency(statistics.median(taken[_WARM_UP:]), deciles[0], deciles[-1])


def peak_bytes(net: nn.Module, inputs: Tensor) -> int:
    """Weights, `inputs`, and the most bytes that operators have returned and that are alive at once."""
    weights = sum(value.nbytes for value in [*net.parameters(), *net.buffers()])
    with _Alive(inputs) as alive:
        net(inputs)
    return weights + alive.peak_bytes


class _Alive(TorchDispatchMode):
    """Sums the storages that operators have returned and that are still alive; weights do not count."""

    def __init__(self, inputs: Tensor) -> None:
        TorchDispatchMode.__init__(self)
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._add(inputs)
        self.peak_bytes = self._now()

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:  # a view is of what counts already, or of a weight
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                self._add(tensor)
            self.peak_bytes = max(self.peak_bytes, self._now())
        return out

    def _add(self, tensor: object) -> None:
        if isinstance(tensor, Tensor):
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()

    def _now(self) -> int:
        self._storages = {key: entry for key, entry in self._storages.items() if not entry[0].expired()}
        return sum(num_bytes for _, num_bytes in self._storages.values())
