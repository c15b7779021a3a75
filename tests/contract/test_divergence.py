"""Whole runs that diverge: the server's state, the record, how a run ends that must; and one client that diverges."""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import after, newest
from fast import fast
from small_runs import one_round, run_alone, small_setup
from torch import Tensor

from fedmpi import methods
from fedmpi.errors import DivergenceError, RoundError
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, TrainOutcome, plain_step
from fedmpi.methods.values import Client, LocalWork
from fedmpi.report.records import read_records
from fedmpi.rounds.state import CONTRIBUTED, DROPPED, ServerState, Setup, plan_phase
from fedmpi.store import checkpoint
from fedmpi.store.hdf5 import digest_of
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import Params

# With SVDs on the server (fedhm, prism), memories (hermes, topk), a rate of its own (perfedavg), none of it (fedavg).
METHODS = ("fedavg", "fedhm", "prism", "hermes", "topk", "perfedavg")
POLICIES = ("drop", "upload_last_finite")


def is_finite(params: Params) -> bool:
    return all(bool(value.isfinite().all()) for value in params.values())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", fast("fedavg", "hermes", of=METHODS, slow=()))
def test_every_client_diverges_in_every_round(tmp_path: Path, capfd, method: str, policy: str) -> None:
    """A learning rate of 1e12: every client of the cohort is named, every checkpoint is finite, the run ends well. The
    first step leaps to 1e29, so the last finite parameters are the published ones, and the mean of equals is they."""
    words = (f"method.name={method}", "train.lr=1e12", f"train.on_divergence={policy}", "output.progress=plain")
    words += ("rounds=2", "output.keep_checkpoints=5")
    words += ("method.beta=lr",) if method == "perfedavg" else ()
    records = run_alone(tmp_path, *words).records
    for record in records:
        cohort, dropped, restored = (record.get(key, []) for key in ("cohort", "dropped", "restored"))
        assert sorted(dropped + restored) == sorted(cohort), record
        assert not restored or policy == "upload_last_finite"
        assert record["train_loss"] is None or math.isfinite(record["train_loss"])
        assert (record["protocol_up_bytes"] > 0) == bool(restored), "what a client that is dropped had is not sent"
    for _, path in RunDir(tmp_path).checkpoints():
        assert is_finite(dict(checkpoint.load(path).server))
    all_are_dropped = not any(record.get("restored") for record in records)
    are_all_alike = [not record["dropped"] or not record.get("restored") for record in records]
    assert capfd.readouterr().err.count(" all its clients") == sum(are_all_alike) > 0
    assert all_are_dropped or policy == "upload_last_finite"
    if all_are_dropped or method in ("fedavg", "perfedavg"):
        initial = small_setup(tmp_path / "other", *words).method.initial_state()
        assert digest_of(newest(tmp_path).server) == digest_of(initial)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_server_that_takes_the_step_itself(tmp_path: Path, policy: str) -> None:
    """FD-NNC's clients send healthy gradients, of which this learning rate makes parameters that nobody can train."""
    words = ("method.name=fdnnc", "train.lr=1e12", f"train.on_divergence={policy}", "rounds=2")
    server = after(tmp_path, *words).server
    first, second = read_records(RunDir(tmp_path))
    assert set(first["dropped"]) < set(first["cohort"]) and second["dropped"] == second["cohort"] != []
    assert is_finite(server) and max(float(value.abs().max()) for value in server.values()) > 1e9


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_server_state_that_is_not_finite_ends_the_run_unsaved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """As from an SVD that went wrong: one number, in the last round; the checkpoint before stays the newest."""
    calls, create = itertools.count(1), methods.create

    def make(context: methods.MethodContext) -> methods.Method:
        method = create(context)
        healthy = method.update

        def spoilt(*args: object) -> dict[str, torch.Tensor]:
            state = {name: tensor.clone() for name, tensor in healthy(*args).items()}
            if next(calls) == 2:
                state["fc.bias"][1] = value
            return state

        monkeypatch.setattr(method, "update", spoilt)
        return method

    monkeypatch.setattr("fedmpi.methods.create", make)
    with pytest.raises(RoundError) as caught:
        run_alone(tmp_path, "method.name=fedavg", "rounds=2")
    cause = caught.value.__cause__
    assert isinstance(cause, DivergenceError) and "(in fc.bias) and is not saved; lower train.lr" in str(cause)
    found = newest(tmp_path)
    assert found.round == 1 and is_finite(dict(found.server)) and len(read_records(RunDir(tmp_path))) == 1


def test_fail_names_the_client(tmp_path: Path) -> None:
    with pytest.raises(RoundError) as caught:
        run_alone(tmp_path, "method.name=fedhm", "train.lr=1e12")
    assert re.fullmatch(r"round 1, client \d+, stage local_training", caught.value.where)
    assert isinstance(caught.value.__cause__, DivergenceError) and read_records(RunDir(tmp_path)) == []


# One client of four diverges: what it sends, what it remembers, and who counts, for every method with memory.
BAD, NUM_CLIENTS = 1, 4
WITH_MEMORY = {
    "topk": (),
    "scaffold": ("train.momentum=0",),
    "feddyn": (),
    "fedbn": (),
    "standalone": (),
    "lgfedavg": (),
    # All classes and 30 examples to validate on: everybody is right somewhere and prunes.
    "hermes": ("method.accuracy_threshold=0", "method.validation_share=0", "partition.name=iid"),
}


def diverge(monkeypatch: pytest.MonkeyPatch, setup: Setup, how: str, num_steps: int) -> list[tuple[str, bool]]:
    """Has client `BAD` diverge: the third `loss` is not a number, but all parameters stay finite; or all losses are
    finite, but the last step makes a `parameter` infinite. Returns the calls, as they come: a name, and True where its
    net has the parameters of its last finite loss."""
    method, steps = setup.method, itertools.count(1)
    train, last_good, calls = method.train, {}, []

    def bad_backward(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Callable) -> Tensor:
        value = plain_step(net, inputs, targets, loss)
        step = next(steps)
        if how == "loss" and step >= 3:
            return torch.tensor(math.nan) if step == 3 else value
        last_good.update({name: tensor.clone() for name, tensor in net.params.items()})
        if how == "parameter" and step == num_steps:
            next(iter(net.grads.values())).fill_(math.inf)  # the first layer: local in lgfedavg
        return value

    def watched(name: str) -> Callable[[FlatNet, Client], Params]:
        call = getattr(method, name)

        def watch(net: FlatNet, client: Client) -> Params:
            if client.task.client == BAD:
                is_good = all(torch.equal(net.params[key], value) for key, value in last_good.items())
                calls.append((name, is_good))
            return call(net, client)

        return watch

    def bad_train(trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        return train(trainer, client, replace(work, backward=bad_backward) if client.task.client == BAD else work)

    monkeypatch.setattr(method, "train", bad_train)
    for name in ("upload", "remember"):
        monkeypatch.setattr(method, name, watched(name))
    return calls


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("how", ["loss", "parameter"])
@pytest.mark.parametrize("name", fast("scaffold", "standalone", of=WITH_MEMORY, slow=("hermes",)))
def test_one_client_diverges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str, policy: str) -> None:
    """One that is dropped remembers what it did in round 1; of a restored one both what it sends and what it remembers
    are of the last parameters whose loss was finite."""
    words = (f"clients.count={NUM_CLIENTS}", f"train.on_divergence={policy}", "evaluation.every=100")
    setup = small_setup(tmp_path, f"method.name={name}", *WITH_MEMORY[name], *words)
    before, published, result = one_round(setup, 1, ServerState(setup.method.initial_state()))
    num_steps = next(report.steps for report in result.reports if report.client == BAD)
    assert num_steps >= 3 and set(before.memories) == set(range(NUM_CLIENTS))
    calls = diverge(monkeypatch, setup, how, num_steps)
    state, republished, result = one_round(setup, 2, before, published)
    report = next(report for report in result.reports if report.client == BAD)
    rounds = {client: version[0] for client, version in state.memories.items()}
    if policy == "drop":
        # That a parameter is infinite is seen in the upload.
        assert (report.status, report.memory_digest) == (DROPPED, "") and set(calls) <= {("upload", False)}
        assert state.memories[BAD] == republished.versions[BAD] == before.memories[BAD]
        assert rounds == {client: 1 if client == BAD else 2 for client in range(NUM_CLIENTS)}
    else:
        assert report.status == CONTRIBUTED and sorted(calls[-2:]) == [("remember", True), ("upload", True)]
        assert ("remember", False) not in calls
        assert set(rounds.values()) == {2} and state.memories[BAD] == (2, report.memory_digest)
    memories = [setup.memories.get(client, version) for client, version in state.memories.items()]
    assert all(map(is_finite, (state.params, *memories)))
    # c is the mean of all c_i, whoever contributed: it gains |S| / N of the mean change. Rounding: test_scaffold.py.
    for key in (key for key in state.params if key.startswith("control..")):
        own = [memory[key].double() for memory in memories]
        atol = NUM_CLIENTS * 2**-24 * max(float(value.abs().max()) for value in own) + 2**-36
        torch.testing.assert_close(state.params[key].double(), sum(own) / NUM_CLIENTS, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        # FD-NNC sends gradients, of which there is no last finite one: also under `upload_last_finite`.
        (("method.name=fdnnc", "train.on_divergence=upload_last_finite"), {"loss": lambda y, _: y.sum() * math.nan}),
        # A norm of NaN clips the whole gradient, and the bytes between tensors with it, which no next client fills.
        (("method.name=topk", "train.on_divergence=drop", "train.clip_norm=1"), {"lr": 1e30}),
    ],
)
def test_a_client_that_diverged_is_dropped_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], changes: dict[str, Any]
) -> None:
    """The first client of the round trains with these changes, and leaves nothing to the next ones."""
    setup = small_setup(tmp_path, *words)
    bad = plan_phase(setup, 1, setup.method.phases(1)[0]).tasks[0].client
    train = setup.method.train

    def bad_train(trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        return train(trainer, client, replace(work, **changes) if client.task.client == bad else work)

    monkeypatch.setattr(setup.method, "train", bad_train)
    _, _, result = one_round(setup, 1, ServerState(setup.method.initial_state()))
    assert {report.client for report in result.reports if report.status == DROPPED} == {bad}
