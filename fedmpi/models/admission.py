"""The one door through which every net enters: built in, torchvision's, or a user's own.

Ranks train one client after another with the same modules, and only parameters are loaded, sent and
averaged. So nothing else may change in training, and every tensor of a net is a parameter that is
trained or a registered buffer that stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from fedmpi.errors import ConfigError
from fedmpi.models.surgery.norm import use_batch_statistics, with_running_statistics


def admit(net: nn.Module, model: str) -> nn.Module:
    """The net as it may be trained: its norm layers without running statistics, in place.

    Raises `ConfigError` for what the rest of fedmpi cannot load, move or average; it names the module.
    """
    for name, part in net.named_modules():
        for problem in _problems(part):
            raise refusal(model, net, name, problem)
    return use_batch_statistics(net)


def refusal(model: str, net: nn.Module, module: str, problem: str) -> ConfigError:
    """The error of a net that is not admitted; `module` is the dotted name of the one at fault."""
    kind = type(net.get_submodule(module)).__name__
    return ConfigError(
        "model.name", f"'{model}': {f'module {module!r}' if module else 'the net itself'} ({kind}) {problem}"
    )


def conversions(net: nn.Module) -> tuple[str, ...]:
    """What `admit` will change in this net, one line at most."""
    layers = with_running_statistics(net)
    if not layers:
        return ()
    kinds = Counter(type(layer).__name__ for _, layer in layers)
    found = " and ".join(f"{count} {kind}" for kind, count in kinds.items())
    return (
        f"the running statistics of {found} (the first: {layers[0][0] or 'the net itself'}) are not used: they would "
        "depend on who trained before on the same rank; each batch is normalized by its own statistics, see evaluation.bn",
    )


def _problems(part: nn.Module) -> Iterator[str]:
    """What is wrong with a module itself, its children left aside."""
    if isinstance(part, LazyModuleMixin):
        yield "has no shape before it has seen data; give it its sizes"
    for name, value in part.named_parameters(recurse=False):
        if not value.requires_grad:
            yield f"has a frozen parameter {name!r}, but all parameters are trained; make it a buffer (register_buffer)"
        elif value.dtype != torch.float32:
            yield f"has a parameter {name!r} of type {value.dtype}; allowed: torch.float32"
    for name, value in vars(part).items():
        # torch's weight and spectral norm compute such an attribute from parameters before each pass.
        is_computed = isinstance(value, Tensor) and (value.requires_grad or f"{name}_orig" in part._parameters)
        if isinstance(value, Tensor) and not is_computed:
            yield f"keeps the tensor {name!r} as a plain attribute, which is not moved with it; use register_buffer"
