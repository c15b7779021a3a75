"""A part of `fedmpi plan --measure`: what `train.precision=bf16` would save here.

Some processors have no instructions for it.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi import costs
from fedmpi.config.schema import Config
from fedmpi.models import create

_LEAST_S = 1.0
# A step of so many forward MACs takes about a tenth of a second on a core with vectors of 512 bits.
_FORWARD_MACS = 2e9
_LEAST_EXAMPLES = 2


def bf16_share(config: Config, device: str) -> float | None:
    """The time of a training step's passes in bf16, as a share of that in float32, on `device` ("cpu" or "cuda").

    Forward and backward passes of the dense net on random values, in float32 and in bf16 in turn for about a second;
    the shortest of each are compared. The optimizer is left out, because it works in float32 in both. None where the
    net cannot be trained in bf16, as the user's own may be.
    """
    net, inputs = _net_and_inputs(config, device)
    targets = torch.zeros(len(inputs), dtype=torch.int64, device=device)

    def step_s(precision: torch.dtype) -> float:
        _wait_for(device)
        started = time.perf_counter()
        with torch.autocast(device, precision, enabled=precision != torch.float32):
            torch.autograd.backward(F.cross_entropy(net(inputs).float(), targets))
        _wait_for(device)
        return time.perf_counter() - started

    step_s(torch.float32)  # to warm up
    try:
        step_s(torch.bfloat16)
    except RuntimeError:
        return None
    ends = time.perf_counter() + _LEAST_S
    found: list[tuple[float, float]] = []
    while not found or time.perf_counter() < ends:
        found.append((step_s(torch.float32), step_s(torch.bfloat16)))
    fp32_s, bf16_s = map(min, zip(*found, strict=True))
    return bf16_s / max(fp32_s, 1e-9)


def _net_and_inputs(config: Config, device: str) -> tuple[nn.Module, Tensor]:
    info = config.data.used()
    net = create.build(config.model, info, config.seed)
    macs = costs.measure(net, info.example_shape).macs
    count = max(_LEAST_EXAMPLES, min(config.train.batch_size, int(_FORWARD_MACS / max(macs, 1))))
    shape = count, *info.example_shape
    if info.kind == "tokens":
        return net.to(device), torch.zeros(shape, dtype=torch.int64, device=device)
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(config.seed))
    if info.kind == "image" and config.train.memory_format == "channels_last":
        net, inputs = net.to(memory_format=torch.channels_last), inputs.to(memory_format=torch.channels_last)
    return net.to(device), inputs.to(device)


def _wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
