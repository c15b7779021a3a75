"""Draws what a conv's first principal kernels make of test images, as PriSM's Figure 3 (arXiv:2208.13141) does:

    python tests/examples/principal_kernels.py RUN NET LAYER FIGURE     # runs/prism server stages.0.0.conv1 kernels.pdf

Left is the image, the mean of its channels; then a column for each kernel.
"""

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi.export.nets import net_of_tier
from fedmpi.export.saved import saved_round
from fedmpi.lowrank.factorized import FactorizedLayer


@torch.no_grad()
def kernel_maps(net: nn.Module, name: str, inputs: Tensor, count: int) -> Tensor:
    """Returns what a dense conv's first `count` principal kernels make of `inputs` (B, ...): (B, count, H, W).

    Each map is sigma_i times the product with a kernel of length 1; the sign is arbitrary.
    """
    conv = net.get_submodule(name)
    assert isinstance(conv, nn.Conv2d)
    arriving: list[Tensor] = []
    handle = conv.register_forward_pre_hook(lambda module, arguments: arriving.append(arguments[0]))
    net(inputs)
    handle.remove()
    u, _, sigma = FactorizedLayer.of(name, conv, "output", None).decompose(conv.weight, count)
    kernels = u * sigma[: len(u)].sqrt().view(-1, 1, 1, 1)
    return F.conv2d(arriving[0], kernels, None, conv.stride, conv.padding, conv.dilation)


def drawn(run: str, net: str, layer: str, num_images: int = 4, num_kernels: int = 3) -> Figure:
    """Draws the run's first test images, and the maps of a layer of the net of this name in its records."""
    saved = saved_round(Path(run), "last")
    images, _ = saved.setup.data.test_batch(0, num_images)
    maps = kernel_maps(net_of_tier(saved, net, dense=True).net, layer, images, num_kernels)
    figure = Figure(figsize=(1.5 * (1 + num_kernels), 1.5 * num_images))
    rows = figure.subplots(num_images, 1 + num_kernels, squeeze=False)
    for axes, image, responses in zip(rows, images, maps, strict=True):
        for place, values in zip(axes, (image.mean(0).numpy(), *responses.numpy()), strict=True):
            place.imshow(values, cmap="gray")
            place.axis("off")
    return figure


if __name__ == "__main__":
    *which, path = sys.argv[1:]
    drawn(*which).savefig(path)
