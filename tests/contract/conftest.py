"""Every method in a small federation, before its first round: what the contract tests take apart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from method_cases import CASES
from small_runs import small_setup

from fedmpi.exactsum import ExactSum, bound_of
from fedmpi.federation.plan import Assignment, Task
from fedmpi.methods.protocol import Client, Method
from fedmpi.rounds.exchange import CONTRIBUTED, ClientReport, OpenPhase, Results, open_exchange
from fedmpi.rounds.state import Setup, plan_phase
from fedmpi.tensors import Layout, Params


@dataclass(frozen=True)
class Federation:
    """One method with everything around it, and the state before round 1."""

    name: str
    setup: Setup
    state: Params

    @property
    def method(self) -> Method:
        return self.setup.method

    @property
    def tiers(self) -> range:
        return range(len(self.method.tiers))

    def published(self, tiers: Collection[int]) -> Params:
        """What `publish` writes for these tiers into a buffer full of NaN."""
        layout = Layout.of(self.method.published_specs(tiers))
        buffer = layout.new_buffer()
        buffer.view(torch.float32).fill_(float("nan"))
        out = layout.views(buffer)
        self.method.publish(self.state, tiers, out)
        return out

    def bounds(self) -> dict[str, float]:
        return {name: bound_of(float(self.state[name].abs().max())) for name in self.method.state_specs()}

    def phases(self) -> list[Assignment]:
        return [plan_phase(self.setup, 1, phase) for phase in self.method.phases(1)]

    def client(self, task: Task, published: Params | None = None) -> Client:
        """A client without memory, as its method sees it."""
        known = self.published({task.tier}) if published is None else published
        return Client(task, known, self.setup.partition.client(task.client), self.setup.config.seed)

    def returned(self, task: Task, scale: float = 1.0) -> Params:
        """The upload of a client that returns what it got (times `scale`), as tensors of its own."""
        published = self.published({task.tier})
        client = self.client(task, published)
        net = self.setup.trainers[task.tier].net
        self.method.narrow(published, task.tier, net.params, client)
        torch._foreach_mul_(list(net.params.values()), scale)
        upload = self.method.upload(net, client)
        return {name: value.clone() for name, value in upload.items()}

    def exchanged(self, kind: str, assignment: Assignment, uploads: dict[int, Params | None]) -> Results:
        """What an exchange makes of these uploads (client -> upload, None for one that is dropped)."""
        exchange = open_exchange(
            kind, OpenPhase(self.setup.comm, self.method, assignment, self.bounds(), lambda task, _: self.client(task))
        )
        for (task,) in assignment.waves:
            assert task is not None
            upload = uploads[task.client]
            exchange.post(task, (ClientReport(task.client, CONTRIBUTED if upload is not None else 2), upload))
        return exchange.finish(self.state)

    def exact_sum(self, assignment: Assignment, uploads: Iterable[tuple[Task, Params]]) -> ExactSum:
        """These uploads added in this order, with weights 1/2, 1/3, 1/4, ... by client number."""
        shapes = {name: spec.shape for name, spec in self.method.state_specs().items()}
        total = ExactSum(shapes, self.bounds(), float(len(assignment.tasks)))
        for task, upload in uploads:
            regions = self.method.regions(self.client(task))
            for name, value in self.method.lift(upload, self.client(task)):
                total.add(name, value, 1 / (2 + task.client), regions.get(name))
        return total


@pytest.fixture(scope="session")
def federation_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Federation]:
    known: dict[str, Federation] = {}

    def make(name: str) -> Federation:
        if name not in known:
            folder: Path = tmp_path_factory.mktemp("federation")
            setup = small_setup(folder, *CASES[name])
            known[name] = Federation(name, setup, setup.method.initial_state())
        return known[name]

    return make
