"""HeteroFL, FedRolex, OrigDrop and FjORD's means: who holds which entries, means by hand, sizes, what is tested."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from model_inputs import Info
from narrow_nets import client_of, context, context_of, filled, flat, means, state_of
from small_runs import small_setup

from fedmpi.learning.local import MaskedCrossEntropy, plain_step
from fedmpi.methods.fedrolex import FedRolex, FedRolexOptions
from fedmpi.methods.fjord import Fjord, FjordOptions
from fedmpi.methods.heterofl import HeteroFL, HeteroFLOptions
from fedmpi.methods.origdrop import OrigDrop, OrigDropOptions
from fedmpi.methods.protocol import all_nets
from fedmpi.methods.values import MethodOptions
from fedmpi.methods.widths import WidthMethod
from fedmpi.models.nets.lstm import LstmImdb
from fedmpi.models.nets.mlp import Mlp
from fedmpi.models.nets.resnet import ResNet18
from fedmpi.models.options import Model

CIFAR10 = Info("image", (3, 32, 32), 10)
TEXT = Info("tokens", (5,), 2, 1001)
METHODS = {HeteroFLOptions: HeteroFL, FedRolexOptions: FedRolex, OrigDropOptions: OrigDrop, FjordOptions: Fjord}

# Means. The net has 4 hidden units at width 1; the server's numbers are 7 before the round.


@dataclass(frozen=True)
class Case:
    options: MethodOptions
    clients: list[tuple[int, int, float]]
    """Of client 0, 1, ...: the tier, how many examples it has, the number that it sends everywhere."""
    hidden: list[float]
    bias: list[float]
    rows: list[list[float]] | None = None
    """Weights of the classes; by default those of the hidden units in each row, because all clients send all rows."""
    labels: dict[int, list[bool]] | None = None
    """The classes that each client has."""
    round_number: int = 1


THREE = (1.0, 0.5, 0.25)  # 4, 2 and 1 units
ALL = {client: [True, True, True] for client in range(4)}
LABELS = {0: [True, False, False], 1: [True, True, False]}
CASES = {
    # Unit 0 is 18 / 4, unit 1 is 15 / 3. Unweighted: that the first has 100 examples does not matter.
    "heterofl": Case(
        HeteroFLOptions(widths=THREE),
        [(0, 100, 10.0), (1, 1, 4.0), (1, 1, 1.0), (2, 1, 3.0)],
        [4.5, 5, 10, 10],
        [4.5] * 3,
        labels=ALL,
    ),
    "heterofl: what nobody holds stays": Case(HeteroFLOptions(widths=THREE), [(2, 1, 3.0)], [3, 7, 7, 7], [3] * 3),
    # Class 0 is (2 + 6) / 2 where both hold it, then 2; class 1 is 6, then the old 7; class 2 has nobody.
    "heterofl: rows of classes come from their owners": Case(
        HeteroFLOptions(widths=THREE),
        [(0, 1, 2.0), (1, 1, 6.0)],
        [4, 4, 2, 2],
        [4, 6, 7],
        rows=[[4, 4, 2, 2], [6, 6, 7, 7], [7, 7, 7, 7]],
        labels=LABELS,
    ),
    # Round 3: j = 2, a client of one unit has unit 2.
    "fedrolex: what nobody holds stays": Case(
        FedRolexOptions(widths=THREE), [(2, 1, 3.0)], [7, 7, 3, 7], [3] * 3, round_number=3
    ),
    # Round 4, two units (3 and 0) and class 1 alone: two entries of one row.
    "fedrolex: rows of classes come from their owners": Case(
        FedRolexOptions(widths=THREE),
        [(1, 1, 3.0)],
        [3, 7, 7, 3],
        [7, 3, 7],
        rows=[[7, 7, 7, 7], [3, 7, 7, 3], [7, 7, 7, 7]],
        labels={0: [False, True, False]},
        round_number=4,
    ),
    # 3 examples send 2, one sends 6: (3 * 2 + 6) / 4.
    "fedrolex: by samples": Case(
        FedRolexOptions(widths=(1.0,), weighting="samples"), [(0, 3, 2.0), (0, 1, 6.0)], [3] * 4, [3] * 3
    ),
    # Of 4 units ceil(0.4 * 4) = 2 and ceil(0.2 * 4) = 1: unit 0 from all three, (9 + 1 + 2) / 3, unit 1 from the first
    # alone, units 2 and 3 are nobody's: they stay, and do not become 0.
    "origdrop": Case(OrigDropOptions(), [(0, 1, 9.0), (1, 1, 1.0), (1, 1, 2.0)], [4, 9, 7, 7], [4] * 3),
    # 4 units from 1 example and ceil(0.3 * 4) = 2 from 3: (8 + 3 * 4) / 4, then 8.
    "fjord": Case(FjordOptions(widths=(1.0, 0.3)), [(0, 1, 8.0), (1, 3, 4.0)], [5, 5, 8, 8], [5] * 3),
    "fjord: what nobody holds stays": Case(FjordOptions(widths=(1.0, 0.3)), [(1, 3, 4.0)], [4, 4, 7, 7], [4] * 3),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_entry_is_the_mean_over_its_holders(case: Case) -> None:
    more = {}
    if case.labels:
        present = {client: np.array(has) for client, has in case.labels.items()}
        more = {"present_labels": present.__getitem__}
    method: WidthMethod = METHODS[type(case.options)](context(case.options, **more))
    uploads = []
    for number, (tier, num_examples, value) in enumerate(case.clients):
        client = client_of(number, tier, num_examples, round_number=case.round_number)
        uploads.append((client, filled(method, value, tier)))
    found = means(method, state_of(method, 7.0), *uploads)
    assert found["hidden.weight"].flatten().tolist() == case.hidden
    assert found["out.weight"].tolist() == (case.rows or [case.hidden] * 3)
    assert found["out.bias"].tolist() == case.bias


def rolling() -> FedRolex:
    return FedRolex(context(FedRolexOptions(widths=THREE, scaler=False)))


def test_a_round_with_wrap_around_by_hand() -> None:
    """Round 4: j = 3. Of units 0 to 3 the client of two has 3 and 0, in that order, that of one has 3.

    Sent: 10 for all, (1, 2) for units 3 and 0, 4 for unit 3: unit 0 is (10 + 2) / 2, units 1 and 2 are 10, unit 3 is
    (10 + 1 + 4) / 3. The classes' rows read the same units; their biases are held by all.
    """
    method = rolling()
    state = state_of(method, 7.0)
    whole, two, one = (client_of(client, tier, round_number=4) for client, tier in enumerate((0, 1, 2)))
    sent = filled(method, 10.0, 0), filled(method, 0.0, 1), filled(method, 4.0, 2)
    sent[1]["hidden.weight"].copy_(torch.tensor([[1.0], [2.0]]))
    sent[1]["out.weight"].copy_(torch.tensor([[1.0, 2.0]] * 3))
    sent[1]["out.bias"].fill_(1.0)
    found = means(method, state, *zip((whole, two, one), sent, strict=True))
    assert found["hidden.weight"].flatten().tolist() == [6, 10, 10, 5]
    assert found["out.weight"].tolist() == [[6, 10, 10, 5]] * 3
    assert found["out.bias"].tolist() == [5] * 3
    numbered = state | {"hidden.weight": torch.arange(4.0).view(4, 1), "out.weight": torch.arange(12.0).view(3, 4)}
    net = flat(method, 1, numbered, two)
    assert net.params["hidden.weight"].flatten().tolist() == [3, 0]
    assert net.params["out.weight"].tolist() == [[3, 0], [7, 4], [11, 8]]


@pytest.mark.parametrize(("tier", "count"), [(0, 4), (1, 2), (2, 1)])
def test_every_channel_is_trained_equally_often(tier: int, count: int) -> None:
    """In 4 rounds each of the 4 units is in as many windows as the window has units; after 4 rounds it begins again."""
    method = rolling()
    times, windows = torch.zeros(4), []
    for number in range(1, 9):
        region = method.regions(client_of(0, tier, round_number=number)).get("hidden.weight", slice(None))
        windows.append(torch.arange(4)[region if isinstance(region, slice) else region[0]].tolist())
        if number <= 4:
            times[windows[-1]] += 1
    assert times.tolist() == [count] * 4 and windows[:4] == windows[4:]


@pytest.mark.parametrize("order", ["post", "pre"])
def test_one_window_through_a_residual_net(order: str) -> None:
    """Half of 64, 128, ... channels at j = 40: a stage of 64 channels wraps around, and its convs, shortcuts and norms
    agree; stage 2 has 40 to 103."""
    method = FedRolex(context_of(FedRolexOptions(widths=(0.5,)), ResNet18(order=order), CIFAR10))
    regions = method.regions(client_of(0, 0, round_number=41))
    wrapped, after = [*range(40, 64), *range(8)], slice(40, 104)
    rows, columns = regions["stages.0.1.conv2.weight"]
    assert rows.flatten().tolist() == columns.flatten().tolist() == regions["conv1.weight"][0].tolist() == wrapped
    shortcut = "stages.1.0.shortcut.0.weight" if order == "post" else "stages.1.0.shortcut.weight"
    assert regions[shortcut][0] == after and regions[shortcut][1].tolist() == wrapped
    assert regions["stages.1.0.conv2.weight"] == (after, after) and regions["stages.1.0.bn2.weight"] == (after,)
    assert regions["fc.weight"] == (slice(None), slice(40, 296))


def test_the_rows_of_classes_are_the_last_layers() -> None:
    """A hidden layer may have as many outputs as there are classes: here 3, and the client has class 1 only."""
    labels = np.array([False, True, False])
    options, info = HeteroFLOptions(widths=(1.0, 0.5)), Info("vector", (6,))
    method = HeteroFL(context_of(options, Mlp(hidden=(3,)), info, present_labels=lambda client: labels))
    regions = method.regions(client_of(0, 0))
    rows = {name: region[0].tolist() for name, region in regions.items()}
    assert rows == {"layers.2.weight": [1], "layers.2.bias": [1]}


# Nets.


@pytest.mark.parametrize("name", ["origdrop", "fedrolex"])
def test_only_the_full_net_is_tested(tmp_path: Path, name: str) -> None:
    """As published, in a net of its own: no tier has it."""
    key = "keep_ratio" if name == "origdrop" else "widths"
    setup = small_setup(tmp_path, f"method.name={name}", f"method.{key}=[0.5,0.25]")
    method = setup.method
    assert [(net.name, net.index, net.capacity) for net in method.tested()] == [("full", 2, 1.0)]
    assert len(all_nets(method)) == len(setup.trainers) == 3 and {tier.index for tier in method.tiers} == {0, 1}
    state, net = method.initial_state(), setup.trainers[2].net
    method.narrow(state, 2, net.params)
    assert all(torch.equal(net.params[name], state[name]) for name in state) and len(net.params) == len(state)
    tested = OrigDrop(context(OrigDropOptions(test_tiers=True))).tested()
    assert [(net.name, net.index) for net in tested] == [("full", 2), ("0.4", 0), ("0.2", 1)]


# HeteroFL's Scaler.


def test_tiers_train_with_their_scaler(tmp_path: Path) -> None:
    """p = 1/4: training divides by it (eps becomes eps / 16 before BatchNorm), a test and a re-estimation do not."""
    words = ("method.name=heterofl", "method.widths=[0.8,0.2]", "model.width=0.25")
    setups = {on: small_setup(tmp_path / str(on), *words, f"method.scaler={on}") for on in ("true", "false")}
    inputs, targets = setups["true"].data.test_batch(0, 8)
    state = setups["true"].method.initial_state()
    for tier in (0, 1):
        losses, tested = {}, {}
        for on, setup in setups.items():
            net = setup.trainers[tier].net
            setup.method.narrow(state, tier, net.params)
            value = plain_step(net, inputs, targets, MaskedCrossEntropy(None))
            losses[on] = float(value)
            with torch.no_grad():
                tested[on] = torch.cat([net.module.train()(inputs), net.module.eval()(inputs)])
        assert torch.equal(tested["true"], tested["false"])
        assert losses["true"] == pytest.approx(losses["false"], rel=1e-2)
        assert (losses["true"] == losses["false"]) == (tier == 0)


@pytest.mark.parametrize(
    ("model", "info", "scaler", "expected"),
    [
        (Mlp(), Info("vector", (6,)), False, []),
        (Mlp(), Info("vector", (6,)), True, ["up to 8-fold in training: choose method.scaler=false"]),
        (Mlp(hidden=()), Info("vector", (6,)), True, ["method.scaler changes nothing"]),
        # PriSM's LSTM has one output for two classes.
        (LstmImdb(width=0.0625), Info("tokens", (5,), 2), False, ["clients contribute rows of all classes"]),
    ],
)
def test_what_changes_nothing_or_too_much_is_told(model: Model, info: Info, scaler: bool, expected: list[str]) -> None:
    said = HeteroFL(context_of(HeteroFLOptions(scaler=scaler), model, info)).warnings()
    assert [line[-len(end) :] for line, end in zip(said, expected, strict=True)] == expected
