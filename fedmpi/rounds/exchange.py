"""How clients' results reach the server: `gather` or `reduce`, with the same bits.

gather   Factor tensors travel. Workers start sending a client's upload and train the next one while it moves; rank 0
         takes the uploads in waves of one client per worker (or parts of them), receives the next wave while it lifts
         and adds one (`receiving`), and never holds a whole cohort.
reduce   Each worker lifts and adds its own clients; the sums (int64) travel once per phase. Wins where each of several
         workers has many clients.

Both add the same whole numbers (`fedmpi.exactsum`), in whatever order, on the same kind of device. Another
aggregate than the mean (`method.aggregate`) takes `gather`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedmpi.errors import ConfigError, RoundError
from fedmpi.exactsum import WeightSum
from fedmpi.federation.assignment import Assignment, Task
from fedmpi.methods import aggregate
from fedmpi.methods.aggregate import ExactMean
from fedmpi.methods.protocol import Method, copy_into, sums_of
from fedmpi.methods.values import Client
from fedmpi.mpi.communicator import Communicator, Request
from fedmpi.rounds.receiving import Receiver
from fedmpi.store.files import DIGEST_BYTES
from fedmpi.tensors import ALIGN_BYTES, Layout, Params, Region, Spec, host_buffer, moved

# Uploads of a worker that may be under way while it trains on. Two: with one, a worker whose
# client was short would wait for the slowest of its wave.
_UNDER_WAY = 2

CONTRIBUTED, DROPPED = 1, 2
"""What became of a client in this phase."""


@dataclass(frozen=True)
class ClientReport:
    """What a worker tells of one client beside its upload; 128 bytes on the wire."""

    client: int
    status: int
    steps: int = 0
    loss: float = 0.0
    training_s: float = 0.0
    down_bytes: int = 0
    up_bytes: int = 0
    """Protocol bytes: what this client would have moved."""
    restored: int = 0
    """1 if its training diverged and it sent its last finite parameters."""
    left_out: int = 0
    """How many of its steps fp16 left out."""
    memory_digest: str = ""
    """Hexadecimal digest of the client's new memory, where the method keeps one."""

    def to_row(self) -> np.ndarray:
        *numbers, digest = astuple(self)
        return np.array((*numbers, bytes.fromhex(digest)), _REPORT)

    @classmethod
    def from_row(cls, row: np.void) -> ClientReport:
        values: list[Any] = [*row.tolist()]
        values[-1] = values[-1].hex() if any(values[-1]) else ""
        return cls(*values)


_KINDS = {"int": "i8", "float": "f8", "str": f"V{DIGEST_BYTES}"}
_FORMATS = {one.name: _KINDS[str(one.type)] for one in fields(ClientReport)}
# 128 bytes, so that what follows in the message stays aligned.
_REPORT = np.dtype({"names": [*_FORMATS], "formats": [*_FORMATS.values()], "itemsize": 2 * ALIGN_BYTES})
_REPORT_NAME = "#report"

ClientResult = tuple[ClientReport, Params | None]
"""A client's report and its upload, None if the client is dropped."""


@dataclass(frozen=True)
class Results:
    """What a phase brought: a report per client (on every rank that knows it), and on rank 0 the means. `shares` is
    that of `methods.values.Contributions`.
    """

    reports: tuple[ClientReport, ...] = ()
    means: Params = field(default_factory=dict)
    shares: Callable[[str], float | Tensor] = lambda name: 1.0


class Weights:
    """The planned weight of every client of a cohort, divided by the largest: equal ones are exactly 1."""

    def __init__(self, method: Method, tasks: Sequence[Task]) -> None:
        raw = {task.client: method.client_weight(task) for task in tasks}
        largest = max(raw.values(), default=1.0)
        self.of = {client: weight / largest for client, weight in raw.items()}
        self.total = sum(self.of.values()) or 1.0  # a phase may find nobody


@dataclass(frozen=True)
class OpenPhase:
    """What an exchange is opened for. `bounds` has B of each server tensor; `client_of` makes the `Client` that a
    method wants to see out of a task and the digest of its new memory. `device` is where results are lifted and added,
    on whichever rank does it. `pinned` puts message buffers where this rank's GPU reads and writes them fastest; a rank
    without one must not ask for it, because pinning memory opens a GPU.
    """

    comm: Communicator
    method: Method
    assignment: Assignment
    bounds: Mapping[str, float]
    client_of: Callable[[Task, str], Client]
    device: str = "cpu"
    pinned: bool = False


class _Uploads:
    """Lifts the uploads of a phase and adds them: on rank 0 under `gather`, on every worker under `reduce`."""

    def __init__(self, phase: OpenPhase) -> None:
        method, assignment = phase.method, phase.assignment
        self._method, self._client_of = method, phase.client_of
        self._weights = Weights(method, assignment.tasks)
        self._tasks = {task.client: task for task in assignment.tasks}
        specs, self._tensor_of = method.state_specs(), sums_of(method)
        self._specs = {name: specs[tensor] for name, tensor in self._tensor_of.items()}
        bounds = {name: phase.bounds[tensor] for name, tensor in self._tensor_of.items()}
        make = aggregate.named(method.options.aggregate)
        self.aggregate = make(self._specs, bounds, self._weights.total, phase.device)
        self._senders = WeightSum(len(self._tasks))
        self._counts_senders = phase.comm.is_root
        self._counted: set[int] = set()

    def add(self, report: ClientReport, upload: Params) -> None:
        task, weight = self._tasks[report.client], self._weights.of[report.client]
        client = self._client_of(task, report.memory_digest)
        regions = self._method.regions(client)
        try:
            for name, value in self._method.lift(upload, client):
                self._add(task.client, name, value, weight, regions.get(name))
        except (Exception, SystemExit) as error:  # as the clock would have it, which does not know the client
            raise RoundError("aggregation", round_number=task.round_number, client=task.client) from error
        if self._counts_senders:
            self._count(task.client, regions)

    def _add(self, client: int, name: str, value: Tensor, weight: float, region: Region | None) -> None:
        try:
            self.aggregate.add(client, name, value, weight, region)
        except ValueError as error:
            raise ConfigError("method.name", f"'{self._method.options.name}' lifts {error}") from error

    def _count(self, client: int, regions: Mapping[str, Region]) -> None:
        """Adds the client's weight to those of the entries that it has sent."""
        held = {name: (self._specs[name].shape, region) for name, region in regions.items()}
        self._senders.add(self._weights.of[client], held)
        self._counted.add(client)

    def results(self, state: Params, reports: Sequence[ClientReport]) -> Results:
        """Returns what the clients' uploads make of `state`; an entry that nobody has sent keeps its value there."""
        reports = tuple(sorted(reports, key=lambda report: report.client))
        for report in reports:  # those that other ranks have added
            if report.status == CONTRIBUTED and report.client not in self._counted:
                client = self._client_of(self._tasks[report.client], report.memory_digest)
                self._count(report.client, self._method.regions(client))
        means = {
            name: self.aggregate.result(name, self._senders.of(name), state[tensor])
            for name, tensor in self._tensor_of.items()
        }
        return Results(reports, means, self._senders.share)


class Exchange(Protocol):
    """One phase's exchange. Every rank calls `post` once per wave, then `finish`. After a loss of ranks it
    is dropped."""

    def post(self, task: Task | None, result: ClientResult | None) -> None:
        """Hands over the result of this rank's client of the wave, if it has one; copies what it needs."""

    def num_awaited(self) -> int:
        """How many clients of the waves so far rank 0 has yet to wait for."""

    def finish(self, state: Params) -> Results:
        """Waits for what is under way; rank 0 gets all reports and the means."""


class Gather:
    """Uploads travel to rank 0 in waves, while workers train on."""

    def __init__(self, phase: OpenPhase) -> None:
        comm, tasks = phase.comm, phase.assignment.tasks
        new_buffer = partial(host_buffer, is_pinned=phase.pinned)
        self._device = phase.device
        self._layouts = {task.client: upload_layout(phase.method, task) for task in tasks}
        self._uploads = _Uploads(phase) if comm.is_root else None
        self._reports: list[ClientReport] = []
        own_bytes = [self._layouts[task.client].num_bytes for task in phase.assignment.by_rank[comm.rank]]
        self._slots = deque(new_buffer(max(own_bytes, default=0)) for _ in range(_UNDER_WAY))
        self._receiver = Receiver(comm, phase.assignment.waves, self._layouts, new_buffer)
        self._under_way: deque[list[Request]] = deque()

    def post(self, task: Task | None, result: ClientResult | None) -> None:
        self._wait_for_less_than(_UNDER_WAY)
        slot = self._slots[0]
        self._slots.rotate(-1)
        if task is not None and result is not None:
            self._fill(slot, task, result)
        requests = []
        for request in self._receiver.start_wave(slot):
            requests.append(request)
            for arrived, message in self._receiver.arrived():
                self._receive(arrived, message)
        self._under_way.append(requests)

    def _wait_for_less_than(self, number: int) -> None:
        while len(self._under_way) >= number:
            for request in self._under_way.popleft():
                request.wait()

    def _fill(self, slot: Tensor, task: Task, result: ClientResult) -> None:
        layout = self._layouts[task.client]
        report, upload = result
        if upload is not None:
            device = next((value.device for value in upload.values()), slot.device)
            # Packed where it is, so that a GPU's result crosses to the host in one piece.
            packed = slot if device.type == "cpu" else layout.new_buffer(device)
            copy_into({name: view for name, view in layout.views(packed).items() if name != _REPORT_NAME}, upload)
            if packed is not slot:
                slot[: layout.num_bytes].copy_(packed)
        layout.views(slot)[_REPORT_NAME].numpy().view(_REPORT)[0] = report.to_row()

    def _receive(self, task: Task, message: Tensor) -> None:
        """Adds one client's upload to the sums; rank 0 only."""
        layout = self._layouts[task.client]
        report = ClientReport.from_row(layout.views(message)[_REPORT_NAME].numpy().view(_REPORT)[0])
        self._reports.append(report)
        if report.status == CONTRIBUTED:
            # Copied synchronously: the buffer is reused right after.
            upload = layout.views(message.to(self._device))
            del upload[_REPORT_NAME]
            assert self._uploads is not None
            self._uploads.add(report, upload)

    def num_awaited(self) -> int:
        return self._receiver.num_awaited

    def finish(self, state: Params) -> Results:
        self._wait_for_less_than(1)
        del self._receiver  # the means take as much
        return Results() if self._uploads is None else self._uploads.results(state, self._reports)


class Reduce:
    """Workers lift and add; the sums travel once."""

    def __init__(self, phase: OpenPhase) -> None:
        self._comm, self._device = phase.comm, phase.device
        self._uploads = _Uploads(phase)
        self._reports: list[ClientReport] = []
        self._most_reports = max(map(len, phase.assignment.by_rank), default=0)

    def post(self, task: Task | None, result: ClientResult | None) -> None:
        if task is None or result is None:
            return
        report, upload = result
        self._reports.append(report)
        if upload is not None:
            self._uploads.add(report, moved(upload, self._device))

    def num_awaited(self) -> int:
        return 0

    def finish(self, state: Params) -> Results:
        sums = self._uploads.aggregate
        assert isinstance(sums, ExactMean), "MethodOptions.problems refuses another one with mpi.exchange=reduce"
        buffer = sums.buffer
        on_host = buffer.cpu()
        self._comm.reduce_sum(on_host)
        buffer.copy_(on_host)
        rows = np.zeros(self._most_reports, _REPORT)
        for place, report in enumerate(self._reports):
            rows[place] = report.to_row()
        all_rows = self._comm.gather_rows(rows.view(np.uint8))
        if all_rows is None:
            return Results()
        known = [ClientReport.from_row(row) for row in all_rows.view(_REPORT).reshape(-1) if row["status"]]
        return self._uploads.results(state, known)


def upload_layout(method: Method, task: Task) -> Layout:
    """A client's message: its report, then its upload."""
    return Layout.of({_REPORT_NAME: Spec((_REPORT.itemsize,), torch.uint8), **method.upload_specs(task.tier, task)})


MANY_CLIENTS = 8
"""From so many clients a worker on, `auto` reduces (`jobs/bench/scaling.py`; `jobs/RESULTS.md`, Scale)."""


def choose(kind: str, method: Method, assignment: Assignment) -> str:
    """Returns `gather` or `reduce`; for `auto` the one that is faster for as many clients and workers.

    Under `reduce` workers lift and add side by side, and one reduction follows, which takes as long for any number of
    clients. So it is faster where several workers have many clients each, and where nothing travels.
    """
    if kind != "auto":
        return kind
    num_workers = sum(1 for tasks in assignment.by_rank[1:] if tasks)
    has_many = len(assignment.tasks) >= MANY_CLIENTS * num_workers
    adds_means = method.options.aggregate == aggregate.MEAN
    return "reduce" if adds_means and has_many and num_workers != 1 else "gather"


def open_exchange(kind: str, phase: OpenPhase) -> Exchange:
    """The exchange of one phase; `kind` as `choose` returns it."""
    return Gather(phase) if kind == "gather" else Reduce(phase)
