"""Nets that were trained before: where their values are from, and which parameters stay as they are.

A parameter that is not trained becomes a buffer of its name. So no upload, sum, optimizer or checkpoint has it, and the
net computes with it as before. Every rank makes these values (from the file, or by the seed), the ranks compare their
digest, and on a node they lie in memory once.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedmpi.config.fields import AT_ROUND
from fedmpi.errors import ConfigError, type_in_words
from fedmpi.models.options import Model
from fedmpi.store import hdf5
from fedmpi.store.files import user_path
from fedmpi.store.units import size
from fedmpi.tensors import FROZEN, bytes_of, frozen_values, keep_attributes, put_buffer

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_SHOWN = 3
_WRITE = "where it was made, write torch.save(net.state_dict(), FILE)"
_WRAPPERS = ("module.", "_orig_mod.")
"""What DataParallel and torch.compile put before all names."""

_values: dict[str, Tensor] = {}
"""`digest_of` a frozen tensor, with its name -> its one copy in this process."""


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
        self._parameters.update(norm._parameters)
        self._buffers.update(norm._buffers)

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
    where a name, a shape or a value is none for the net."""
    source = _read(options)
    kept = net.state_dict(keep_vars=True)
    _refuse_unmatched("model.weights_skip", options.weights_skip, {**kept, **source}, "tensor")
    found = {name: value for name, value in source.items() if not _matches(name, options.weights_skip)}
    needed = {name: value for name, value in kept.items() if not _matches(name, options.weights_skip)}
    values = {name: value for name, value in found.items() if name in needed or not name.endswith(_STATISTICS)}
    _refuse_unfit(values, needed, options)
    with torch.no_grad():
        for name, value in values.items():
            needed[name].copy_(value)
            if not needed[name].isfinite().all():
                problem = f"{options.weights} has values in {name} that are not finite in {needed[name].dtype}"
                raise ConfigError("model.weights", f"{problem}; take values from before the training diverged")


def _refuse_unfit(values: Mapping[str, Tensor], needed: Mapping[str, Tensor], options: Model) -> None:
    """Raises `ConfigError` for names, shapes and types that are not those of the net."""
    # A BatchNorm that is not frozen makes statistics of its own.
    may_lack = _STATISTICS[-1:] if getattr(options, "norm", "") == "frozen" else _STATISTICS
    given = {id(needed[name]) for name in values if name in needed}  # of layers that share a weight a file may have one
    missing = [name for name, own in needed.items() if id(own) not in given and not name.endswith(may_lack)]
    unknown = [name for name in values if name not in needed]
    differing = [
        f"{name} as {_kind(value)}, the net's is {_kind(needed[name])}"
        for name, value in values.items()
        if name in needed and _kind(value) != _kind(needed[name])
    ]
    todo = "model.weights_skip leaves names out (fc.*)"
    if checkpoint := _of_run(options.weights):
        run = checkpoint.parents[1]
        todo += f"; fedmpi export {run} --format safetensors writes a net alone and whole, whatever method made it"
    if unknown and len(missing) > len(given):
        todo = "its names are another net's; read it in your class or function (from_pretrained)"
    if any(name.endswith(_STATISTICS) for name in missing):
        todo = "model.norm=frozen keeps running statistics; a run's checkpoint has none, an export of it has"
    for what, names in (("lacks", missing), ("has", differing), ("has what the net has not:", unknown)):
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise ConfigError("model.weights", f"{options.weights} {what} {', '.join(names[:_SHOWN])}{more}; {todo}")


def _kind(value: Tensor) -> str:
    """Returns what a value must have in common with the net's: `(3, 4) floats`."""
    return f"{tuple(value.shape)} {'floats' if value.is_floating_point() else 'integers'}"


def _read(options: Model) -> Mapping[str, Tensor]:
    """Reads a file of safetensors or of `torch.save`, or the newest or a given round of a run. Raises `ConfigError`."""
    text = options.weights
    path = Path(user_path(text))
    if not path.is_file():
        if checkpoint := _of_run(text):
            return hdf5.read_tensors(checkpoint, "checkpoint")[1].get("server", {})
        path = options.fetched_weights() or path
    if not path.is_file():
        allowed = "a file of safetensors or torch.save, a run's folder, or FOLDER@ROUND"
        raise ConfigError("model.weights", f"{text}: no such file or run; allowed: {allowed}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # What torch wrote before 1.6, as some of torchvision's files, is no zip file and cannot be mapped.
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except Exception as error:  # a damaged file does so to its reader
        problem = f"({size(path.stat().st_size)}) is damaged, or of another format; fetch or write it anew"
        if objects := re.search(r"GLOBAL (\S+)", str(error)):
            problem = f"holds {objects[1]}, more than tensors, so that reading it may run code; {_WRITE}"
        raise ConfigError("model.weights", f"{text} {problem}") from error
    return _state_dict(found, text)


def _state_dict(found: Any, text: str) -> Mapping[str, Tensor]:
    """Returns a state dict, its names without what DataParallel and torch.compile put before them."""
    if not isinstance(found, Mapping) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        keys = f" ({', '.join(map(str, [*found][:_SHOWN]))})" if isinstance(found, Mapping) else ""
        raise ConfigError("model.weights", f"{text} holds {type_in_words(found)}{keys}, no state dict; {_WRITE}")
    for prefix in _WRAPPERS:
        if all(name.startswith(prefix) for name in found):
            return {name.removeprefix(prefix): value for name, value in found.items()}
    return found


def _of_run(text: str) -> Path | None:
    """Returns the checkpoint of `RUN` (the newest) or `RUN@ROUND`; None if there is no such run. Raises `ConfigError`
    for a round that is not kept."""
    match = None if Path(text).is_dir() else AT_ROUND.fullmatch(text)
    folder = Path(user_path(match[1] if match else text)) / "checkpoints"
    kept = {int(path.stem.removeprefix("round-")): path for path in folder.glob(f"round-{'[0-9]' * 6}.h5")}
    if not kept:
        return None
    number = int(match[2]) if match else max(kept)
    if number not in kept:
        rounds = f"kept: {', '.join(map(str, sorted(kept)))} (output.keep_checkpoints)"
        raise ConfigError("model.weights", f"{text}: round {number} is not kept; {rounds}")
    return kept[number]


# What is trained.


def freeze(net: nn.Module, options: Model) -> nn.Module:
    """Makes buffers of the parameters that are not trained, in place. Raises `ConfigError` for a pattern of
    `model.trained` that no parameter matches, and where nothing would be trained."""
    named = dict(net.named_parameters(remove_duplicate=False))
    patterns = () if options.trained == "none" else options.trained
    _refuse_unmatched("model.trained", patterns, named, "parameter")
    for pattern in patterns:
        matched = [name for name in named if fnmatchcase(name, pattern)]
        if not any(named[name].requires_grad for name in matched):
            problem = f"'{pattern}' names {matched[0]}, which the net itself keeps from training (requires_grad=False)"
            raise ConfigError("model.trained", f"{problem}; change it there, or leave the pattern out")
    trained = {
        id(value)
        for name, value in named.items()
        if value.requires_grad and (not options.trained or _matches(name, patterns))
    }
    frozen = {name: value for name, value in named.items() if id(value) not in trained}
    buffers = {id(value): value.detach() for value in frozen.values()}  # ties stay
    for name, value in frozen.items():
        module, _, own = name.rpartition(".")
        net.get_submodule(module)._parameters.pop(own, None)  # a layer of two names comes twice
        put_buffer(net, name, buffers[id(value)])
    if frozen:
        vars(net)[FROZEN] = tuple(frozen)
    return net


def untrained(net: nn.Module, options: Model) -> tuple[str, ...]:
    """Returns a line where parameters have initial values in place of `model.weights` and are not trained."""
    lost = [name for name in frozen_values(net) if options.weights and _matches(name, options.weights_skip)]
    if not lost:
        return ()
    names = f"{', '.join(lost[:_SHOWN])}{', ...' if len(lost) > _SHOWN else ''}"
    return (f"model.weights_skip: {names} have random values, which nobody trains; let model.trained name them, too",)


def _refuse_unmatched(key: str, patterns: Iterable[str], names: Collection[str], what: str) -> None:
    """Raises `ConfigError` for a pattern that none of these names matches."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            close = difflib.get_close_matches(pattern, names, 1) or [*names][-1:]
            raise ConfigError(key, f"no {what} matches '{pattern}'; did you mean {close[0]}?")


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# One copy.


def with_one_copy(net: nn.Module) -> nn.Module:
    """Puts what this process has already in place of equal frozen values: the nets of all tiers share them."""
    for name, value in frozen_values(net).items():
        put_buffer(net, name, _values.setdefault(digest_of({name: value}), value))
    return net


def digest_of(values: Mapping[str, Tensor]) -> str:
    """Returns a digest of names, shapes and bytes, 64 bits in hex; '' for no values."""
    state = blake2b(digest_size=8)
    for name, value in values.items():
        state.update(repr((name, str(value.dtype), tuple(value.shape))).encode())
        state.update(bytes_of(value).cpu().numpy().data)
    return state.hexdigest() if values else ""


def copies() -> dict[str, np.ndarray]:
    """Returns the bytes of the frozen values of this process, by a name for each."""
    return {digest: bytes_of(value).numpy() for digest, value in _values.items()}


def use_copies(arrays: Mapping[str, np.ndarray]) -> None:
    """Puts arrays of the same bytes and names in place of `copies`; nets that are made from then on have them."""
    for digest, value in _values.items():
        if digest in arrays:
            _values[digest] = torch.from_numpy(arrays[digest]).view(value.dtype).view(value.shape)


def forget() -> None:
    """Drops the copies; nets keep theirs."""
    _values.clear()
