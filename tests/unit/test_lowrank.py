"""Layers as two factors: the truncated SVD, full rank as the identity, decay as the gradient, which layers, at which
rank, and the nets that come out; principal kernels; LSTMs gate by gate."""

import copy
import itertools
import re
from collections import Counter

import pytest
import torch
from data_fixtures import refusal
from examples.principal_kernels import kernel_maps
from model_inputs import Info, at_full_rank, params, randn
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.kernels import draw_kernels, effective_number, refreshed, singular_values
from fedmpi.lowrank.modules import LowRank, factorize_net, kernel_net, open_lstms
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.lowrank.svd import truncated_svd
from fedmpi.models import create
from fedmpi.models.nets.lstm import Lstm
from fedmpi.models.nets.resnet import ResNet18, ResNet34
from fedmpi.models.options import Model

all_orders = pytest.mark.parametrize("unroll", ["paper", "code", "output"])
both_formats = pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])

LAYERS = [
    nn.Conv2d(6, 10, 3, padding=1, bias=False),
    nn.Conv2d(6, 10, 3, stride=2, padding=1),
    nn.Conv2d(6, 10, 5, stride=2, padding=2),
    nn.Conv2d(6, 10, (3, 1), stride=(2, 1), padding=(1, 0)),
    nn.Conv2d(6, 10, (1, 7), padding=(0, 3)),
    nn.Conv2d(6, 10, (2, 3), stride=(1, 2), padding=(0, 2)),
    nn.Conv2d(6, 10, 3, padding=2, dilation=2),
    nn.Conv2d(6, 10, 3, stride=(2, 1), padding=(3, 1), dilation=(3, 1)),
]


@all_orders
@both_formats
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_full_rank_conv_gives_the_same_maps(layer: nn.Conv2d, unroll: str, memory_format: torch.memory_format) -> None:
    dense = nn.Sequential(layer).to(memory_format=memory_format)
    factored = at_full_rank(dense, Rule(0, unroll)).to(memory_format=memory_format)
    x = randn(2, 6, 13, 12).to(memory_format=memory_format)
    torch.testing.assert_close(factored(x), dense(x), rtol=0, atol=1e-5)


def test_full_rank_linear_gives_the_same_outputs() -> None:
    dense = nn.Sequential(nn.Linear(9, 14), nn.Linear(14, 3))
    factored = at_full_rank(dense, Rule(0))
    assert isinstance(factored[0], LowRank) and isinstance(factored[1], nn.Linear)
    x = randn(5, 9)
    torch.testing.assert_close(factored(x), dense(x), rtol=0, atol=1e-5)


def naive_matrix(weight: torch.Tensor, unroll: str) -> torch.Tensor:
    """The orders of axes, written out: paper (1, 2, 0, 3) -> (mk, nk), code (0, 2, 1, 3) -> (nk, mk),
    PriSM n x mk^2."""
    if unroll == "output":
        return weight.flatten(1)
    axes = (1, 2, 0, 3) if unroll == "paper" else (0, 2, 1, 3)
    shuffled = weight.permute(axes)
    return shuffled.reshape(shuffled.shape[0] * shuffled.shape[1], -1)


@all_orders
@pytest.mark.parametrize("kernel", [(3, 3), (5, 3), (1, 3)])
def test_lifted_kernel_is_the_truncated_svd(unroll: str, kernel: tuple[int, int]) -> None:
    weight = randn(12, 8, *kernel)
    layer = FactorizedLayer("conv", 8, 12, kernel, unroll)
    u, v, _ = layer.decompose(weight, 4)
    lifted = layer.lift(u, v)
    assert lifted.shape == weight.shape and lifted.is_contiguous()
    assert torch.equal(layer.lifted(u, v), lifted)
    left, sigma, right = torch.linalg.svd(naive_matrix(weight, unroll).double(), full_matrices=False)
    truncated = (left[:, :4] * sigma[:4]) @ right[:4]
    torch.testing.assert_close(naive_matrix(lifted, unroll).double(), truncated, rtol=0, atol=1e-5)


@all_orders
@both_formats
def test_unroll_and_fold_are_inverse(unroll: str, memory_format: torch.memory_format) -> None:
    layer = FactorizedLayer("conv", 4, 5, (3, 2), unroll)
    weight = randn(5, 4, 3, 2).to(memory_format=memory_format)
    assert layer.unroll(weight).shape == layer.matrix_shape
    assert torch.equal(layer.fold(layer.unroll(weight)), weight)


@all_orders
@pytest.mark.parametrize("kernel", [None, (3, 3), (1, 5), (1, 1)])
def test_frobenius_decay_is_the_gradient(unroll: str, kernel: tuple[int, int] | None) -> None:
    """(coefficient / 2) ||U V||_F^2 differentiated by autograd, on top of the gradient that is there."""
    layer = FactorizedLayer("layer", 5, 7, kernel, unroll)
    values = [randn(*shape, seed=seed).double() for seed, shape in enumerate([layer.u_shape(3), layer.v_shape(3)] * 2)]
    if kernel:
        values = [value.contiguous(memory_format=torch.channels_last) for value in values]
        assert layer.u_matrix(values[0]).data_ptr() == values[0].data_ptr()
        assert layer.v_matrix(values[1]).data_ptr() == values[1].data_ptr()
    params, grads = (dict(zip(layer.factor_names, half, strict=True)) for half in (values[:2], values[2:]))
    u, v = (value.requires_grad_() for value in params.values())
    penalty = 0.5 * 0.3 * (layer.u_matrix(u) @ layer.v_matrix(v)).square().sum()
    slopes = torch.autograd.grad(penalty, (u, v))
    expected = [given + slope for given, slope in zip(grads.values(), slopes, strict=True)]
    layer.add_decay(params, grads, 0.3)
    torch.testing.assert_close([*grads.values()], expected, rtol=0, atol=1e-12)


# The truncated SVD, by both solvers.


both_solvers = pytest.mark.parametrize("solver", ["exact", "gram"])


def decaying(rows: int, columns: int, decay: float) -> torch.Tensor:
    """Singular values decay^0, decay^1, ...: what trained layers look like."""
    k = min(rows, columns)
    left, _ = torch.linalg.qr(randn(rows, k).double())
    right, _ = torch.linalg.qr(randn(columns, k, seed=1).double())
    return ((left * decay ** torch.arange(k).double()) @ right.t()).float()


@both_solvers
@pytest.mark.parametrize("matrix", [randn(96, 48), randn(40, 90), decaying(60, 60, 0.8)])
@pytest.mark.parametrize("r", [1, 7, 20])
def test_error_is_the_optimum(solver: str, matrix: torch.Tensor, r: int) -> None:
    """Eckart-Young: the squared error is the sum of the squared singular values cut off. Float32 factors move it by at
    most about 1e-6 of the matrix's norm (eps = 6e-8, times r terms). Columns of u and rows of v are orthogonal, of norm
    sqrt(sigma_i)."""
    u, v, _ = truncated_svd(matrix, r, solver)
    sigma = torch.linalg.svdvals(matrix.double())
    error = (u.double() @ v.double() - matrix).norm()
    assert abs(error - sigma[r:].norm()) <= 1e-6 * matrix.norm()
    for product in (u.t() @ u, v @ v.t()):
        torch.testing.assert_close(product, torch.diag(sigma[:r]).float(), rtol=1e-5, atol=1e-4)


@both_solvers
@pytest.mark.parametrize("shape", [(33, 64), (64, 33)])
def test_prefix_property_to_the_bit(solver: str, shape: tuple[int, int]) -> None:
    matrix = randn(*shape)
    u, v, _ = truncated_svd(matrix, 20, solver)
    for r in (1, 5, 19):
        small_u, small_v, _ = truncated_svd(matrix, r, solver)
        assert torch.equal(small_u, u[:, :r]) and torch.equal(small_v, v[:r])


@both_solvers
def test_signs_follow_the_rule(solver: str) -> None:
    """The largest entry of each column of u is positive, so that negating the matrix negates v alone."""
    matrix = randn(24, 17)
    u, v, _ = truncated_svd(matrix, 9, solver)
    assert (u.gather(0, u.abs().argmax(dim=0, keepdim=True)) > 0).all()
    negated_u, negated_v, _ = truncated_svd(-matrix, 9, solver)
    torch.testing.assert_close(negated_u, u, rtol=0, atol=1e-4)
    torch.testing.assert_close(negated_v, -v, rtol=0, atol=1e-4)


def test_gram_is_at_least_as_exact_as_the_float32_svd() -> None:
    """The measure behind the default: singular values (squared column norms) against float64's."""
    matrix = randn(192, 192)
    truth = torch.linalg.svdvals(matrix.double())[:32]

    def worst(solver: str) -> float:
        u, *_ = truncated_svd(matrix, 32, solver)
        return ((u.double().square().sum(dim=0) - truth).abs() / truth).max().item()

    assert worst("gram") <= worst("exact") <= 1e-5
    assert worst("gram") <= 1e-7


@both_solvers
def test_types_and_errors(solver: str) -> None:
    assert truncated_svd(randn(4, 5).bfloat16(), 2, solver)[0].dtype == torch.float32
    assert truncated_svd(randn(4, 5).double(), 2, solver)[1].dtype == torch.float64
    with pytest.raises(ValueError, match="at least 1"):
        truncated_svd(randn(4, 5), 0, solver)
    with pytest.raises(torch.linalg.LinAlgError):
        truncated_svd(torch.full((4, 5), float("nan")), 2, solver)


@both_solvers
def test_zero_and_rank_deficient_matrices(solver: str) -> None:
    """Components that the matrix does not have stay below the rounding of the ones that it has."""
    u, v, _ = truncated_svd(torch.zeros(6, 9), 4, solver)
    assert (u == 0).all() and (v == 0).all()
    matrix = randn(40, 3) @ randn(3, 25, seed=1)
    u, v, _ = truncated_svd(matrix, 8, solver)
    torch.testing.assert_close(u @ v, matrix, rtol=0, atol=1e-5)
    assert u[:, 3:].norm() < 1e-2 and v[3:].norm() < 1e-2


# Which layers are factorized.


INFO = Info("image", (3, 32, 32), 10)


def names(net: nn.Module, rule: Rule) -> list[str]:
    return [layer.name for layer in plan_layers(net, rule)]


@pytest.mark.parametrize(("options", "count"), [(ResNet18(), 14), (ResNet34(), 18)])
def test_rho_of_the_papers(options: Model, count: int) -> None:
    """One SVD for each factorized conv, R18 14 and R34 18; 1x1 shortcuts and FC stay dense."""
    planned = names(create.skeleton(options, INFO), Rule(options.dense_layers))
    assert len(planned) == count
    assert not any("shortcut" in name or name == "fc" for name in planned)
    assert planned[0] == {14: "stages.0.1.conv1", 18: "stages.2.0.conv1"}[count]


def test_every_conv_at_rank_k() -> None:
    """FedHM's Fig. 8, "2 %": 17 convs at r = 3 and nothing else factorized.

    9 (m + n) each: stem 603; 4 * 1,152; then (1,728 + 3 * 2,304) * (1 + 2 + 4) = 60,480; with shortcuts
    172,032, BN 9,600 and FC 5,130 that is 252,453, 2.3 % of 11,173,962.
    """
    net = create.skeleton(ResNet18(), INFO)
    layers = plan_layers(net, Rule(0, overrides={"*conv*": 3}))
    assert len(layers) == 17
    assert params(factorize_net(net, layers, 0.5)) == 603 + 4 * 1152 + 60480 + 172032 + 9600 + 5130


class Zoo(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Conv2d(4, 8, 3, padding=2, dilation=2)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.grouped = nn.Conv2d(8, 8, 3, groups=2, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8, padding=1)
        self.reflecting = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        self.same = nn.Conv2d(8, 8, 3, padding="same")
        self.tied = nn.Conv2d(8, 8, 3, padding=1)
        self.tied_again = self.tied
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.hidden = nn.Linear(8, 8)
        self.out = nn.Linear(8, 3)


def test_layers_by_type() -> None:
    assert names(Zoo(), Rule(0)) == ["plain", "hidden"]
    assert names(Zoo(), Rule(1)) == ["hidden"]


def test_overrides_beat_type_and_position() -> None:
    layers = plan_layers(Zoo(), Rule(1, overrides={"hidden": "dense", "p[lo]*": 0.25, "out": 2, "*": 7}))
    fixed = {layer.name: layer.fixed for layer in layers}
    assert fixed == {"plain": 0.25, "pointwise": 0.25, "out": 2}
    assert [layer.r(0.5) for layer in layers] == [2, 2, 2]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"hiden": 0.5}, r"no layer matches 'hiden'\. Did you mean 'hidden'\?"),
        ({"grouped": 0.5}, "'grouped' cannot be factorized: Conv2d"),
        ({"tied": 0.5}, "'tied' cannot be factorized"),
    ],
)
def test_impossible_overrides(overrides: dict[str, object], message: str) -> None:
    assert re.search(message, refusal(lambda: plan_layers(Zoo(), Rule(0, overrides=overrides))))


def test_rank_of_a_layer() -> None:
    """max(1, round(ratio * n)), at most min(M, N); paper: M = m * kh, N = n * kw."""
    assert [FactorizedLayer("c", 64, 64, (3, 3)).r(ratio) for ratio in (0.5, 0.25, 0.125, 1 / 12)] == [32, 16, 8, 5]
    assert FactorizedLayer("c", 64, 5, (3, 3)).r(0.01) == 1
    assert FactorizedLayer("c", 2, 64, (3, 3)).r(0.5) == 6
    assert FactorizedLayer("c", 2, 64, (3, 3), fixed=100).r(0.5) == 6
    assert FactorizedLayer("f", 100, 10, None, fixed=0.5).r(0.1) == 5


def test_factor_nets_keep_everything_else_and_draw_nothing() -> None:
    """Keys and shapes as planned, dense tensors equal, the given net as it was, no random numbers. At ratio 1 the net
    is a copy."""
    net, generator = Zoo().eval(), torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    layers = plan_layers(net, Rule(0))
    copied = factorize_net(net, layers, 1)
    assert copied is not net and not any(isinstance(module, LowRank) for module in copied.modules())
    assert all(torch.equal(before[name], value) for name, value in copied.state_dict().items())
    result = factorize_net(net, layers, 0.5)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    state = result.state_dict()
    for layer in layers:
        assert state[f"{layer.name}.u.weight"].shape == layer.u_shape(layer.r(0.5))
        assert state[f"{layer.name}.v.weight"].shape == layer.v_shape(layer.r(0.5))
        assert torch.equal(state.pop(f"{layer.name}.bias"), before.pop(f"{layer.name}.bias"))
        del state[f"{layer.name}.u.weight"], state[f"{layer.name}.v.weight"], before[f"{layer.name}.weight"]
    assert state.keys() == before.keys() and all(torch.equal(state[name], before[name]) for name in before)
    assert not any(module.training for module in result.modules())


def test_a_weight_that_is_computed_stays_dense_and_is_not_read() -> None:
    """Spectral norm cannot compute it from a buffer that lies elsewhere, as in a net of shapes alone."""
    computed = parametrizations.spectral_norm(nn.Linear(8, 8))
    net = nn.Sequential(computed, nn.Linear(8, 8), nn.Linear(8, 4))
    for name, parameter in list(computed.parametrizations.weight.named_parameters()):
        setattr(computed.parametrizations.weight, name, nn.Parameter(parameter.to("meta")))
    assert names(net, Rule(0)) == ["1"]


# Principal kernels: sub-layers, the product that stays, which kernels are drawn.


def filled(net: nn.Module, seed: int = 1) -> nn.Module:
    """Random numbers in every parameter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return net


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
