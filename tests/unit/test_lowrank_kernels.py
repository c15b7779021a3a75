"""Principal kernels: sub-layers by hand, drawing by enumeration, LSTMs gate by gate."""

import copy
import itertools
from collections import Counter

import pytest
import torch
from examples.principal_kernels import kernel_maps
from model_inputs import randn
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.kernels import draw_kernels, effective_number, refreshed, singular_values
from fedmpi.lowrank.modules import factorize_net, kernel_net, open_lstms
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.models.nets.lstm import Lstm


def filled(net: nn.Module, seed: int = 1) -> nn.Module:
    """Random numbers in every parameter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return net


# Sub-layers.


def test_a_linear_sub_layer_by_hand() -> None:
    """One kernel, one row: u = (1, 2), v = 3, x = (10, 1), so 3 (1 * 10 + 2 * 1) = 36; bias (1, 2, 4) whole."""
    net = kernel_net(nn.Sequential(nn.Linear(2, 3)), {"0": (1, 1)})
    for name, value in (("0.u.weight", [[1.0, 2.0]]), ("0.v.weight", [[3.0]]), ("0.bias", [1.0, 2.0, 4.0])):
        net.get_parameter(name).data = torch.tensor(value)
    assert net(torch.tensor([[10.0, 1.0]])).tolist() == [[37.0, 2.0, 4.0]]
    assert net[0].weight.tolist() == [[3.0, 6.0], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("conv", [nn.Conv2d(4, 6, 3, 2, 1, bias=False), nn.Conv2d(4, 6, (3, 2), padding=2, dilation=2)])
@pytest.mark.parametrize(("r", "q"), [(6, 6), (3, 4), (2, 6), (1, 1)])
def test_a_conv_sub_layer_runs_as_the_kernels_it_holds(conv: nn.Conv2d, r: int, q: int) -> None:
    """The sum of its u_i v_i^T, output channels beyond q exactly zero before the bias; parameters r m k k + q r."""
    net = filled(kernel_net(nn.Sequential(conv), {"0": (r, q)}))
    u, v = net.get_parameter("0.u.weight"), net.get_parameter("0.v.weight")
    assert u.shape == (r, 4, *conv.kernel_size) and v.shape == (q, r, 1, 1)
    weight = torch.zeros(6, 4, *conv.kernel_size)
    for i in range(r):
        weight[:q] += v[:, i, 0, 0].detach()[:, None, None, None] * u[i].detach()
    x = randn(2, 4, 9, 8)
    expected = F.conv2d(x, weight, net[0].bias, conv.stride, conv.padding, conv.dilation)
    torch.testing.assert_close(net(x), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(net[0].weight, weight, rtol=0, atol=1e-5)
    beyond = net(x)[:, q:]
    bias = torch.zeros(6) if net[0].bias is None else net[0].bias
    assert torch.equal(beyond, bias[q:, None, None].expand_as(beyond))


@pytest.mark.parametrize("kernel", [None, (3, 3)])
@pytest.mark.parametrize(("m", "n"), [(4, 6), (20, 5)])
def test_refresh_keeps_the_product_and_makes_kernels_orthogonal(kernel: tuple[int, int] | None, m: int, n: int) -> None:
    """U'V' within 1e-5 of itself; sigma of the product, largest first, its root in both factors."""
    layer = FactorizedLayer("layer", m, n, kernel, "output")
    r = min(layer.matrix_shape)
    u, v = randn(*layer.u_shape(r)) / 4, randn(*layer.v_shape(r), seed=1) / 4
    new_u, new_v = refreshed(layer, u, v)
    torch.testing.assert_close(layer.lift(new_u, new_v), layer.lift(u, v), rtol=0, atol=1e-5)
    sigma = singular_values(new_u, new_v)
    expected = torch.linalg.svdvals(layer.unroll(layer.lift(u, v)))
    torch.testing.assert_close(sigma, expected, rtol=1e-5, atol=1e-5)
    for rows in (new_u.flatten(1), new_v.flatten(1).t()):
        torch.testing.assert_close(rows @ rows.t(), torch.diag(sigma), rtol=1e-5, atol=1e-5)


def test_effective_number_by_hand() -> None:
    """1 / sum p^2: equal values count all; (3, 1) has p = 3/4, 1/4, so 1 / (10/16); one alone counts 1."""
    assert effective_number(torch.ones(7)) == pytest.approx(7, rel=1e-12)
    assert effective_number(torch.tensor([3.0, 1.0])) == pytest.approx(1.6, rel=1e-12)
    assert effective_number(torch.tensor([5.0, 0.0, 0.0])) == pytest.approx(1, rel=1e-12)


# Drawing.


def chances(weights: list[float], r: int) -> dict[tuple[int, ...], float]:
    """The exact probability of each set of r kernels: over all orders, each time in proportion to what is left."""
    found: dict[tuple[int, ...], float] = Counter()
    for order in itertools.permutations(range(len(weights)), r):
        chance, left = 1.0, sum(weights)
        for kernel in order:
            chance *= weights[kernel] / left
            left -= weights[kernel]
        found[tuple(sorted(order))] += chance
    return found


@pytest.mark.parametrize("kappa", [0.0, 1.0, 2.5])
def test_three_kernels_are_drawn_as_eq_2_says(kappa: float) -> None:
    """Frequencies of {0, 1}, {0, 2}, {1, 2} against their enumeration; 20,000 draws, so five standard deviations
    are at most 5 sqrt(1/4 / 20000) = 0.018. The generator is seeded: this cannot fail now and then."""
    num_draws = 20_000
    generator = torch.Generator().manual_seed(0)
    sigma = [torch.tensor([3.0, 2.0, 1.0])] * num_draws
    drawn = Counter(tuple(d.tolist()) for d in draw_kernels(sigma, [2] * num_draws, kappa, generator))
    exact = chances([3.0**kappa, 2.0**kappa, 1.0], 2)
    assert set(drawn) == set(exact)
    for kernels, chance in exact.items():
        assert drawn[kernels] / num_draws == pytest.approx(chance, abs=0.018), kernels


def test_extreme_values_are_drawn_without_harm() -> None:
    """sigma^kappa beyond float64, and zeros, which come last however many there are."""
    generator = torch.Generator().manual_seed(0)
    huge, tiny = torch.tensor([1e30, 1e-30, 1e-30]), torch.tensor([0.0, 1e-30, 0.0, 0.0])
    for _ in range(20):
        drawn = draw_kernels([huge, tiny], (1, 2), 40.0, generator)
        assert drawn[0].tolist() == [0] and 1 in drawn[1].tolist()


# LSTMs.


class Reader(nn.Module):
    def __init__(self, kind: type[nn.LSTM] = nn.LSTM, **words: object) -> None:
        super().__init__()
        self.lstm = kind(5, 6, 2, batch_first=True, **words)
        self.fc = nn.Linear(6 * (1 + self.lstm.bidirectional), 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0][:, -1])


KINDS = [(nn.LSTM, {}), (Lstm, {}), (nn.LSTM, {"bidirectional": True}), (nn.LSTM, {"bias": False})]


@pytest.mark.parametrize(("kind", "words"), KINDS, ids=str)
def test_an_opened_lstm_is_the_same(kind: type[nn.LSTM], words: dict[str, object]) -> None:
    """To the bit, with gradients to every gate; 8 matrices a layer and direction, named predictably."""
    net = Reader(kind, **words)
    x = randn(3, 4, 5)
    expected = net(x)
    expected.sum().backward()
    stacked = torch.cat([p.grad.flatten() for p in net.parameters()]).sort().values
    opened = open_lstms(net)
    names = [name for name, _ in opened.named_parameters() if "weight" in name and "lstm" in name]
    assert names[:4] == [f"lstm.ih_l0.{gate}.weight" for gate in "ifgo"]
    assert len(names) == 8 * 2 * (2 if words.get("bidirectional") else 1)
    opened.zero_grad()
    found = opened(x)
    found.sum().backward()
    assert torch.equal(found, expected)
    gradients = torch.cat([p.grad.flatten() for p in opened.parameters()]).sort().values
    torch.testing.assert_close(gradients, stacked, rtol=0, atol=0)


@pytest.mark.parametrize("lstm", [Lstm, nn.LSTM])
@pytest.mark.parametrize("is_factorized", [False, True])
def test_an_opened_lstm_can_be_copied_after_a_pass_with_gradients(lstm: type[nn.Module], is_factorized: bool) -> None:
    """The copy computes with gates of its own: zeros there change nothing here. A pass that fails leaves no more."""
    net = open_lstms(Reader(lstm))
    if is_factorized:
        net = filled(factorize_net(net, plan_layers(net, Rule(1)), 0.5))
    x = randn(3, 4, 5)
    expected = net(x)
    expected.sum().backward()
    twin = copy.deepcopy(net)
    assert torch.equal(twin(x), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(x).any() and torch.equal(net(x), expected)
    with pytest.raises(RuntimeError):
        net(randn(3, 4, 7))
    assert torch.equal(copy.deepcopy(net)(x), expected)


def test_kernel_maps_by_hand() -> None:
    """PriSM's Figure 3. A 1 x 1 conv of diag(1, -3) behind a factor 2: kernel 0 answers to channel 1 with
    3 x 2 = 6 times the input, kernel 1 to channel 0 with 2 times. All maps of 3 x 3 kernels
    together have the output's energy."""
    net = nn.Sequential(nn.Conv2d(2, 2, 1, bias=False), nn.Conv2d(2, 2, 1))
    net[0].weight.data = 2 * torch.eye(2).view(2, 2, 1, 1)
    net[1].weight.data = torch.diag(torch.tensor([1.0, -3.0])).view(2, 2, 1, 1)
    inputs = torch.arange(8.0).view(1, 2, 2, 2)
    maps = kernel_maps(net, "1", inputs, 2)
    torch.testing.assert_close(maps.abs(), torch.stack([6 * inputs[:, 1], 2 * inputs[:, 0]], 1), rtol=1e-6, atol=0)

    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False)
    images = torch.randn(2, 3, 7, 7)
    maps = kernel_maps(nn.Sequential(conv), "0", images, 4)
    torch.testing.assert_close(maps.square().sum(1), conv(images).detach().square().sum(1), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(kernel_maps(nn.Sequential(conv), "0", images, 3), maps[:, :3])
