"""The one trial of a net: the data's own first examples pass through it as they will in training and in tests.

Plans, `fedmpi check`, the start of a run and the search for narrower nets all call `tried`, which makes a net that
nobody trains, so that buffers and whatever else it keeps may change. It answers from its cache the second time.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from fedmpi import costs, seeds
from fedmpi.errors import WHOLE_NUMBERS, ConfigError, UserError, type_in_words
from fedmpi.models import create, pretrained
from fedmpi.models.create import refusal
from fedmpi.models.options import Inputs, Model
from fedmpi.models.surgery.scaler import WEIGHTED
from fedmpi.strided import subsample_before_narrow_convs
from fedmpi.tensors import frozen_values, renew_parameters, total_bytes

EXAMPLES = 4
# Values, gradients and a copy of the largest layer.
_SHARE = 3
_WithoutProducts: Any = costs.MacCounter
"""Where weights have no values torch would copy them in full for their products."""


@dataclass(frozen=True)
class Trial:
    """What the passes have shown."""

    classifier: str
    """The dotted name of the conv or linear layer that gives the classes; empty if none does."""
    parameters: tuple[str, ...]
    """Name and shape of each parameter, in their order."""
    outputs: str
    """A digest of all outputs, the same on all ranks with like processors."""
    frozen: str = ""
    """A digest of the values that are not trained; empty if all are."""


def examples_of(info: Inputs) -> Tensor:
    """Returns four examples in the form in which a net gets them: the first ones of the data if these have been read,
    else random ones of the same shape and type."""
    if info.examples is not None:
        return info.examples.clone()
    generator = torch.Generator().manual_seed(0)
    if info.kind == "tokens":
        return torch.randint(info.vocabulary_size, (EXAMPLES, *info.example_shape), generator=generator)
    if info.kind == "vector":
        return torch.randn(EXAMPLES, *info.example_shape, generator=generator)
    channels, height, breadth = info.example_shape
    return torch.randn(EXAMPLES, height, breadth, channels, generator=generator).permute(0, 3, 1, 2)


def tried(options: Model, info: Inputs) -> Trial:
    """Makes the net on the CPU and passes two examples through it in training mode, then all in evaluation mode.

    A net that would take a third of the free memory is tried without values: a plan may be for another machine. Raises
    `ConfigError` in one line for a net that cannot take the examples, that gives no score of each class for each
    example, or that does what training would pass over.
    """
    return _tried(options, info, info.examples)


@lru_cache(maxsize=1)
def _tried(options: Model, info: Inputs, examples: Tensor | None) -> Trial:
    """Takes the examples, too: two data sets of the same facts may differ in these."""
    pretrained.forget()
    net = create.skeleton(options, info)
    fits = _SHARE * total_bytes(net.parameters()) < psutil.virtual_memory().available
    net = create.build(options, info, 0) if fits else costs.weightless(net, torch.device("cpu"))
    if options.trained != "none" and not any(True for _ in net.parameters()):
        has = "trains none of its parameters (requires_grad)" if frozen_values(net) else "has no parameters"
        raise ConfigError("model.name", f"'{options.name}' {has}, so nothing would be trained")
    return _passed(net, info, options.name, trains=fits)


def _passed(net: nn.Module, info: Inputs, model: str, *, trains: bool) -> Trial:
    for name, value in [*net.named_parameters(), *net.named_buffers()]:
        if value.device.type != "cpu":
            raise _refusal(net, model, name, f"on the device {value.device}; make it on the CPU, a run moves it")
    subsample_before_narrow_convs(net)  # as training does: oneDNN may end the process
    renew_parameters(net, lambda _, value: value.detach())  # training does so: nobody may go on with the old ones
    parameters = dict(net.named_parameters())
    layers: dict[object, str] = {}
    calls: set[str] = set()
    for name, part in net.named_modules():
        part.register_forward_hook(partial(_note, layers, calls, name))
    products = nullcontext() if trains else _WithoutProducts()
    with torch.device("cpu"), seeds.global_generators(0), torch.enable_grad(), products:
        scores = _scores(net.train(), info, model, examples_of(info)[:2])
        if trains and scores.isnan().any():
            raise ConfigError("model.name", f"'{model}' gives NaN for the data's first examples")
        classifier = next((layers[node] for node in _graph(scores.grad_fn) if node in layers), "")
        _refuse_changes(net, model, parameters)
        if trains and parameters:
            _refuse_lost_gradients(net, info, model, scores, calls)
        with torch.no_grad():
            tested = _scores(net.eval(), info, model, examples_of(info))
    _refuse_changes(net, model, parameters)
    shapes = tuple(f"{name} {tuple(value.shape)}" for name, value in parameters.items())
    outputs = pretrained.digest_of({"outputs": torch.cat([scores, tested])})
    return Trial(classifier, shapes, outputs, pretrained.digest_of(frozen_values(net)))


def try_batches(options: Model, info: Inputs, training: Iterable[int], tests: Iterable[int]) -> None:
    """Passes batches of these sizes through the net, first without values, which is quick. Raises `ConfigError` for one
    that the net itself cannot take."""
    some = examples_of(info)
    light = None
    with torch.device("cpu"), seeds.global_generators(0):
        with suppress(ConfigError):
            light = costs.weightless(create.skeleton(options, info), torch.device("cpu"))
        for is_training, size in [*((True, size) for size in training), *((False, size) for size in tests)]:
            batch = some[torch.arange(size) % len(some)]
            with suppress(ConfigError), torch.no_grad(), _WithoutProducts():
                if light is not None:
                    _scores(light.train(is_training), info, options.name, batch.clone())
                    continue
            net = create.build(options, info, 0).train(is_training)  # it may need its values
            subsample_before_narrow_convs(net)
            with torch.no_grad():
                _scores(net, info, options.name, batch)


def _refuse_changes(net: nn.Module, model: str, parameters: Mapping[str, Tensor]) -> None:
    """Raises `ConfigError` where a pass has left other parameters than these."""
    for name, value in net.named_parameters():
        if value is not parameters.get(name) or not value.requires_grad:
            raise _refusal(net, model, name, "that forward replaces or freezes, which training would pass over")


def _refuse_lost_gradients(net: nn.Module, info: Inputs, model: str, scores: Tensor, calls: set[str]) -> None:
    """Raises `ConfigError` where these scores have gradients for other parameters than the net's, or none for a layer
    that was called."""
    if scores.grad_fn is None:
        raise ConfigError("model.name", f"'{model}' gives scores without gradients (no_grad or detach in forward)")
    others = graph_leaves_of(scores) - {*net.parameters()}
    # A variable that forward itself makes, as of its inputs for an energy's gradient, is another one in each pass.
    if others and others & graph_leaves_of(_scores(net, info, model, examples_of(info)[:2])):
        problem = "computes with a parameter that it has not registered (in a list, a closure or a global variable)"
        raise refusal(model, net, "", f"{problem}, which nobody trains; use nn.ModuleList or nn.ParameterList")
    with _users_code(info, model, scores):
        scores.sum().backward()
    for name, part in net.named_modules():
        values = [*part.parameters()]
        if name in calls and values and not any(part.children()) and all(value.grad is None for value in values):
            problem = "gets no gradients (no_grad or detach in forward), but all parameters are trained"
            raise refusal(model, net, name, f"{problem}; make its values buffers (register_buffer)")


def graph_leaves_of(value: Tensor) -> set[Tensor]:
    """Returns the tensors for which `value` has gradients, by identity."""
    return {node.variable for node in _graph(value.grad_fn) if hasattr(node, "variable")}


def _note(
    layers: dict[object, str], calls: set[str], name: str, part: nn.Module, inputs: object, output: object
) -> None:
    calls.add(name)
    if isinstance(part, WEIGHTED):
        layers[getattr(output, "grad_fn", None)] = name


def _refusal(net: nn.Module, model: str, tensor: str, problem: str) -> ConfigError:
    module, _, name = tensor.rpartition(".")
    return refusal(model, net, module, f"has a tensor {name!r} {problem}")


def _scores(net: nn.Module, info: Inputs, model: str, examples: Tensor) -> Tensor:
    """Returns what `net` gives for the examples. Raises `ConfigError` unless it is a number for each class, of each
    token where tokens have classes."""
    with _users_code(info, model, examples):
        output = net(examples)
    shape = (len(examples), *info.output_shape)
    if isinstance(output, Tensor) and output.shape == shape and output.is_floating_point():
        return output
    found = f"{tuple(output.shape)} of type {output.dtype}" if isinstance(output, Tensor) else type_in_words(output)
    expected = f"a float tensor of shape {shape}, one number for each class"
    parts = output.items() if isinstance(output, Mapping) else enumerate(output if isinstance(output, tuple) else ())
    fitting = [key for key, part in parts if isinstance(part, Tensor) and part.shape == shape]
    todo = f"; let forward return [{fitting[0]!r}] of it" if fitting else ""
    raise ConfigError("model.name", f"'{model}' gives {found} for {len(examples)} examples; expected {expected}{todo}")


@contextmanager
def _users_code(info: Inputs, model: str, batch: Tensor) -> Iterator[None]:
    """Makes a `ConfigError` of one line out of whatever a user's net raises within."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        sizes = " x ".join(map(str, info.example_shape))
        reason = fault_of_net(str(error)) or str(error).partition("\n")[0]
        says_all = bool(reason) and type(error).__module__ == "builtins" and not isinstance(error, SystemExit)
        reason = reason if says_all else ": ".join(filter(None, (type(error).__name__, reason)))
        hint = f"; {WHOLE_NUMBERS}" if info.kind == "tokens" else ""
        of_them = f"kind {info.kind}, {batch.dtype}, a batch of {len(batch)}"
        problem = f"'{model}' cannot take inputs of {sizes} ({of_them}): {reason}{hint}"
        raise ConfigError("model.name", problem) from error


def fault_of_net(error: str) -> str:
    """Returns what torch's error means where its own words do not say it."""
    if error.startswith("view size is not compatible"):
        return "images lie in memory with their channels last, where x.view fails; write x.flatten(1) or x.reshape"
    if error.startswith("Expected more than 1 value per channel"):
        return "BatchNorm gets a single value; take larger batches, and fewer clients where one has a single example"
    if "allocate memory" in error:
        return "it takes more memory than there is"
    return error.partition(". ")[0] if "deterministic" in error else ""


def _graph(last: Any) -> Iterator[Any]:
    """Yields the nodes of the graph that ends in `last`, nearer ones first."""
    waiting = deque([last])
    seen = {last}
    while waiting:
        node = waiting.popleft()
        yield node
        before = [earlier for earlier, _ in node.next_functions if earlier is not None and earlier not in seen]
        waiting.extend(before)
        seen.update(before)
