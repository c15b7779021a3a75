"""Nets that were trained before: where their values are from, and which parameters stay as they are.

A parameter that is not trained becomes a buffer of its name. So no upload, sum, optimizer or checkpoint has it, and the
net computes with it as before. Every rank makes these values (from the file, or by the seed), the ranks compare their
digest, and on a node they lie in memory once.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedmpi.config.fields import AT_ROUND
from fedmpi.errors import ConfigError, users_code
from fedmpi.models.options import Model
from fedmpi.store import hdf5
from fedmpi.store.files import user_path
from fedmpi.tensors import FROZEN, frozen_values, keep_attributes, put_buffer

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_SHOWN = 3

_values: dict[tuple[str, str], Tensor] = {}
"""(name, digest) -> the one copy of a frozen tensor in this process."""


class KeptStatistics(nn.Module):
    """A BatchNorm that normalizes with its running statistics, in training too, and never changes them."""

    running_mean: Tensor
    running_var: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        keep_attributes(self, norm)
        for name in ("weight", "bias"):
            self.register_parameter(name, norm._parameters[name])
        for name in _STATISTICS:
            self.register_buffer(name, norm._buffers[name])

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


def with_kept_statistics(net: nn.Module) -> nn.Module:
    """Puts `KeptStatistics` in place of each BatchNorm with running statistics. Raises `ConfigError` without any."""
    norms = {name: part for name, part in net.named_modules() if isinstance(part, _BatchNorm)}
    kept = {name: norm for name, norm in norms.items() if norm.track_running_stats}
    if not kept:
        raise ConfigError("model.norm", "frozen, but this net has no BatchNorm with running statistics; allowed: batch")
    for name, norm in kept.items():
        net.set_submodule(name, KeptStatistics(norm))
    return net


# Values.


def load(net: nn.Module, options: Model) -> None:
    """Copies `model.weights` into the net, except the tensors that `model.weights_skip` names. Raises `ConfigError`
    where a name or a shape is not the net's."""
    found = {name: value for name, value in _read(options).items() if not _matches(name, options.weights_skip)}
    kept = net.state_dict(keep_vars=True)
    needed = {name: value for name, value in kept.items() if not _matches(name, options.weights_skip)}
    values = {name: value for name, value in found.items() if name in needed or not name.endswith(_STATISTICS)}
    # A BatchNorm that is not frozen makes statistics of its own.
    may_lack = _STATISTICS[-1:] if getattr(options, "norm", "") == "frozen" else _STATISTICS
    missing = [name for name in needed if name not in values and not name.endswith(may_lack)]
    unknown = [name for name in values if name not in needed]
    differing = [
        f"{name} as {tuple(value.shape)}, the net's is {tuple(needed[name].shape)}"
        for name, value in values.items()
        if name in needed and value.shape != needed[name].shape
    ]
    skip = "model.weights_skip leaves names out (fc.*)"
    if _of_run(options.weights):
        skip += "; of a run that trained a part, fedmpi export --format safetensors writes the whole net"
    if any(name.endswith(_STATISTICS) for name in missing):
        skip = "model.norm=frozen keeps running statistics; a run's checkpoint has none, an export of it has"
    for what, names in (("lacks", missing), ("has", differing), ("has what the net has not:", unknown)):
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise ConfigError("model.weights", f"{options.weights} {what} {', '.join(names[:_SHOWN])}{more}; {skip}")
    with torch.no_grad():
        for name, value in values.items():
            needed[name].copy_(value)


def _read(options: Model) -> Mapping[str, Tensor]:
    """Reads a file of safetensors or of `torch.save`, or the newest or a given round of a run. Raises `ConfigError`."""
    text = options.weights
    path = Path(user_path(text))
    with users_code("model.weights", f"{text} cannot be read", ConfigError):  # a damaged file does so to its reader
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        if path.is_file():
            return _state_dict(torch.load(path, map_location="cpu", weights_only=True, mmap=True), text)
        if checkpoint := _of_run(text):
            return hdf5.read_tensors(checkpoint, "checkpoint")[1]["server"]
    if fetched := options.fetched_weights():
        return _state_dict(torch.load(fetched, map_location="cpu", weights_only=True, mmap=True), text)
    allowed = "a file of safetensors or torch.save, a run's folder, or FOLDER@ROUND"
    raise ConfigError("model.weights", f"{text}: no such file or run; allowed: {allowed}")


def _state_dict(found: Any, text: str) -> Mapping[str, Tensor]:
    if isinstance(found, Mapping) and found and all(isinstance(value, Tensor) for value in found.values()):
        return found
    raise ConfigError("model.weights", f"{text} holds no state dict; write torch.save(net.state_dict(), FILE)")


def _of_run(text: str) -> Path | None:
    """Returns the checkpoint of `RUN` (the newest) or `RUN@ROUND`; None if there is none."""
    match = None if Path(text).is_dir() else AT_ROUND.fullmatch(text)
    folder = Path(user_path(match[1] if match else text)) / "checkpoints"
    name = f"round-{int(match[2]):06d}.h5" if match else "round-*.h5"
    return max(folder.glob(name), default=None)


# What is trained.


def freeze(net: nn.Module, options: Model) -> nn.Module:
    """Makes buffers of the parameters that are not trained, in place. Raises `ConfigError` for a pattern of
    `model.trained` that no parameter matches, and where nothing would be trained."""
    named = dict(net.named_parameters(remove_duplicate=False))
    patterns = () if options.trained == "none" else options.trained
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            close = difflib.get_close_matches(pattern, named, 1) or [*named][-1:]
            raise ConfigError("model.trained", f"no parameter matches '{pattern}'; did you mean {close[0]}?")
    trained = {
        id(value)
        for name, value in named.items()
        if value.requires_grad and (not options.trained or _matches(name, patterns))
    }
    frozen = [name for name, value in named.items() if id(value) not in trained]
    buffers = {id(named[name]): named[name].detach() for name in frozen}  # ties stay
    for name in frozen:
        module, _, own = name.rpartition(".")
        part = net.get_submodule(module)
        del part._parameters[own]
        part.register_buffer(own, buffers[id(named[name])])
    if frozen:
        vars(net)[FROZEN] = tuple(frozen)
    return net


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# One copy.


def with_one_copy(net: nn.Module) -> nn.Module:
    """Puts what this process has already in place of equal frozen values: the nets of all tiers share them."""
    for name, value in frozen_values(net).items():
        put_buffer(net, name, _values.setdefault((name, digest_of({name: value})), value))
    return net


def digest_of(values: Mapping[str, Tensor]) -> str:
    """Returns a digest of names, shapes and bytes, 64 bits in hex; '' for no values."""
    state = blake2b(digest_size=8)
    for name, value in values.items():
        state.update(repr((name, str(value.dtype), tuple(value.shape))).encode())
        state.update(value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return state.hexdigest() if values else ""


def copies() -> dict[str, Tensor]:
    """Returns the frozen values of this process, by a name for each."""
    return {f"{name} {digest}": value for (name, digest), value in _values.items()}


def use_copies(arrays: Mapping[str, np.ndarray]) -> None:
    """Puts arrays of the same values and names in place of `copies`; nets that are made from then on have them."""
    for name, digest in [*_values]:
        if (found := arrays.get(f"{name} {digest}")) is not None:
            _values[name, digest] = torch.from_numpy(found)


def forget() -> None:
    """Drops the copies; nets keep theirs."""
    _values.clear()
