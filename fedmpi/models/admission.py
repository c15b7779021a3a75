"""The one door through which every net enters: built in, torchvision's, or a user's own.

Ranks train one client after another with the same modules, and only parameters are loaded, sent and
averaged. So nothing else may change in training, and every tensor of a net is a parameter that is
trained or a registered buffer that stays as it is.
"""

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.lazy import LazyModuleMixin

from fedmpi.errors import ConfigError


def admit(net: nn.Module, model: str) -> nn.Module:
    """Returns the net as it may be trained: its norm layers without running statistics, in place.

    They normalize with the statistics of their inputs (BatchNorm: of the batch) in training and in evaluation, which
    re-estimates those of the whole training set where they are wanted. A running mean would be state that no method
    sends: the next client on the same rank would get it.

    Raises `ConfigError` for what the rest of fedmpi cannot load, move or average; it names the module.
    """
    for name, part in net.named_modules():
        for problem in _problems(part):
            raise refusal(model, net, name, problem)
    for _, layer in _with_running_statistics(net):
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return net


def _with_running_statistics(net: nn.Module) -> list[tuple[str, _NormBase]]:
    """Returns the norm layers that keep running statistics, with their dotted names."""
    layers = [(name, part) for name, part in net.named_modules() if isinstance(part, _NormBase)]
    return [(name, part) for name, part in layers if part.track_running_stats]


def as_module(made: object, model: str) -> nn.Module:
    """Returns what a model's options have made, if it is a net at all. Raises `ConfigError`."""
    if not isinstance(made, nn.Module):
        found = "nothing" if made is None else f"a value of type {type(made).__name__}"
        raise ConfigError("model.name", f"'{model}' gives {found}; expected a torch.nn.Module")
    return made


def refusal(model: str, net: nn.Module, module: str, problem: str) -> ConfigError:
    """Returns the error of a net that is not admitted; `module` is the dotted name of the one at fault."""
    kind = type(net.get_submodule(module)).__name__
    return ConfigError(
        "model.name", f"'{model}': {f'module {module!r}' if module else 'the net itself'} ({kind}) {problem}"
    )


def conversions(net: nn.Module) -> tuple[str, ...]:
    """Returns what `admit` will change in this net, one line at most."""
    layers = _with_running_statistics(net)
    if not layers:
        return ()
    kinds = Counter(type(layer).__name__ for _, layer in layers)
    found = " and ".join(f"{count} {kind}" for kind, count in kinds.items())
    first = layers[0][0] or "the net itself"
    why = "they would depend on who trained before on the same rank"
    instead = "each batch is normalized by its own statistics, see evaluation.bn"
    return (f"the running statistics of {found} (the first: {first}) are not used: {why}; {instead}",)


def _problems(part: nn.Module) -> Iterator[str]:
    """Yields what is wrong with a module itself, its children left aside."""
    if isinstance(part, LazyModuleMixin):
        yield "has no shape before it has seen data; give it its sizes"
    if isinstance(part, torch.jit.ScriptModule) or hasattr(part, "_orig_mod"):
        yield "is compiled, so its layers cannot be followed; give the module as it was before"
    for name, value in part.named_parameters(recurse=False):
        if value.dtype != torch.float32:
            yield f"has a parameter {name!r} of type {value.dtype}; allowed: torch.float32"
        elif not value.numel():
            yield f"has a parameter {name!r} without entries; leave it out"
        elif value._backward_hooks or value._post_accumulate_grad_hooks:
            yield f"has a hook on its parameter {name!r}, which training would pass over; change gradients in forward"
    for name, value in vars(part).items():
        # torch's weight and spectral norm compute such an attribute from parameters before each pass.
        is_computed = isinstance(value, Tensor) and (value.requires_grad or f"{name}_orig" in part._parameters)
        if isinstance(value, Tensor) and not is_computed:
            yield f"keeps the tensor {name!r} as a plain attribute, which is not moved with it; use register_buffer"
