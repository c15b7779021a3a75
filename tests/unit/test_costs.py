"""Costs against the papers' figures, against an independent count, and of the small nets by hand."""

import pytest
import torch
from fast import fast
from model_inputs import Info
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedmpi import costs, registry
from fedmpi.data.dataset import DataInfo
from fedmpi.lowrank.modules import factorize_net, kernel_net, open_lstms
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.models import create
from fedmpi.models.nets.resnet import ResNet18, ResNet34
from fedmpi.models.nets.torchvision_nets import Torchvision
from fedmpi.models.options import Model
from fedmpi.models.trial import examples_of

MILLION = 1e6
SHAPE = (3, 32, 32)


def tier_net(options: Model, num_classes: int, rank_ratio: float) -> nn.Module:
    net = create.skeleton(options, Info("image", SHAPE, num_classes))
    return factorize_net(net, plan_layers(net, Rule(options.dense_layers)), rank_ratio)


@pytest.mark.parametrize(
    ("options", "num_classes", "rank_ratio", "params", "plain", "notebook"),
    [
        (ResNet18(), 10, 1, 11_173_962, 555.42, 557.22),
        (ResNet18(), 10, 0.5, 4_157_514, 259.72, 261.52),
        (ResNet18(), 10, 0.25, 2_209_866, 171.64, 173.44),
        (ResNet18(), 10, 0.125, 1_236_042, 127.60, 129.40),
        (ResNet34(), 100, 1, 21_328_292, 1159.45, 1162.47),
        (ResNet34(), 100, 0.5, 8_401_316, 744.21, 747.24),
        (ResNet34(), 100, 0.25, 4_985_252, 630.97, 633.99),
        (ResNet34(), 100, 0.125, 3_277_220, 574.34, 577.37),
        (ResNet34(), 100, 1 / 12, 2_707_748, 555.17, 558.20),
    ],
)
def test_totals_of_the_papers(
    options: Model, num_classes: int, rank_ratio: float, params: int, plain: float, notebook: float
) -> None:
    """In millions, to the two digits given: "plain" is convs and FC, "notebook" adds norms, ReLUs and pooling."""
    measured = costs.measure(tier_net(options, num_classes, rank_ratio), SHAPE)
    assert measured.params == params
    assert measured.macs / MILLION == pytest.approx(plain, abs=0.0051)
    assert measured.macs_with_norm_and_activations / MILLION == pytest.approx(notebook, abs=0.0051)


def test_plain_macs_as_integers() -> None:
    """ResNet-18 by hand: stem, stage 1; stages 2-4 cost 3.5/4 of stage 1 and a shortcut each; FC."""
    stage1 = 4 * 1024 * 9 * 64 * 64
    shortcut = 256 * 64 * 128
    by_hand = 1024 * 27 * 64 + stage1 + 3 * (stage1 * 7 // 8 + shortcut) + 512 * 10
    assert costs.measure(tier_net(ResNet18(), 10, 1), SHAPE).macs == by_hand == 555_422_720


def flops_by_torch(net: nn.Module, shape: tuple[int, ...], num_examples: int) -> int:
    """FlopCounterMode's, of a real pass on the meta device."""
    kind = torch.int64 if any(isinstance(module, nn.Embedding) for module in net.modules()) else torch.float32
    on_meta = {name: tensor.detach().to("meta") for name, tensor in (*net.named_parameters(), *net.named_buffers())}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        torch.func.functional_call(net, on_meta, (torch.empty(num_examples, *shape, dtype=kind, device="meta"),))
    return counter.get_total_flops()


INPUTS = {
    "image": DataInfo("image", (3, 32, 32), 10, 1, 1),
    "tokens": DataInfo("tokens", (6,), 5, 1, 1, vocabulary_size=9),
    "vector": DataInfo("vector", (7,), 6, 1, 1),
}

BUILT_IN = [name for name in registry.BUILT_IN["model"] if not name.endswith(":")]


def test_counting_draws_nothing() -> None:
    net, before = nn.Sequential(nn.Flatten(), nn.Dropout()), torch.get_rng_state()
    costs.macs_of(net, torch.zeros(3, 4), costs.MacCounter())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("form", ["dense", "low rank", "kernels"])
@pytest.mark.parametrize("name", fast(*BUILT_IN, of=[*BUILT_IN, "torchvision:swin_t", "torchvision:densenet121"]))
def test_passes_cost_what_torch_counts(name: str, form: str) -> None:
    """Every net of the registry, convs in groups, attention in windows; of 2 and of 3 examples, with its hooks."""
    options = Torchvision(name=name) if ":" in name else registry.options("model", name)()
    info = INPUTS[options.kinds[0]]
    net = create.skeleton(options, info)
    if form != "dense":
        layers = plan_layers(open_lstms(net), Rule())
        sizes = {layer.name: (2, 3) for layer in layers}
        net = kernel_net(net, sizes) if form == "kernels" else factorize_net(net, layers, 0.25)
    light = costs.weightless(net, torch.device("cpu"))
    for count in (2, 3):
        inputs = examples_of(info)[:count]
        assert 2 * costs.macs_of(light, inputs, costs.MacCounter()) == flops_by_torch(net, info.example_shape, count)


def test_activation_bytes_and_extras_by_hand() -> None:
    """conv 3x4x4 -> 2x4x4: 32 outputs; BN 32; in-place ReLU adds no memory; pool 2; flatten 2; FC 5: 73 floats.

    Extras: BN 2*32, ReLU 32, pool inputs 32. MACs: 32*27 + 2*5.
    """
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 5)]
    net = nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(inplace=True), *pool)
    measured = costs.measure(net, (3, 4, 4))
    assert measured == costs.Costs(3 * 2 * 9 + 2 + 4 + 15, 874, 874 + 64 + 32 + 32, 4 * 73)


def test_a_block_under_three_names_is_left_as_it_is() -> None:
    """Its products count three times, its 4 * 4 + 4 parameters once."""
    block = nn.Linear(4, 4)
    net, x = nn.Sequential(block, nn.ReLU(), block, block), torch.ones(2, 4)
    before = net(x)
    assert costs.measure(net, (4,)) == costs.Costs(20, 48, 52, 4 * 16) and torch.equal(net(x), before)


class ForEachExample(nn.Linear):
    """Calls itself once an example."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([super(ForEachExample, self).forward(example) for example in x])


def test_a_layer_that_is_called_for_each_example() -> None:
    """Its products are counted, of no layer."""
    measured = costs.measure(nn.Sequential(ForEachExample(4, 3)), (4,))
    assert (measured.params, measured.macs) == (15, 12) and sum(layer.macs for layer in measured.layers) == 12
