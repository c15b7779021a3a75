"""HeteroFL: means over the holders and class rows by hand, sizes of FedHM's tables, the Scaler."""

from pathlib import Path

import numpy as np
import pytest
import torch
from model_inputs import Info, params
from narrow_nets import client_of, context, context_of, filled, means, state_of
from small_runs import small_setup

from fedmpi.learning.local import MaskedCrossEntropy
from fedmpi.methods.heterofl import HeteroFL, HeteroFLOptions
from fedmpi.methods.values import Turn
from fedmpi.models.options import LstmImdb, Mlp, ModelOptions, ResNet18, ResNet34

CIFAR10, CIFAR100 = Info("image", (3, 32, 32), 10), Info("image", (3, 32, 32), 100)


def small(labels: dict[int, list[bool]], **options: object) -> HeteroFL:
    """Tiers of 4, 2 and 1 hidden units; `labels`: client -> which of the three classes it has."""
    present = {client: np.array(has) for client, has in labels.items()}
    asked = HeteroFLOptions(widths=(1.0, 0.5, 0.25), **options)
    return HeteroFL(context(asked, present_labels=present.__getitem__))


ALL = [True, True, True]


def test_each_entry_is_the_mean_over_its_holders() -> None:
    """Clients of 4, 2, 2 and 1 units send 10, 4, 1 and 3: unit 0 is 18 / 4, unit 1 is 15 / 3, units 2 and 3 are 10.

    Unweighted: that the first has 100 examples does not matter. Biases of the classes are held by all.
    """
    method = small(dict.fromkeys(range(4), ALL))
    clients = [client_of(0, 0, 100), client_of(1, 1), client_of(2, 1), client_of(3, 2)]
    uploads = [filled(method, value, c.task.tier) for value, c in zip((10.0, 4.0, 1.0, 3.0), clients, strict=True)]
    found = means(method, state_of(method, 7.0), *zip(clients, uploads, strict=True))
    assert found["hidden.weight"].flatten().tolist() == [4.5, 5, 10, 10]
    assert found["out.weight"].tolist() == [[4.5, 5, 10, 10]] * 3
    assert found["out.bias"].tolist() == [4.5] * 3


def test_what_nobody_holds_stays() -> None:
    """One client of one unit: units 1 to 3 keep their 7."""
    method = small({0: ALL})
    found = means(method, state_of(method, 7.0), (client_of(0, 2), filled(method, 3.0, 2)))
    assert found["hidden.weight"].flatten().tolist() == [3, 7, 7, 7]
    assert found["out.weight"].tolist() == [[3, 7, 7, 7]] * 3


@pytest.mark.parametrize("label_aware", [True, False])
def test_rows_of_classes_come_from_their_owners(label_aware: bool) -> None:
    """Client 0 (4 units, sends 2) has class 0, client 1 (2 units, sends 6) classes 0 and 1; class 2 has nobody.

    Rows: 0 is (2 + 6) / 2 where both hold it, then 2; 1 is 6, then the old 7; 2 is 7. Without: as the hidden layer.
    """
    method = small({0: [True, False, False], 1: [True, True, False]}, label_aware=label_aware)
    pairs = [(client_of(0, 0), filled(method, 2.0, 0)), (client_of(1, 1), filled(method, 6.0, 1))]
    found = means(method, state_of(method, 7.0), *pairs)
    assert found["hidden.weight"].flatten().tolist() == [4, 4, 2, 2]
    if label_aware:
        assert found["out.weight"].tolist() == [[4, 4, 2, 2], [6, 6, 7, 7], [7, 7, 7, 7]]
        assert found["out.bias"].tolist() == [4, 6, 7]
    else:
        assert found["out.weight"].tolist() == [[4, 4, 2, 2]] * 3
        assert found["out.bias"].tolist() == [4] * 3


def test_the_rows_of_classes_are_the_last_layers() -> None:
    """A hidden layer may have as many outputs as there are classes: here 3, and the client has class 1 only."""
    asked = HeteroFLOptions(widths=(1.0, 0.5))
    model, labels = Mlp(hidden=(3,)), np.array([False, True, False])
    method = HeteroFL(context_of(asked, model, Info("vector", (6,)), present_labels=lambda client: labels))
    regions = method.regions(client_of(0, 0))
    assert {name: region[0].tolist() for name, region in regions.items()} == {
        "layers.2.weight": [1],
        "layers.2.bias": [1],
    }


def test_a_net_without_class_rows_is_told() -> None:
    """PriSM's LSTM has one output for two classes."""
    info = Info("tokens", (5,), 2)
    method = HeteroFL(context_of(HeteroFLOptions(scaler=False), LstmImdb(width=0.0625), info))
    assert len(method.warnings()) == 1 and "label_aware" in method.warnings()[0]
    assert not HeteroFL(context_of(HeteroFLOptions(scaler=False), Mlp(), Info("vector", (6,)))).warnings()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Mlp(), "enlarges every layer up to 8-fold in training: choose method.scaler=false"),
        (Mlp(hidden=()), "method.scaler changes nothing"),
    ],
)
def test_a_scaler_without_norm_layers_is_told(model: Mlp, expected: str) -> None:
    (said,) = HeteroFL(context_of(HeteroFLOptions(), model, Info("vector", (6,)))).warnings()
    assert said.endswith(expected)


@pytest.mark.parametrize(
    ("model", "info", "expected"),
    [
        (ResNet18(), CIFAR10, {1.0: 11_173_962, 0.62: 4_293_347, 0.5: 2_797_610, 0.35: 1_373_160}),
        (ResNet34(), CIFAR100, {1.0: 21_328_292, 0.64: 8_769_303, 0.5: 5_349_636, 0.4: 3_423_974}),
    ],
)
def test_sizes_of_the_tables(model: ModelOptions, info: Info, expected: dict[float, int]) -> None:
    """methods.md 3.6: round, and 0.62 for ResNet-18 (the paper's 0.64 gives 4.59 million). 4 bytes each, both ways."""
    method = HeteroFL(context_of(HeteroFLOptions(widths=tuple(expected)), model, info))
    assert [params(method.net(tier.index, empty=True)) for tier in method.tiers] == list(expected.values())
    assert [method.costs(Turn(tier.index)).down_bytes for tier in method.tiers] == [
        4 * size for size in expected.values()
    ]
    assert sum(spec.num_elements for spec in method.state_specs().values()) == expected[1.0]


def test_the_server_has_the_widest_net_of_all() -> None:
    """HeteroFL-V2: without a client of width 1 there is no net of width 1."""
    method = HeteroFL(context_of(HeteroFLOptions(widths=(0.62, 0.5, 0.35)), ResNet18(), CIFAR10))
    assert sum(spec.num_elements for spec in method.state_specs().values()) == 4_293_347
    assert not method.regions(client_of(0, 0)) and method.regions(client_of(0, 1))


def test_ceil_is_the_papers_rounding() -> None:
    """Of 64, 128, ... channels 1/3: 22, 43, 86, 171 up, 21, 43, 85, 171 to the nearest."""
    found = {}
    for rounding in ("round", "ceil"):
        options = HeteroFLOptions(widths=(1.0, 1 / 3), rounding=rounding)
        net = HeteroFL(context_of(options, ResNet18(), CIFAR10)).net(1, empty=True)
        found[rounding] = [stage[0].conv1.out_channels for stage in net.stages]
    assert found == {"round": [21, 43, 85, 171], "ceil": [22, 43, 86, 171]}


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
            value = setup.method.backward(net, inputs, targets, MaskedCrossEntropy(None), client_of(0, tier))
            losses[on] = float(value)
            with torch.no_grad():
                tested[on] = net.module.train()(inputs)
        assert torch.equal(tested["true"], tested["false"])
        assert losses["true"] == pytest.approx(losses["false"], rel=1e-2)
        assert (losses["true"] == losses["false"]) == (tier == 0)
