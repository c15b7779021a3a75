"""Which layers are factorized, at which rank, and the nets that come out."""

from types import SimpleNamespace

import pytest
import torch
from model_inputs import params
from torch import nn
from torch.nn.utils import parametrizations

from fedmpi.errors import ConfigError
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.modules import LowRank, factorize_net
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.models import create
from fedmpi.models.nets.resnet import ResNet18, ResNet34
from fedmpi.models.options import Model

INFO = SimpleNamespace(kind="image", example_shape=(3, 32, 32), num_classes=10)


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
    with pytest.raises(ConfigError, match=message):
        plan_layers(Zoo(), Rule(0, overrides=overrides))


def test_rank_of_a_layer() -> None:
    """max(1, round(ratio * n)), at most min(M, N); paper: M = m * kh, N = n * kw."""
    assert [FactorizedLayer("c", 64, 64, (3, 3)).r(ratio) for ratio in (0.5, 0.25, 0.125, 1 / 12)] == [32, 16, 8, 5]
    assert FactorizedLayer("c", 64, 5, (3, 3)).r(0.01) == 1
    assert FactorizedLayer("c", 2, 64, (3, 3)).r(0.5) == 6
    assert FactorizedLayer("c", 2, 64, (3, 3), fixed=100).r(0.5) == 6
    assert FactorizedLayer("f", 100, 10, None, fixed=0.5).r(0.1) == 5


def test_ratio_1_is_the_untouched_net() -> None:
    net = Zoo()
    copied = factorize_net(net, plan_layers(net, Rule(0)), 1)
    assert copied is not net and not any(isinstance(module, LowRank) for module in copied.modules())
    assert all(torch.equal(value, copied.state_dict()[name]) for name, value in net.state_dict().items())


def test_factor_nets_keep_everything_else_and_draw_nothing() -> None:
    """Keys and shapes as planned, dense tensors equal, the given net as it was, no random numbers."""
    net, generator = Zoo().eval(), torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    layers = plan_layers(net, Rule(0))
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
