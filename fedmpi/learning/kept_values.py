"""What a net or a loss keeps from one call to the next, as values that compare: numbers, texts, tensors, lists of them.

A counter in a plain attribute changes no result for a while, so comparing results does not find it.
"""

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from hashlib import blake2b
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmpi.tensors import bytes_of

_OF_TORCH = frozenset(vars(nn.Module()))


def attributes_of(net: nn.Module) -> dict[tuple[str, str], object]:
    """Returns the plain attributes by module and name, those of the modules' own classes, too."""
    kept: dict[tuple[str, str], object] = {}
    for module, part in net.named_modules():
        for name, value in {**vars(type(part)), **vars(part)}.items():
            if name not in _OF_TORCH:
                kept[module, name] = _comparable(value)
    return kept


def variables_of(function: Callable[..., Any]) -> object:
    """Returns the variables from outside that a function reads, and its defaults; of another object its attributes."""
    if not inspect.isfunction(function):
        return _comparable(getattr(function, "__dict__", {}))
    outside = inspect.getclosurevars(function)
    return _comparable([outside.nonlocals, outside.globals, function.__defaults__, function.__kwdefaults__])


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Returns a digest of the bytes of these tensors."""
    digest = blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(bytes_of(tensor).cpu().numpy().data)
    return digest.hexdigest()


def _comparable(value: object) -> object:
    """Returns a value that equals another one if both hold the same; only the type of what is not plain."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.shape, blake2b(value.tobytes(), digest_size=8).hexdigest()
    if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta:
        return tuple(value.shape), digest_of([value])
    if isinstance(value, Mapping):
        return [(_comparable(key), _comparable(entry)) for key, entry in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return [_comparable(entry) for entry in value]
    if isinstance(value, Set):
        return sorted(repr(entry) for entry in value if isinstance(entry, (str, Number)))
    return repr(value) if isinstance(value, (str, bytes, Number, np.generic)) else type(value).__name__
