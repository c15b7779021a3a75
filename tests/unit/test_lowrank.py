"""Layers as two factors: full rank is the identity, truncation is the truncated SVD, decay is the gradient."""

import pytest
import torch
from model_inputs import at_full_rank, randn
from torch import nn

from fedmpi.lowrank.decay import decay_layers_
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.modules import LowRank
from fedmpi.lowrank.rule import Rule

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
def test_unroll_and_fold_are_inverse_and_factors_round_trip(unroll: str, memory_format: torch.memory_format) -> None:
    layer = FactorizedLayer("conv", 4, 5, (3, 2), unroll)
    weight = randn(5, 4, 3, 2).to(memory_format=memory_format)
    assert layer.unroll(weight).shape == layer.matrix_shape
    assert torch.equal(layer.fold(layer.unroll(weight)), weight)
    u, v = randn(*layer.u_shape(6)), randn(*layer.v_shape(6))
    u, v = u.to(memory_format=memory_format), v.to(memory_format=memory_format)
    if memory_format == torch.channels_last:
        assert layer.u_matrix(u).data_ptr() == u.data_ptr() and layer.v_matrix(v).data_ptr() == v.data_ptr()


@all_orders
@pytest.mark.parametrize("kernel", [None, (3, 3), (1, 5), (1, 1)])
def test_frobenius_decay_is_the_gradient(unroll: str, kernel: tuple[int, int] | None) -> None:
    """(coefficient / 2) ||U V||_F^2 differentiated by autograd, on top of the gradient that is there."""
    layer = FactorizedLayer("layer", 5, 7, kernel, unroll)
    values = [randn(*shape, seed=seed).double() for seed, shape in enumerate([layer.u_shape(3), layer.v_shape(3)] * 2)]
    if kernel:
        values = [value.contiguous(memory_format=torch.channels_last) for value in values]
    params, grads = (dict(zip(layer.factor_names, half, strict=True)) for half in (values[:2], values[2:]))
    u, v = (value.requires_grad_() for value in params.values())
    penalty = 0.5 * 0.3 * (layer.u_matrix(u) @ layer.v_matrix(v)).square().sum()
    slopes = torch.autograd.grad(penalty, (u, v))
    expected = [given + slope for given, slope in zip(grads.values(), slopes, strict=True)]
    decay_layers_([layer], params, grads, 0.3)
    torch.testing.assert_close([*grads.values()], expected, rtol=0, atol=1e-12)
