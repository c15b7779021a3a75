"""FedRolex: windows of a round by hand, with their wrap; how often each channel is trained; what is tested."""

from pathlib import Path

import numpy as np
import pytest
import torch
from model_inputs import Info, params
from narrow_nets import client_of, context, context_of, filled, flat, means, state_of
from small_runs import small_setup

from fedmpi.methods.fedrolex import FedRolex, FedRolexOptions
from fedmpi.models.options import ResNet18

CIFAR10 = Info("image", (3, 32, 32), 10)


def small(widths: tuple[float, ...] = (1.0, 0.5, 0.25), **more: object) -> FedRolex:
    """Tiers of 4, 2 and 1 of the 4 hidden units."""
    return FedRolex(context(FedRolexOptions(widths=widths, scaler=False), **more))


def test_a_round_with_wrap_around_by_hand() -> None:
    """Round 4: j = 3. Of units 0 to 3 the client of two has 3 and 0, in that order, that of one has 3.

    Sent: 10 for all, (1, 2) for units 3 and 0, 4 for unit 3: unit 0 is (10 + 2) / 2, units 1 and 2 are 10, unit 3 is
    (10 + 1 + 4) / 3. The classes' rows read the same units; their biases are held by all.
    """
    method = small()
    whole, two, one = (client_of(client, tier, round_number=4) for client, tier in enumerate((0, 1, 2)))
    sent = filled(method, 10.0, 0), filled(method, 0.0, 1), filled(method, 4.0, 2)
    sent[1]["hidden.weight"].copy_(torch.tensor([[1.0], [2.0]]))
    sent[1]["out.weight"].copy_(torch.tensor([[1.0, 2.0]] * 3))
    sent[1]["out.bias"].fill_(1.0)
    found = means(method, state_of(method, 7.0), *zip((whole, two, one), sent, strict=True))
    assert found["hidden.weight"].flatten().tolist() == [6, 10, 10, 5]
    assert found["out.weight"].tolist() == [[6, 10, 10, 5]] * 3
    assert found["out.bias"].tolist() == [5] * 3


def test_what_nobody_holds_stays() -> None:
    """Round 3: j = 2, a client of one unit has unit 2."""
    method = small()
    found = means(method, state_of(method, 7.0), (client_of(0, 2, round_number=3), filled(method, 3.0, 2)))
    assert found["hidden.weight"].flatten().tolist() == [7, 7, 3, 7]


def test_a_client_gets_the_window_of_its_round() -> None:
    """Units 0 to 3 are 0, 1, 2, 3: round 4 gives 3 and 0 to a client of two."""
    method = small()
    state = state_of(method, 7.0)
    state["hidden.weight"] = torch.arange(4.0).view(4, 1)
    state["out.weight"] = torch.arange(12.0).view(3, 4)
    net = flat(method, 1, state, client_of(0, 1, round_number=4))
    assert net.params["hidden.weight"].flatten().tolist() == [3, 0]
    assert net.params["out.weight"].tolist() == [[3, 0], [7, 4], [11, 8]]


@pytest.mark.parametrize(("tier", "count"), [(0, 4), (1, 2), (2, 1)])
def test_every_channel_is_trained_equally_often(tier: int, count: int) -> None:
    """In 4 rounds each of the 4 units is in as many windows as the window has units; after 4 rounds it begins again."""
    method = small()
    times, windows = torch.zeros(4), []
    for number in range(1, 9):
        region = method.regions(client_of(0, tier, round_number=number)).get("hidden.weight", slice(None))
        windows.append(torch.arange(4)[region if isinstance(region, slice) else region[0]].tolist())
        if number <= 4:
            times[windows[-1]] += 1
    assert times.tolist() == [count] * 4 and windows[:4] == windows[4:]


def test_rows_of_classes_come_from_their_owners() -> None:
    """Round 4, two units (3 and 0) and class 1 alone: two entries of one row."""
    labels = np.array([False, True, False])
    method = small(present_labels=lambda client: labels)
    found = means(method, state_of(method, 7.0), (client_of(0, 1, round_number=4), filled(method, 3.0, 1)))
    assert found["out.weight"].tolist() == [[7, 7, 7, 7], [3, 7, 7, 3], [7, 7, 7, 7]]
    assert found["out.bias"].tolist() == [7, 3, 7]


def test_the_mean_by_samples() -> None:
    """3 examples send 2, one sends 6: (3 * 2 + 6) / 4."""
    method = FedRolex(context(FedRolexOptions(widths=(1.0,), weighting="samples")))
    clients = client_of(0, 0, 3), client_of(1, 0, 1)
    sent = filled(method, 2.0, 0), filled(method, 6.0, 0)
    assert means(method, state_of(method, 7.0), *zip(clients, sent, strict=True))["out.bias"].tolist() == [3] * 3


def test_the_server_has_the_whole_net_whatever_clients_can_train(tmp_path: Path) -> None:
    """Two small tiers: the server's net is ResNet-18 of 11,173,962 numbers; a test has it as it was published."""
    method = FedRolex(context_of(FedRolexOptions(widths=(0.5, 0.25)), ResNet18(), CIFAR10))
    assert sum(spec.num_elements for spec in method.state_specs().values()) == 11_173_962
    assert params(method.net(0, empty=True)) == 2_797_610
    setup = small_setup(tmp_path, "method.name=fedrolex", "method.widths=[0.5,0.25]")
    assert [(net.name, net.net) for net in setup.method.tested()] == [("full", 2)]
    state, net = setup.method.initial_state(), setup.trainers[2].net
    setup.method.narrow(state, 2, net.params)
    assert all(torch.equal(net.params[name], value) for name, value in state.items())


@pytest.mark.parametrize("order", ["post", "pre"])
def test_one_window_through_a_residual_net(order: str) -> None:
    """Half of 64, 128, ... channels at j = 40: a stage of 64 channels wraps around, and its convs, shortcuts and norms
    agree; stage 2 has 40 to 103."""
    method = FedRolex(context_of(FedRolexOptions(widths=(0.5,)), ResNet18(order=order), CIFAR10))
    regions = method.regions(client_of(0, 0, round_number=41))
    wrapped, after = [*range(40, 64), *range(8)], slice(40, 104)
    assert regions["conv1.weight"][0].tolist() == wrapped
    for conv in ("stages.0.0.conv1", "stages.0.0.conv2", "stages.0.1.conv2"):
        rows, columns = regions[f"{conv}.weight"]
        assert rows.flatten().tolist() == columns.flatten().tolist() == wrapped
    shortcut = "stages.1.0.shortcut.0.weight" if order == "post" else "stages.1.0.shortcut.weight"
    assert regions[shortcut][0] == after and regions[shortcut][1].tolist() == wrapped
    assert regions["stages.1.0.conv2.weight"] == (after, after)
    assert regions["stages.1.0.bn2.weight"] == (after,)
    assert regions["fc.weight"] == (slice(None), slice(40, 296))
