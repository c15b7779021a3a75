"""Per-FedAvg: FO and HF by hand on quadratic losses, independent batches, the adaptation."""

import copy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from by_hand import PLAIN, Bench, numbers
from small_runs import small_setup

from fedmpi.library.api import load_config
from fedmpi.methods.perfedavg import PerFedAvg, PerFedAvgOptions, _add_curvature
from fedmpi.methods.values import ClientLoad
from fedmpi.models import create
from fedmpi.models.nets.cnn import Lenet5
from fedmpi.models.nets.resnet import ResNet18
from fedmpi.models.nets.vit import VitSmall


@pytest.mark.parametrize(("variant", "expected"), [("FO", 0.875), ("HF", 0.9375)])
def test_a_step_by_hand(variant: str, expected: float) -> None:
    """f = w^2 / 2 on one example, so D = D' = D''. w = 1: w~ = 1/2, g = 1/2. FO: 1 - 1/4 * 1/2. HF: H g = g, so
    1 - 1/4 (1/2 - 1/2 * 1/2)."""
    options = PerFedAvgOptions(variant=variant, alpha=0.5, beta=0.25)
    bench = Bench(PerFedAvg, options, [[1.0]], [0], [[0]])
    assert numbers(bench.round(bench.start(1.0))) == [expected]


def test_hf_is_the_exact_gradient_of_a_quadratic_loss() -> None:
    """Two weights, x = (1, 1) and (1, 0), y = 0 and 1: H = [[1, .5], [.5, .5]], b = (.5, 0), f' = H w - b.

    The step is w - beta (I - alpha H) (H w~ - b); all numbers have few binary places.
    """
    options = PerFedAvgOptions(variant="HF", alpha=0.5, beta=0.25)
    bench = Bench(PerFedAvg, options, [[1.0, 1.0], [1.0, 0.0]], [0, 1], [[0, 1]])
    hessian, b, w = np.array([[1, 0.5], [0.5, 0.5]]), np.array([0.5, 0]), np.array([1.0, 2.0])
    there = w - 0.5 * (hessian @ w - b)
    expected = w - 0.25 * (np.eye(2) - 0.5 * hessian) @ (hessian @ there - b)
    first_order = w - 0.25 * (hessian @ there - b)
    found = numbers(bench.round(bench.start(*w)))
    assert found == expected.tolist() and not np.allclose(expected, first_order)


@pytest.mark.parametrize("variant", ["FO", "HF"])
def test_steps_take_independent_batches(variant: str) -> None:
    """Examples (w x - y)^2 / 2, one a batch, two epochs: ten steps in float64 beside ours. An example's H is x^2.

    D' follow the permutations of federated averaging, D and D'' those of the client's generators. Numbers are
    below 8: a float32 operation rounds by at most 2^-22.
    """
    x, y = [0.5, 1.0, 1.5, 1.0, 0.5], [0, 1, 2, 3, 4]
    train = PLAIN.model_copy(update={"batch_size": 1, "local_epochs": 2})
    options = PerFedAvgOptions(variant=variant, alpha=0.5, beta=0.25)
    bench = Bench(PerFedAvg, options, [[value] for value in x], y, [list(range(5))], train)
    client = bench.client(0, bench.start(3.0))
    orders = {
        purpose: bench.data.draws(client.examples, 2, client.generator(purpose)).examples.flatten().tolist()
        for purpose in ("batches", "inner", "curvature")
    }
    assert len({tuple(order) for order in orders.values()}) == 3
    outcome = bench.method.train(bench.trainer, client, bench.work(client))
    assert outcome.steps == 10
    w, losses = 3.0, []
    for i, j, k in zip(orders["inner"], orders["batches"], orders["curvature"], strict=True):
        error = (w - 0.5 * (w * x[i] - y[i]) * x[i]) * x[j] - y[j]
        losses.append(error**2 / 2)
        w -= 0.25 * error * x[j] * (1 if variant == "FO" else 1 - 0.5 * x[k] ** 2)
    assert bench.weights == pytest.approx([w], abs=10 * 2**-20)
    assert outcome.loss == pytest.approx(float(np.mean(losses)), abs=1e-5)
    assert bench.method.count_training(ClientLoad(0, 5)).examples == (20 if variant == "FO" else 40)


def test_adaptation_is_one_step_on_one_training_batch() -> None:
    """Of five examples the first two in the generator's order, a step of alpha = 1/2 from w = 8, however short the
    gradient of a step may be in training."""
    train = PLAIN.model_copy(update={"batch_size": 2, "clip_norm": 0.001})
    bench = Bench(PerFedAvg, PerFedAvgOptions(alpha=0.5), [[1.0]] * 5, list(range(5)), [list(range(5))], train)
    client = bench.client(0, bench.start(8.0))
    chosen = torch.randperm(5, generator=client.generator("batches"))[:2].tolist()
    bench.method.adapt(bench.trainer, client, bench.work(client))
    assert bench.weights == [8.0 - 0.5 * (8.0 - sum(chosen) / 2)]


def test_adaptation_by_three_steps() -> None:
    """All examples have y = 0: each step of 1/4 leaves 3/4 of w = 64."""
    bench = Bench(PerFedAvg, PerFedAvgOptions(alpha=0.25, adaptation_steps=3), [[1.0]] * 5, [0] * 5, [list(range(5))])
    client = bench.client(0, bench.start(64.0))
    bench.method.adapt(bench.trainer, client, bench.work(client))
    assert bench.weights == [27.0]


NETS = {"resnet18": ResNet18(width=0.0625, blocks=(1, 1)), "lenet5": Lenet5(), "vit_small": VitSmall(width=0.1)}


@pytest.mark.parametrize("net", NETS)
def test_the_hessian_is_that_of_float64(net: str) -> None:
    """With ReLU, pooling, BatchNorm and attention, H g is 1e-5 from that in float64, relative to its norm.

    Central differences along the loss's own gradient, as in the paper, were 10 times its norm away with delta = 1e-3.
    """
    options = NETS[net]
    info = SimpleNamespace(kind="image", example_shape=(1, 28, 28), num_classes=10)
    module = create.build(options, info, 0)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, 1, 28, 28, generator=generator)
    targets = torch.randint(10, (8,), generator=generator)
    outcomes = []
    for double in (module.double(), copy.deepcopy(module).float()):
        params = dict(double.named_parameters())
        generator.manual_seed(1)
        grads = {n: torch.randn(v.shape, generator=generator).to(v) for n, v in params.items()}
        before = {name: value.clone() for name, value in grads.items()}
        _add_curvature(
            SimpleNamespace(module=double, params=params, grads=grads),
            inputs.to(next(iter(params.values()))),
            targets,
            torch.nn.functional.cross_entropy,
            1.0,
        )
        outcomes.append(torch.cat([(grads[name] - before[name]).double().view(-1) for name in grads]))
    exact, ours = outcomes
    assert float((ours - exact).norm()) < 1e-5 * float(exact.norm())


def test_what_is_warned_of(tmp_path: Path) -> None:
    assert "weight_decay" in small_setup(tmp_path, "method.name=perfedavg").method.warnings()[0]
    still = small_setup(tmp_path, "method.name=perfedavg", "train.weight_decay=0").method.warnings()
    assert "momentum" in still[0] and "method.beta=lr takes" in still[0] and "config perfedavg_digits" in still[0]
    assert load_config("perfedavg_digits").to_dict()["method"]["beta"] == "lr"
    (said,) = small_setup(tmp_path, "method.name=perfedavg", "method.beta=lr").method.warnings()
    assert "train.lr" not in said
    nothing = ("train.weight_decay=0", "train.momentum=0")
    assert small_setup(tmp_path, "method.name=perfedavg", *nothing).method.warnings() == ()
