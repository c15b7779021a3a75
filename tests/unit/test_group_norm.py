"""GroupNorm in place of BatchNorm: by hand, sizes and widths, examples that do not see their batch, what is refused."""

import pytest
import torch
from model_inputs import Info, params, randn
from torch import nn

from fedmpi.errors import ConfigError
from fedmpi.learning.bn import num_statistics
from fedmpi.models import create
from fedmpi.models.nets.resnet import ResNet18, ResNet34
from fedmpi.models.nets.shared import with_group_norm
from fedmpi.models.nets.torchvision_nets import Torchvision
from fedmpi.models.options import Model

CIFAR10, CIFAR100 = Info("image", (3, 32, 32), 10), Info("image", (3, 32, 32), 100)


def test_four_groups_by_hand() -> None:
    """Channels 1, 3 | 2, 8 | 0, 4 | 5, 7 of one pixel: each group's mean is 2, 5, 2 and 6, its deviation 1, 3, 2, 1."""
    net = with_group_norm(nn.Sequential(nn.BatchNorm2d(8, eps=0.0)))
    x = torch.tensor([1.0, 3.0, 2.0, 8.0, 0.0, 4.0, 5.0, 7.0]).view(1, 8, 1, 1)
    assert net(x).flatten().tolist() == pytest.approx([-1, 1] * 4)


@pytest.mark.parametrize(
    ("options", "info", "size", "norms"),
    [
        (ResNet18(norm="group"), CIFAR10, 11_173_962, 20),
        (ResNet18(norm="group", order="pre"), CIFAR10, 11_172_170, 17),
        (ResNet34(norm="group"), CIFAR100, 21_328_292, 36),
        (Torchvision(name="torchvision:resnet18", norm="group"), Info(num_classes=1000), 11_689_512, 20),
    ],
)
def test_it_has_the_parameters_of_batch_norm(options: Model, info: Info, size: int, norms: int) -> None:
    """Two numbers a channel, either way: the stem's norm, two in each block, and (post) one in each of 3 shortcuts."""
    net = create.skeleton(options, info)
    found = [part for part in net.modules() if isinstance(part, nn.GroupNorm)]
    assert params(net) == size and len(found) == norms and {part.num_groups for part in found} == {4}
    assert not list(net.buffers()) and num_statistics(net) == 0


@pytest.mark.parametrize("order", ["post", "pre"])
def test_an_example_does_not_see_its_batch(order: str) -> None:
    """As it does with BatchNorm."""
    x = randn(4, 1, 8, 8)
    for norm, is_alone in (("group", True), ("batch", False)):
        net = create.build(ResNet18(width=0.125, blocks=(1, 1), order=order, norm=norm), Info(), 0)
        together, alone = net(x), torch.cat([net(example[None]) for example in x])
        assert together.shape == (4, 4) and torch.allclose(together, alone, atol=1e-5) == is_alone


@pytest.mark.parametrize(
    ("options", "width", "said"),
    [
        (ResNet18(norm="group"), 0.35, "22 channels of bn1 equally; choose another width, or batch$"),
        (Torchvision(name="torchvision:vgg16", norm="group"), 1.0, "no BatchNorm"),
    ],
)
def test_refusals(options: Model, width: float, said: str) -> None:
    with pytest.raises(ConfigError, match=f"model.norm.*{said}"):
        create.skeleton(options, CIFAR10, width)
