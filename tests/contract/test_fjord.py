"""FjORD: a sampled width's gradient by hand and against that net's own, draws, distillation."""

import math
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import torch
from model_inputs import Info, params
from narrow_nets import client_of, context, context_of, flat, make_small, state_of
from small_runs import small_setup
from torch import Tensor
from torch.nn import functional as F

from fedmpi.config.schema import Train
from fedmpi.federation.assignment import Task
from fedmpi.learning.local import MaskedCrossEntropy, plain_step
from fedmpi.methods.fjord import Fjord, FjordOptions
from fedmpi.methods.values import Client, ClientLoad
from fedmpi.models.nets.lstm import LstmImdb
from fedmpi.models.nets.mlp import Mlp
from fedmpi.models.nets.resnet import ResNet18
from fedmpi.models.options import Model
from fedmpi.models.surgery import nested
from fedmpi.rounds.client import local_work
from fedmpi.strided import subsample_before_narrow_convs

PLAIN = MaskedCrossEntropy(None)
MODELS = [
    (ResNet18(width=0.25, blocks=(1, 1)), Info()),
    (Mlp(hidden=(12, 10)), Info("vector", (6,))),
    (LstmImdb(width=0.125), Info("tokens", (5,))),
]


def batch_of(info: Info) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(info.num_classes, (6,), generator=generator)
    if info.kind == "tokens":
        return torch.randint(info.vocabulary_size, (6, *info.example_shape), generator=generator), targets
    return torch.randn(6, *info.example_shape, generator=generator), targets


def total(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum()


def test_a_narrow_step_by_hand() -> None:
    """4 hidden units, x = 2, loss the sum of all outputs; hidden weights a = 1, 2, 3, 4, output weights 1.

    At width 1/2 (2 units): d out = a x = 2, 4; d a = x times the column sum 3 = 6; biases 1. Others get nothing.
    """
    method = Fjord(context(FjordOptions(widths=(1.0, 0.5))))
    published = state_of(method, 1.0) | {"hidden.weight": torch.tensor([[1.0], [2.0], [3.0], [4.0]])}
    net = flat(method, 0, published)
    value = method._step(net, torch.tensor([[2.0]]), torch.tensor([0]), total, 0, 1)
    assert net.grads["hidden.weight"].flatten().tolist() == [6, 6, 0, 0]
    assert net.grads["out.weight"].tolist() == [[2, 4, 0, 0]] * 3
    assert net.grads["out.bias"].tolist() == [1] * 3
    assert float(value) == 3 * (2 + 4 + 1)


@pytest.mark.parametrize(("model", "info"), MODELS, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize(("tier", "number"), [(0, 0), (0, 2), (1, 2)])
def test_gradients_are_the_narrow_nets_own(model: Model, info: Info, tier: int, number: int) -> None:
    """The same loss and gradients as of the net of that width, in the tier's leading entries; zeros elsewhere.

    The same operations on the same numbers, in other strides: only rounding may differ.
    """
    method = Fjord(context_of(FjordOptions(widths=(1.0, 0.7, 0.3)), model, info))
    published = method.initial_state()
    inputs, targets = batch_of(info)
    ours, narrow = flat(method, tier, published), flat(method, number, published)
    value = method._step(ours, inputs, targets, PLAIN, tier, number)
    theirs = plain_step(narrow, inputs, targets, PLAIN)
    torch.testing.assert_close(value, theirs, rtol=1e-5, atol=0)
    parts = nested.nested_parts(method.net(tier, empty=True), method.net(number, empty=True))
    for name, gradient in ours.grads.items():
        expected = torch.zeros_like(gradient)
        expected[parts.get(name, ...)] = narrow.grads[name]
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6, msg=name)
        assert not bool(gradient[expected == 0].any())


def test_widths_are_drawn_uniformly_up_to_the_clients_own() -> None:
    """Of 3000 draws out of k = 5, 2, 1 widths each has 3000 / k within 5 sigma, sigma^2 = 3000 (k - 1) / k^2."""
    method = Fjord(context(FjordOptions()))
    for tier in (0, 3, 4):
        k = 5 - tier
        tally = Counter(method._draw_nets(client_of(7, tier).task, 3000))
        assert set(tally) == set(range(tier, 5))
        assert all(abs(n - 3000 / k) <= 5 * (3000 * (k - 1)) ** 0.5 / k for n in tally.values())
    clients = [client_of(client, 0, round_number=number) for client in (1, 2) for number in (1, 2)]
    assert len({tuple(method._draw_nets(client.task, 50)) for client in clients}) == 4


def test_every_step_trains_the_net_that_was_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against nets of those widths, each made of the leading entries that the steps before it left, in four steps of
    plain SGD: 15 examples in batches of 8 and 7, two epochs. To rounding; what no step's net has stays to the bit."""
    numbers = (1, 2, 0, 2)
    words = ("method.widths=[1,0.5,0.25]", "train.weight_decay=0", "train.momentum=0", "train.local_epochs=2")
    setup = small_setup(tmp_path, "method.name=fjord", *words)
    method, net, state = setup.method, setup.trainers[0].net, setup.method.initial_state()
    client = Client(Task(0, 0, 1, "train", 15, 1.0), state, setup.partition.client(0), 0)
    monkeypatch.setattr(method, "_draw_nets", lambda task, num_draws: iter(numbers))
    method.narrow(state, 0, net.params, client)
    method.train(setup.trainers[0], client, local_work(setup, client))

    expected = {name: value.clone() for name, value in state.items()}
    trained = {name: torch.zeros(value.shape, dtype=torch.bool) for name, value in state.items()}
    work = local_work(setup, client)
    draws = work.data.draws(client.examples, 2, work.generator)
    for number, (epoch, bounds) in zip(numbers, product(range(2), ((0, 8), (8, 15))), strict=True):
        narrow = method.net(number)
        parts = nested.nested_parts(method.net(0, empty=True), narrow)
        narrow.load_state_dict({name: value[parts.get(name, ...)] for name, value in expected.items()})
        inputs, targets = work.data.train_batch(draws, epoch, *bounds)
        subsample_before_narrow_convs(narrow)
        work.loss(narrow(inputs), targets).backward()
        for name, value in narrow.named_parameters():
            expected[name][parts.get(name, ...)] -= work.lr * value.grad
            trained[name][parts.get(name, ...)] = True
    for name, value in net.params.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5, msg=name)
        assert torch.equal(value[~trained[name]], state[name][~trained[name]])
        assert not torch.equal(value, state[name])


def test_distance_by_hand() -> None:
    """Eq. 1 with T = 2: the teacher's (2 ln 3, 0) / 2 are 3/4 and 1/4, the student's (0, 0) are 1/2 each.

    T^2 (3/4 + 1/4) ln 2 = 4 ln 2; its gradient is T^2 / T (1/2 - 3/4, 1/2 - 1/4) = (-1/2, 1/2).
    """
    method = Fjord(context(FjordOptions(distillation=True, distillation_temperature=2.0)))
    student = torch.zeros(1, 2, requires_grad=True)
    distance = method._distance(student, torch.tensor([[2 * math.log(3), 0.0]]))
    distance.backward()
    assert distance.item() == pytest.approx(4 * math.log(2))
    assert student.grad.tolist() == [pytest.approx([-0.5, 0.5])]


@pytest.mark.parametrize(("alpha", "temperature"), [(1.0, 1.0), (1.0, 2.0), (0.25, 2.0), (0.0, 1.0)])
def test_distillation_is_both_gradients_in_one_step(alpha: float, temperature: float) -> None:
    """Labels train p_max, its detached softmax trains the sampled width: against autograd on two nets of their own.

    The width's loss is (1 - alpha) CE + alpha T^2 KL, both outputs divided by T.
    """
    options = {"distillation_weight": alpha, "distillation_temperature": temperature}
    method = Fjord(context(FjordOptions(widths=(1.0, 0.5), distillation=True, **options)))
    published = {name: value.detach() for name, value in make_small(seed=3).named_parameters()}
    inputs, targets = torch.tensor([[2.0], [-1.0]]), torch.tensor([0, 2])
    net = flat(method, 0, published)
    value = method._step(net, inputs, targets, PLAIN, 0, 1)

    wide, narrow = make_small(seed=3), make_small(0.5)
    parts = nested.nested_parts(wide, narrow)
    narrow.load_state_dict({name: value[parts.get(name, ...)] for name, value in published.items()})
    labels = F.cross_entropy(wide(inputs), targets)
    soft = (wide(inputs) / temperature).softmax(1).detach()
    logs = (narrow(inputs) / temperature).log_softmax(1)
    distance = (soft * (soft.log() - logs)).sum(1).mean()
    own = (1 - alpha) * F.cross_entropy(narrow(inputs), targets)
    (labels + own + alpha * temperature**2 * distance).backward()
    assert float(value) == pytest.approx(labels.item(), rel=1e-6)
    for name, value in wide.named_parameters():
        expected = value.grad.clone()
        expected[parts.get(name, ...)] += narrow.get_parameter(name).grad
        torch.testing.assert_close(net.grads[name], expected, rtol=1e-5, atol=1e-6)


def test_every_width_is_tested_and_channels_are_rounded_up() -> None:
    method = Fjord(context_of(FjordOptions(), ResNet18(), Info("image", (3, 32, 32), 10)))
    tested = [(net.name, net.index) for net in method.tested()]
    assert tested == [("1", 0), ("0.8", 1), ("0.6", 2), ("0.4", 3), ("0.2", 4)]
    channels = [[stage[0].conv1.out_channels for stage in method.net(n, empty=True).stages] for n in range(5)]
    assert channels[1:] == [[52, 103, 205, 410], [39, 77, 154, 308], [26, 52, 103, 205], [13, 26, 52, 103]]
    assert params(method.net(0, empty=True)) == 11_173_962


def test_compute_is_the_mean_of_the_widths_and_with_distillation_the_own_one_too() -> None:
    """10 steps of 30. Of 100, 64, 36, 16 and 4 MACs tier 0 takes 44 on average, tier 3 of 16 and 4 takes 10."""
    train = Train(local_epochs=10)
    for distillation, expected in ((False, [44, 10]), (True, [144, 26])):
        method = Fjord(context(FjordOptions(distillation=distillation), train=train))
        trainings = [method.count_training(ClientLoad(tier, 30)) for tier in (0, 3)]
        assert [each.macs((100, 64, 36, 16, 4)) for each in trainings] == [300 * macs for macs in expected]
