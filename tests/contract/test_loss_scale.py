"""`train.precision: fp16`: methods see the gradient itself, whatever the loss is multiplied by."""

import math
from pathlib import Path

import pytest
import torch
from fast import fast
from method_cases import CASES
from small_runs import one_round, run_alone, small_setup, undisturbed
from torch import nn

from fedmpi.config.schema import Train
from fedmpi.errors import StartupError
from fedmpi.learning import loss_scale
from fedmpi.learning.flat import Buffers, FlatNet, net_layout
from fedmpi.learning.local import TrainOutcome, gradients, outcome_of
from fedmpi.rounds.state import ServerState
from fedmpi.running import start
from fedmpi.running.server import unchanged
from fedmpi.store.hdf5 import digest_of

# HF refuses fp16.
WITH_FP16 = [case for case in CASES if case != "perfedavg-hf"]


@pytest.mark.parametrize("case", fast("fedhm", of=WITH_FP16, slow=("fjord-distillation", "splitmix", "moon")))
def test_a_scale_that_is_a_power_of_two_changes_nothing_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """There every product with the scale is exact, so each method must end at the same bits with and without it."""

    def end_of(folder: Path) -> str:
        folder.mkdir()
        setup = small_setup(folder, *CASES[case], "evaluation.every=3")
        state = ServerState(setup.method.initial_state())
        for number in (1, 2):
            state = one_round(setup, number, state)[0]
        return digest_of(state.params)

    plain = end_of(tmp_path / "plain")
    monkeypatch.setattr(start, "Buffers", lambda *sizes, **given: Buffers(*sizes, **given | {"loss_scale": 2.0**7}))
    assert end_of(tmp_path / "scaled") == plain


def small_net(scale: float | None, weight: float) -> FlatNet:
    """y = w x of one number."""
    module = nn.Linear(1, 1, bias=False)
    layout = net_layout(module.named_parameters(), (), channels_last=False)
    net = FlatNet(module, layout, Buffers(layout.num_bytes, "cpu", squares=True, loss_scale=scale))
    net.params["weight"].fill_(weight)
    return net


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_step_whose_gradient_is_not_finite_is_left_out(optimizer: str) -> None:
    """The parameters, the momentum and AdamW's count of steps stay; what comes after sees a gradient of zero."""
    net, plain = small_net(2.0**10, 1.0), small_net(None, 1.0)
    seen = []
    for one, slopes in ((net, (2.0, math.inf, 4.0)), (plain, (2.0, 4.0))):
        take_step = one.optimizer(Train(optimizer=optimizer, momentum=0.9), ())
        one.reset_momentum()
        for slope in slopes:
            one.grads["weight"].fill_(slope)
            left_out = one.scale.settle(one.gradient) if one.scale else None
            seen.append((float(one.grads["weight"]), None if left_out is None else float(left_out)))
            take_step(0.1, left_out)
    assert seen == [(2.0, 0.0), (0.0, 1.0), (4.0, 0.0), (2.0, None), (4.0, None)]
    assert float(net.params["weight"]) != 1.0
    assert torch.equal(net.params["weight"], plain.params["weight"])
    for name in ("momentum", "squares", "steps"):
        assert torch.equal(getattr(net._buffers, name), getattr(plain._buffers, name)), name


def test_the_scale_is_halved_doubled_and_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 3 good steps, instead of 2,000: 8, bad 4, good 4, good 4, good 8, bad 4, good 4; a new client 8. Steps that
    were left out are counted, read with the losses; other precisions have none."""
    monkeypatch.setattr(loss_scale, "NUM_GOOD_STEPS", 3)
    net, scales = small_net(8.0, 1.0), []
    for is_good in (False, True, True, True, False, True):
        net.grads["weight"].fill_(1.0 if is_good else math.nan)
        net.scale.settle(net.gradient)
        scales.append(scale_of(net))
    losses = torch.tensor([1.0, 2.0, 6.0, 2.0, 4.0, 9.0])
    assert outcome_of(losses, net.scale.num_left_out) == TrainOutcome(4.0, 6, True, 2)
    net.scale.reset()
    assert [*scales, scale_of(net)] == [4, 4, 4, 8, 4, 4, 8]
    assert outcome_of(torch.tensor([]), net.scale.num_left_out) == TrainOutcome(0.0, 0, True, 0)
    assert small_net(None, 1.0).scale is None and outcome_of(torch.tensor([2.0])) == TrainOutcome(2.0, 1, True)


@pytest.mark.parametrize("exchange", ["gather", "reduce"])
def test_a_run_without_a_step_says_so(
    tmp_path: Path, exchange: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four clients of 15 examples take 2 steps each, in batches of 8; both scales, 2^24 and 2^23, are too large for
    gradients of outputs in half precision (at most 65,504, which is 2^24 / 256). No client counts as diverged."""
    words = ("method.name=fedavg", "partition.name=iid", f"mpi.exchange={exchange}", "rounds=2")
    monkeypatch.setattr(loss_scale, "INITIAL", 2.0**24)
    before = small_setup(tmp_path / "before", *words).method.initial_state()
    found = undisturbed(tmp_path, *words, "train.precision=fp16")
    assert [(record["left_out_steps"], record["dropped"]) for record in found.records] == [(8, [])] * 2
    assert found.server == digest_of(before)
    said = " ".join(capsys.readouterr().err.split())  # warnings are folded
    assert said.count("changes nothing: fp16 left out every step") == 2


@pytest.mark.parametrize("method", ["scaffold", "fednova"])
def test_methods_that_count_steps_count_those_that_were_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Where none was taken, SCAFFOLD's c_i stays and sends no change, whatever c is, and FedNova's |a|_1 is 0; each is
    counted and told."""
    monkeypatch.setattr(loss_scale, "INITIAL", 2.0**24)
    setup = small_setup(tmp_path, f"method.name={method}", "partition.name=iid", "train.precision=fp16")
    state = ServerState({name: value.clone() for name, value in setup.method.initial_state().items()})
    for name, value in state.params.items():
        value.fill_(1e-3) if name.startswith("control..") else None
    after, _, result = one_round(setup, 1, state)
    assert digest_of(after.params) == digest_of(state.params)
    assert [(report.steps, report.left_out) for report in result.reports] == [(2, 2)] * 4
    assert "fp16 left out every step" in unchanged(setup, result)


def scale_of(net: FlatNet) -> float:
    """What the gradient of an output is multiplied by; that of the parameter is the true one at any scale."""
    output = torch.ones(1, 1, requires_grad=True)
    gradients(net.outputs(output).sum())
    net.gradient.zero_()
    gradients(net.module(torch.tensor([[3.0]])).sum())
    assert float(net.grads["weight"]) == 3.0 and output.grad is not None
    return float(output.grad)


def test_small_gradients_are_kept() -> None:
    """d(1e-9 y)/dw = 1e-9 x at x = 3. Half precision has no number between 0 and 6e-8; 2^16 x 1e-9 it has."""
    for scale, expected in ((None, 0.0), (2.0**16, 3e-9)):
        net = small_net(scale, 1.0)
        with torch.autocast("cpu", dtype=torch.float16):
            gradients(1e-9 * net.module(torch.tensor([[3.0]])).float().sum())
        assert float(net.grads["weight"]) == pytest.approx(expected, rel=2e-3)


def test_recurrent_nets_on_a_cpu_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="it fails as the method trains it: .*LSTM"):
        run_alone(tmp_path / "run", "model.name=mynets:Lstm", "method.name=fedavg", "train.precision=fp16")
