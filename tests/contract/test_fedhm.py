"""FedHM's own exact properties (methods.md 15): weights, the mean of dense tensors, one SVD a layer."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from by_hand import after
from golden_file import Told
from model_inputs import Info, params
from narrow_nets import context_of
from small_runs import small_setup

from fedmpi.federation.assignment import Task
from fedmpi.lowrank import factorized
from fedmpi.methods.fedhm import FedHM, FedHMOptions
from fedmpi.models.options import LstmImdb


def alphas(tmp_path: Path, *overrides: str) -> list[float]:
    """Eq. 2 with one client of each tier: weights that sum to 1, largest capacity first."""
    method = small_setup(tmp_path, "method.name=fedhm", *overrides).method
    task = Task(0, 0, 1, "train", 1, 1.0)
    raw = [method.client_weight(dataclasses.replace(task, tier=tier.index)) for tier in method.tiers]
    return [weight / sum(raw) for weight in raw]


def test_alpha_of_the_paper(tmp_path: Path) -> None:
    """softmax(gamma / 5) over gamma = 1, 1/2, 1/4, 1/8, as methods.md prints it; to its four digits."""
    expected = [0.2774, 0.2510, 0.2388, 0.2329]
    assert alphas(tmp_path, "method.tau=5") == pytest.approx(expected, abs=5e-5)
    powers = [math.exp(gamma / 5) for gamma in (1, 0.5, 0.25, 0.125)]
    assert alphas(tmp_path, "method.tau=5") == pytest.approx([p / sum(powers) for p in powers], rel=1e-14)


def test_tau_is_5_for_dynamic_tiers_and_infinite_for_fixed_ones(tmp_path: Path) -> None:
    assert alphas(tmp_path, "clients.tier_assignment=dynamic") == alphas(tmp_path, "method.tau=5")
    assert alphas(tmp_path) == alphas(tmp_path, "method.tau=.inf") == [0.25] * 4


@pytest.mark.parametrize("tau", ["0.01", "1", "5", "1e3"])
def test_alpha_grows_with_gamma(tmp_path: Path, tau: str) -> None:
    found = alphas(tmp_path, f"method.tau={tau}")
    assert found == sorted(found, reverse=True) and len(set(found)) == 4
    assert sum(found) == pytest.approx(1, rel=1e-14)


def test_a_huge_tau_is_nearly_uniform(tmp_path: Path) -> None:
    """|alpha - 1/4| <= (1 - 1/8) / (4 tau) to first order."""
    assert alphas(tmp_path, "method.tau=1e9") == pytest.approx([0.25] * 4, abs=3e-10)


def test_one_level_is_uniform(tmp_path: Path) -> None:
    assert alphas(tmp_path, "method.rank_ratio=[0.5]", "method.tau=0.3") == [1.0]


@pytest.mark.parametrize("rank_ratio", ["[0.5]", "[1,0.5]", "[1,0.5,0.25,0.125]", "[1]"])
def test_one_svd_a_layer_and_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank_ratio: str) -> None:
    """Whatever the number of tiers: rounds + 1 times the factorized layers (before round 1, and after each round)."""
    calls: list[tuple[int, ...]] = []
    real = factorized.truncated_svd

    def counting(matrix: torch.Tensor, r: int, solver: str) -> tuple[torch.Tensor, ...]:
        calls.append(tuple(matrix.shape))
        return real(matrix, r, solver)

    monkeypatch.setattr(factorized, "truncated_svd", counting)
    words = ("method.name=fedhm", f"method.rank_ratio={rank_ratio}", "method.dense_layers=1", "rounds=3")
    after(tmp_path / "run", *words, "clients.per_round=8")
    layers = small_setup(tmp_path, *words).method.layers
    assert len(layers) == 4
    assert len(calls) == (0 if rank_ratio == "[1]" else 4 * (3 + 1))


def test_dense_tensors_are_the_alpha_mean(federation_of: Callable) -> None:
    """Against a mean in float64: one rounding to float32 lies between, half a unit in the last place (2^-24).

    The sums' own rounding, 2^-(k-2) with k = 61 - ceil(log2(4 * 64)) = 53, is far below.
    """
    federation = federation_of("fedhm-dynamic")
    (assignment,) = federation.phases()
    uploads = {task.client: federation.returned(task, scale=1 + task.client / 3) for task in assignment.tasks}
    means = federation.exchanged("gather", assignment, uploads).means
    weights = {task.client: math.exp(federation.method.tiers[task.tier].capacity / 5) for task in assignment.tasks}
    total = sum(weights.values())
    dense = [name for name in means if name.removesuffix(".weight") not in federation.method.layers]
    assert len({task.tier for task in assignment.tasks}) > 1 and len(dense) > 5
    for name in dense:
        expected = sum(weights[client] / total * upload[name].double() for client, upload in uploads.items())
        torch.testing.assert_close(means[name].double(), expected, rtol=2**-24, atol=2.0**-50, msg=name)


def test_dense_shapes_do_not_depend_on_the_tier(federation_of: Callable) -> None:
    """Stem, shortcuts, norms and classifier have the same shape at every level."""
    method = federation_of("fedhm").method
    nets = [dict(method.net(tier.index, empty=True).named_parameters()) for tier in method.tiers]
    dense = [name for name in nets[0] if name.removesuffix(".weight") not in method.layers]
    assert {"conv1.weight", "fc.weight", "stages.1.0.shortcut.0.weight"} <= set(dense)
    assert all(net[name].shape == nets[0][name].shape for net in nets for name in dense)


def test_a_factorized_net_that_is_larger_than_the_dense_one_is_told(told: Told) -> None:
    """PriSM's LSTM at 1,001 words: at gamma 1/2 gates of 256 x 256 are as large, those of 64 x 256 grow by
    4 (64 * 64 + 64 * 256 - 64 * 256). One line for each such tier, and what it says makes the net smaller does."""
    info = Info("tokens", (5,), 2, vocabulary_size=1001)

    def method_of(**options: object) -> FedHM:
        return FedHM(context_of(FedHMOptions(**options), LstmImdb(), info))

    (said,) = method_of(rank_ratio=(1.0, 0.5, 0.25)).warnings()
    told(said)
    assert params(method_of(rank_ratio=(1.0, 0.5)).net(1, empty=True)) == 936_769 == 920_385 + 4 * 64 * 64
    assert (
        params(method_of(rank_ratio=(0.49,)).net(0, empty=True)) < 920_385
        and not method_of(rank_ratio=(0.49,)).warnings()
    )
    assert len(method_of(rank_ratio=(0.9, 0.5)).warnings()) == 2
    (said,) = method_of(rank_ratio=(0.5,), layer_ranks={"lstm.*": 200}).warnings()
    told(said)


def test_an_lstm_is_factorized_gate_by_gate() -> None:
    """Two layers of 16 units, inputs of 4: eight matrices each. At gamma 1/2 r is 8, 4 for the first layer's inputs,
    whose rank is 4: factors of 16 x 4 and 4 x 4; at full rank the net is the dense one, to float32 rounding."""
    info = Info("tokens", (5,), 2, vocabulary_size=11)
    method = FedHM(context_of(FedHMOptions(rank_ratio=(1.0, 0.5)), LstmImdb(width=0.0625), info))
    assert len(method.layers) == 16
    shapes = {name: tuple(p.shape) for name, p in method.net(1, empty=True).named_parameters()}
    assert (shapes["lstm.ih_l0.f.u.weight"], shapes["lstm.ih_l0.f.v.weight"]) == ((4, 4), (16, 4))
    assert (shapes["lstm.hh_l1.o.u.weight"], shapes["lstm.hh_l1.o.v.weight"]) == ((8, 16), (16, 8))
    tokens = torch.randint(11, (3, 5), generator=torch.Generator().manual_seed(0))
    whole = FedHM(context_of(FedHMOptions(rank_ratio=(0.999,)), LstmImdb(width=0.0625), info))
    state = whole.initial_state()
    published = {name: torch.empty(spec.shape) for name, spec in whole.published_specs({0}).items()}
    whole.publish(state, {0}, published)
    net = whole.net(0)
    whole.narrow(published, 0, {name: value.data for name, value in net.named_parameters()})
    torch.testing.assert_close(net(tokens), whole.context.make()(tokens), rtol=1e-5, atol=1e-6)
