"""A net out of its options: with values on the CPU (`build`), or without those of parameters (`skeleton`).

Every net enters here, built in, torchvision's or a user's own. Ranks train one client after another with the same
modules, and only parameters are loaded, sent and averaged. So nothing else may change in training: every tensor of a
net is a parameter that is trained or a registered buffer that stays as it is.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.lazy import LazyModuleMixin

from fedmpi import seeds
from fedmpi.errors import WHOLE_NUMBERS, ConfigError
from fedmpi.models import pretrained
from fedmpi.models.options import Inputs, Model
from fedmpi.models.width import Rounding, Width
from fedmpi.tensors import frozen_values, put_buffer, renew_parameters

_PLURALS = {"image": "images", "vector": "vectors", "tokens": "tokens"}
_EXAMPLES = {"image": "resnet18", "vector": "mlp", "tokens": "lstm_imdb"}
"""A built-in net that takes data of the kind."""


def build(options: Model, info: Inputs, seed: int, width: float = 1.0, rounding: Rounding = "round") -> nn.Module:
    """Returns the initialised net on the CPU, in float32; `width` multiplies the width that the options ask for.

    The same arguments give the same values everywhere, and the global random generators are left
    as they were. Raises `ConfigError` if the model cannot take such data, or is no net that clients
    can train one after another.
    """
    net = _from_options(options, info, Width(width, rounding), "cpu", seeds.mix("init", seed))
    return pretrained.with_one_copy(_admit(net, options.name))


def skeleton(options: Model, info: Inputs, width: float = 1.0, rounding: Rounding = "round") -> nn.Module:
    """Returns the net of `build` with its parameters on the meta device, without values, and so what was one and is not
    trained; other buffers have their values."""
    net = _admit(_unbuilt(options, info, Width(width, rounding)), options.name)
    frozen = frozen_values(net)
    has_other_buffers = any(name not in frozen for name, _ in net.named_buffers(remove_duplicate=False))
    return _emptied(build(options, info, 0, width, rounding) if has_other_buffers else net)


def conversions(options: Model, info: Inputs) -> tuple[str, ...]:
    """Returns what is changed in the net before it is trained, and what never is, a line each. Raises `ConfigError`."""
    net = _unbuilt(options, info, Width())
    layers = _with_running_statistics(net)
    if not layers:
        return pretrained.untrained(net, options)
    kinds = Counter(type(layer).__name__ for layer in layers.values())
    found = " and ".join(f"{count} {kind}" for kind, count in kinds.items())
    first = next(iter(layers)) or "the net itself"
    why = "they would depend on who trained before on the same rank"
    instead = "each batch is normalized by its own statistics, see evaluation.bn"
    said = f"the running statistics of {found} (the first: {first}) are not used: {why}; {instead}"
    return (said, *pretrained.untrained(net, options))


def _unbuilt(options: Model, info: Inputs, width: Width) -> nn.Module:
    """Makes a net on the meta device, or, where its constructor computes with tensors, as it is made."""
    with suppress(Exception), warnings.catch_warnings():  # on the CPU it may do, or says there what is wrong
        warnings.simplefilter("ignore")  # a net that loads its values says of each that it cannot
        return _from_options(options, info, width, "meta", 0)
    return _emptied(_from_options(options, info, width, "cpu", 0))


def _emptied(net: nn.Module) -> nn.Module:
    """Takes the values of all parameters, and of what was one and is not trained, in place; ties stay."""
    frozen = frozen_values(net)
    empty = {id(value): value.to("meta") for value in frozen.values()}
    for name, value in frozen.items():
        put_buffer(net, name, empty[id(value)])
    return renew_parameters(net, lambda _, value: value.detach().to("meta"))


def _from_options(options: Model, info: Inputs, width: Width, device: str, init_seed: int) -> nn.Module:
    if info.kind not in options.kinds:
        takes = " and ".join(_PLURALS[kind] for kind in options.kinds)
        hint = f"; {WHOLE_NUMBERS}" if info.kind == "tokens" else ""
        found = f"'{options.name}' takes {takes}, the data are of kind '{info.kind}'"
        raise ConfigError("model.name", f"{found}; set model.name={_EXAMPLES[info.kind]}, or your own{hint}")
    with seeds.global_generators(init_seed), torch.device(device):
        net = as_module(options.net(info, width), options.name)
    if getattr(options, "norm", "") == "frozen":
        net = pretrained.with_kept_statistics(net)
    net = pretrained.freeze(net, options)
    if width.factor != 1 and (options.weights or frozen_values(net)):
        todo = "take a method whose clients train nets of one width, as fedavg or fedhm"
        raise ConfigError("model.name", f"values that were trained before fit no net of width {width.factor:g}; {todo}")
    if options.weights and device != "meta":
        pretrained.load(net, options)
    return net


def as_module(made: object, model: str) -> nn.Module:
    """Returns what a model's options have made, if it is a net at all. Raises `ConfigError`."""
    if not isinstance(made, nn.Module):
        found = "nothing" if made is None else f"a value of type {type(made).__name__}"
        raise ConfigError("model.name", f"'{model}' gives {found}; expected a torch.nn.Module")
    return made


def refusal(model: str, net: nn.Module, module: str, problem: str) -> ConfigError:
    """Returns the error of a net that is not admitted; `module` is the dotted name of the one at fault."""
    kind = type(net.get_submodule(module)).__name__
    part = f"module {module!r}" if module else "the net itself"
    return ConfigError("model.name", f"'{model}': {part} ({kind}) {problem}")


def _admit(net: nn.Module, model: str) -> nn.Module:
    """Returns the net as it may be trained: its norm layers without running statistics, in place.

    They normalize with the statistics of their inputs (BatchNorm: of the batch) in training and in evaluation, which
    re-estimates those of the whole training set where they are wanted. A running mean would be state that no method
    sends: the next client on the same rank would get it.

    Raises `ConfigError` for what the rest of fedmpi cannot load, move or average; it names the module.
    """
    for name, part in net.named_modules():
        for problem in _problems(part):
            raise refusal(model, net, name, problem)
    for layer in _with_running_statistics(net).values():
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return net


def _with_running_statistics(net: nn.Module) -> dict[str, _NormBase]:
    """Returns the norm layers that keep running statistics, by their dotted names."""
    layers = {name: part for name, part in net.named_modules() if isinstance(part, _NormBase)}
    return {name: part for name, part in layers.items() if part.track_running_stats}


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
