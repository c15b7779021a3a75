"""HeteroFL's Scaler: a larger eps is the division, by hand and against a literal one; and when it is off."""

import copy

import pytest
import torch
from model_inputs import Info
from torch import Tensor, nn

from fedmpi.models import create
from fedmpi.models.options import ResNet18
from fedmpi.models.surgery.scaler import add_scaler

RATE = 0.25


class Literal(nn.Module):
    """x / rate, then the layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x / RATE)


def norm_net(norm: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).double()


def gradients(net: nn.Module, x: Tensor) -> list[Tensor]:
    (net(x) ** 2).sum().backward()
    return [parameter.grad for parameter in net.parameters()]


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(4, eps=0.1, track_running_stats=False),
        nn.InstanceNorm2d(4, eps=0.1, affine=True),
        nn.GroupNorm(2, 4, eps=0.1),
        nn.LayerNorm((6, 6), eps=0.1),
    ],
)
def test_a_larger_eps_is_the_division(norm: nn.Module) -> None:
    """Forward and backward, with an eps that matters; float64, so only rounding is left."""
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    plain, literal = norm_net(copy.deepcopy(norm)), norm_net(copy.deepcopy(norm))
    literal.load_state_dict(plain.state_dict())
    scaled = add_scaler(copy.deepcopy(plain), RATE)
    literal[1] = Literal(literal[1])
    torch.testing.assert_close(scaled(x), literal(x), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(scaled(x), plain(x), rtol=1e-3)
    for ours, theirs in zip(gradients(scaled, x), gradients(literal, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_before_batch_norm_it_changes_nothing_up_to_eps() -> None:
    """var / (var + eps) of x and of x / p differ by less than eps / var, here 1e-5 / var; methods.md 15."""
    net = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False))
    x = 2 * torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).double()
    plain = net.double()(x).detach()
    scaled = add_scaler(net, RATE)(x)
    assert not torch.equal(scaled, plain)
    torch.testing.assert_close(scaled, plain, rtol=float(1e-5 / x.var(0).min()), atol=0)


def test_without_norm_layers_it_stands_after_all_but_the_last() -> None:
    """Weights 2, 3, 5 and biases 1: ((1 * 2 + 1) / 0.25 * 3 + 1) / 0.25 * 5 + 1 = 741."""
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    for layer, weight in zip((net[0], net[2], net[4]), (2.0, 3.0, 5.0), strict=True):
        nn.init.constant_(layer.weight, weight)
        nn.init.constant_(layer.bias, 1.0)
    one = torch.ones(1, 1)
    assert net(one).item() == ((1 * 2 + 1) * 3 + 1) * 5 + 1 == 51
    assert add_scaler(net, RATE)(one).item() == 741
    assert net.eval()(one).item() == 51


def test_it_is_off_without_gradients_and_in_eval() -> None:
    """BatchNorm statistics are re-estimated in train mode without gradients, after training and before a test."""
    options = ResNet18(width=0.125, blocks=(1, 1))

    net = create.build(options, Info(), 0)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eps = 0.1
    plain = copy.deepcopy(net)
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert add_scaler(net, RATE) is net
    assert not torch.allclose(net(x), plain(x), rtol=1e-3)
    with torch.no_grad():
        assert torch.equal(net(x), plain(x))
    assert torch.equal(net.eval()(x), plain.eval()(x))
    assert not torch.allclose(net.train()(x), plain.train()(x), rtol=1e-3)


def test_the_widest_net_has_none() -> None:
    net = add_scaler(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)), 1.0)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())
