"""The accelerator `pretend`: ordinary torch tensors of another device, computed in the CPU's memory by its kernels.

A tensor of it is a host tensor whose DLPack capsule was relabelled: same memory, another device. So autograd, views,
optimizers and refusals are torch's own, the bits are the CPU's, and nothing is compiled. Kernels: torch's composite
ones where it has them for every device, else `_on_the_host`, which relabels the arguments, calls the CPU's kernel and
relabels what it returns. Beside the tensors go events, in `log`: allocations, copies and waits.

Differences from a GPU. Work is done at once, so a missing wait does not show. What torch computes for other devices
from smaller operators has their rounding: scaled dot product attention. It has no LSTM cells.
Strict where CUDA copies silently: index tensors must be on the device.
"""

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils import backend_registration

NAME = "pretend"
NUM_DEVICES = 2
IS_POSSIBLE = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
"""Older versions of torch register a device in C++ only."""

_HOST, _OTHER = 1, 12
"""DLPack's numbers for the CPU and for torch's PrivateUse1."""
_CPU_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_LIBRARIES: list[torch.library.Library] = []
"""A library that is collected takes its kernels with it."""


@dataclass(frozen=True)
class Event:
    """An allocation on the device (`new`), a copy `up` to it, `down` or `across`, or a `wait` of the host for it."""

    kind: str
    num_bytes: int
    operator: str
    where: tuple[str, ...]
    """The functions of fedmpi that led to it, the innermost last, as `module.function`."""
    on_host: int = 0
    """Where the host's memory of a copy begins."""


@dataclass
class Log:
    """What happened on the device since `begin`, in order."""

    events: list[Event] = field(default_factory=list)
    is_on: bool = False

    def note(self, kind: str, num_bytes: int, operator: object, on_host: int = 0) -> None:
        if self.is_on and (num_bytes or kind == "wait"):
            self.events.append(Event(kind, num_bytes, str(operator), _callers(), on_host))

    @contextmanager
    def kept(self) -> Iterator[list[Event]]:
        """The events within the block."""
        self.events, self.is_on = [], True
        try:
            yield self.events
        finally:
            self.is_on = False


log = Log()


def of(events: Sequence[Event], *kinds: str, within: str = "") -> list[Event]:
    """Those of these kinds that a function called `module.function` led to."""
    return [event for event in events if event.kind in kinds and (not within or within in event.where)]


def _callers() -> tuple[str, ...]:
    frame, found = sys._getframe(2), []
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("fedmpi."):
            found.append(f"{module.removeprefix('fedmpi.')}.{frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(reversed(found))


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Managed(ctypes.Structure):
    """The beginning of DLPack's DLManagedTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("device", _Device)]


_address = ctypes.pythonapi.PyCapsule_GetPointer
_address.restype = ctypes.c_void_p
_address.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _relabelled(tensor: Tensor, kind: int, index: int) -> Tensor:
    """The same memory as a tensor of another device; it keeps the memory alive."""
    capsule = torch._C._to_dlpack(tensor)
    device = _Managed.from_address(_address(capsule, b"dltensor")).device
    device.type, device.index = kind, index
    found: Tensor = torch._C._from_dlpack(capsule)
    # DLPack makes the stride of an axis of length 1 a 1, but memory formats are read off the strides.
    return found if found.stride() == tensor.stride() else found.as_strided(tensor.size(), tensor.stride())


def is_pretend(value: object) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


def _host(tensor: Tensor) -> Tensor:
    """The memory of a tensor as the host's; an empty one gets a storage that a kernel can resize."""
    if not tensor.numel():
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    return _relabelled(tensor, _HOST, 0)


def _new(value: Any, operator: object, index: int) -> Any:
    """What a kernel has returned: a tensor becomes the device's."""
    if not isinstance(value, Tensor):
        return value
    log.note("new", value.numel() * value.itemsize, operator)
    return _relabelled(value, _OTHER, index)


def _on_the_host(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the CPU's kernel on the memory of the device's tensors. Raises RuntimeError for host tensors among them but
    0-dim ones, as the 2 of `x * 2` is.
    """
    flat, spec = pytree.tree_flatten((args, kwargs))
    index = _index_of(operator, flat)
    if _WAITS & set(operator.tags):
        log.note("wait", 0, operator)
    with torch._C._AutoDispatchBelowAutograd():
        on_host = [_host(value) if is_pretend(value) else _cpu_for(value) for value in flat]
        host_args, host_kwargs = pytree.tree_unflatten(on_host, spec)
        host_args = _with_tensors(operator, host_args)
        found = operator(*host_args, **host_kwargs)
        returns = operator._schema.returns
        values = (found,) if len(returns) == 1 else found or ()
        kept = [
            _written(operator, place, value, args, kwargs, index)
            if returned.alias_info is not None
            else pytree.tree_map(partial(_new, operator=operator, index=index), value)
            for place, (returned, value) in enumerate(zip(returns, values, strict=True))
        ]
    return kept[0] if len(kept) == 1 else tuple(kept) or None


_WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def _index_of(operator: Any, flat: Sequence[Any]) -> int:
    """The number of the one device that all arguments name."""
    tensors = [value for value in flat if isinstance(value, Tensor)]
    devices = {value.device for value in tensors if is_pretend(value)}
    devices |= {value for value in flat if isinstance(value, torch.device) and value.type == NAME}
    numbers = torch.Tag.pointwise in operator.tags
    hosts = [value for value in tensors if not is_pretend(value) and not (numbers and value.dim() == 0)]
    if len(devices) > 1 or hosts:
        raise RuntimeError(f"{operator} mixes {', '.join(str(value.device) for value in tensors)}")
    return devices.pop().index or 0


def _with_tensors(operator: Any, args: Sequence[Any]) -> list[Any]:
    """The arguments, numbers that stand for tensors (of `x % 2`, say) as such again."""
    kinds = [argument.type.kind() == "TensorType" for argument in operator._schema.arguments]
    return [  # a Python float has 64 bits
        torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
        if is_tensor and isinstance(value, (int, float))
        else value
        for is_tensor, value in zip(kinds, args, strict=False)
    ]


def _cpu_for(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _written(operator: Any, place: int, value: Tensor, args: Sequence[Any], kwargs: dict[str, Any], index: int) -> Any:
    """The argument that the kernel has written into and returned; one that was empty takes the result as its memory."""
    schema = operator._schema
    alias = schema.returns[place].alias_info
    assert alias.is_write, f"{operator} returns a view and needs a kernel of its own"
    number, argument = next(
        (number, argument)
        for number, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.before_set & alias.before_set
    )
    target = args[number] if number < len(args) else kwargs[argument.name]
    if target.shape != value.shape:
        assert not target.numel(), f"{operator} resizes {list(target.shape)}"
        fresh = _new(value, operator, index)
        torch.ops.aten.set_.source_Tensor.redispatch(_CPU_KERNELS, target, fresh)
    return target


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """`target.copy_(source)`, one of them on the device; as with CUDA the host waits unless it asks not to."""
    operator, num_bytes = "copy", source.numel() * source.itemsize
    if is_pretend(source) and is_pretend(target):
        if source.device != target.device:
            log.note("across", num_bytes, operator)
    else:
        on_host = source if is_pretend(target) else target
        log.note("up" if is_pretend(target) else "down", num_bytes, operator, on_host.data_ptr())
        if num_bytes and not non_blocking:
            log.note("wait", num_bytes, operator)
    with torch._C._AutoDispatchBelowAutograd():
        reads, writes = (_host(tensor) if is_pretend(tensor) else tensor for tensor in (source, target))
        writes.copy_(reads)
    return target


def _item(tensor: Tensor) -> Any:
    log.note("wait", tensor.itemsize, "item")
    return _host(tensor).item()


def _convolution(*args: Any) -> Any:
    return _on_the_host(torch.ops.aten.convolution.default, *args)


def _convolution_backward(gradient: Tensor, inputs: Tensor, weight: Tensor, *args: Any) -> Any:
    *_, is_transposed, _, groups, _ = args
    channels = [weight.shape[1] * groups if is_transposed else weight.shape[0]]
    operator = torch.ops.aten.convolution_backward.default
    return _on_the_host(operator, gradient, inputs, weight, channels, *args)


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


_VIEWS = ("as_strided", "view", "_reshape_alias", "unfold", "set_.source_Storage_storage_offset", "set_.source_Tensor")
"""The CPU's kernels of these make another tensor on the same storage, whatever device that is of."""
_COMPOSITE = ("native_layer_norm", "native_group_norm")
"""torch composes these for devices without kernels; the CPU's own have other bits."""


_Module = SimpleNamespace(
    is_initialized=lambda: True,
    is_available=lambda: True,
    current_device=lambda: 0,
    device_count=lambda: NUM_DEVICES,
    _is_in_bad_fork=lambda: False,
    synchronize=lambda chosen=None: None,
    manual_seed_all=lambda seed: None,
)
"""What `torch.pretend` is: work is done at once, and kernels draw from the CPU's generator."""


@cache
def register() -> None:
    """Makes `torch.device("pretend")` known to this process, for ever."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module)
    rest = torch.library.Library("_", "IMPL", "PrivateUse1")
    rest.fallback(_on_the_host)
    autocast = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    autocast.fallback(torch.library.fallthrough_kernel)
    aten = torch.library.Library("aten", "IMPL", "PrivateUse1")
    kernels = {name: partial(_operator(name).redispatch, _CPU_KERNELS) for name in _VIEWS}
    kernels |= {name: partial(_on_the_host, _operator(name)) for name in _COMPOSITE}
    kernels |= {
        "_copy_from": _copy_from,
        "_local_scalar_dense": _item,
        "convolution_overrideable": _convolution,
        "convolution_backward_overrideable": _convolution_backward,
    }
    for name, kernel in kernels.items():
        aten.impl(name, kernel)
    _LIBRARIES.extend((rest, autocast, aten))


@contextmanager
def available() -> Iterator[None]:
    """Within the block the device computes gradients, too: in the thread that asks for them, because torch starts
    its threads for devices once, at a process's first backward pass, when this one may be unknown yet.
    """
    register()
    with torch.autograd.set_multithreading_enabled(False):
        yield
