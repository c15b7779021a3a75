"""PriSM's own exact properties: who trains what, the refresh, the full-rank identity; what
its nets hold and cost; what clients draw. The paper's Table 1 is in tests/papers.

Kernels and the drawing itself: tests/unit/test_lowrank.py.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fast import fast
from model_inputs import params
from narrow_nets import context, context_of, exchanged
from small_runs import one_round, small_setup
from torch import Tensor, nn

from fedmpi.check.contract import Trial, published_for
from fedmpi.config.schema import Train
from fedmpi.errors import ConfigError
from fedmpi.federation.assignment import Task
from fedmpi.methods import prism as prism_module
from fedmpi.methods.fedavg import FedAvg, FedAvgOptions
from fedmpi.methods.prism import SIGMA, OrthDrop, OrthDropOptions, Prism, PrismOptions
from fedmpi.methods.values import Client, Contributions, Phase
from fedmpi.models.nets.lstm import LstmImdb
from fedmpi.models.nets.mlp import Mlp
from fedmpi.models.nets.resnet import ResNet18
from fedmpi.models.options import Model
from fedmpi.rounds.client import local_work
from fedmpi.rounds.publish import publish
from fedmpi.rounds.state import ServerState, client_of
from fedmpi.tensors import Params

# Aggregation.


def one_layer() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))


def numbered_state(method: OrthDrop) -> Params:
    state = method.initial_state()
    state["0.u.weight"] = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    state["0.v.weight"] = torch.tensor([[11.0, 12, 13], [21, 22, 23], [31, 32, 33]])
    return state


def test_eq_5_by_hand() -> None:
    """3 x 3 in kernels of rank one; r = q = 1. Clients 0 and 1 draw kernel 0, client 2 kernel 2.

    Kernel 0 is the mean of two, (1 + 3) / 2 and so on, kernel 1 stays, kernel 2 is client 2's. Of v only the first row
    is anybody's: (5 + 7) / 2, the server's 12, client 2's 8. The bias is everybody's: (3 + 6 + 0) / 3."""
    method = Prism(context(PrismOptions(keep_ratio=(1 / 3,)), one_layer))
    state = numbered_state(method)
    sigma = {0: [1e6, 1.0, 1.0], 1: [1e6, 1.0, 1.0], 2: [1.0, 1.0, 1e6]}
    sent = {0: ([1.0, 2, 3], 5.0, 3.0), 1: ([3.0, 2, 1], 7.0, 6.0), 2: ([-1.0, -2, -3], 8.0, 0.0)}
    uploads = []
    for number, (kernel, row, bias) in sent.items():
        published = state | {SIGMA: torch.tensor(sigma[number])}  # so that the kernel is certain
        client = Client(Task(number, 0, 1, "train", 1, 1.0), published, np.arange(1), 0)
        factors = {"0.u.weight": torch.tensor([kernel]), "0.v.weight": torch.tensor([[row]])}
        rest = {"0.bias": torch.full((3,), bias), "1.weight": state["1.weight"], "1.bias": state["1.bias"]}
        uploads.append((client, factors | rest))
    results = exchanged(method, state, *uploads)
    assert results.means["0.u.weight"].tolist() == [[2, 2, 2], [4, 5, 6], [-1, -2, -3]]
    assert results.means["0.v.weight"].tolist() == [[6, 12, 8], [21, 22, 23], [31, 32, 33]]
    assert results.means["0.bias"].tolist() == [3, 3, 3]
    contributions = Contributions(Phase(), 1, 0.1, [None] * 3, results.shares)
    noted = method.diagnostics({**state, SIGMA: torch.tensor([3.0, 1.0, 0.0])}, {}, contributions)
    assert noted["kernels"]["0"] == {
        "effective_kernels": 1.6,
        "effective_share": 0.5333,
        "clients_per_kernel": [0, 1.0, 2],
        "clients_of_kernel": [2, 0, 1],
        "share_untrained": 0.3333,
    }
    # p = 3/4, 1/4: exp(H) = 4 / 3^(3/4).
    assert noted["spectrum"]["layers"]["0"]["effective_rank"] == 1.755


def test_full_training_notes_the_kernels_it_needs_by_hand() -> None:
    """Figures 1 and 6, FedAvg: p = 3/4, 1/4 of the layer's singular values 3, 1, 0, as above by both formulas."""
    method = FedAvg(context(FedAvgOptions(spectra=True), one_layer))
    state = method.initial_state() | {"0.weight": torch.tensor([[0.0, 3, 0], [0, 0, 0], [1, 0, 0]])}
    noted = method.diagnostics(state, {}, Contributions(Phase(), 1, 0.1, []))
    assert noted == {"kernels": {"0": {"effective_kernels": 1.6, "effective_rank": 1.755}}}


def test_narrow_by_hand() -> None:
    """Without a client, and in OrthDrop for every client, the leading kernels and rows. With `test_tiers` that net is
    tested, too."""
    method = OrthDrop(context(OrthDropOptions(keep_ratio=(2 / 3,), test_tiers=True), one_layer))
    state = numbered_state(method)
    client = Client(Task(0, 0, 1, "train", 1, 1.0), state, np.arange(1), 0)
    for given in (None, client):
        out = {name: torch.zeros_like(value) for name, value in method.net(0).named_parameters()}
        method.narrow(state, 0, out, given)
        assert out["0.u.weight"].tolist() == [[1, 2, 3], [4, 5, 6]]
        assert out["0.v.weight"].tolist() == [[11, 12], [21, 22]]
        assert torch.equal(out["0.bias"], state["0.bias"])
    tested = [(net.name, net.index, net.capacity) for net in method.tested()]
    assert tested == [("server", 1, 1.0), ("0.666667", 0, 2 / 3)]
    assert [net.index for net in OrthDrop(context(OrthDropOptions(), one_layer)).tested()] == [2]


@pytest.mark.parametrize("case", fast("prism", of=["prism", "prism-cut", "orthdrop"]))
def test_what_nobody_holds_stays(trial_of: Callable[[str], Trial], case: str) -> None:
    """To the bit: kernels that nobody drew, rows beyond q, cut inputs; what somebody holds has moved."""
    (phase,) = trial_of(case).phases
    num_left = num_moved = 0
    for name, mean in phase.exchanged("gather").means.items():
        held = torch.zeros(mean.shape, dtype=torch.bool)
        for task in phase.assignment.tasks:
            held[phase.method.regions(phase.client(task)).get(name, ...)] = True
        before = phase.state.params[name]
        assert torch.equal(mean[~held], before[~held]), name
        num_left += int((~held).sum())
        num_moved += int((mean != before)[held].sum())
    assert num_moved > 1000 and (num_left > 0 or case == "orthdrop")


# The server.


def products(method: OrthDrop, state: Params) -> Params:
    """The dense weights that the factors stand for."""
    halves = {layer: (f"{layer.name}.u.weight", f"{layer.name}.v.weight") for layer in method.factorized}
    return {layer.name: layer.lift(state[u], state[v]) for layer, (u, v) in halves.items()}


def test_the_initial_state_is_the_initial_net(tmp_path: Path) -> None:
    """Its kernels multiplied back, its dense tensors to the bit; so are the outputs of the tested net, to rounding."""
    setup = small_setup(tmp_path, "method.name=prism")
    method, state, net = setup.method, setup.method.initial_state(), setup.method.context.make()
    dense = dict(net.named_parameters())
    for name, weight in products(method, state).items():
        torch.testing.assert_close(weight, dense[f"{name}.weight"].detach(), rtol=0, atol=1e-5)
    assert all(torch.equal(state[n], v) for n, v in dense.items() if n in state)
    (tested,) = method.tested()
    flat = setup.trainers[tested.index].net
    method.narrow(published_for(method, state, {tested.index}), tested.index, flat.params)
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(flat.module(images), net(images), rtol=0, atol=1e-4)


def test_an_update_leaves_the_means_net_as_it_is(tmp_path: Path) -> None:
    method = small_setup(tmp_path, "method.name=prism").method
    generator = torch.Generator().manual_seed(0)
    state = {n: v + 0.1 * torch.randn(v.shape, generator=generator) for n, v in method.initial_state().items()}
    new = method.update({}, state, Contributions(Phase(), 1, 0.1, ()))
    before, after = products(method, state), products(method, new)
    for name, weight in after.items():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=1e-5)
    factors = {f"{layer.name}.{half}.weight" for layer in method.factorized for half in "uv"}
    assert all((new[name] is state[name]) == (name not in factors | {SIGMA}) for name in state)
    values = [torch.linalg.svdvals(layer.unroll(after[layer.name])) for layer in method.factorized]
    torch.testing.assert_close(new[SIGMA], torch.cat(values), rtol=1e-4, atol=1e-5)


# Training.


def test_all_kernels_and_one_client_train_the_factorized_net(tmp_path: Path) -> None:
    """Against torch's own SGD on the net of all factors, Frobenius decay by autograd and weight decay on
    the rest; multiplied back, because the refresh comes between. Some 30 steps of float32 in another order."""
    words = ("method.name=prism", "method.keep_ratio=[1]", "clients.per_round=1", "train.weight_decay=0.01")
    setup = small_setup(tmp_path, *words, "train.local_epochs=2")
    method, state = setup.method, ServerState(setup.method.initial_state())
    published = publish(setup, state, 1, 0)
    number = one_round(setup, 1, state, published)[2].reports[0].client
    client = client_of(setup, Task(number, 0, 1, "train", 15, 1.0), published, None)
    work = local_work(setup, client)
    net = method.net(0)
    net.load_state_dict({key: state.params[key] for key, _ in net.named_parameters()})
    rest = [p for n, p in net.named_parameters() if n not in method.own_decay]
    factors = [p for n, p in net.named_parameters() if n in method.own_decay]
    groups = [{"params": rest, "weight_decay": 0.01}, {"params": factors}]
    sgd = torch.optim.SGD(groups, lr=work.lr, momentum=0.9)
    draws = work.data.draws(client.examples, work.epochs, work.generator)
    for epoch in range(2):
        for start, stop in ((0, 8), (8, 15)):
            inputs, targets = work.data.train_batch(draws, epoch, start, stop)
            loss = work.loss(net(inputs), targets)
            for layer in method.factorized:
                loss = loss + 0.005 * net.get_submodule(layer.name).weight.square().sum()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    after = one_round(setup, 1, state)[0].params
    expected = {key: value.detach() for key, value in net.named_parameters()}
    for layer, weight in products(method, after).items():
        torch.testing.assert_close(weight, products(method, expected)[layer], rtol=0, atol=2e-5)
        assert float((weight - products(method, state.params)[layer]).abs().max()) > 1e-2
    for key in expected:
        if key not in method.own_decay:
            torch.testing.assert_close(after[key], expected[key], rtol=0, atol=2e-5)


@pytest.mark.parametrize(("option", "ratios"), fast(("true", "[0.9]"), of=[("false", "[0.9,0.8]"), ("true", "[0.9]")]))
def test_a_sub_model_that_is_larger_than_the_model_is_told(tmp_path: Path, option: str, ratios: str) -> None:
    """Kernels and rows by their shapes; what the line says makes it smaller does, and 0.01 more does not."""
    words = ("method.name=orthdrop", f"method.o2={option}")

    def sizes(ratio: float) -> tuple[int, int, int]:
        method = small_setup(tmp_path, *words, f"method.keep_ratio=[{ratio}]").method
        nets = params(method.net(0, empty=True)), params(method.context.make(empty=True))
        return *nets, len(method.warnings())

    method = small_setup(tmp_path, *words, f"method.keep_ratio={ratios}").method
    said = method.warnings()[0]
    size, dense, _ = sizes(method.options.keep_ratio[0])
    assert size > dense and f" {size:,} parameters" in said and f" {dense:,}; " in said
    smaller = float(said.rpartition("; ")[2].split()[0])
    assert sizes(smaller)[0] < dense <= sizes(smaller + 0.01)[0] and sizes(smaller)[2] == 0


# The nets.


IMAGES = SimpleNamespace(kind="image", example_shape=(3, 32, 32), num_classes=10)
TOKENS = SimpleNamespace(kind="tokens", example_shape=(20,), num_classes=2, vocabulary_size=30)


def prism(model: Model, info: SimpleNamespace = IMAGES, **options: object) -> Prism:
    return Prism(context_of(PrismOptions(**options), model, info, train=Train(weight_decay=2e-4)))


def test_what_a_client_of_resnet18_holds() -> None:
    """9.88, 7.30, 4.82 and 2.46 million parameters. 16 convs are low-rank, each of r = q = ceil(c N) as r M 9 + q r;
    stem 1,728, shortcuts 172,032, BatchNorm 9,600 and classifier 5,130 are whole."""
    method = prism(ResNet18(), keep_ratio=(0.8, 0.6, 0.4, 0.2))
    nets = [method.net(tier, empty=True) for tier in range(4)]
    assert [params(net) for net in nets] == [9_882_946, 7_302_210, 4_818_946, 2_460_418]
    large = dict(nets[0].named_parameters())
    differing = {name for name, value in nets[3].named_parameters() if value.shape != large[name].shape}
    assert differing == {f"{layer.name}.{half}.weight" for layer in method.factorized for half in "uv"}
    assert len(method.factorized) == 16


def test_o2_has_twice_the_rows() -> None:
    """At most as many as there are channels."""
    shapes = {}
    for o2, share in ((False, 0.2), (True, 0.2), (True, 0.6)):
        net = prism(ResNet18(), keep_ratio=(share,), o2=o2).net(0, empty=True)
        layer = net.get_submodule("stages.0.0.conv1")
        shapes[o2, share] = layer.u.weight.shape[:2], layer.v.weight.shape[:2]
    assert shapes[False, 0.2] == ((13, 64), (13, 13)) and shapes[True, 0.2] == ((13, 64), (26, 13))
    assert shapes[True, 0.6] == ((39, 64), (64, 39))


@pytest.mark.parametrize("model", [ResNet18(blocks=(2, 1), width=0.125), Mlp(hidden=(20, 10))])
def test_the_cut_net_is_the_leading_part_of_the_whole_one(model: Model) -> None:
    """Its outputs are those of the dense net that has its weights, kernels multiplied back, as the leading entries of
    every tensor and zeros elsewhere: nothing then reads the channels that the residual stream has lost."""
    method = prism(model, keep_ratio=(0.4,), cut_inputs=True)
    cut, wide, generator = method.net(0), method.context.make(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in cut.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter[0].numel() ** 0.5)
        for name, parameter in wide.named_parameters():
            layer, _, kind = name.rpartition(".")
            weight = getattr(cut.get_submodule(layer), kind)
            parameter.zero_()[tuple(map(slice, weight.shape))] = weight
        images = torch.randn(4, 3, 32, 32, generator=generator) * torch.arange(1.0, 5.0).view(4, 1, 1, 1)
        outputs = cut(images)
        torch.testing.assert_close(outputs, wide(images), rtol=0, atol=1e-4)
    assert float(outputs.std(0).min()) > 1e-2


@pytest.mark.parametrize(
    ("model", "info", "reason"),
    [(ResNet18(order="pre"), IMAGES, "PreBlock has no identity"), (LstmImdb(), TOKENS, "an LSTM")],
)
def test_nets_that_cannot_be_cut(model: Model, info: SimpleNamespace, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"method.cut_inputs.*{reason}"):
        prism(model, info, cut_inputs=True)


# Options.


def test_options() -> None:
    """Two tiers have 40 and 60 % of the clients, kappa is 4 for the smallest, Frobenius decay is the weight decay."""
    assert [PrismOptions().tier_blocks(n) for n in (100, 20, 8)] == [(40, 60), (8, 12), (3, 5)]
    assert PrismOptions(keep_ratio=(0.8, 0.4, 0.2)).tier_blocks(9) == (3, 3, 3)
    assert PrismOptions(keep_ratio=(0.8, 0.4, 0.2, 0.1)).kappas == (2.5, 2.5, 4.0, 4.0)
    assert PrismOptions(kappa=(1.0, 0.0)).kappas == (1.0, 0.0)
    assert [prism(ResNet18(), **given).lambda_ for given in ({}, {"frobenius_decay": 0.5})] == [2e-4, 0.5]


# Which kernels clients draw: by each layer's published sigma, their tier's kappa and a seed of their own.


def drawing_prism(sizes: tuple[int, ...], keep_ratio: tuple[float, ...], kappa: tuple[float, ...]) -> Prism:
    """Of a net of linear layers between these sizes, all but the last low-rank."""

    def make() -> nn.Module:
        return nn.Sequential(*(nn.Linear(m, n) for m, n in pairwise(sizes)))

    return Prism(context(PrismOptions(keep_ratio=keep_ratio, kappa=kappa), make))


def client_with(number: int, tier: int, sigma: list[float]) -> Client:
    return Client(Task(number, tier, 3, "train", 1, 1.0), {SIGMA: torch.tensor(sigma)}, np.arange(1), 7)


def test_what_kernels_are_drawn_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of R = 4 and R = 3 kernels; r = ceil(c R) of 0.75, 0.5 and 0.25. Sigma as published, layer by layer."""
    method = drawing_prism((4, 4, 3, 2), (0.75, 0.5, 0.25), (1.5, 0.0, 4.0))
    draw, seen = prism_module.draw_kernels, []

    def recorded(sigma: tuple[Tensor, ...], sizes: list[int], kappa: float, generator: torch.Generator) -> list[Tensor]:
        seen.append(([values.tolist() for values in sigma], sizes, kappa, generator.get_state().tolist()))
        return draw(sigma, sizes, kappa, generator)

    monkeypatch.setattr(prism_module, "draw_kernels", recorded)
    clients = [client_with(10 + tier, tier, [9, 7, 5, 3, 8, 4, 2]) for tier in range(3)]
    for client in clients:
        method.regions(client)
    states = [client.generator("kernels").get_state().tolist() for client in clients]
    values = [[9, 7, 5, 3], [8, 4, 2]]
    assert seen == [
        (values, [3, 3], 1.5, states[0]),
        (values, [2, 2], 0.0, states[1]),
        (values, [1, 1], 4.0, states[2]),
    ]
    assert states[0] != states[1] != states[2]


def test_a_client_gets_the_kernels_that_it_draws() -> None:
    """Kernel 2 of the first layer and 1 of the second outweigh the others a million times; of v the first row's."""
    method = drawing_prism((4, 4, 3, 2), (0.25,), (2.5,))
    client = client_with(0, 0, [1, 1, 1e6, 1, 1, 1e6, 1])
    state = {n: torch.arange(float(spec.num_elements)).view(spec.shape) for n, spec in method.state_specs().items()}
    out = {name: torch.zeros_like(value) for name, value in method.net(0).named_parameters()}
    method.narrow({**state, SIGMA: client.published[SIGMA]}, 0, out, client)
    for layer, kernel in (("0", 2), ("1", 1)):
        assert torch.equal(out[f"{layer}.u.weight"], state[f"{layer}.u.weight"][kernel : kernel + 1])
        assert out[f"{layer}.v.weight"].tolist() == [[float(state[f"{layer}.v.weight"][0, kernel])]]
