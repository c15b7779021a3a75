"""The one trial of a net: the data's own first examples pass through it as they will in training and in tests.

Plans, `fedmpi check`, the start of a run and the search for narrower nets all call `tried`, on a net that its
constructor has just made and that nobody trains, so that buffers and whatever else it keeps may change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedmpi import seeds
from fedmpi.errors import WHOLE_NUMBERS, ConfigError, UserError, type_in_words
from fedmpi.models.admission import refusal
from fedmpi.models.options import Inputs

EXAMPLES = 4
WEIGHTED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@dataclass(frozen=True)
class Trial:
    """What the passes have shown."""

    classifier: str
    """The dotted name of the conv or linear layer that gives the classes; empty if none does."""
    single_values: bool
    """Whether some BatchNorm gets one value per channel and example."""
    parameters: str
    """Names and shapes of all parameters, in their order."""


def examples_of(info: Inputs) -> Tensor:
    """Returns the data's own first examples as a net gets them, (4, ...); of data that nobody has read, like ones."""
    if info.examples is not None:
        return info.examples
    generator = torch.Generator().manual_seed(0)
    if info.kind == "tokens":
        return torch.randint(info.vocabulary_size, (EXAMPLES, *info.example_shape), generator=generator)
    if info.kind == "vector":
        return torch.randn(EXAMPLES, *info.example_shape, generator=generator)
    channels, height, breadth = info.example_shape
    return torch.randn(EXAMPLES, height, breadth, channels, generator=generator).permute(0, 3, 1, 2)


def tried(net: nn.Module, info: Inputs, model: str) -> Trial:
    """Passes two examples through `net` in training mode, then all in evaluation mode; leaves the global generators.

    Raises `ConfigError` in one line for a net that cannot take them, that gives no score of each class for each
    example, or that does what training would pass over.
    """
    parameters = dict(net.named_parameters())
    if not parameters:
        raise ConfigError("model.name", f"'{model}' has no parameters, so nothing would be trained")
    for name, value in [*parameters.items(), *net.named_buffers()]:
        if value.device.type != "cpu":
            raise _refusal(net, model, name, f"on the device {value.device}; make it on the CPU, a run moves it")
    layers: dict[object, str] = {}
    single: list[bool] = []
    for name, part in net.named_modules():
        if isinstance(part, WEIGHTED):
            part.register_forward_hook(partial(_note, layers, name))
        elif isinstance(part, _BatchNorm):
            part.register_forward_pre_hook(lambda _, inputs: single.append(inputs[0][0, 0].numel() == 1))
    with torch.random.fork_rng(devices=[]), seeds.python_and_numpy(0), torch.enable_grad():
        scores = _scores(net.train(), info, model, examples_of(info)[:2])
        with torch.no_grad():
            _scores(net.eval(), info, model, examples_of(info))
    _refuse_changes(net, model, parameters)
    if scores.grad_fn is None:
        raise ConfigError("model.name", f"'{model}' gives scores without gradients (no_grad or detach in forward)")
    shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in parameters.items())
    return Trial(_nearest(scores.grad_fn, layers), any(single), shapes)


def _refuse_changes(net: nn.Module, model: str, parameters: Mapping[str, Tensor]) -> None:
    """Raises `ConfigError` where the passes have left other parameters than these."""
    for name, value in net.named_parameters():
        if value is not parameters.get(name) or not value.requires_grad:
            raise _refusal(net, model, name, "that forward replaces or freezes, which training would pass over")


def _note(layers: dict[object, str], name: str, part: nn.Module, inputs: object, output: object) -> None:
    layers[getattr(output, "grad_fn", None)] = name


def _refusal(net: nn.Module, model: str, tensor: str, problem: str) -> ConfigError:
    module, _, name = tensor.rpartition(".")
    return refusal(model, net, module, f"has a tensor {name!r} {problem}")


def _scores(net: nn.Module, info: Inputs, model: str, examples: Tensor) -> Tensor:
    """Returns what `net` gives for the examples. Raises `ConfigError` unless it is a number for each class."""
    try:
        output = net(examples)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a user's net may raise anything
        sizes = " x ".join(map(str, info.example_shape))
        reason = fault_of_net(str(error)) or str(error).partition("\n")[0]
        says_all = type(error).__module__ == "builtins" and not isinstance(error, SystemExit)
        reason = reason if says_all else f"{type(error).__name__}: {reason}"
        hint = f"; {WHOLE_NUMBERS}" if info.kind == "tokens" else ""
        problem = f"'{model}' cannot take inputs of {sizes} (kind {info.kind}, {examples.dtype}): {reason}{hint}"
        raise ConfigError("model.name", problem) from error
    shape = len(examples), info.num_classes
    if isinstance(output, Tensor) and output.shape == shape and output.is_floating_point():
        return output
    found = f"{tuple(output.shape)} of type {output.dtype}" if isinstance(output, Tensor) else type_in_words(output)
    expected = f"a float tensor of shape {shape}, one number for each class"
    raise ConfigError("model.name", f"'{model}' gives {found} for {len(examples)} examples; expected {expected}")


def fault_of_net(error: str) -> str:
    """Returns what torch's error means where its own words do not say it."""
    if error.startswith("view size is not compatible"):
        return "images lie in memory with their channels last, where x.view fails; write x.flatten(1) or x.reshape"
    return error.partition(". ")[0] if "deterministic" in error else ""


def _nearest(last: Any, layers: Mapping[object, str]) -> str:
    """Returns the first layer on the way back from the scores, nearer ones first; empty if there is none."""
    waiting = deque([last])
    seen = {last}
    while waiting:
        node = waiting.popleft()
        if node in layers:
            return layers[node]
        before = [earlier for earlier, _ in node.next_functions if earlier is not None and earlier not in seen]
        waiting.extend(before)
        seen.update(before)
    return ""
