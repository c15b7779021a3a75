"""OrigDrop: HeteroFL's means without its extras, 40 % and 60 % of the clients, only the full net tested; any net."""

from pathlib import Path

import pytest
import torch
from model_inputs import Info, params
from narrow_nets import client_of, context, context_of, filled, flat, means, state_of
from small_runs import small_setup

from fedmpi.methods.origdrop import OrigDrop, OrigDropOptions
from fedmpi.methods.protocol import all_nets
from fedmpi.models.options import Lenet5, LstmImdb, Mlp, ModelOptions, ResNet18

CIFAR10 = Info("image", (3, 32, 32), 10)
TEXT = Info("tokens", (5,), 2, 1001)


def test_means_over_the_holders_by_hand() -> None:
    """Of 4 units ceil(0.4 * 4) = 2 and ceil(0.2 * 4) = 1: unit 0 from all three, (9 + 1 + 2) / 3, unit 1 from the
    first alone, and units 2 and 3 are nobody's: they stay, and do not become 0. All rows come from all."""
    method = OrigDrop(context(OrigDropOptions()))
    clients = [client_of(0, 0), client_of(1, 1), client_of(2, 1)]
    uploads = [filled(method, value, c.task.tier) for value, c in zip((9.0, 1.0, 2.0), clients, strict=True)]
    found = means(method, state_of(method, 7.0), *zip(clients, uploads, strict=True))
    assert found["hidden.weight"].flatten().tolist() == [4, 9, 7, 7]
    assert found["out.weight"].tolist() == [[4, 9, 7, 7]] * 3 and found["out.bias"].tolist() == [4] * 3


@pytest.mark.parametrize(("clients", "blocks"), [(100, (40, 60)), (20, (8, 12)), (8, (3, 5)), (1, (0, 1))])
def test_40_percent_have_the_larger_net(clients: int, blocks: tuple[int, int]) -> None:
    assert OrigDropOptions().tier_blocks(clients) == blocks
    assert OrigDropOptions(keep_ratio=(0.8, 0.6, 0.4)).tier_blocks(10) == (3, 3, 4)


def test_only_the_full_net_is_tested(tmp_path: Path) -> None:
    """As published, in a net of its own: no tier has it."""
    setup = small_setup(tmp_path, "method.name=origdrop")
    method = setup.method
    assert [(net.name, net.net, net.capacity) for net in method.tested()] == [("full", 2, 1.0)]
    assert len(all_nets(method)) == len(setup.trainers) == 3
    state, net = method.initial_state(), setup.trainers[2].net
    method.narrow(state, 2, net.params)
    assert all(torch.equal(net.params[name], state[name]) for name in state)
    assert len(net.params) == len(state) and {tier.index for tier in method.tiers} == {0, 1}


def test_tiers_can_be_tested_too() -> None:
    method = OrigDrop(context(OrigDropOptions(test_tiers=True)))
    assert [(net.name, net.net) for net in method.tested()] == [("full", 2), ("0.4", 0), ("0.2", 1)]


def test_every_layer_of_a_resnet_but_the_stem_is_cut_upwards() -> None:
    """ceil(0.4 * 64) = 26, ... in the blocks and the shortcuts; stem and classes whole; block 1 reads all 64."""
    method = OrigDrop(context_of(OrigDropOptions(), ResNet18(), CIFAR10))
    nets = [method.net(number, empty=True) for number in range(3)]
    assert [[stage[0].conv1.out_channels for stage in net.stages] for net in nets] == [
        [26, 52, 103, 205],
        [13, 26, 52, 103],
        [64, 128, 256, 512],
    ]
    assert [tuple(net.conv1.weight.shape) for net in nets] == [(64, 3, 3, 3)] * 3
    assert [tuple(net.stages[0][0].conv1.weight.shape) for net in nets] == [
        (26, 64, 3, 3),
        (13, 64, 3, 3),
        (64, 64, 3, 3),
    ]
    assert [net.stages[0][1].conv1.in_channels for net in nets] == [26, 13, 64]
    assert [tuple(net.fc.weight.shape) for net in nets] == [(10, 205), (10, 103), (10, 512)]
    assert params(nets[2]) == 11_173_962


def test_an_lstm_is_cut_in_each_gate() -> None:
    """Of 256 units 103 in each of the four gates: rows 0..102, 256..358, ...; the next layer's inputs likewise."""
    method = OrigDrop(context_of(OrigDropOptions(), LstmImdb(), TEXT))
    state = method.initial_state()
    net = flat(method, 0, state)
    assert net.params["lstm.weight_hh_l0"].shape == (4 * 103, 103)
    whole = state["lstm.weight_ih_l1"]
    assert torch.equal(net.params["lstm.weight_ih_l1"][103:206], whole[256:359, :103])
    assert torch.equal(net.params["fc.weight"], state["fc.weight"][:, :103])
    assert torch.equal(net.params["embedding.weight"], state["embedding.weight"][:, :26])


@pytest.mark.parametrize(
    ("model", "info"),
    [(Mlp(hidden=(9, 7)), Info("vector", (6,))), (LstmImdb(width=0.0625), TEXT), (Lenet5(), Info())],
    ids=["mlp", "lstm", "lenet5"],
)
def test_what_clients_return_is_put_where_it_came_from(model: ModelOptions, info: Info) -> None:
    """Clients that return what they got change nothing, and one that adds 1 moves exactly its own entries."""
    method = OrigDrop(context_of(OrigDropOptions(keep_ratio=(0.6, 0.3)), model, info))
    state = method.initial_state()
    clients = [client_of(0, 0), client_of(1, 1)]
    same = means(method, state, *((client, dict(flat(method, client.task.tier, state).params)) for client in clients))
    more = means(method, state, (clients[0], {n: v + 1 for n, v in flat(method, 0, state).params.items()}))
    regions = method.regions(clients[0])
    for name, value in state.items():
        torch.testing.assert_close(same[name], value, rtol=0, atol=2.0**-40)
        moved = torch.zeros_like(value)
        moved[regions.get(name, ...)] = 1
        torch.testing.assert_close(more[name] - value, moved, rtol=0, atol=1e-6)
