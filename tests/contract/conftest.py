"""Every method in a small federation, before its first round: what the contract tests take apart."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from method_cases import CASES
from narrow_nets import exchanged
from small_runs import small_setup

from fedmpi.check.contract import published_for
from fedmpi.exactsum import bound_of
from fedmpi.federation.assignment import Assignment, Task
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client
from fedmpi.rounds.exchange import Results
from fedmpi.rounds.state import Setup, plan_phase
from fedmpi.tensors import Params


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
        """What `publish` writes for these tiers."""
        return published_for(self.method, self.state, tiers)

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
        of_clients = [(self.client(task), uploads[task.client]) for task in assignment.tasks]
        return exchanged(self.method, self.state, *of_clients, kind=kind)


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
