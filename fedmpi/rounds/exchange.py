"""How clients' results reach the server: `gather` or `reduce`, with the same bits.

gather   Uploads travel. A worker starts to send a client's upload and trains its next client meanwhile. Rank 0 receives
         a wave of one client per worker, and adds the one before. It never holds a whole cohort.
reduce   Each worker lifts and adds the uploads of its own clients. The sums (int64) travel once per phase, which takes
         as long for any number of clients. Faster where several workers have many clients each, or where rank 0 is
         alone.

Both add the same whole numbers (`fedmpi.exactsum`) on the same kind of device, so the order does not matter. Another
aggregate than the mean (`method.aggregate`) takes `gather`. A phase makes one exchange: every rank calls `post` once
per wave, then `finish`. After a loss of ranks it is dropped.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from functools import partial
from itertools import chain, cycle
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedmpi.errors import ConfigError, RoundError, where
from fedmpi.exactsum import WeightSum
from fedmpi.federation.assignment import Assignment, Wave
from fedmpi.methods import aggregate
from fedmpi.methods.aggregate import ExactMean
from fedmpi.methods.protocol import Method, copy_into
from fedmpi.rounds.state import CONTRIBUTED, ClientReport, Published, Setup, client_of
from fedmpi.tensors import Layout, Params, Region, host_buffer, to_device

if TYPE_CHECKING:
    from fedmpi.mpi.communicator import Wait

WAVE_BYTES = 128 * 2**20
"""Rank 0 receives at most so many bytes at once, or one upload: else its memory would grow with the workers."""
MANY_CLIENTS = 8
"""From so many clients a worker on, `auto` reduces (`jobs/bench/scaling.py`; `jobs/RESULTS.md`, Scale)."""
# A worker may have two uploads under way while it trains on. With one, a worker whose client was short would wait for
# the slowest of its wave.
_UNDER_WAY = 2
_REPORT_BYTES = 256
"""What a pickled `ClientReport` takes at most."""


@dataclass(frozen=True)
class Results:
    """Rank 0's results of a phase: a report per client, sorted by client, and the means of the server's sums.

    `shares` is that of `methods.values.Contributions`. The other ranks have none of them.
    """

    reports: tuple[ClientReport, ...] = ()
    means: Params = field(default_factory=dict)
    shares: Callable[[str], float | Tensor] = lambda name: 1.0


class Uploads:
    """Lifts the uploads of a phase and adds them: on rank 0 under `gather`, on every worker under `reduce`."""

    def __init__(self, setup: Setup, published: Published) -> None:
        method = setup.method
        tasks = published.plan.tasks
        self._setup = setup
        self._published = published
        self._tasks = {task.client: task for task in tasks}
        weights = {task.client: method.client_weight(task) for task in tasks}
        largest = max(weights.values(), default=1.0)
        self._weights = {client: weight / largest for client, weight in weights.items()}  # equal ones are exactly 1
        self._tensor_of = method.sums()
        specs = method.state_specs()
        self._specs = {name: specs[tensor] for name, tensor in self._tensor_of.items()}
        bounds = {name: published.bounds[tensor] for name, tensor in self._tensor_of.items()}
        total_weight = sum(self._weights.values()) or 1.0  # a phase may have no client
        new_aggregate = aggregate.named(method.options.aggregate)
        self.aggregate = new_aggregate(self._specs, bounds, total_weight, setup.device.server)
        self._senders = WeightSum(len(tasks))
        self.reports: list[ClientReport] = []

    def add(self, report: ClientReport, upload: Params | None) -> None:
        """Keeps the report of a client; if it contributed, adds its upload and counts its weight. None counts the
        weight alone, because another rank adds the upload. Raises `RoundError`, which names the client.
        """
        self.reports.append(report)
        if report.status != CONTRIBUTED:
            return
        task = self._tasks[report.client]
        client = client_of(self._setup, task, self._published, report.memory_digest)
        regions = self._setup.method.regions(client)
        if upload is not None:
            try:
                for name, value in self._setup.method.lift(upload, client):
                    self._add(report.client, name, value, regions.get(name))
            except (Exception, SystemExit) as error:  # the clock has no client during aggregation
                raise RoundError(where("aggregation", task.round_number, report.client)) from error
        shaped = {name: (self._specs[name].shape, region) for name, region in regions.items()}
        self._senders.add(self._weights[report.client], shaped)

    def _add(self, client: int, name: str, value: Tensor, region: Region | None) -> None:
        try:
            self.aggregate.add(client, name, value, self._weights[client], region)
        except ValueError as error:
            raise ConfigError("method.name", f"'{self._setup.method.options.name}' lifts {error}") from error

    def results(self, state: Params) -> Results:
        """Returns what the clients' uploads make of `state`; an entry that no client sent keeps its value."""
        old = {name: state[tensor] for name, tensor in self._tensor_of.items()}
        if hasattr(self.aggregate, "begin"):
            self.aggregate.begin(old)
        rule = self._setup.method.options.aggregate
        means = {}
        for name, value in old.items():
            result = self.aggregate.result(name, self._senders.of(name), value)
            means[name] = aggregate.checked(rule, name, result, value)
        by_client = sorted(self.reports, key=lambda report: report.client)
        return Results(tuple(by_client), means, self._senders.share)


class Gather:
    """Uploads travel to rank 0 in waves, while workers train on. A message is a client's report, then its upload."""

    def __init__(self, setup: Setup, published: Published) -> None:
        comm = setup.comm
        self._comm = comm
        self._device = setup.device.server
        specs_of = setup.method.upload_specs
        self._layouts = {task.client: Layout.of(specs_of(task.tier, task)) for task in published.plan.tasks}
        self._uploads = Uploads(setup, published) if comm.is_root else None
        self.num_done = 0
        """Clients whose results rank 0 has received."""
        largest = _REPORT_BYTES + max((layout.num_bytes for layout in self._layouts.values()), default=0)
        self._most_under_way = min(comm.size - 1, max(1, WAVE_BYTES // largest))
        buffer = partial(host_buffer, is_pinned=setup.device.has_gpu)
        self._outboxes: deque[tuple[Wait, Tensor]] = deque((lambda: None, buffer(largest)) for _ in range(_UNDER_WAY))
        # Rank 0 adds one upload while the others move.
        inbox_bytes = largest if comm.is_root else 0
        self._inboxes = cycle([buffer(inbox_bytes) for _ in range(self._most_under_way + 1)])
        self._under_way: deque[tuple[Wait, Layout, Tensor]] = deque()

    def post(self, wave: Wave, result: tuple[ClientReport, Params | None] | None) -> None:
        """Sends the result of this rank's client of the wave, if it has one, and copies what it needs; rank 0 receives
        those of all ranks.
        """
        sent, outbox = self._outboxes.popleft()
        sent()  # the message before the last, out of this buffer
        if result is not None:
            self._pack(outbox, *result)
        for sender, task in enumerate(wave):  # a rank that is neither sender nor receiver passes
            if task is None:
                continue
            layout = self._layouts[task.client]
            inbox = next(self._inboxes)
            wait = self._comm.start_send(sender, _REPORT_BYTES + layout.num_bytes, outbox, inbox)
            if sender == self._comm.rank:
                sent = wait
            if self._comm.is_root:
                self._under_way.append((wait, layout, inbox))
                self._receive_all_but(self._most_under_way)
        self._outboxes.append((sent, outbox))

    def finish(self, state: Params) -> Results:
        """Waits for what is under way; rank 0 gets all reports and the means."""
        self._receive_all_but(0)
        for sent, _ in self._outboxes:
            sent()
        del self._inboxes  # the means take as much memory
        return Results() if self._uploads is None else self._uploads.results(state)

    def _pack(self, outbox: Tensor, report: ClientReport, upload: Params | None) -> None:
        octets = pickle.dumps(astuple(report))
        if len(octets) > _REPORT_BYTES:
            raise RuntimeError(
                f"client {report.client}: a report takes at most {_REPORT_BYTES} bytes pickled: {report}"
            )
        outbox[: len(octets)].copy_(torch.frombuffer(bytearray(octets), dtype=torch.uint8))
        if not upload:
            return
        layout = self._layouts[report.client]
        on_host = outbox[_REPORT_BYTES:][: layout.num_bytes]
        device = next(iter(upload.values())).device
        if device.type == "cpu":
            copy_into(layout.views(on_host), upload)
        else:  # packed there, so that it crosses to the host in one piece
            packed = layout.new_buffer(device)
            copy_into(layout.views(packed), upload)
            on_host.copy_(packed)

    def _receive_all_but(self, number: int) -> None:
        """Waits on rank 0 until at most `number` uploads are under way, and adds those that have arrived."""
        while len(self._under_way) > number:
            wait, layout, inbox = self._under_way.popleft()
            wait()
            report = ClientReport(*pickle.loads(inbox[:_REPORT_BYTES].numpy().data))
            upload = layout.views(inbox[_REPORT_BYTES:][: layout.num_bytes].to(self._device))
            assert self._uploads is not None
            self._uploads.add(report, upload)
            self.num_done += 1


class Reduce(Uploads):
    """Workers lift and add; the sums travel once."""

    def __init__(self, setup: Setup, published: Published) -> None:
        super().__init__(setup, published)
        self.num_done = 0
        """Clients of the waves so far: rank 0 receives nothing of them before the end."""

    def post(self, wave: Wave, result: tuple[ClientReport, Params | None] | None) -> None:
        self.num_done += sum(task is not None for task in wave)
        if result is not None:
            report, upload = result
            self.add(report, to_device(upload or {}, self._setup.device.server))

    def finish(self, state: Params) -> Results:
        assert isinstance(self.aggregate, ExactMean), "MethodOptions.problems refuses another with mpi.exchange=reduce"
        comm = self._setup.comm
        on_host = self.aggregate.buffer.cpu()
        comm.reduce_sum(on_host)
        self.aggregate.buffer.copy_(on_host)
        of_ranks = comm.allgather_object(self.reports)
        if not comm.is_root:
            return Results()
        for report in chain.from_iterable(of_ranks[1:]):
            self.add(report, None)
        return self.results(state)


def choose(kind: str, method: Method, assignment: Assignment) -> str:
    """Returns `gather` or `reduce`; for `auto` the one that is faster for as many clients and workers."""
    if kind != "auto":
        return kind
    num_workers = sum(1 for tasks in assignment.by_rank[1:] if tasks)
    has_many = len(assignment.tasks) >= MANY_CLIENTS * num_workers
    adds_means = method.options.aggregate == "mean"
    return "reduce" if adds_means and has_many and num_workers != 1 else "gather"


EXCHANGES: Mapping[str, type[Gather | Reduce]] = {"gather": Gather, "reduce": Reduce}
"""The class of each exchange; `choose` returns the name."""
