"""FedHM's own exact properties: weights, the mean of dense tensors, one SVD a layer; and a server that
keeps what clients did not get: rounds without training, exact cases, what the records say."""

import dataclasses
import json
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

from fedmpi.config.load import load
from fedmpi.errors import ConfigError
from fedmpi.federation.assignment import Task
from fedmpi.lowrank import factorized
from fedmpi.lowrank.spectrum import beyond, effective_rank
from fedmpi.methods.fedhm import FedHM, FedHMOptions
from fedmpi.methods.values import Contributions, Phase
from fedmpi.models.nets.lstm import LstmImdb
from fedmpi.tensors import Layout, Params


def alphas(tmp_path: Path, *overrides: str) -> list[float]:
    """Eq. 2 with one client of each tier: weights that sum to 1, largest capacity first."""
    method = small_setup(tmp_path, "method.name=fedhm", *overrides).method
    task = Task(0, 0, 1, "train", 1, 1.0)
    raw = [method.client_weight(dataclasses.replace(task, tier=tier.index)) for tier in method.tiers]
    return [weight / sum(raw) for weight in raw]


@pytest.mark.parametrize(
    ("words", "expected", "within"),
    [
        # softmax(gamma / 5) over gamma = 1, 1/2, 1/4, 1/8; to four digits.
        (("method.tau=5",), [0.2774, 0.2510, 0.2388, 0.2329], 5e-5),
        (("method.tau=.inf",), [0.25] * 4, 0),
        ((), [0.25] * 4, 0),
        # |alpha - 1/4| <= (1 - 1/8) / (4 tau) to first order.
        (("method.tau=1e9",), [0.25] * 4, 3e-10),
        (("method.rank_ratio=[0.5]", "method.tau=0.3"), [1.0], 0),
    ],
)
def test_alphas(tmp_path: Path, words: tuple[str, ...], expected: list[float], within: float) -> None:
    """`tau` is infinite for fixed tiers."""
    assert alphas(tmp_path, *words) == pytest.approx(expected, abs=within, rel=0)


@pytest.mark.parametrize("tau", ["0.01", "1", "5", "1e3", "dynamic"])
def test_alpha_grows_with_gamma(tmp_path: Path, tau: str) -> None:
    """For dynamic tiers it is 5."""
    found = alphas(tmp_path, "clients.tier_assignment=dynamic" if tau == "dynamic" else f"method.tau={tau}")
    number = 5.0 if tau == "dynamic" else float(tau)
    assert found == sorted(found, reverse=True) and len(set(found)) == 4
    powers = [math.exp((gamma - 1) / number) for gamma in (1, 0.5, 0.25, 0.125)]
    assert found == pytest.approx([power / sum(powers) for power in powers], rel=1e-14 * max(1, 1 / number))


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


# A server that keeps what clients did not get.

STILL = ("method.name=fedhm", "clients.count=8", "clients.per_round=8", "train.lr=1.0e-12", "train.weight_decay=0")


def trained(folder: Path, *words: str) -> tuple[Params, list[dict]]:
    """The state and the records of a small run."""
    state = after(folder, *words, "evaluation.every=1000").server
    return state, [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def tail(spectra: torch.Tensor, r: int) -> float:
    return float(spectra[r:].norm())


def layers_of(folder: Path, *words: str) -> tuple[dict, Params]:
    method = small_setup(folder, *words).method
    return method.layers, method.initial_state()


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
    layers, start = layers_of(tmp_path / "start", *words)
    state, records = trained(tmp_path / "run", *words, "rounds=3")
    for name, layer in layers.items():
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


@pytest.mark.parametrize(("noise", "refills"), [(1e-3, False), (1.0, True)])
def test_training_refills_no_more_than_the_change(federation_of, noise: float, refills: bool) -> None:
    """||tail_r(W+)|| <= c ||tail_r(W)|| + ||sum_i alpha_i D_i|| for the paper's mean, D_i drawn at random and added up
    here, c counted by hand. The tail is what the server's float32 means have, so a millionth is for rounding."""
    federation = federation_of("fedhm")
    method = federation.method
    (assignment,) = federation.phases()
    plain = {task.client: federation.returned(task) for task in assignment.tasks}
    torch.manual_seed(0)
    moved = {
        client: {name: value + noise * torch.randn_like(value) for name, value in upload.items()}
        for client, upload in plain.items()
    }
    means = federation.exchanged("gather", assignment, moved).means
    weights = {task.client: method.client_weight(task) for task in assignment.tasks}
    alpha = {client: weight / sum(weights.values()) for client, weight in weights.items()}
    by_task = {task.client: task for task in assignment.tasks}

    def lifted(client: int, upload: Params) -> Params:
        return {name: value.double() for name, value in method.lift(upload, federation.client(by_task[client]))}

    for name, layer in method.layers.items():
        key = f"{name}.weight"
        change = sum(alpha[c] * (lifted(c, moved[c])[key] - lifted(c, plain[c])[key]) for c in plain)
        before, after_round = (
            torch.linalg.svdvals(layer.unroll(values[key]).double()) for values in (federation.state, means)
        )
        for tier in method.tiers[1:]:
            r = layer.r(tier.capacity)
            held = {client for client, task in by_task.items() if method.tiers[task.tier].capacity > tier.capacity}
            c = sum(alpha[client] for client in held)
            limit = c * tail(before, r) + float(change.norm())
            assert tail(after_round, r) <= limit * (1 + 1e-6)
            assert (tail(after_round, r) > 1.5 * c * tail(before, r)) == refills


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


def test_the_mean_change_is_what_clients_changed(federation_of) -> None:
    """Clients that return what they got have changed nothing, though the mean of their nets is not the server's."""
    federation = federation_of("fedhm-delta")
    (assignment,) = federation.phases()
    uploads = {task.client: federation.returned(task) for task in assignment.tasks}
    means = federation.exchanged("gather", assignment, uploads).means
    brought = Contributions(Phase(), 1, 0.1, assignment.tasks, published=federation.published(federation.tiers))
    change = federation.method.mean_change(federation.state, means, brought)
    assert list(change) == list(federation.method.state_specs())
    for name, value in change.items():
        limit = 2**-20 * float(federation.state[name].abs().max())
        assert float(value.abs().max()) <= limit
        assert name.removesuffix(".weight") not in federation.method.layers or not torch.equal(
            means[name], federation.state[name]
        )


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("method.residual=0.5",), "method.residual"),
        (("method.coverage=1",), "method.coverage"),
        (("method.aggregation=delta", "method.coverage=1", "method.residual=0.5"), "method.coverage"),
    ],
)
def test_options_that_make_no_sense_together(words: tuple[str, ...], key: str) -> None:
    with pytest.raises(ConfigError) as found:
        load(None, ["method.name=fedhm", *words])
    assert key in str(found.value) and "method." in str(found.value)


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
    layout = Layout.of(method.published_specs([0, 3]))
    published = layout.views(layout.new_buffer("cpu"))
    method.publish(state, [0, 3], published)
    notes = method.diagnostics(state, published, Contributions(Phase(), 1, 0.1, tasks))
    assert beyond(notes, "0.125") == pytest.approx(share, rel=0.02)
    assert [("0.125" in line, "RANK_COLLAPSE.md" in line) for line in notes.get("conclusions", ())] == (
        [(True, True)] if is_said else []
    )
