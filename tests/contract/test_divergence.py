"""Whole runs that diverge: the server's state, the record, how a run ends that must; and one client that diverges."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from by_hand import after, newest
from fast import fast
from golden_file import Told
from small_runs import one_round, run_alone, small_setup
from torch import Tensor

from fedmpi import methods
from fedmpi.errors import DivergenceError, RoundError
from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import FlatNet
from fedmpi.methods.values import Client
from fedmpi.models.surgery import groups
from fedmpi.report.records import read_records
from fedmpi.rounds.client import simulate_client
from fedmpi.rounds.exchange import CONTRIBUTED, DROPPED, ClientReport
from fedmpi.rounds.state import Published, ServerState, Setup, client_of, plan_phase
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir
from fedmpi.store.stored import digest_of
from fedmpi.tensors import Params

# With SVDs on the server (fedhm, prism), memories (hermes, topk), a rate of its own (perfedavg), none of it (fedavg).
METHODS = ("fedavg", "fedhm", "prism", "hermes", "topk", "perfedavg")
POLICIES = ("drop", "upload_last_finite")


def is_finite(params: Params) -> bool:
    return all(bool(value.isfinite().all()) for value in params.values())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", METHODS)
def test_every_client_diverges_in_every_round(tmp_path: Path, capfd, method: str, policy: str) -> None:
    """A learning rate of 1e12: every client of the cohort is named, every checkpoint is finite, the run ends well. The
    first step leaps to 1e29, so the last finite parameters are the published ones, and the mean of equals is they."""
    words = (f"method.name={method}", "train.lr=1e12", f"train.on_divergence={policy}", "output.progress=plain")
    words += ("rounds=2", "output.keep_checkpoints=5")
    words += ("method.beta=lr",) if method == "perfedavg" else ()
    run_alone(tmp_path, *words)
    records = read_records(RunDir(tmp_path))
    for record in records:
        cohort, dropped, restored = (record.get(key, []) for key in ("cohort", "dropped", "restored"))
        assert sorted(dropped + restored) == sorted(cohort), record
        assert not restored or policy == "upload_last_finite"
        assert record["train_loss"] is None or math.isfinite(record["train_loss"])
    for _, path in RunDir(tmp_path).checkpoints():
        assert is_finite(dict(checkpoint.load(path).server))
    all_are_dropped = all(len(record["dropped"]) == len(record["cohort"]) for record in records)
    assert capfd.readouterr().out.count(" all its clients") == (2 if all_are_dropped else 0)
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


@pytest.mark.parametrize("step", ["update", "refresh"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_server_state_that_is_not_finite_ends_the_run_unsaved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, value: float, told: Told
) -> None:
    """As from an SVD that went wrong: one number, in the last round; the checkpoint before stays the newest."""
    calls, create = [], methods.create

    def make(context: methods.MethodContext) -> methods.Method:
        method = create(context)
        healthy = getattr(method, step)

        def spoilt(*args: object) -> dict[str, torch.Tensor]:
            calls.append(step)
            state = {name: tensor.clone() for name, tensor in healthy(*args).items()}
            if len(calls) == 2:
                state["fc.bias"][1] = value
            return state

        monkeypatch.setattr(method, step, spoilt)
        return method

    monkeypatch.setattr("fedmpi.methods.create", make)
    with pytest.raises(RoundError) as caught:
        run_alone(tmp_path, "method.name=fedavg", "rounds=2")
    cause = caught.value.__cause__
    assert isinstance(cause, DivergenceError)
    told(str(cause))
    found = newest(tmp_path)
    assert found.round == 1 and is_finite(dict(found.server)) and len(read_records(RunDir(tmp_path))) == 1


def test_fail_names_the_client(tmp_path: Path) -> None:
    with pytest.raises(RoundError) as caught:
        run_alone(tmp_path, "method.name=fedhm", "train.lr=1e12")
    assert (caught.value.stage, caught.value.round_number) == ("local_training", 1) and caught.value.client is not None
    assert isinstance(caught.value.__cause__, DivergenceError) and read_records(RunDir(tmp_path)) == []


# One client of four diverges: what it sent, what it remembers, and who counts, for every method with memory.


BAD, NUM_CLIENTS = 1, 4
# All classes and 30 examples to validate on: everybody is right somewhere and prunes.
PRUNING = ("method.name=hermes", "method.accuracy_threshold=0", "method.validation_share=0", "partition.name=iid")
WITH_MEMORY = {
    "topk": ("method.name=topk",),
    "scaffold": ("method.name=scaffold", "train.momentum=0"),
    "scaffold-gradient": ("method.name=scaffold", "method.option=I"),
    "standalone": ("method.name=standalone",),
    "lgfedavg": ("method.name=lgfedavg",),
    "hermes": PRUNING,
    "hermes-all": (*PRUNING, "method.intersection=all"),
}
HOW = ("loss", "parameter")
"""The loss of the third step is not a number, but all parameters stay finite; or all losses are finite, but the
last step makes parameters infinite."""


@dataclass
class Story:
    """Two rounds of everybody; client `BAD` diverges in the second."""

    setup: Setup
    how: str
    before: ServerState
    published: Published
    num_steps: int
    """Of the client's training, if nothing happens."""
    after: ServerState = field(default_factory=ServerState)
    republished: Published | None = None
    report: ClientReport | None = None
    upload: Params | None = None
    """What the bad client sent."""
    last_good: Params = field(default_factory=dict)
    """Its parameters at its last finite loss."""
    steps_done: int = 0

    def memory(self, state: ServerState, client: int = BAD) -> Params:
        return self.setup.memories.get(client, state.memories[client]) or {}

    def backward(self, net: FlatNet, inputs: Tensor, targets: Tensor, loss: Callable, client: Client) -> Tensor:
        """The method's own, and then what makes this client diverge."""
        value = type(self.setup.method).backward(self.setup.method, net, inputs, targets, loss, client)
        if client.task.client != BAD:
            return value
        self.steps_done += 1
        if self.how == "loss" and self.steps_done == 3:
            return torch.tensor(float("nan"))
        if self.how == "loss" and self.steps_done > 3:
            return value
        self.last_good = {name: tensor.clone() for name, tensor in net.params.items()}
        if self.how == "parameter" and self.steps_done == self.num_steps:
            next(iter(net.grads.values())).fill_(float("inf"))  # the first layer: local in lgfedavg
        return value

    def simulate(self, setup: Setup, task: Task, published: Published) -> tuple[ClientReport, Params | None]:
        report, upload = simulate_client(setup, task, published)
        if task.client == BAD:
            self.report = report
            self.upload = None if upload is None else {name: value.clone() for name, value in upload.items()}
        return report, upload


def story(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, policy: str, how: str) -> Story:
    words = (f"clients.count={NUM_CLIENTS}", f"train.on_divergence={policy}", "evaluation.every=100")
    setup = small_setup(folder, *WITH_MEMORY[name], *words)
    first = ServerState(setup.method.initial_state())
    before, published, result = one_round(setup, 1, first)
    told = Story(setup, how, before, published, {report.client: report.steps for report in result.reports}[BAD])
    assert told.num_steps >= 3 and set(before.memories) == set(range(NUM_CLIENTS))
    monkeypatch.setattr(setup.method, "backward", told.backward)
    monkeypatch.setattr("fedmpi.train_round.simulate_client", told.simulate)
    told.after, told.republished, _ = one_round(setup, 2, before, published)
    assert told.steps_done >= 3 and told.report is not None
    return told


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", fast(*(name for name in WITH_MEMORY if "-" not in name), of=WITH_MEMORY))
def test_a_dropped_client_remembers_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    """Its version is that of round 1, for the server and for the coming round; all others have a new one."""
    told = story(tmp_path, monkeypatch, name, "drop", how)
    assert told.report is not None and told.republished is not None
    assert (told.report.status, told.upload, told.report.memory_digest) == (DROPPED, None, "")
    assert told.after.memories[BAD] == told.republished.versions[BAD] == told.before.memories[BAD]
    rounds = {client: version[0] for client, version in told.after.memories.items()}
    assert rounds == {client: 1 if client == BAD else 2 for client in range(NUM_CLIENTS)}
    assert_finite(told)
    if name.startswith("scaffold"):
        assert_c_is_the_mean(told)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", fast(*(name for name in WITH_MEMORY if "-" not in name), of=WITH_MEMORY))
def test_what_is_uploaded_fits_what_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    """Both are of the last parameters whose loss was finite."""
    told = story(tmp_path, monkeypatch, name, "upload_last_finite", how)
    assert told.report is not None and told.upload is not None
    assert told.report.status == CONTRIBUTED
    assert {version[0] for version in told.after.memories.values()} == {2}
    assert told.after.memories[BAD] == (2, told.report.memory_digest)
    assert_finite(told)
    FITS[name.partition("-")[0]](told, told.upload, told.memory(told.after))


def assert_finite(told: Story) -> None:
    memories = [told.memory(told.after, client) for client in range(NUM_CLIENTS)]
    assert all(map(is_finite, (told.after.params, *memories)))


def assert_c_is_the_mean(told: Story) -> None:
    """Of all c_i, whoever contributed: c gains |S| / N of the mean change. Rounding as in test_scaffold.py."""
    for name in (name for name in told.after.params if name.startswith("control.")):
        own = [told.memory(told.after, client)[name].double() for client in range(NUM_CLIENTS)]
        atol = NUM_CLIENTS * 2**-24 * max(float(value.abs().max()) for value in own) + 2**-36
        mean = sum(own) / NUM_CLIENTS
        torch.testing.assert_close(told.after.params[name].double(), mean, rtol=0, atol=atol)


def fits_topk(told: Story, upload: Params, memory: Params) -> None:
    """What is sent and the residual, of which each entry is in one only, are theta_p - theta + the old residual."""
    task = Task(BAD, 0, 2, "train", told.setup.partition.size(BAD), 1.0)
    client = client_of(told.setup, task, told.published, told.before.memories[BAD])
    sent = torch.cat([value.flatten() for _, value in told.setup.method.lift(upload, client)])
    change = torch.cat([(told.last_good[name] - client.published[name]).flatten() for name in told.after.params])
    assert torch.equal(sent + memory["residual"], change + told.memory(told.before)["residual"])
    assert bool(((sent == 0) | (memory["residual"] == 0)).all()) and bool(change.any())


def fits_scaffold(told: Story, upload: Params, memory: Params) -> None:
    """The last finite model, and the control variate that it had."""
    assert digest_of(memory) == digest_of(told.memory(told.before))
    assert not any(bool(upload[name].any()) for name in memory)
    assert all(torch.equal(upload[name], value) for name, value in told.last_good.items())
    assert_c_is_the_mean(told)


def fits_standalone(told: Story, upload: Params, memory: Params) -> None:
    assert upload == {} and digest_of(memory) == digest_of(told.last_good)


def fits_lgfedavg(told: Story, upload: Params, memory: Params) -> None:
    """Two parts of one net."""
    assert upload and memory and not set(upload) & set(memory)
    assert digest_of(upload | memory) == digest_of(told.last_good)


def fits_hermes(told: Story, upload: Params, memory: Params) -> None:
    """Zeros wherever the remembered mask says so, and the mask is newly pruned."""
    assert digest_of(upload) == digest_of(told.last_good)
    masks = {family: mask for family, mask in memory.items() if mask.dtype == torch.bool}
    assert any(bool((mask != told.memory(told.before)[family]).any()) for family, mask in masks.items())
    masked = {name: value.clone() for name, value in upload.items()}
    groups.zeroing(masked, groups.kept_entries(told.setup.method.structure, masks))()
    assert all(torch.equal(masked[name], value) for name, value in upload.items())
    own = {name.removeprefix("own."): value for name, value in memory.items() if name.startswith("own.")}
    assert not own or digest_of(own) == digest_of(upload)


FITS = {
    "topk": fits_topk,
    "scaffold": fits_scaffold,
    "standalone": fits_standalone,
    "lgfedavg": fits_lgfedavg,
    "hermes": fits_hermes,
}


def test_a_gradient_that_diverged_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FD-NNC sends gradients, of which there is no last finite one: also under `upload_last_finite`."""
    setup = small_setup(tmp_path, "method.name=fdnnc", "train.on_divergence=upload_last_finite")
    first = ServerState(setup.method.initial_state())
    bad = plan_phase(setup, 1, setup.method.phases(1)[0]).tasks[0].client

    def backward(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Callable, client: Client) -> Tensor:
        value = type(setup.method).backward(setup.method, net, inputs, targets, loss, client)
        return torch.tensor(float("nan")) if client.task.client == bad else value

    monkeypatch.setattr(setup.method, "backward", backward)
    _, _, result = one_round(setup, 1, first)
    assert {report.client for report in result.reports if report.status == DROPPED} == {bad}
