"""What every method must keep, whatever it does: a round of real training, taken apart at its seams.

Each check is a function of a `Trial` that raises `BrokenError`, with one line that says what is wrong.
"""

import math
import random
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch

from fedmpi import train_round as rounds
from fedmpi.check.small import small_setup
from fedmpi.exactsum import ExactSum
from fedmpi.federation.assignment import Assignment, Task
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client, Contributions, Phase
from fedmpi.rounds.client import simulate_client
from fedmpi.rounds.evaluate import test_clients
from fedmpi.rounds.exchange import EXCHANGES, Results
from fedmpi.rounds.publish import publish
from fedmpi.rounds.state import CONTRIBUTED, ClientReport, Published, RoundResult, ServerState, Setup, client_of
from fedmpi.store import checkpoint
from fedmpi.store.checkpoint import Snapshot
from fedmpi.store.hdf5 import digest_of
from fedmpi.tensors import Layout, Params, first_mismatch

Result = tuple[ClientReport, Params]


class BrokenError(Exception):
    """A contract that does not hold; its text is one line."""


def require(holds: bool, line: str) -> None:
    if not holds:
        raise BrokenError(line)


@contextmanager
def unchanged(params: Params, line: str) -> Iterator[None]:
    """Requires that the block leaves these tensors as they are."""
    before = digest_of(params)
    yield
    require(digest_of(params) == before, line)


@dataclass(frozen=True)
class PhaseOfRound:
    """One phase of round 1: what was published, who trained, and what each sent."""

    setup: Setup
    phase: Phase
    state: ServerState
    published: Published
    assignment: Assignment
    results: dict[int, Result]

    @property
    def method(self) -> Method:
        return self.setup.method

    def client(self, task: Task) -> Client:
        """Returns the client as the server sees it after training: with its new memory."""
        return client_of(self.setup, task, self.published, self.results[task.client][0].memory_digest)

    def uploads(self) -> Iterator[tuple[Task, Params]]:
        for task in self.assignment.tasks:
            yield task, self.results[task.client][1]

    def exchanged(self, kind: str) -> Results:
        exchange = EXCHANGES[kind](self.setup, self.published)
        for wave in self.assignment.waves:
            exchange.post(wave, self.results[wave[0].client] if wave[0] else None)
        return exchange.finish(self.state.params)

    def updated(self, results: Results) -> tuple[ServerState, Contributions | None]:
        return rounds.update(self.setup, 1, self.phase, self.state, self.published, results)

    def added(self, tasks: Sequence[Task]) -> torch.Tensor:
        """Returns the exact sum of what these clients have sent, in this order, with unequal weights."""
        specs = self.method.state_specs()
        tensor_of = self.method.sums()
        bounds = {name: self.published.bounds[tensor] for name, tensor in tensor_of.items()}
        sums = {name: specs[tensor] for name, tensor in tensor_of.items()}
        total = ExactSum(sums, bounds, float(len(self.assignment.tasks)))
        for task in tasks:
            regions = self.method.regions(self.client(task))
            for name, value in self.method.lift(self.results[task.client][1], self.client(task)):
                total.add(name, value, 1 / (2 + task.client), regions.get(name))
        return total.buffer


class Trial:
    """A small federation of a config's words, before round 1 and taken through round 1."""

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        self._folder = folder
        self._words = words

    def setup(self, *more: str) -> Setup:
        """Makes a new one, in a folder of its own."""
        return small_setup(Path(tempfile.mkdtemp(dir=self._folder)), *self._words, *more)

    @cached_property
    def phases(self) -> list[PhaseOfRound]:
        """Computes the phases of round 1, each from the state that the one before has left."""
        setup = self.setup()
        found: list[PhaseOfRound] = []
        state = ServerState(setup.method.initial_state())
        for number, phase in enumerate(setup.method.phases(1)):
            if found:
                state, _ = found[-1].updated(found[-1].exchanged("gather"))
            published = publish(setup, state, 1, number)
            assignment = published.plan
            results = trained(setup, published, assignment.tasks)
            found.append(PhaseOfRound(setup, phase, state, published, assignment, results))
        return found


def trained(setup: Setup, published: Published, tasks: Sequence[Task]) -> dict[int, Result]:
    """Trains every client of a phase, one after the other on this rank; the uploads are their own."""
    results = {}
    for task in tasks:
        report, upload = simulate_client(setup, task, published)
        require(report.status == CONTRIBUTED and upload is not None, f"client {task.client} contributes nothing")
        results[task.client] = report, {name: value.clone() for name, value in (upload or {}).items()}
    return results


def published_for(method: Method, state: Params, nets: Collection[int]) -> Params:
    """Returns what `publish` writes for these nets into a buffer full of NaN."""
    layout = Layout.of(method.published_specs(nets))
    buffer = layout.new_buffer()
    buffer.view(torch.float32).fill_(math.nan)
    out = layout.views(buffer)
    method.publish(state, nets, out)
    return out


def publishing_is_whole(trial: Trial) -> None:
    """Checks that publish writes all that published_specs says, for each tier and for all, and leaves the state as it
    is"""
    method = trial.setup().method
    state = method.initial_state()
    tiers = [tier.index for tier in method.tiers]
    with unchanged(state, "publish changes the state in place"):
        for nets in (*({tier} for tier in tiers), set(tiers)):
            left = not_finite(published_for(method, state, nets))
            require(not left, f"publish leaves {left} unwritten or not finite for nets {sorted(nets)}")


def not_finite(params: Params) -> str:
    return ", ".join(name for name, value in params.items() if not bool(torch.isfinite(value).all()))


def narrowing_is_whole(trial: Trial) -> None:
    """Checks that narrow fills every parameter, with the same bits whether a tier was published alone or with all
    others"""
    setup = trial.setup()
    method = setup.method
    state = method.initial_state()
    everything = published_for(method, state, {tier.index for tier in method.tiers})
    for tier in method.tiers:
        params = setup.trainers[tier.index].net.params
        filled = []
        for published in (everything, published_for(method, state, {tier.index})):
            for value in params.values():
                value.fill_(math.nan)
            with unchanged(published, "narrow changes the published tensors in place"):
                method.narrow(published, tier.index, params)
            left = not_finite(params)
            require(not left, f"narrow leaves {left} of tier {tier.name} unwritten")
            filled.append(digest_of(params))
        require(filled[0] == filled[1], f"tier {tier.name} gets other values when it is published alone")


def everybody_trains(trial: Trial) -> None:
    """Checks that the clients of a round take steps"""
    require(sum(len(phase.assignment.tasks) for phase in trial.phases) >= 2, "fewer than two clients take part")
    for phase in trial.phases:
        idle = [client for client, (report, _) in phase.results.items() if report.steps == 0]
        require(not idle, f"clients {idle} take no step")


def training_is_stateless(trial: Trial) -> None:
    """Checks that a client sends the same whenever it is trained, and leaves what was published as it is"""
    why = "trained again, after others, it must do the same: keep nothing in self, draw from client.generator"
    for phase in trial.phases:
        with unchanged(phase.published.params, "training changes the published tensors in place"):
            again = trained(phase.setup, phase.published, phase.assignment.tasks[::-1])
        for client, (report, upload) in phase.results.items():
            also, same = again[client]
            require(digest_of(same) == digest_of(upload), f"client {client} sends another upload: {why}")
            require(also.loss == report.loss, f"client {client} has another loss: {why}")
            require(also.memory_digest == report.memory_digest, f"client {client} has another memory: {why}")


def uploads_fit_their_specs(trial: Trial) -> None:
    """Checks that uploads have the names, shapes and types of upload_specs"""
    for phase in trial.phases:
        for task, upload in phase.uploads():
            odd = first_mismatch(upload, phase.method.upload_specs(task.tier, task))
            require(not odd, f"client {task.client} sends {odd} by upload_specs")


def lifted_tensors_fit(trial: Trial) -> None:
    """Checks that lifted tensors have the shapes of their regions and keep to magnitudes and bounds; lift changes no
    upload"""
    for phase in trial.phases:
        for task, upload in phase.uploads():
            with unchanged(upload, "lift or magnitudes changes the upload in place"):
                _lifted_fits(phase, phase.client(task), upload)


def _lifted_fits(phase: PhaseOfRound, client: Client, upload: Params) -> None:
    method = phase.method
    tensor_of = method.sums()
    largest = dict(zip(method.state_specs(), method.magnitudes(upload, client).tolist(), strict=True))
    regions = method.regions(client)
    require(set(regions) <= set(tensor_of), "regions has names that sums has not")
    for name, value in method.lift(upload, client):
        require(name in tensor_of, f"lift gives {name}, which sums has not")
        tensor = tensor_of[name]
        whole = phase.state.params[tensor]
        wanted = (whole[regions[name]] if name in regions else whole).shape
        require(value.shape == wanted, f"lift gives {name} as {list(value.shape)}, its region is {list(wanted)}")
        # Bounds of products of factors are computed in float32: a few roundings of 2^-24.
        highest = float(value.abs().max()) if value.numel() else 0.0
        promised = f"lift gives {highest:g} in {name}, magnitudes promises at most {largest[tensor]:g}"
        require(highest <= largest[tensor] * (1 + 3 * 2**-24), promised)
        limit = phase.published.bounds[tensor]
        require(highest <= limit, f"lift gives {highest:g} in {name}, beyond its bound {limit:g}")


def contributions_add(trial: Trial) -> None:
    """Checks that sums depend neither on the order of clients nor on how they are split"""
    line = "lift or regions gives something else when clients come in another order"
    for phase in trial.phases:
        tasks = list(phase.assignment.tasks)
        in_order = phase.added(tasks)
        shuffled = random.Random(0).sample(tasks, len(tasks))
        require(torch.equal(phase.added(shuffled), in_order), line)
        require(torch.equal(phase.added(shuffled[:1]) + phase.added(shuffled[1:]), in_order), line)
        sums = "what clients send adds nothing to state_specs" if phase.method.state_specs() else "a sum of nothing"
        require(bool(in_order.any()) == bool(phase.method.state_specs()), sums)


def exchanges_agree(trial: Trial) -> None:
    """Checks that gather and reduce give the same means; update changes neither state nor means in place"""
    for phase in trial.phases:
        with unchanged(phase.state.params, "update changes the old state in place"):
            gathered, reduced = (phase.exchanged(kind) for kind in ("gather", "reduce"))
            require(digest_of(gathered.means) == digest_of(reduced.means), "gather and reduce give different means")
            with (
                unchanged(gathered.means, "update changes the means in place"),
                unchanged(phase.published.params, "update changes the published tensors in place"),
            ):
                phase.updated(gathered)


def a_saved_state_continues(trial: Trial) -> None:
    """Checks that round 2 gives the same bits from a saved and loaded state, memories and personal scores included"""
    setup = trial.setup("rounds=2", "evaluation.personal=on")
    state, published, _ = rounds.train_round(setup, 1, ServerState(setup.method.initial_state()))
    folder = setup.memories.run_dir
    checkpoint.save(folder, Snapshot(1, state.params, state.memories, {}, "", 0, {}))
    loaded = checkpoint.load_newest_intact(folder, partial(require, False))
    require(loaded is not None and list(loaded.server) == list(state.params), "the saved state has other tensors")
    assert loaded is not None
    straight, _, there = rounds.train_round(setup, 2, state, published)
    restored = ServerState(dict(loaded.server), dict(loaded.clients))
    detour, _, here = rounds.train_round(setup, 2, restored)
    why = "after saving and loading round 2 differs in its"
    require(digest_of(detour.params) == digest_of(straight.params), f"{why} state: keep nothing in self between rounds")
    require(detour.memories == straight.memories, f"{why} client memories")
    moves = digest_of(detour.params) != digest_of(state.params) or detour.memories != restored.memories
    require(moves, "round 2 changes neither the state nor a memory")
    require((here.scores, here.tasks) == (there.scores, there.tasks), f"{why} scores")
    require(here.diagnostics == there.diagnostics, f"{why} diagnostics")
    require(_summary(here) == _summary(there), f"{why} personal scores")


def _summary(result: RoundResult) -> object:
    return result.client_scores and result.client_scores.summary()


def a_personal_test_changes_nothing(trial: Trial) -> None:
    """Checks that testing every client leaves state, published tensors and memories as they were, and can be
    repeated"""
    setup = trial.setup("evaluation.personal=on")
    state, published, result = rounds.train_round(setup, 1, ServerState(setup.method.initial_state()))
    with (
        unchanged(state.params, "testing clients changes the state"),
        unchanged(published.params, "testing clients changes the published tensors"),
    ):
        again = test_clients(setup, 1, state, published)
    require((again and again.summary()) == _summary(result), "testing clients again gives other scores")


CHECKS = (
    publishing_is_whole,
    narrowing_is_whole,
    everybody_trains,
    training_is_stateless,
    uploads_fit_their_specs,
    lifted_tensors_fit,
    contributions_add,
    exchanges_agree,
    a_saved_state_continues,
    a_personal_test_changes_nothing,
)
"""The contract of a method."""
