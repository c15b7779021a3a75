"""Convs that oneDNN computes wrongly, and what computes the same."""

from __future__ import annotations

from torch import Tensor, nn

# Inputs that oneDNN's AVX2 kernels take at a time.
_BLOCK = 8


def subsample_before_narrow_convs(module: nn.Module) -> None:
    """Makes each strided 1 x 1 conv of fewer than 8 inputs drop the pixels that it skips, then compute with stride 1.

    On CPUs with AVX2 and no AVX-512, oneDNN's gradient of such a conv's kernel writes past its workspace when memory is
    channels_last, and the process dies or computes nonsense (github.com/uxlfoundation/oneDNN/issues/6035). Narrow nets
    of ResNets have such shortcuts.
    """
    for part in module.modules():
        if isinstance(part, nn.Conv2d) and _is_affected(part):
            part.register_forward_pre_hook(_Subsample(part.stride))
            part.stride = (1, 1)


def _is_affected(conv: nn.Conv2d) -> bool:
    has_stride_alone = conv.kernel_size == (1, 1) and conv.padding == (0, 0) and conv.stride != (1, 1)
    return has_stride_alone and conv.in_channels // conv.groups < _BLOCK


class _Subsample:
    """A forward pre-hook that takes every `stride`-th row and column of (B, C, H, W)."""

    def __init__(self, stride: tuple[int, ...]) -> None:
        self.stride = stride

    def __call__(self, module: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        rows, columns = self.stride
        return inputs[0][..., ::rows, ::columns]
