"""PriSM's own exact properties (methods.md 5, 15): who trains what, the refresh, the full-rank identity, momentum.

Sizes, options and what is drawn: test_prism_nets.py; kernels and the drawing itself:
tests/unit/test_lowrank_kernels.py.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from model_inputs import params
from narrow_nets import context, exchanged
from small_runs import one_round, small_setup
from torch import Tensor, nn

from fedmpi.federation.assignment import Task
from fedmpi.lowrank import kernels as kernels_module
from fedmpi.methods.prism import MOMENTUM, SIGMA, OrthDrop, OrthDropOptions, Prism, PrismOptions
from fedmpi.methods.values import Client, Contributions, LocalWork, Phase, Turn
from fedmpi.rounds.client import local_work
from fedmpi.rounds.publish import publish
from fedmpi.rounds.state import ServerState, Setup, client_of
from fedmpi.tensors import Params

# Aggregation.


def one_layer() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))


def numbered_state(method: OrthDrop) -> Params:
    state = method.initial_state()
    state["0.u.weight"] = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    state["0.v.weight"] = torch.tensor([[11.0, 12, 13], [21, 22, 23], [31, 32, 33]])
    return state


def test_eq_5_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 x 3 in kernels of rank one; r = q = 1. Clients 0 and 1 draw kernel 0, client 2 kernel 2.

    Kernel 0 is the mean of two, (1 + 3) / 2 and so on, kernel 1 stays, kernel 2 is client 2's. Of v only the first row
    is anybody's: (5 + 7) / 2, the server's 12, client 2's 8. The bias is everybody's: (3 + 6 + 0) / 3."""
    method = Prism(context(PrismOptions(keep_ratio=(1 / 3,)), one_layer))
    state = numbered_state(method)
    drawn = {0: 0, 1: 0, 2: 2}
    clients = iter(())

    def draw(sigma: object, sizes: list[int], kappa: float, generator: object) -> list[Tensor]:
        assert sizes == [1]
        return [torch.tensor([drawn[next(clients)]])]

    monkeypatch.setattr(kernels_module, "draw_kernels", draw)
    sent = {0: ([1.0, 2, 3], 5.0, 3.0), 1: ([3.0, 2, 1], 7.0, 6.0), 2: ([-1.0, -2, -3], 8.0, 0.0)}
    uploads = {
        client: {
            "0.u.weight": torch.tensor([kernel]),
            "0.v.weight": torch.tensor([[row]]),
            "0.bias": torch.full((3,), bias),
            "1.weight": state["1.weight"],
            "1.bias": state["1.bias"],
        }
        for client, (kernel, row, bias) in sent.items()
    }
    clients = iter([0, 1, 2, 0, 1, 2])  # each is asked for once when it is added and once for the weights
    tasks = [Task(client, 0, 1, "train", 1, 1.0) for client in uploads]
    of_clients = ((Client(task, state, np.arange(1), 0), uploads[task.client]) for task in tasks)
    results = exchanged(method, state, *of_clients)
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


def test_narrow_by_hand() -> None:
    """Without a client, and in OrthDrop for every client, the leading kernels and rows."""
    method = OrthDrop(context(OrthDropOptions(keep_ratio=(2 / 3,)), one_layer))
    state = numbered_state(method)
    client = Client(Task(0, 0, 1, "train", 1, 1.0), state, np.arange(1), 0)
    for given in (None, client):
        out = {name: torch.zeros_like(value) for name, value in method.net(0).named_parameters()}
        method.narrow(state, 0, out, given)
        assert out["0.u.weight"].tolist() == [[1, 2, 3], [4, 5, 6]]
        assert out["0.v.weight"].tolist() == [[11, 12], [21, 22]]
        assert torch.equal(out["0.bias"], state["0.bias"])


@pytest.mark.parametrize("case", ["prism", "prism-cut", "orthdrop"])
def test_what_nobody_holds_stays(federation_of: Callable, case: str) -> None:
    """To the bit: kernels that nobody drew, rows beyond q, cut inputs; what somebody holds has moved."""
    federation = federation_of(case)
    (assignment,) = federation.phases()
    uploads = {task.client: federation.returned(task, scale=1.5) for task in assignment.tasks}
    means = federation.exchanged("gather", assignment, uploads).means
    num_left = 0
    for name, mean in means.items():
        held = torch.zeros(mean.shape, dtype=torch.bool)
        for task in assignment.tasks:
            held[federation.method.regions(federation.client(task)).get(name, ...)] = True
        before = federation.state[name]
        assert torch.equal(mean[~held], before[~held]), name
        assert not bool((mean[held] == before[held])[before[held] != 0].any()), name
        num_left += int((~held).sum())
    assert num_left > 0 or case == "orthdrop"


# The server.


def products(method: OrthDrop, state: Params) -> Params:
    """The dense weights that the factors stand for."""
    halves = {layer: (f"{layer.name}.u.weight", f"{layer.name}.v.weight") for layer in method.factorized}
    return {layer.name: layer.lift(state[u], state[v]) for layer, (u, v) in halves.items()}


def test_the_initial_state_is_the_initial_net(federation_of: Callable) -> None:
    """Its kernels multiplied back, its dense tensors to the bit; so are the outputs of the tested net, to rounding."""
    federation = federation_of("prism")
    method, net = federation.method, federation.method.context.make()
    dense = dict(net.named_parameters())
    for name, weight in products(method, federation.state).items():
        torch.testing.assert_close(weight, dense[f"{name}.weight"].detach(), rtol=0, atol=1e-5)
    assert all(torch.equal(federation.state[n], v) for n, v in dense.items() if n in federation.state)
    (tested,) = method.tested()
    flat = federation.setup.trainers[tested.net].net
    method.narrow(federation.published({tested.net}), tested.net, flat.params)
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(flat.module(images), net(images), rtol=0, atol=1e-4)


def test_a_tiers_net_has_the_leading_kernels_and_outputs() -> None:
    """3 x 3 in kernels of rank one, r = q = 2: with `test_tiers` also the net of the first two kernels and rows."""
    method = OrthDrop(context(OrthDropOptions(keep_ratio=(2 / 3,), test_tiers=True), one_layer))
    assert [(net.name, net.net, net.capacity) for net in method.tested()] == [
        ("server", 1, 1.0),
        ("0.666667", 0, 2 / 3),
    ]
    net = method.net(0)
    parts = dict(net.named_parameters())
    with torch.no_grad():
        method.narrow(numbered_state(method), 0, parts)
    assert parts["0.u.weight"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert parts["0.v.weight"].tolist() == [[11, 12], [21, 22]]
    assert [net.net for net in OrthDrop(context(OrthDropOptions(), one_layer)).tested()] == [2]


def test_refresh_leaves_the_net_as_it_is(federation_of: Callable) -> None:
    federation = federation_of("prism")
    generator = torch.Generator().manual_seed(0)
    state = {n: v + 0.1 * torch.randn(v.shape, generator=generator) for n, v in federation.state.items()}
    new = federation.method.refresh(state)
    before, after = products(federation.method, state), products(federation.method, new)
    for name, weight in after.items():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=1e-5)
    factors = {f"{layer.name}.{half}.weight" for layer in federation.method.factorized for half in "uv"}
    assert all((new[name] is state[name]) == (name not in factors | {SIGMA}) for name in state)
    start = 0
    for layer in federation.method.factorized:
        values = torch.linalg.svdvals(layer.unroll(after[layer.name]))
        torch.testing.assert_close(new[SIGMA][start : start + len(values)], values, rtol=1e-4, atol=1e-5)
        start += len(values)
    assert start == len(new[SIGMA])


# Training.


def one_client(tmp_path: Path, *overrides: str) -> tuple[Setup, ServerState, Client, LocalWork]:
    words = ("clients.per_round=1", "train.weight_decay=0.01", "train.local_epochs=2", *overrides)
    setup = small_setup(tmp_path, *words)
    state = ServerState(setup.method.initial_state())
    published = publish(setup, state, 1, 0)
    number = one_round(setup, 1, state, published)[2].reports[0].client
    client = client_of(setup, Task(number, 0, 1, "train", 15, 1.0), published, None)
    return setup, state, client, local_work(setup, client)


@pytest.mark.parametrize("name", ["prism", "orthdrop"])
def test_all_kernels_and_one_client_train_the_factorized_net(tmp_path: Path, name: str) -> None:
    """methods.md 15, against torch's own SGD on the net of all factors, Frobenius decay by autograd and weight decay on
    the rest; multiplied back, because the refresh comes between. Some 30 steps of float32 in another order."""
    setup, state, client, work = one_client(tmp_path, f"method.name={name}", "method.keep_ratio=[1]")
    method = setup.method
    net = method.net(0)
    net.load_state_dict({key: state.params[key] for key, _ in net.named_parameters()})
    rest = [p for n, p in net.named_parameters() if n not in method.traits.own_decay]
    factors = [p for n, p in net.named_parameters() if n in method.traits.own_decay]
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
        if key not in method.traits.own_decay:
            torch.testing.assert_close(after[key], expected[key], rtol=0, atol=2e-5)


def test_momentum_goes_on_from_the_servers(tmp_path: Path) -> None:
    """At a learning rate of 0 gradients do not depend on the steps before, so after S steps the momentum that training
    began with is left 0.9^S times: on factors and BatchNorm, and not elsewhere. What is uploaded is that momentum.

    The server's entries all differ, by 1/2304 and more, and the client has those of the kernels that it drew.
    """
    setup, _state, client, work = one_client(
        tmp_path, "method.name=prism", "method.server_momentum=true", "method.keep_ratio=[0.5]"
    )
    method, trainer = setup.method, setup.trainers[0]
    still = [LocalWork(work.data, 1, 0.0, work.loss, torch.Generator().manual_seed(5)) for _ in range(2)]
    momenta = {name: value for name, value in client.published.items() if name.startswith(MOMENTUM)}
    numbered = {n: torch.arange(1.0, v.numel() + 1).view(v.shape) / v.numel() for n, v in momenta.items()}
    found = []
    for published, one_work in zip((client.published, {**client.published, **numbered}), still, strict=True):
        one = Client(client.task, published, client.examples, client.seed)
        method.narrow(published, 0, trainer.net.params, one)
        outcome = method.train(trainer, one, one_work)
        found.append({name: value.clone() for name, value in trainer.net.momenta.items()})
    upload = method.upload(trainer.net, client)
    left, held = 0.9**outcome.steps, method.regions(client)
    drawn = [held[f"{layer.name}.u.weight"][0].tolist() for layer in method.factorized]
    assert any(kernels != list(range(len(kernels))) for kernels in drawn)
    for name, value in found[1].items():
        shared = name in method.traits.own_decay or ".bn" in name or name.startswith("bn")
        shared = shared or "shortcut.1" in name
        sent_as = f"{MOMENTUM}{name}"
        began = numbered[sent_as][held.get(sent_as, ...)] if shared else torch.zeros_like(value)
        torch.testing.assert_close(value - found[0][name], left * began, rtol=0, atol=1e-5)
        assert (sent_as in upload) == shared
    assert {n: v.shape for n, v in upload.items()} == {n: s.shape for n, s in method.upload_specs(0).items()}


def test_shared_momentum_is_averaged_and_paid_for(tmp_path: Path) -> None:
    setup = small_setup(tmp_path, "method.name=prism", "method.server_momentum=true", "method.keep_ratio=[0.5]")
    method = setup.method
    state = ServerState(method.initial_state())
    assert not any(bool(state.params[f"{MOMENTUM}{name}"].any()) for name in method.traits.own_decay)
    after = one_round(setup, 1, state)[0].params
    assert all(bool(after[f"{MOMENTUM}{name}"].any()) for name in method.traits.own_decay)
    shared = sum(p.numel() for n, p in method.net(0, empty=True).named_parameters() if f"{MOMENTUM}{n}" in after)
    assert method.costs(Turn(0)).down_bytes == 4 * (params(method.net(0, empty=True)) + shared)


@pytest.mark.parametrize(("option", "ratios"), [("false", "[0.9,0.8]"), ("true", "[0.9]")])
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
