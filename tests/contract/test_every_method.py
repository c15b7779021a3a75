"""What every method must keep, whatever it does: a round of real training, taken apart at its seams.

A method joins with a line in tests/method_cases.py. One that is exempt from a property stands in a
table there, with the reason; what it keeps instead is proved in its own test file.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from method_cases import BYTES_DIFFER, CASES, FIXED_POINT_SETTINGS, MOVES_WITHOUT_TRAINING
from small_runs import one_round, small_setup

from fedmpi import train_round as rounds
from fedmpi.exactsum import ExactSum
from fedmpi.federation.plan import Assignment, Task
from fedmpi.methods.protocol import Client, Method, Phase, Turn
from fedmpi.rounds import client as simulate
from fedmpi.rounds import state as setups
from fedmpi.rounds.exchange import CONTRIBUTED, ClientReport, OpenPhase, Results, open_exchange
from fedmpi.rounds.personal import test_clients as score_clients
from fedmpi.rounds.publish import publish
from fedmpi.rounds.state import Published, ServerState, Setup
from fedmpi.store import checkpoint
from fedmpi.store.checkpoint import Snapshot
from fedmpi.store.run_dir import RunDir
from fedmpi.store.stored import digest_of
from fedmpi.tensors import Params

Result = tuple[ClientReport, Params]


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
        """As the server sees it after training: with its new memory."""
        digest = self.results[task.client][0].memory_digest
        version = (task.round_number, digest) if digest else None
        return setups.client_of(self.setup, task, self.published, version)

    def exchanged(self, kind: str) -> Results:
        def client_of(task: Task, digest: str) -> Client:
            return self.client(task)

        phase = OpenPhase(self.setup.comm, self.method, self.assignment, self.published.bounds, client_of)
        exchange = open_exchange(kind, phase)
        for (task,) in self.assignment.waves:
            exchange.post(task, *self.results[task.client])
        return exchange.finish(self.state.params)


def train(setup: Setup, published: Published, tasks: list[Task]) -> dict[int, Result]:
    """Every client of a phase, one after the other on this rank, with uploads of their own."""
    results = {}
    for task in tasks:
        report, upload = simulate.simulate_client(setup, task, published)
        assert report.status == CONTRIBUTED and upload is not None
        results[task.client] = report, {name: value.clone() for name, value in upload.items()}
    return results


def phases(setup: Setup) -> Iterator[PhaseOfRound]:
    """The phases of round 1, each from the state that the one before has left."""
    state = ServerState(setup.method.initial_state())
    for number, phase in enumerate(setup.method.phases(1)):
        published = publish(setup, state, 1, number)
        assignment = setups.plan_phase(setup, 1, phase)
        results = train(setup, published, list(assignment.tasks))
        run = PhaseOfRound(setup, phase, state, published, assignment, results)
        yield run
        state, brought = rounds.update(setup, state, run.exchanged("gather"), phase, 1, assignment.tasks)
        state, _ = rounds.refresh(setup, state, brought)


@pytest.fixture(scope="module")
def phases_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[PhaseOfRound]]:
    known: dict[str, list[PhaseOfRound]] = {}

    def make(case: str) -> list[PhaseOfRound]:
        if case not in known:
            known[case] = list(phases(small_setup(tmp_path_factory.mktemp(case), *CASES[case])))
        return known[case]

    return make


@pytest.fixture(params=CASES)
def run(request: pytest.FixtureRequest, phases_of: Callable[[str], list[PhaseOfRound]]) -> list[PhaseOfRound]:
    return phases_of(request.param)


def test_everybody_gets_something_to_do(run: list[PhaseOfRound]) -> None:
    assert sum(len(phase.assignment.tasks) for phase in run) >= 2
    assert all(report.steps > 0 for phase in run for report, _ in phase.results.values())


def test_training_is_stateless_and_changes_nothing_published(run: list[PhaseOfRound]) -> None:
    """In another order, on a rank that has trained others meanwhile: the same uploads, memories and losses."""
    for phase in run:
        before = digest_of(phase.published.params)
        again = train(phase.setup, phase.published, list(phase.assignment.tasks[::-1]))
        assert digest_of(phase.published.params) == before
        for client, (report, upload) in phase.results.items():
            assert digest_of(again[client][1]) == digest_of(upload)
            assert (again[client][0].loss, again[client][0].memory_digest) == (report.loss, report.memory_digest)


def test_uploads_are_what_their_specs_say(run: list[PhaseOfRound]) -> None:
    for phase in run:
        for task in phase.assignment.tasks:
            specs = phase.method.upload_specs(task.tier, task)
            found = {name: (tuple(value.shape), value.dtype) for name, value in phase.results[task.client][1].items()}
            assert found == {name: (spec.shape, spec.dtype) for name, spec in specs.items()}


def test_lifted_tensors_fit_the_state_and_their_bounds(run: list[PhaseOfRound]) -> None:
    """Each has the shape of its region, is finite and within what `magnitudes` promised; the upload stays as it is."""
    for phase in run:
        specs = phase.method.state_specs()
        for task in phase.assignment.tasks:
            upload = phase.results[task.client][1]
            before = digest_of(upload)
            largest = dict(zip(specs, phase.method.magnitudes(upload, phase.client(task)).tolist(), strict=True))
            regions = phase.method.regions(phase.client(task))
            assert set(regions) <= set(specs)
            for name, value in phase.method.lift(upload, phase.client(task)):
                whole = phase.state.params[name]
                assert value.shape == (whole[regions[name]] if name in regions else whole).shape, name
                # Bounds of products of factors are computed in float32: a few roundings of 2^-24.
                highest = float(value.abs().max()) if value.numel() else 0.0
                assert highest <= largest[name] * (1 + 3 * 2**-24), name
                assert highest <= phase.published.bounds[name], name
            assert digest_of(upload) == before


def test_contributions_add(run: list[PhaseOfRound]) -> None:
    """In any order, and in any number of partial sums: the same bits."""
    for phase in run:
        tasks = list(phase.assignment.tasks)
        in_order = added(phase, tasks)
        shuffled = random.Random(0).sample(tasks, len(tasks))
        assert torch.equal(added(phase, shuffled), in_order)
        assert torch.equal(added(phase, shuffled[:1]) + added(phase, shuffled[1:]), in_order)
        assert bool(in_order.any()) == bool(phase.method.state_specs())


def added(phase: PhaseOfRound, tasks: list[Task]) -> torch.Tensor:
    shapes = {name: spec.shape for name, spec in phase.method.state_specs().items()}
    total = ExactSum(shapes, phase.published.bounds, float(len(phase.assignment.tasks)))
    for task in tasks:
        regions = phase.method.regions(phase.client(task))
        for name, value in phase.method.lift(phase.results[task.client][1], phase.client(task)):
            total.add(name, value, 1 / (2 + task.client), regions.get(name))
    return total.buffer


def test_exchanges_agree_and_the_server_changes_no_state_in_place(run: list[PhaseOfRound]) -> None:
    for phase in run:
        before = digest_of(phase.state.params)
        gathered, reduced = (phase.exchanged(kind) for kind in ("gather", "reduce"))
        assert digest_of(gathered.means) == digest_of(reduced.means)
        means = digest_of(gathered.means)
        state, brought = rounds.update(phase.setup, phase.state, gathered, phase.phase, 1, phase.assignment.tasks)
        updated = digest_of(state.params)
        rounds.refresh(phase.setup, state, brought)
        assert (digest_of(state.params), digest_of(phase.state.params)) == (updated, before)
        assert digest_of(gathered.means) == means


@pytest.mark.parametrize("case", [case for case in CASES if case not in MOVES_WITHOUT_TRAINING])
def test_without_training_nothing_moves(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round at a learning rate of 1e-30: every step leaves a float32 as it is (but for zeros, which become 1e-30).

    What is left is the rounding of sums and of float32 (and of an SVD, where a method has one).
    """
    for module in (simulate, rounds):
        monkeypatch.setattr(module, "learning_rate", lambda *arguments: 1e-30)
    setup = small_setup(tmp_path, *CASES[case], *FIXED_POINT_SETTINGS.get(case, ()))
    first = ServerState(setup.method.initial_state())
    state, _, _ = one_round(setup, 1, first, publish(setup, first, 1, 0))
    for name in setup.method.state_specs():
        before, after = first.params[name], state.params[name]
        torch.testing.assert_close(after, before, rtol=0, atol=1e-5 * max(1.0, float(before.abs().max())), msg=name)


def test_exemptions_have_a_case_and_a_reason() -> None:
    for table in (MOVES_WITHOUT_TRAINING, BYTES_DIFFER):
        assert set(table) <= set(CASES) and all(len(reason) > 20 for reason in table.values())


def test_protocol_bytes_are_four_per_parameter(run: list[PhaseOfRound], request: pytest.FixtureRequest) -> None:
    """Both ways, of the client's own net, in the plan and as counted; other formulas are in BYTES_DIFFER."""
    is_other = request.node.callspec.params["run"] in BYTES_DIFFER
    for phase in run:
        for task in phase.assignment.tasks:
            report, tier = phase.results[task.client][0], task.tier
            params = sum(parameter.numel() for parameter in phase.method.net(tier, empty=True).parameters())
            planned = phase.method.costs(Turn(tier)).down_bytes, phase.method.costs(Turn(tier)).up_bytes
            counted = report.down_bytes, report.up_bytes
            assert (planned == counted == (4 * params, 4 * params)) or is_other
            assert min(*planned, *counted) >= 0


@pytest.mark.parametrize("case", CASES)
def test_a_saved_state_goes_on_with_the_same_bits(case: str, tmp_path: Path) -> None:
    """Round 1, save, load, round 2, against round 2 without the detour; memories and personal scores included."""
    setup = small_setup(tmp_path, *CASES[case], "rounds=2", "evaluation.personal=on")
    first = ServerState(setup.method.initial_state())
    state, published, _ = one_round(setup, 1, first, publish(setup, first, 1, 0))
    checkpoint.save(RunDir(tmp_path), Snapshot(1, state.params, state.memories, {}, {}, "", 0, {}))
    loaded = checkpoint.load_newest_intact(RunDir(tmp_path), pytest.fail)
    assert loaded is not None and list(loaded.server) == list(state.params)
    assert bool(state.memories) <= setup.method.traits.keeps_memory
    straight, _, there = one_round(setup, 2, state, published)
    restored = ServerState(dict(loaded.server), dict(loaded.clients))
    detour, _, here = one_round(setup, 2, restored, publish(setup, restored, 2, 0))
    assert digest_of(detour.params) == digest_of(straight.params)
    assert detour.memories == straight.memories
    assert digest_of(detour.params) != digest_of(state.params) or detour.memories != restored.memories
    assert (here.scores, here.tasks, here.diagnostics) == (there.scores, there.tasks, there.diagnostics)
    assert here.client_scores.summary() == there.client_scores.summary()


def test_a_personal_test_changes_nothing(
    tmp_path: Path, run: list[PhaseOfRound], request: pytest.FixtureRequest
) -> None:
    """Testing every client leaves state, published tensors and memories as they were, and can be repeated."""
    case = request.node.callspec.params["run"]
    setup = small_setup(tmp_path, *CASES[case], "evaluation.personal=on")
    first = ServerState(setup.method.initial_state())
    state, published, result = one_round(setup, 1, first, publish(setup, first, 1, 0))
    before = digest_of(state.params), digest_of(published.params)
    again = score_clients(setup, 1, state, published)
    assert (digest_of(state.params), digest_of(published.params)) == before
    assert again.summary() == result.client_scores.summary()
