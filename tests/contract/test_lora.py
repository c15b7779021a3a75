"""LoRA with ranks 3, 2 and 1: what each aggregation makes of three clients by hand, and what they have in common.

A layer of three inputs and three outputs; alpha 6, so that the scales are 2, 3 and 6; weights 1/4, 1/4 and 1/2.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from narrow_nets import context, exchanged
from small_runs import run_alone, small_config, small_setup
from torch import Tensor, nn

from fedmpi.check.contract import published_for
from fedmpi.config.schema import Clients
from fedmpi.errors import ConfigError, StartupError
from fedmpi.export.nets import net_of_tier
from fedmpi.export.saved import saved_round
from fedmpi.federation.assignment import Task
from fedmpi.lowrank.adapter import Adapter
from fedmpi.methods.lora import NORM, RANK, Lora, LoraOptions
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client, ClientLoad, Contributions, Phase
from fedmpi.models import create
from fedmpi.running.forecast import forecast
from fedmpi.store import checkpoint
from fedmpi.tensors import Params

EYE = torch.eye(3)
EXAMPLES = (1, 1, 2)
UPLOADS = {
    0: {"0.a": EYE, "0.b": torch.diag(torch.tensor([4.0, 8.0, 16.0]))},
    1: {"0.a": EYE[:2], "0.b": torch.tensor([[4.0, 0.0], [0.0, 8.0], [0.0, 0.0]])},
    2: {"0.a": EYE[:1], "0.b": torch.tensor([[0.0], [4.0], [0.0]])},
}
"""By tier; the changes s B A are diag(8, 16, 32), diag(12, 24, 0), and 24 at row 1, column 0."""
MEAN = torch.tensor([[5.0, 0.0, 0.0], [12.0, 10.0, 0.0], [0.0, 0.0, 8.0]])
BY_BANDS = torch.tensor([[5.0, 0.0, 0.0], [12.0, 20.0, 0.0], [0.0, 0.0, 32.0]])
"""Column 1 over half of the weight, column 2 over a quarter."""


def frozen_net() -> nn.Module:
    layer = nn.Linear(3, 3, bias=False)
    del layer._parameters["weight"]
    layer.register_buffer("weight", EYE.clone())
    return nn.Sequential(layer)


def method_of(aggregation: str, ranks: tuple[int, ...] = (3, 2, 1), **options: object) -> Lora:
    """Its A begins as the identity."""
    chosen = LoraOptions(aggregation=aggregation, ranks=ranks, alpha=6.0, **options)
    blocks = (1,) * len(ranks) if len(ranks) == 3 else (3,)
    method = Lora(context(chosen, frozen_net, clients=Clients(count=3, per_round=3), tier_blocks=blocks))
    method.start = {"0.a": EYE[: ranks[0]].clone(), "0.b": torch.zeros(3, ranks[0])}
    return method


def published(method: Lora, state: Params) -> Params:
    return published_for(method, state, range(len(method.tiers)))


def task_of(number: int, tier: int) -> Task:
    return Task(number, tier, 1, "train", EXAMPLES[number], 1.0, number, 3)


def client(method: Lora, state: Params, tier: int, number: int) -> Client:
    return Client(task_of(number, tier), published(method, state), np.arange(EXAMPLES[number]), 0)


def notes_of(method: Lora, state: Params) -> dict[str, Any]:
    """What the record has of a round of all clients that ended with this state."""
    tasks = [task_of(number, number) for number in range(3)]
    return method.diagnostics(state, {}, Contributions(Phase(), 1, 0.1, tasks))


def after_round(method: Lora, state: Params, uploads: dict[int, Params], tiers: tuple[int, ...] = (0, 1, 2)) -> Params:
    """Returns the state after a round of the clients that `uploads` has, whose tiers are these."""
    clients = [client(method, state, tiers[number], number) for number in uploads]
    results = exchanged(method, state, *((one, uploads[one.task.client]) for one in clients))
    tasks = [one.task for one in clients]
    given = Contributions(Phase(), 1, 0.1, tasks, results.shares, published(method, state))
    return method.update(state, results.means, given)


def narrowed(method: Lora, state: Params, tier: int) -> Params:
    out = {name: torch.full(spec.shape, torch.nan) for name, spec in method.tier_specs[tier].items()}
    method.narrow(published(method, state), tier, out, client(method, state, tier, 0))
    return out


def change(*diagonal: float) -> Params:
    return {"0.change": torch.diag(torch.tensor(diagonal, dtype=torch.float32))}


def test_the_layer_by_hand() -> None:
    """W x = (1, 2, 3); A x = 2 and s B A x = 3 (2, 0, 4); with a change of diag(1, 0, 0) one more in the first."""
    x = torch.tensor([[1.0, 2.0, 3.0]])
    for holds, expected in (((), [[7.0, 2.0, 15.0]]), (("change",), [[8.0, 2.0, 15.0]])):
        layer = Adapter("0", frozen_net()[0], 1, 3.0, holds, "cpu")
        values = {"a": [[0.0, 1.0, 0.0]], "b": [[1.0], [0.0], [2.0]], "change": [[1.0, 0, 0], [0, 0, 0], [0, 0, 0]]}
        for name, parameter in layer.named_parameters():
            parameter.data = torch.tensor(values[name])
        assert layer(x).tolist() == expected
        layer(x).sum().backward()
        assert layer.a.grad is not None and all(getattr(layer, name).grad is None for name in holds)


class _ReadsTheWeight(nn.Module):
    def __init__(self, num_classes: int, example_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.body = nn.Linear(64, 16)
        self.fc = nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(nn.functional.linear(x.flatten(1), self.body.weight, self.body.bias).relu())


def test_a_net_that_reads_the_weight_itself_is_refused(tmp_path: Path) -> None:
    """It would compute without the adapter, which would never be trained."""
    words = ("method.name=lora", f"model.name={__name__}:_ReadsTheWeight", "model.trained=none", "rounds=1")
    with pytest.raises(StartupError, match="this net reads the weight of body itself, past an adapter"):
        run_alone(tmp_path / "run", *words, "method.targets=[body]")


class _Encoder(nn.Module):
    def __init__(self, num_classes: int, example_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer(x.flatten(1, -2)).mean(1))


def test_torchs_transformer_layers_are_tested_with_their_adapters(tmp_path: Path) -> None:
    """In a test torch would take a fast path that knows the frozen weights alone."""
    words = (
        "method.name=lora",
        f"model.name={__name__}:_Encoder",
        "model.trained=none",
        "method.targets=[layer.linear*]",
    )
    trainer = small_setup(tmp_path, *words).trainers[0]
    net = trainer.net.module
    for name, parameter in net.named_parameters():
        if name.endswith((".a", ".b")):
            parameter.data.normal_(generator=torch.Generator().manual_seed(1))
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(x), net.train()(x))


class _Halves(nn.Module):
    """Its frozen layer has bfloat16; a layer of two names is frozen, too, and gets no adapter."""

    def __init__(self, num_classes: int, example_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.body = nn.Linear(64, 16).bfloat16().requires_grad_(False)
        self.twice = self.again = nn.Linear(16, 16)
        self.fc = nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.again(self.twice(self.body(x.flatten(1).bfloat16()).float()).relu()))


@pytest.mark.parametrize("aggregation", ["delta", "fedex"])
def test_frozen_layers_of_half_precision_and_of_two_names(tmp_path: Path, aggregation: str) -> None:
    words = ("method.name=lora", f"model.name={__name__}:_Halves", "model.trained=none", "rounds=1")
    run_alone(tmp_path / "run", *words, f"method.aggregation={aggregation}")
    saved = saved_round(tmp_path / "run", overrides=[words[1]])
    assert {name.rpartition(".")[0] for name in saved.state.params} == {"body", "fc"}
    net = net_of_tier(saved, saved.setup.method.tiers[0].name).net
    assert net.body.weight.dtype is torch.bfloat16 and net.again is net.twice
    assert net(torch.randn(2, 1, 8, 8)).isfinite().all()


def test_the_mean_of_padded_factors() -> None:
    """A: e1, e2 / 2 and e3 / 4. B: columns (2, 2, 0), (0, 4, 0) and (0, 0, 4). `ffa` sends and averages B alone."""
    b = torch.tensor([[2.0, 0.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 4.0]])
    fedit = method_of("fedit")
    new = after_round(fedit, fedit.initial_state(), UPLOADS)
    assert torch.equal(new["0.a"], torch.diag(torch.tensor([1.0, 0.5, 0.25]))) and torch.equal(new["0.b"], b)
    tier = narrowed(fedit, new, 1)
    assert torch.equal(tier["0.a"], new["0.a"][:2]) and torch.equal(tier["0.b"], b[:, :2])
    ffa = method_of("ffa")
    new = after_round(ffa, ffa.initial_state(), {tier: {"0.b": own["0.b"]} for tier, own in UPLOADS.items()})
    assert new.keys() == {"0.b"} and torch.equal(new["0.b"], b)
    assert torch.equal(narrowed(ffa, new, 1)["0.a"], EYE[:2])


def test_fedex_gives_the_base_what_the_factors_lack() -> None:
    """s B A of the largest tier is [[4, 0, 0], [4, 4, 0], [0, 0, 2]]; the two are the mean change."""
    fedex = method_of("fedex")
    new = after_round(fedex, fedex.initial_state() | change(1, 1, 1), UPLOADS)
    assert torch.equal(new["0.change"], EYE + torch.tensor([[1.0, 0.0, 0.0], [8.0, 6.0, 0.0], [0.0, 0.0, 6.0]]))
    assert torch.equal(new["0.change"] + 2 * new["0.b"] @ new["0.a"], EYE + MEAN)


def test_flora_merges_the_mean_and_begins_anew() -> None:
    flora = method_of("flora")
    new = after_round(flora, flora.initial_state() | change(1, 1, 1), UPLOADS)
    assert torch.equal(new["0.change"], EYE + MEAN)
    nets = [narrowed(flora, new, tier) for tier in (0, 2)]
    for net in nets:
        assert torch.equal(net["0.change"], new["0.change"])
        assert not net["0.b"].any() and net["0.a"].all()
    assert flora.upload_specs(0).keys() == {"0.a", "0.b"}


@pytest.mark.parametrize(
    ("aggregation", "options", "expected"),
    [
        ("flexlora", {}, MEAN),
        ("flora", {}, MEAN),
        ("raflora", {}, BY_BANDS),
        # Clients of rank r have the first r rows of A, so they cover the first r columns.
        ("delta", {"coverage": 0.0}, MEAN),
        ("delta", {"coverage": 1.0}, BY_BANDS),
    ],
)
def test_the_change_of_the_first_round(aggregation: str, options: dict[str, float], expected: Tensor) -> None:
    method = method_of(aggregation, **options)
    found = after_round(method, method.initial_state(), UPLOADS)["0.change"]
    rounding = {} if aggregation == "delta" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(found, expected, **rounding)


def test_prefixes_of_the_svd() -> None:
    """sigma 9, 4, 0: A has unit rows, the last of its start. B has 9 / s and 4 / s, so s B A is D cut."""
    method = method_of("flexlora")
    largest, middle, smallest = (narrowed(method, change(9, 4, 0), tier) for tier in range(3))
    method.start["0.a"][2, 2] = 5.0
    last = narrowed(method, change(9, 4, 0), 0)["0.a"]
    torch.testing.assert_close(last, torch.diag(torch.tensor([1.0, 1.0, 5.0])))
    torch.testing.assert_close(largest["0.b"], torch.diag(torch.tensor([4.5, 2.0, 0.0])))
    torch.testing.assert_close(3 * middle["0.b"] @ middle["0.a"], torch.diag(torch.tensor([9.0, 4.0, 0.0])))
    torch.testing.assert_close(6 * smallest["0.b"] @ smallest["0.a"], torch.diag(torch.tensor([9.0, 0.0, 0.0])))


def test_raflora_averages_each_band_over_its_holders() -> None:
    """Only the first client, which is away, has rank 3: band 3 stays at 1. The others weigh 1/3 and 2/3; band 2 is the
    mean over the second client alone."""
    method = method_of("raflora")
    others = {number: UPLOADS[number] for number in (1, 2)}
    new = after_round(method, change(9, 4, 1), others)["0.change"]
    torch.testing.assert_close(new, torch.tensor([[4.0, 0.0, 0.0], [16.0, 24.0, 0.0], [0.0, 0.0, 1.0]]))


@pytest.mark.parametrize(("coverage", "last"), [(0.0, 1.5), (1.0, 3.0)])
def test_delta_adds_what_clients_changed(coverage: float, last: float) -> None:
    """The first client alone has rank 3, and raises its value of 1 by 2: by a quarter of that, or by all of it."""
    method = method_of("delta", coverage=coverage)
    state = change(16, 4, 1)
    uploads = {tier: narrowed(method, state, tier) for tier in range(3)}
    torch.testing.assert_close(after_round(method, state, uploads), state)
    uploads[0]["0.b"] = uploads[0]["0.b"] + torch.diag(torch.tensor([0.0, 0.0, 1.0]))
    torch.testing.assert_close(after_round(method, state, uploads), change(16, 4, last))


def test_equal_ranks() -> None:
    """raflora is flexlora; at full rank delta is FedAvg of the change, from any start."""
    generator = torch.Generator().manual_seed(0)
    uploads = {number: {name: torch.randn(3, 3, generator=generator) for name in ("0.a", "0.b")} for number in range(3)}
    shares = (0.25, 0.25, 0.5)
    mean = sum(share * 2 * one["0.b"] @ one["0.a"] for share, one in zip(shares, uploads.values(), strict=True))
    results = {}
    for aggregation in ("raflora", "flexlora", "delta"):
        results[aggregation] = after_round(method_of(aggregation, (3,)), change(9, 4, 1), uploads, (0, 0, 0))
        torch.testing.assert_close(results[aggregation]["0.change"], mean)
    assert torch.equal(results["raflora"]["0.change"], results["flexlora"]["0.change"])


def test_hetlora_weighs_by_norms() -> None:
    """Changes diag(3, 4, 0), diag(3, 0) and 3: weights 5, 3 and 3 of 11, whatever the numbers of examples."""
    method = method_of("hetlora")
    uploads = {
        0: {"0.a": EYE, "0.b": torch.diag(torch.tensor([1.5, 2.0, 0.0]))},
        1: {"0.a": EYE[:2], "0.b": torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])},
        2: {"0.a": EYE[:1], "0.b": torch.tensor([[0.0], [0.5], [0.0]])},
    }
    new = after_round(method, method.initial_state(), uploads)
    torch.testing.assert_close(new["0.a"], torch.diag(torch.tensor([1.0, 8 / 11, 5 / 11])))
    torch.testing.assert_close(new["0.b"], torch.tensor([[21.0, 0.0, 0.0], [3.0, 20.0, 0.0], [0.0, 0.0, 0.0]]) / 22)
    still = {tier: narrowed(method, method.initial_state(), tier) for tier in range(3)}
    assert torch.equal(after_round(method, method.initial_state(), still)["0.a"], EYE)
    assert new[NORM].item() == pytest.approx(11 / 3)


@pytest.mark.parametrize(("factor", "rank"), [(0.5, 1), (2.0, 2)])
def test_hetlora_drops_ranks_that_shrink(monkeypatch: pytest.MonkeyPatch, factor: float, rank: int) -> None:
    """gamma 1/2: of two ranks the second may go. What is gone stays zero, and travels no more: 24 bytes of 48."""
    method = method_of("hetlora", gamma=0.5)
    state = {"0.a": EYE, "0.b": EYE, NORM: torch.ones(1)}
    net = SimpleNamespace(params=narrowed(method, state, 1))
    one = client(method, state, 1, 1)
    monkeypatch.setattr(Method, "train", lambda *arguments: net.params["0.a"][1].mul_(factor))
    method.train(SimpleNamespace(net=net), one, None)
    assert net.params["0.a"][1].any() == (rank == 2) and method.remember(net, one)[RANK].tolist() == [rank]
    costs = method.costs(ClientLoad.of(one))
    assert (costs.down_bytes, costs.up_bytes) == (48, 24 * rank)
    again = replace(one, recall=lambda: {RANK: torch.tensor([float(rank)])})
    method.narrow(one.published, 1, net.params, again)
    assert net.params["0.b"][:, 1].any() == (rank == 2)
    assert method.costs(ClientLoad.of(replace(again, scratch={}))).down_bytes == 24 * rank


def test_the_gradient_of_the_tail_by_hand() -> None:
    """|B| |A| of the second rank, A = (3, 4, 0) and B = (0, 0, 2): 2/5 A and 5/2 B, times 1/2."""
    method = method_of("hetlora", gamma=0.5, tail_decay=0.5)
    params = {"0.a": torch.tensor([[1.0, 1.0, 1.0], [3.0, 4.0, 0.0]]), "0.b": torch.zeros(3, 2)}
    params["0.b"][2, 1] = 2.0
    grads = {name: torch.zeros_like(value) for name, value in params.items()}
    one = client(method, method.initial_state(), 1, 1)
    method.after_backward(SimpleNamespace(params=params, grads=grads), one)
    torch.testing.assert_close(grads["0.a"], torch.tensor([[0.0, 0.0, 0.0], [0.6, 0.8, 0.0]]))
    torch.testing.assert_close(grads["0.b"], torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 2.5]]))


BYTES = {"fedit": (72, 72), "ffa": (36, 36), "flora": (144, 72), "fedex": (216, 72), "delta": (72, 72)}


@pytest.mark.parametrize("aggregation", BYTES)
def test_bytes(aggregation: str) -> None:
    """A and B of ranks 3, 2 and 1 are 72, 48 and 24 bytes, in all 144, which flora and fedex send down."""
    costs = method_of(aggregation).costs(ClientLoad(0))
    assert (costs.down_bytes, costs.up_bytes) == BYTES[aggregation]


def test_scales_and_band_factors() -> None:
    method = method_of("fedit", (4, 1), scale="rslora")
    assert (method.scale(0), method.scale(1), method.rank("0", 0)) == (3.0, 6.0, 3)
    assert method_of("fedit", (4, 1), scale="equal").scale(1) == 1.5
    for aggregation, expected in (("fedit", 1 / 16), ("flexlora", 0.25), ("delta", 1.0)):
        method = method_of(aggregation)
        factors = notes_of(method, method.initial_state())["band_factor"]
        assert factors["3"] == expected and factors["1"] == 1.0


def test_energy_beyond_each_rank() -> None:
    """Singular values 9, 4 and 1: of the energy of 98 the last is beyond rank 2, and 17 are beyond rank 1."""
    of_factors = {"0.a": EYE, "0.b": torch.diag(torch.tensor([4.5, 2.0, 0.5]))}
    for aggregation, state in (("delta", change(9, 4, 1)), ("fedit", of_factors)):
        shares = notes_of(method_of(aggregation), state)["spectrum"]["beyond"]
        assert [shares[tier] for tier in "321"] == [0.0, 0.0102, 0.1735]
    assert "spectrum" not in notes_of(method_of("flora"), {})


@pytest.mark.parametrize(("aggregation", "held"), [("delta", 0), ("flora", 1264)])
def test_the_plan(aggregation: str, held: int) -> None:
    """64-16-12-4: 1,264 weights and 32 biases that are not trained, r (80 + 28) + 16 min(r, 4) more; a MAC for each."""
    plan = forecast(small_config(*NET, "model.trained=none", f"method.aggregation={aggregation}"), 1)
    assert plan.frozen_bytes_node == 4 * (1264 + 32)
    stack = 928 + 496 + 2 * 248  # four of the eight clients; of the tiers are 2, 2 and 4
    for tier, adapter in zip(plan.tiers, (928, 496, 248), strict=True):
        assert (tier.params, tier.macs, tier.up_bytes) == (adapter + held, 1264 + adapter, 4 * adapter)
        assert tier.down_bytes == 4 * (stack if held else adapter)


def test_tiers_that_have_become_one_net_are_told_as_adapters() -> None:
    (line,) = notes_of(method_of("flexlora"), change(9, 0, 0))["conclusions"]
    assert "only 0 of the energy of what the adapters change lies beyond the rank of tier 1" in line


def test_band_factors_of_weights_by_norms() -> None:
    """B A is diag(3, 4, 12) at scales 2, 3 and 6: norms 26, 15 and 18 of 59."""
    state = {"0.a": EYE, "0.b": torch.diag(torch.tensor([3.0, 4.0, 12.0])), NORM: torch.ones(1)}
    factors = notes_of(method_of("hetlora"), state)["band_factor"]
    assert [factors[tier] for tier in "321"] == pytest.approx([(26 / 59) ** 2, (41 / 59) ** 2, 1.0], rel=1e-4)


NET = ("method.name=lora", "model.name=mlp", "model.hidden=[16,12]", "method.ranks=[8,4,2]")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("model.trained=none", "method.targets=[layers.9]"), "no frozen linear layer matches 'layers.9': frozen are"),
        ((), "none is frozen; set model.trained to none"),
        (("model.trained=none", "method.name=fedavg"), "none, but fedavg trains the net's own parameters"),
        (("model.trained=none", "method.aggregation=fedit", "method.gamma=0.5"), "0.5, but .*fedit has none"),
        (("model.trained=none", "method.ranks=[2,4]"), "fall from tier to tier"),
    ],
)
def test_mistakes(tmp_path: Path, words: tuple[str, ...], problem: str) -> None:
    net = NET[1:3] if "method.name=fedavg" in words else NET
    with pytest.raises((ConfigError, StartupError), match=problem):
        small_setup(tmp_path, *net, *words)


@pytest.mark.parametrize(("aggregation", "is_said"), [("fedit", True), ("hetlora", True), ("delta", False)])
def test_scales_that_differ_where_factors_are_averaged(tmp_path: Path, aggregation: str, is_said: bool) -> None:
    """Ranks 8, 4, 2 and alpha 16: 2, 4 and 8."""
    words = (*NET, "model.trained=none", f"method.aggregation={aggregation}")
    said = small_setup(tmp_path, *words).method.warnings()
    assert [line.startswith("method.scale: the tiers' adapters are multiplied by 2, 4, 8") for line in said] == (
        [True] if is_said else []
    )
    assert not small_setup(tmp_path / "equal", *words, "method.scale=equal").method.warnings()


def test_the_base_stays_and_never_travels(tmp_path: Path) -> None:
    """A run of fedex with a head. The exported net has the model's own layers, of W + D + s B A; s of rank 4 is 8."""
    words = (*NET, "method.aggregation=fedex", "model.trained=[layers.4.*]", "method.scale=rslora")
    run_alone(tmp_path / "run", *words, "rounds=2")
    snapshot = checkpoint.load(tmp_path / "run/checkpoints/round-000002.h5")
    parts = [f"layers.{layer}.{part}" for layer in (0, 2) for part in ("a", "b", "change")]
    assert snapshot.server.keys() == {*parts, "layers.4.weight", "layers.4.bias"}
    assert all(snapshot.server[name].any() for name in parts)
    config = small_config(*words)
    base = create.build(config.model, config.data.info(), config.seed)
    net = net_of_tier(saved_round(tmp_path / "run"), "4").net.state_dict()
    assert net.keys() == base.state_dict().keys()
    a, b, merged = (snapshot.server[f"layers.0.{part}"] for part in ("a", "b", "change"))
    expected = base.state_dict()["layers.0.weight"] + merged + 8 * b[:, :4] @ a[:4]
    torch.testing.assert_close(net["layers.0.weight"], expected)
    assert torch.equal(net["layers.0.bias"], base.state_dict()["layers.0.bias"])
