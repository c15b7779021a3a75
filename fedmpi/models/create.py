"""A net out of its options: with values on the CPU (`build`), or without those of parameters (`skeleton`)."""

import warnings
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor, nn

from fedmpi import seeds
from fedmpi.errors import WHOLE_NUMBERS, ConfigError
from fedmpi.models import admission, pretrained
from fedmpi.models.options import Inputs, Model
from fedmpi.models.width import Rounding, Width
from fedmpi.tensors import frozen_values, put_buffer

_PLURALS = {"image": "images", "vector": "vectors", "tokens": "tokens"}
_EXAMPLES = {"image": "resnet18", "vector": "mlp", "tokens": "lstm_imdb"}
"""A built-in net that takes data of the kind."""


def build(options: Model, info: Inputs, seed: int, width: float = 1.0, rounding: Rounding = "round") -> nn.Module:
    """Returns the initialised net on the CPU, in float32; `width` multiplies the width that the options ask for.

    The same arguments give the same values everywhere, and the global random generators are left
    as they were. Raises `ConfigError` if the model cannot take such data, or is no net that clients
    can train one after another (`models.admission`).
    """
    net = _from_options(options, info, Width(width, rounding), "cpu", seeds.mix("init", seed))
    return pretrained.with_one_copy(admission.admit(net, options.name))


def skeleton(options: Model, info: Inputs, width: float = 1.0, rounding: Rounding = "round") -> nn.Module:
    """Returns the net of `build` with its parameters on the meta device, without values, and so what was one and is not
    trained; other buffers have their values."""
    net = admission.admit(_unbuilt(options, info, Width(width, rounding)), options.name)
    frozen = frozen_values(net)
    has_other_buffers = any(name not in frozen for name, _ in net.named_buffers(remove_duplicate=False))
    return _emptied(build(options, info, 0, width, rounding) if has_other_buffers else net)


def renew_parameters(net: nn.Module, make: Callable[[Tensor], Tensor]) -> nn.Module:
    """Puts `make(value)` in place of each parameter; ties between layers stay. Returns the net."""
    new = {value: nn.Parameter(make(value), value.requires_grad) for value in net.parameters()}
    for part in net.modules():
        for name, value in [*part.named_parameters(recurse=False)]:
            setattr(part, name, new[value])
    return net


def conversions(options: Model, info: Inputs) -> tuple[str, ...]:
    """Returns what is changed in the net before it is trained, and what never is, a line each. Raises `ConfigError`."""
    net = _unbuilt(options, info, Width())
    return (*admission.conversions(net), *pretrained.untrained(net, options))


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
    return renew_parameters(net, lambda value: value.detach().to("meta"))


def _from_options(options: Model, info: Inputs, width: Width, device: str, init_seed: int) -> nn.Module:
    if info.kind not in options.kinds:
        takes = " and ".join(_PLURALS[kind] for kind in options.kinds)
        hint = f"; {WHOLE_NUMBERS}" if info.kind == "tokens" else ""
        found = f"'{options.name}' takes {takes}, the data are of kind '{info.kind}'"
        raise ConfigError("model.name", f"{found}; set model.name={_EXAMPLES[info.kind]}, or your own{hint}")
    with seeds.global_generators(init_seed), torch.device(device):
        net = admission.as_module(options.net(info, width), options.name)
    if getattr(options, "norm", "") == "frozen":
        net = pretrained.with_kept_statistics(net)
    net = pretrained.freeze(net, options)
    if width.factor != 1 and (options.weights or frozen_values(net)):
        todo = "take a method whose clients train nets of one width, as fedavg or fedhm"
        raise ConfigError("model.name", f"values that were trained before fit no net of width {width.factor:g}; {todo}")
    if options.weights and device != "meta":
        pretrained.load(net, options)
    return net
