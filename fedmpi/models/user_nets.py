"""A model that a user brings: `model.name: package.module:Name`.

`Name` is a `torch.nn.Module` class or a function that makes one; it needs no base class of ours. Of its parameters
fedmpi fills `num_classes` (which it must take), `example_shape`, `vocabulary_size` and `width` by name. The others are
its options in the YAML (`config.keywords`). Or `Name` is a subclass of `options.Model` with `net(info, width)`, like
the built-in ones.

`width` is the share of its channels that a method wants: a float, or the `Width` that rounds as the method asks,
where it is annotated so. A net without this keyword is made narrower layer by layer, if that is possible
(`surgery.narrowing`).

The user's module is imported when a config names it, before anything else is checked.
"""

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
from pydantic import ConfigDict, Field, create_model
from torch import nn

from fedmpi.config.fields import Section
from fedmpi.config.keywords import Keywords
from fedmpi.errors import ConfigError, UnknownError, one_line, users_code
from fedmpi.models import create
from fedmpi.models.options import Inputs, Model, Multiplier
from fedmpi.models.surgery.narrowing import Sizes, leading_sizes, narrowed
from fedmpi.models.trial import examples_of, tried
from fedmpi.models.width import Width

FILLED = ("num_classes", "example_shape", "vocabulary_size", "width")
_MUST = (
    f"it must take num_classes, and may take {', '.join(FILLED[1:])} and options of its own with a type or a default"
)


class BroughtModel(Model):
    """The options of a net that is made by a user's class or function: its own keywords."""

    model_config = ConfigDict(protected_namespaces=())

    kinds: ClassVar[tuple[str, ...]] = ("image", "vector", "tokens")
    filled: ClassVar[tuple[str, ...]]
    """Which of `FILLED` it takes."""
    takes_rounding: ClassVar[bool]
    """Whether its `width` is a `Width`."""
    keywords: ClassVar[Keywords]

    def net(self, info: Inputs, width: Width) -> nn.Module:
        net = self._made(info, width)
        if "width" in self.filled or width.factor == 1:
            return net
        return narrowed(net, _sizes(self, info, width))

    def _made(self, info: Inputs, width: Width) -> nn.Module:
        own = getattr(self, "width", 1.0)
        known = {name: getattr(info, name) for name in self.filled if name != "width"}
        if "width" in self.filled:
            known["width"] = width.times(own) if self.takes_rounding else width.factor * own
        options = self.keywords.given(self, self.filled)
        given = ", ".join(f"{name}={value!r}" for name, value in {**known, **options}.items())
        with users_code("model.name", f"'{self.name}' cannot be made with {given}", ConfigError):
            made = self.keywords.function(**known, **options)
        net = create.as_module(made, self.name)
        if any(vars(part).get("_made_before") for part in net.modules()):
            raise ConfigError("model.name", f"'{self.name}' gives modules that it has given before; make new ones")
        for part in net.modules():
            vars(part)["_made_before"] = True
        return net


@lru_cache(maxsize=64)
def _sizes(options: BroughtModel, info: Inputs, width: Width) -> Sizes:
    """Returns the layers' sizes at this width. Raises `ConfigError` where they cannot be derived."""
    with torch.device("cpu"):
        classifier = tried(options, info).classifier
        try:
            return leading_sizes(create.build(options, info, 0), examples_of(info), classifier, width)
        except (Exception, SystemExit) as error:
            todo = "give it a keyword `width`, or take a method whose clients train no narrower nets, as fedhm"
            why = one_line(str(error).partition("\n")[0])
            raise ConfigError(
                "model.name", f"'{options.name}' takes no width, and cannot be made narrower without: {why}; {todo}"
            ) from error


def options_of(name: str, found: object) -> type[Section]:
    """Returns the options class of the model `found`, which a config calls `name`. Raises `UnknownError`."""
    if isinstance(found, type) and issubclass(found, Model):
        return found
    if isinstance(found, nn.Module):
        raise UnknownError(f"{name!r} is a net already; name its class, or a function that makes it anew each time")
    if not callable(found) or (isinstance(found, type) and not issubclass(found, nn.Module)):
        expected = "a torch.nn.Module class, a function that makes one, or a subclass of fedmpi.models.options.Model"
        kind = f"the class {found.__name__}" if isinstance(found, type) else f"a value of type {type(found).__name__}"
        raise UnknownError(f"{name!r} is {kind}; expected {expected}")
    return _options_of_signature(name, found)


def _options_of_signature(name: str, found: Callable[..., Any]) -> type[Section]:
    try:
        keywords = Keywords.of(name, found)
        parameters = keywords.parameters
        hints = keywords.hints
        if "num_classes" not in parameters:
            raise UnknownError(f"{name!r} takes {', '.join(parameters) or 'nothing'}")
        filled = [part for part in FILLED if part in parameters]
        if "width" in filled and not _is_share(parameters["width"], hints.get("width")):
            filled.remove("width")
        fields = keywords.fields(BroughtModel, filled)
    except UnknownError as error:
        raise UnknownError(f"{error}; {_MUST}") from None
    if "width" in filled:
        fields["width"] = (Multiplier, Field(1.0, description="Width multiplier, which the net itself applies."))
    if "norm" not in parameters:
        frozen = (
            "`frozen`: BatchNorm with the net's running statistics or those of `weights`, in training and in tests."
        )
        fields["norm"] = (Literal["batch", "frozen"], Field("batch", description=frozen))
    about = (inspect.getdoc(found) or "").partition("\n")[0] or f"A net of {found.__module__}."
    fields["name"] = (str, Field(name, description=about))
    made: type[BroughtModel] = create_model("Brought", __base__=BroughtModel, **fields)
    made.filled = tuple(filled)
    made.keywords = keywords
    made.takes_rounding = hints.get("width") is Width
    return made


def _is_share(parameter: inspect.Parameter, hint: object) -> bool:
    """Returns whether `width` is a share of the channels, not a number of them."""
    default = parameter.default
    return hint in (float, Width) or (
        hint is None and (default is parameter.empty or (type(default) in (int, float) and default == 1))
    )
