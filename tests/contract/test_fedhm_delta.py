"""FedHM whose server keeps what clients did not get: rounds without training, exact cases, what the records say."""

import json
import math
from pathlib import Path

import pytest
import torch
from by_hand import after
from small_runs import small_setup

from fedmpi.config.load import load
from fedmpi.errors import ConfigError
from fedmpi.federation.assignment import Task
from fedmpi.lowrank.spectrum import beyond, effective_rank
from fedmpi.methods.values import Contributions, Phase
from fedmpi.tensors import Layout, Params

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


@pytest.mark.parametrize("more", [(), ("method.coverage=1",)])
def test_dense_clients_are_federated_averaging_to_the_bit(tmp_path: Path, more: tuple[str, ...]) -> None:
    words = ("rounds=2", "clients.per_round=4")
    plain = after(tmp_path / "plain", "method.name=fedavg", *words).server
    dense = ("method.name=fedhm", "method.rank_ratio=[1]", "method.aggregation=delta")
    found = after(tmp_path / "dense", *dense, *more, *words).server
    assert all(torch.equal(found[name], plain[name]) for name in plain)


@pytest.mark.parametrize("words", [("method.rank_ratio=[0.5]",), ("method.residual=0",)])
def test_cases_that_are_the_papers_rule_to_the_bit(tmp_path: Path, words: tuple[str, ...]) -> None:
    """One rank ratio for all leaves nothing to keep; and so does a residual of 0."""
    base = ("method.name=fedhm", "rounds=2", *(words if "rank_ratio" in words[0] else ()))
    paper = after(tmp_path / "paper", *base).server
    delta = after(tmp_path / "delta", *base, *words, "method.aggregation=delta").server
    assert all(torch.equal(delta[name], paper[name]) for name in paper)


@pytest.mark.parametrize("ratios", ["[1,0.5,0.25]", "[0.5,0.25]"])
def test_a_step_of_1_without_momentum_is_delta(tmp_path: Path, ratios: str) -> None:
    """W (or, where nobody is dense, U V^T) and the mean change: to the rounding of the change to float32."""
    words = ("method.name=fedhm", f"method.rank_ratio={ratios}", "rounds=1")
    delta = after(tmp_path / "delta", *words, "method.aggregation=delta").server
    avgm = after(tmp_path / "avgm", *words, "method.server.name=avgm", "method.server.beta=0").server
    for name, value in delta.items():
        torch.testing.assert_close(avgm[name], value, rtol=0, atol=2**-22)


def test_coverage_is_continuous(tmp_path: Path) -> None:
    """A power of nearly 0 is the mean over all clients, though it is summed by tier: to float32's rounding of parts."""
    words = ("method.name=fedhm", "method.aggregation=delta", "rounds=1")
    plain = after(tmp_path / "plain", *words).server
    nearly = after(tmp_path / "nearly", *words, "method.coverage=1e-12").server
    for name in plain:
        torch.testing.assert_close(nearly[name], plain[name], rtol=0, atol=2**-22)


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
