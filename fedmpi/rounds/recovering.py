"""All that outlives a loss of ranks within a round, and what those left do with it.

Where ranks may die (`mpi.recovery`), every phase ends with an agreement of all ranks, and only then does it count.
Those left are therefore in the same phase, or in the test after the last one, but perhaps at different places in it.
Whatever one of them lacks is sent again to all; a client is trained again only where its result died with a rank. What
the run does about a loss (another server, the end) is in `run.losses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedmpi.federation.assignment import Assignment, Task, assign
from fedmpi.methods.values import Client, Contributions
from fedmpi.mpi.communicator import Communicator
from fedmpi.rounds.exchange import ADDED, HELD, Exchange, OpenPhase, Results, choose, open_exchange
from fedmpi.rounds.state import Published, RoundResult, ServerState, Setup, client_of


@dataclass
class OpenRound:
    """How far round `number` (from 1) has come: all that outlives a loss of ranks."""

    number: int
    state: ServerState
    """After the phases that are done; on rank 0."""
    published: Published | None = None
    """What the server has published of that state for the next step; None if this rank has yet to get it."""
    num_phases: int = 0
    """How many phases are done; the same on all ranks."""
    result: RoundResult = field(default_factory=RoundResult)
    """What the finished phases have brought."""
    brought: Contributions | None = None
    """What made the state: of the last phase in which a client contributed; on rank 0."""
    kind: str = ""
    """The kind of exchange that the open phase has (`choose`); empty if no rank has begun the phase."""
    exchange: Exchange | None = None
    """The exchange of the open phase; None if this rank has yet to open it."""
    has_lost_ranks: bool = False
    """Whether ranks were lost since the last finished phase. Those left may be at different places in the next."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long this rank has spent in each stage."""
    before: ServerState = field(init=False)
    """The state before the round, which is saved where the round cannot be finished."""

    def __post_init__(self) -> None:
        self.before = self.state

    def settle(self, comm: Communicator) -> None:
        """After a loss of ranks: what one of those left has yet to get is published again, to all."""
        if self.has_lost_ranks and not comm.allgather_rows(np.array([self.published is not None])).all():
            self.published = None

    def exchange_for(self, setup: Setup, planned: Assignment, published: Published) -> tuple[Exchange, Assignment]:
        """The exchange of this phase, and the clients that are left for it: all that are planned, or, after a loss,
        those whose results no rank has added.
        """
        self.kind = self.kind or choose(setup.config.mpi.exchange, setup.method, planned)
        exchange = self.exchange or open_exchange(self.kind, open_phase(setup, planned, published))
        self.exchange, left = exchange, planned
        if self.has_lost_ranks:
            left = _plan_rest(setup, planned, exchange)
            exchange.begin_again(left)
        return exchange, left

    def close_phase(
        self,
        planned: Assignment,
        draws: tuple[Mapping[str, object], ...],
        results: Results,
        state: ServerState,
        brought: Contributions | None,
    ) -> None:
        """The phase counts: all ranks have agreed that they came through it."""
        self.result = replace(
            self.result,
            reports=self.result.reports + results.reports,
            tasks=self.result.tasks + planned.tasks,
            draws=self.result.draws + draws,
            exchange=self.kind,
        )
        self.state, self.num_phases, self.brought = state, self.num_phases + 1, brought or self.brought
        self.published, self.exchange, self.kind, self.has_lost_ranks = None, None, "", False


def _plan_rest(setup: Setup, planned: Assignment, exchange: Exchange) -> Assignment:
    """The clients whose results no rank has added; first those whose results a rank still holds."""
    has = exchange.has()
    own = np.array([has.get(task.client, 0) for task in planned.tasks], np.uint8)
    rows = setup.comm.allgather_rows(own)
    rest = [task for task, added in zip(planned.tasks, (rows == ADDED).any(0), strict=True) if not added]
    places = {task.client: column for task, column in zip(planned.tasks, (rows == HELD).T, strict=True)}
    held = {task.client: int(places[task.client].argmax()) for task in rest if places[task.client].any()}
    return assign(rest, setup.workers, setup.comm.size, held)


def open_phase(setup: Setup, planned: Assignment, published: Published) -> OpenPhase:
    """What the exchange of a phase needs to know."""

    def trained(task: Task, memory_digest: str) -> Client:
        version = (task.round_number, memory_digest) if memory_digest else published.versions.get(task.client)
        return client_of(setup, task, published, version)

    place = setup.device
    return OpenPhase(setup.comm, setup.method, planned, published.bounds, trained, place.server, pinned=place.has_gpu)
