"""Named tensors in one flat buffer: what a net trains in, what travels, what is saved.

Every rank derives the `Layout` of a buffer from the config, so a message is the bytes alone. `views` never copies: one
collective moves all tensors, and nothing is unpacked afterwards (the idiom of epfml/powersgd's `pack` and `unpack`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmpi.errors import ConfigError, users_code

Params = dict[str, Tensor]
Region = tuple[slice | Tensor, ...] | Tensor
"""Entries of a tensor: slices, index tensors, or a mask."""
NOTHING: Region = (slice(0, 0),)
"""No entry of a tensor."""

# Every tensor begins on a cache line, so that vectorised kernels take the same path and give the same bits wherever the
# buffer lies. MPI counts messages in this unit, so that its 32-bit counts reach 128 GiB.
ALIGN_BYTES = 64

FROZEN = "_frozen_by_fedmpi"
"""The attribute of a net with the names of its buffers that were parameters and are not trained."""


@dataclass(frozen=True)
class Spec:
    """Shape and type of one tensor; `channels_last` lays an (O, I, H, W) kernel out as O, H, W, I."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.num_elements * self.dtype.itemsize


def total_bytes(tensors: Iterable[Spec | Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@dataclass(frozen=True)
class Layout:
    """Where each tensor lies in a flat buffer of `num_bytes` bytes."""

    specs: Mapping[str, Spec]
    offsets: Mapping[str, int]
    num_bytes: int

    @classmethod
    def of(cls, specs: Mapping[str, Spec]) -> Layout:
        offsets: dict[str, int] = {}
        end = 0
        for name, spec in specs.items():
            offsets[name] = end
            end += -(-spec.nbytes // ALIGN_BYTES) * ALIGN_BYTES
        return cls(dict(specs), offsets, end)

    def new_buffer(self, device: torch.device | str = "cpu") -> Tensor:
        """Returns a zeroed buffer of bytes, shape (num_bytes,)."""
        return torch.zeros(self.num_bytes, dtype=torch.uint8, device=device)

    def views(self, buffer: Tensor) -> Params:
        """Returns the named tensors that lie in `buffer` (uint8, at least num_bytes long, aligned)."""
        return {name: self._view(buffer, name) for name in self.specs}

    def _view(self, buffer: Tensor, name: str) -> Tensor:
        spec = self.specs[name]
        start = self.offsets[name]
        flat = buffer[start : start + spec.nbytes].view(spec.dtype)
        if spec.channels_last and len(spec.shape) == 4:
            out, inner, height, width = spec.shape
            return flat.view(out, height, width, inner).permute(0, 3, 1, 2)
        return flat.view(spec.shape)


def specs_of(tensors: Iterable[tuple[str, Tensor]], *, channels_last: bool) -> dict[str, Spec]:
    """Returns the specs of named tensors, kernels in the asked memory format."""
    return {name: Spec(tuple(t.shape), t.dtype, channels_last and t.dim() == 4) for name, t in tensors}


def frozen_values(net: nn.Module) -> dict[str, Tensor]:
    """Returns the values of a net that are not trained (`models.pretrained`), by name."""
    buffers = dict(net.named_buffers(remove_duplicate=False))
    return {name: buffers[name] for name in vars(net).get(FROZEN, ())}


def put_buffer(net: nn.Module, name: str, value: Tensor) -> None:
    """Puts a tensor in place of the buffer of this dotted name."""
    module, _, own = name.rpartition(".")
    net.get_submodule(module)._buffers[own] = value


def renew_parameters(net: nn.Module, make: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """Puts `make(name, value)` in place of each parameter; ties between layers stay. Returns the net."""
    new = {value: nn.Parameter(make(name, value), value.requires_grad) for name, value in net.named_parameters()}
    for part in net.modules():
        for own, value in [*part._parameters.items()]:
            if value is not None:
                setattr(part, own, new[value])
    return net


def copy_of(net: nn.Module, values: Mapping[int, Tensor] | None = None) -> nn.Module:
    """Returns a copy of the net with the same frozen values, and `values`, by `id`, for others. Raises ConfigError."""
    kept = {id(value): value for value in frozen_values(net).values()}
    for part in net.modules():
        # torch's weight norm keeps what it computes of parameters, which cannot be copied.
        kept |= {id(value): value for value in vars(part).values() if isinstance(value, Tensor) and not value.is_leaf}
    with users_code("model.name", "cannot be copied", ConfigError):
        return copy.deepcopy(net, {**kept, **(values or {})})


def keep_attributes(module: nn.Module, replaced: nn.Module) -> None:
    """Gives a module the attributes of the layer that it replaces: nets read its `out_features` or `stride`."""
    for name, value in vars(replaced).items():
        if not hasattr(module, name):
            setattr(module, name, value)


def linear_of(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """Returns a linear layer of copies of these values."""
    outputs, inputs = weight.shape
    # On the meta device no random numbers are drawn.
    layer = nn.Linear(inputs, outputs, bias=bias is not None, device="meta", dtype=weight.dtype)
    layer.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


def first_mismatch(tensors: Mapping[str, Tensor], specs: Mapping[str, Spec]) -> str:
    """Names the first tensor that has not the name, shape and type that `specs` gives it; '' if all fit."""
    found = {name: _shown(value) for name, value in tensors.items()}
    expected = {name: _shown(spec) for name, spec in specs.items()}
    for name in {**expected, **found}:
        if found.get(name) != expected.get(name):
            return f"{name} as {found.get(name, 'nothing')}, expected {expected.get(name, 'nothing')}"
    return ""


def _shown(spec: Spec | Tensor) -> str:
    return f"{str(spec.dtype).removeprefix('torch.')} {list(spec.shape)}"


def max_magnitudes(tensors: Iterable[Tensor]) -> Tensor:
    """Returns max|x| of each tensor as one float32 vector, read by a single synchronization; 0 for an empty tensor."""
    extremes = [_extremes(tensor) if tensor.numel() else tensor.new_zeros(2) for tensor in tensors]
    return torch.stack(extremes).abs().amax(1) if extremes else torch.zeros(0)


def _extremes(tensor: Tensor) -> Tensor:
    """Returns the smallest and the largest entry (2,), NaN if there is one; four times as fast as `vector_norm`."""
    if tensor.dim() == 4 and not tensor.is_contiguous():
        tensor = tensor.permute(0, 2, 3, 1)  # channels_last: `aminmax` would copy it
    return torch.stack(torch.aminmax(tensor))


def host_buffer(num_bytes: int, *, is_pinned: bool = False) -> Tensor:
    """Returns a buffer of bytes, shape (num_bytes,), with any content; a pinned one is page-locked, and opens a GPU."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=is_pinned)


def to_device(tensors: Params, device: torch.device | str) -> Params:
    """Moves the tensors to `device`, and waits: those that are there stay, the others cross in one piece."""
    device = torch.device(device)
    away = {name: value for name, value in tensors.items() if not _is_on(value, device)}
    if not away:
        return tensors
    layout = Layout.of({name: _spec_of(value) for name, value in away.items()})
    packed = torch.empty(layout.num_bytes, dtype=torch.uint8, device=next(iter(away.values())).device)
    for name, view in layout.views(packed).items():
        view.copy_(away[name])
    return {**tensors, **layout.views(packed.to(device))}


def _is_on(value: Tensor, device: torch.device) -> bool:
    return value.device.type == device.type and device.index in (None, value.device.index)


def _spec_of(value: Tensor) -> Spec:
    is_kernel = value.dim() == 4 and not value.is_contiguous()
    return Spec(tuple(value.shape), value.dtype, is_kernel and value.is_contiguous(memory_format=torch.channels_last))


def bytes_of(tensor: Tensor) -> Tensor:
    """Returns the bytes of the values, uint8, to compare bits: NaN equals NaN."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def region_on(region: Region, device: torch.device) -> Region:
    """Returns the same entries for tensors on `device`; index tensors and masks follow there without a wait."""
    if isinstance(region, Tensor):
        return region.to(device, non_blocking=True)
    return tuple(part if isinstance(part, slice) else part.to(device, non_blocking=True) for part in region)


def select(tensor: Tensor, region: Region) -> Tensor:
    """Returns `tensor[region]`, for a tensor on any device and a region on the host."""
    return tensor[region_on(region, tensor.device)]
