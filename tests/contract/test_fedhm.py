"""FedHM's own exact properties: weights, the mean of dense tensors, one SVD a layer; and a server that
keeps what clients did not get: rounds without training, exact cases, what the records say."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import after
from golden_file import Told
from method_cases import CASES
from model_inputs import Info, params
from narrow_nets import context_of
from small_runs import one_round, small_setup

from fedmpi.check.contract import Trial, published_for
from fedmpi.federation.assignment import Task
from fedmpi.lowrank import factorized
from fedmpi.lowrank.spectrum import effective_rank
from fedmpi.methods.fedhm_delta import FedHMDelta as FedHM
from fedmpi.methods.fedhm_delta import FedHMDeltaOptions as FedHMOptions
from fedmpi.methods.values import Client, Contributions, Phase
from fedmpi.models.nets.lstm import LstmImdb
from fedmpi.rounds.state import ServerState, plan_phase


@pytest.mark.parametrize(
    ("words", "tau"),
    [
        (("method.tau=0.01",), 0.01),
        (("method.tau=5",), 5.0),
        (("clients.tier_assignment=dynamic",), 5.0),
        (("method.tau=.inf",), math.inf),
        ((), math.inf),
    ],
)
def test_alphas(tmp_path: Path, words: tuple[str, ...], tau: float) -> None:
    """Eq. 2 with one client of each tier: softmax(gamma / tau) over gamma = 1, 1/2, 1/4, 1/8, by hand for tau = 5.
    `tau` is infinite for fixed tiers and 5 for dynamic ones."""
    method = small_setup(tmp_path, "method.name=fedhm", *words).method
    task = Task(0, 0, 1, "train", 1, 1.0)
    raw = [method.client_weight(dataclasses.replace(task, tier=tier.index)) for tier in method.tiers]
    found = [weight / sum(raw) for weight in raw]
    powers = [math.exp((gamma - 1) / tau) for gamma in (1, 0.5, 0.25, 0.125)]
    assert found == pytest.approx([power / sum(powers) for power in powers], rel=1e-12)
    assert tau != 5 or found == pytest.approx([0.2774, 0.2510, 0.2388, 0.2329], abs=5e-5)


def test_the_bound_of_a_lifted_layer_by_hand(tmp_path: Path) -> None:
    """|U V^T|_ij <= |u_i| |v_j|, with equality where U has one row and V one column: 3 * 4 = 12."""
    method = small_setup(tmp_path, "method.name=fedhm").method
    client = Client(Task(0, 1, 1, "train", 1, 1.0), {}, np.arange(1), 0, dict)
    upload = {name: torch.zeros(spec.shape) for name, spec in method.upload_specs(1, client.task).items()}
    layer = next(iter(method.layers.values()))
    for name, value in zip(layer.factor_names, (3.0, 4.0), strict=True):
        upload[name].view(-1)[0] = value
    bounds = dict(zip(method.state_specs(), method.magnitudes(upload, client), strict=True))
    assert bounds[f"{layer.name}.weight"] == 12.0 == dict(method.lift(upload, client))[f"{layer.name}.weight"].max()


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


def test_workers_know_how_long_the_factors_take(tmp_path: Path) -> None:
    """Six multiply-accumulates for each of min(M, N) M N, summed over the layers."""
    method = small_setup(tmp_path, "method.name=fedhm", "method.dense_layers=1").method
    shapes = [layer.matrix_shape for layer in method.layers.values()]
    assert sum(method.late.values()) == sum(6 * min(rows, columns) * rows * columns for rows, columns in shapes) > 0


def test_dense_tensors_are_the_alpha_mean(trial_of: Callable[[str], Trial]) -> None:
    """Against a mean in float64: one rounding to float32 lies between, half a unit in the last place (2^-24).

    The sums' own rounding, 2^-(k-2) with k = 61 - ceil(log2(4 * 64)) = 53, is far below.
    """
    (phase,) = trial_of("fedhm-dynamic").phases
    means = phase.exchanged("gather").means
    weights = {task.client: math.exp(phase.method.tiers[task.tier].capacity / 5) for task in phase.assignment.tasks}
    total = sum(weights.values())
    dense = [name for name in means if name.removesuffix(".weight") not in phase.method.layers]
    assert len({task.tier for task in phase.assignment.tasks}) > 1 and len(dense) > 5
    for name in dense:
        expected = sum(weights[task.client] / total * upload[name].double() for task, upload in phase.uploads())
        torch.testing.assert_close(means[name].double(), expected, rtol=2**-24, atol=2.0**-50, msg=name)


@pytest.mark.parametrize("case", ["fedhm", "fedhm-dynamic", "fedhm-low-only"])
@pytest.mark.usefixtures("without_training")
def test_without_training_the_mean_of_truncations_is_left(tmp_path: Path, case: str) -> None:
    """By SVDs in float64. Factors are float32: the relative error of u v, r <= 16 terms, is within 2^-24 (r + 2)."""
    setup = small_setup(tmp_path, *CASES[case])
    method = setup.method
    state = method.initial_state()
    (planned,) = (plan_phase(setup, 1, phase) for phase in method.phases(1))
    left = one_round(setup, 1, ServerState(state))[0].params
    for layer in method.layers.values():
        name = f"{layer.name}.weight"
        u, sigma, vt = torch.linalg.svd(layer.unroll(state[name].double()), full_matrices=False)
        total, mean = 0.0, torch.zeros_like(state[name].double())
        for task in planned.tasks:
            gamma, alpha = method.tiers[task.tier].capacity, method.client_weight(task)
            r = layer.r(gamma) if gamma < 1 else len(sigma)
            mean += alpha * layer.fold(u[:, :r] @ torch.diag(sigma[:r]) @ vt[:r])
            total += alpha
        atol = 2**-24 * 18 * float(state[name].abs().max()) * 4
        torch.testing.assert_close(left[name].double(), mean / total, rtol=0, atol=atol, msg=name)


def test_a_factorized_net_that_is_larger_than_the_dense_one_is_told(told: Told) -> None:
    """PriSM's LSTM at 1,001 words: at gamma 1/2 gates of 256 x 256 are as large, those of 64 x 256 grow by
    4 (64 * 64 + 64 * 256 - 64 * 256). One line for each such tier, and what it says makes the net smaller does."""
    info = Info("tokens", (5,), 2, vocabulary_size=1001)

    def method_of(**options: object) -> FedHM:
        return FedHM(context_of(FedHMOptions(**options), LstmImdb(), info))

    (said,) = method_of(rank_ratio=(1.0, 0.5, 0.25)).warnings()
    told(said)
    assert params(method_of(rank_ratio=(1.0, 0.5)).net(1, empty=True)) == 936_769 == 920_385 + 4 * 64 * 64
    smaller = method_of(rank_ratio=(0.49,))
    assert params(smaller.net(0, empty=True)) < 920_385 and not smaller.warnings()
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
    published = published_for(whole, state, {0})
    net = whole.net(0)
    whole.narrow(published, 0, {name: value.data for name, value in net.named_parameters()})
    torch.testing.assert_close(net(tokens), whole.context.make()(tokens), rtol=1e-5, atol=1e-6)


# A server that keeps what clients did not get.

STILL = ("method.name=fedhm", "clients.count=8", "clients.per_round=8", "train.lr=1.0e-12", "train.weight_decay=0")


def tail(spectra: torch.Tensor, r: int) -> float:
    return float(spectra[r:].norm())


@pytest.mark.parametrize(
    ("more", "factor"),
    [
        ("", 0.25),
        ("method.aggregation=delta method.residual=0.5", 0.625),
        ("method.aggregation=delta method.residual=0.9", 0.925),
        ("method.aggregation=delta", 1.0),
        ("method.server.name=avgm", 1.0),
    ],
)
def test_without_training_each_band_shrinks_by_its_share(tmp_path: Path, more: str, factor: float) -> None:
    """A quarter of the clients is dense: in a round the band that only they hold shrinks to c = 1/4 under the paper's
    mean, and to rho + (1 - rho) / 4 under the corrected one; a server optimizer steps along a change of 0. Rounded to
    float32 in between: 2^-24 of the largest value, of which this band is more than a hundredth."""
    words = [*STILL, *more.split()]
    method = small_setup(tmp_path / "start", *words).method
    start = method.initial_state()
    state = after(tmp_path / "run", *words, "rounds=3", "evaluation.every=1000").server
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    for name, layer in method.layers.items():
        r = layer.r(0.5)
        before, now = (
            torch.linalg.svdvals(layer.unroll(values[f"{name}.weight"]).double()) for values in (start, state)
        )
        assert tail(now, r) / tail(before, r) == pytest.approx(factor**3, rel=1e-4)
        assert now[: layer.r(0.125)].tolist() == pytest.approx(before[: layer.r(0.125)].tolist(), rel=1e-5)
        shown = records[-1]["method"]["spectrum"]["layers"][name]
        energy = float(now.square().sum())
        assert shown["beyond"]["0.5"] == pytest.approx(tail(now, r) ** 2 / energy, rel=1e-3)
        assert shown["effective_rank"] == pytest.approx(effective_rank(now), rel=1e-3)
    assert records[-1]["method"]["band_factor"]["1"] == pytest.approx(factor)


def test_a_start_without_spectral_initialization_has_the_rank_of_its_factors(tmp_path: Path) -> None:
    """Of the largest low rank, with the dense start's variance; what is not factorized is the same."""
    words = ("method.name=fedhm", "method.rank_ratio=[1,0.5,0.25]", "method.dense_layers=1")
    spectral = small_setup(tmp_path / "1", *words).method
    random = small_setup(tmp_path / "2", *words, "method.spectral_init=false").method
    before, after_draw = spectral.initial_state(), random.initial_state()
    for name, value in after_draw.items():
        layer = random.layers.get(name.removesuffix(".weight"))
        if layer is None:
            assert torch.equal(value, before[name])
        else:
            assert int(torch.linalg.matrix_rank(layer.unroll(value))) == layer.r(0.5) < min(layer.matrix_shape)
            assert float(value.std()) == pytest.approx(float(before[name].std()), rel=0.2)


def test_effective_rank_by_hand() -> None:
    """Of k equal values k; of 3, 1: exp(-3/4 ln 3/4 - 1/4 ln 1/4) = 4 / 3^(3/4)."""
    assert effective_rank(torch.tensor([2.0, 2.0, 2.0, 0.0])) == pytest.approx(3, rel=1e-12)
    assert effective_rank(torch.tensor([3.0, 1.0])) == pytest.approx(4 / 3**0.75, rel=1e-12)
    assert effective_rank(torch.zeros(3)) == 0


DELTA, ONE_STEP = "method.aggregation=delta", ("method.server.name=avgm", "method.server.beta=0")


@pytest.mark.parametrize(
    ("common", "ours", "theirs", "atol"),
    [
        # One rank ratio for all leaves nothing to keep; and so does a residual of 0: the paper's rule.
        (("rounds=2", "method.rank_ratio=[0.5]"), (DELTA,), (), 0.0),
        (("rounds=2",), (DELTA, "method.residual=0"), (), 0.0),
        # W (or, where nobody is dense, U V^T) and the mean change: to the rounding of the change to float32.
        (("rounds=1", "method.rank_ratio=[1,0.5,0.25]"), ONE_STEP, (DELTA,), 2**-22),
        (("rounds=1", "method.rank_ratio=[0.5,0.25]"), ONE_STEP, (DELTA,), 2**-22),
        # A power of nearly 0 is the mean over all clients, though it is summed by tier: float32's rounding of parts.
        (("rounds=1", DELTA), ("method.coverage=1e-12",), (), 2**-22),
    ],
)
def test_rules_that_are_one(
    tmp_path: Path, common: tuple[str, ...], ours: tuple[str, ...], theirs: tuple[str, ...], atol: float
) -> None:
    expected = after(tmp_path / "theirs", "method.name=fedhm", *common, *theirs).server
    found = after(tmp_path / "ours", "method.name=fedhm", *common, *ours).server
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=atol)


@pytest.mark.parametrize(("share", "is_said"), [(3e-6, True), (0.01, False)])
def test_a_net_that_all_tiers_share_is_said(tmp_path: Path, share: float, is_said: bool) -> None:
    """Each factorized layer has as many singular values of 1 as the net of ratio 1/8 takes, and one more with `share`
    of their energy."""
    method = small_setup(tmp_path, "method.name=fedhm").method
    state, tasks = method.initial_state(), [Task(0, 0, 1, "train", 1, 1.0)]
    for layer in method.layers.values():
        matrix, r = torch.zeros(layer.matrix_shape), layer.r(0.125)
        matrix[range(r), range(r)] = 1.0
        matrix[r, r] = math.sqrt(share * r)
        name = f"{layer.name}.weight"
        state[name] = layer.folded_as(state[name], matrix)
    published = published_for(method, state, {0, 3})
    notes = method.diagnostics(state, published, Contributions(Phase(), 1, 0.1, tasks))
    assert notes["spectrum"]["beyond"]["0.125"] == pytest.approx(share, rel=0.02)
    assert [("0.125" in line, "RANK_COLLAPSE.md" in line) for line in notes.get("conclusions", ())] == (
        [(True, True)] if is_said else []
    )
