"""Convs that oneDNN computes wrongly, and what computes the same."""

from torch import Tensor, nn
from torch.nn import functional as F

# Inputs that oneDNN's AVX2 kernels take at a time.
_BLOCK = 8


def subsample_before_narrow_convs(module: nn.Module) -> None:
    """Makes each strided 1 x 1 conv of fewer than 8 inputs drop the pixels that it skips, then compute with stride 1.

    Without AVX-512, oneDNN's gradient of such a kernel writes past its workspace when memory is channels_last
    (github.com/uxlfoundation/oneDNN/issues/6035). Narrow ResNets have such shortcuts.
    """
    for part in module.modules():
        if type(part) is nn.Conv2d and part.kernel_size == (1, 1) and part.stride != (1, 1) and part.padding == (0, 0):
            part.__class__ = Strided


class Strided(nn.Conv2d):
    """Such a conv; exports turn it into torch's own again (`as_torch_has_it`)."""

    def forward(self, images: Tensor) -> Tensor:
        """Maps (B, C, H, W) to (B, out, H', W')."""
        if self.weight.shape[1] >= _BLOCK:
            return super().forward(images)
        rows, columns = self.stride
        return F.conv2d(images[..., ::rows, ::columns], self.weight, self.bias, groups=self.groups)


def as_torch_has_it(part: nn.Module) -> None:
    """Gives a `Strided` conv torch's own class again; other modules stay."""
    if isinstance(part, Strided):
        object.__setattr__(part, "__class__", nn.Conv2d)
