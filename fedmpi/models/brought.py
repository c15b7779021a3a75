"""A model that a user brings: `model.name: package.module:Name`, in full or by an installed package's entry point.

`Name` is a `torch.nn.Module` class or a function that makes one; it needs no base class of ours. Of its parameters
fedmpi fills `num_classes` (which it must take), `example_shape`, `vocabulary_size` and `width` by name. The others are
its options in the YAML, typed by their annotations, or else by their defaults; one with a default that YAML cannot
hold (a class, a function) stays at it. Or `Name` is an options class with `net(info, width)`, as the built-in ones are.

`width` is the share of its channels that a method wants: a float, or the `Width` that rounds as the method asks,
where it is annotated so. A net without this keyword is made narrower layer by layer, if that is possible
(`surgery.narrowing`).

The user's module is imported when a config names it, before anything else is checked, and torch with it.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, create_model

from fedmpi.config.schema import Section
from fedmpi.errors import ConfigError, as_one_line, one_line
from fedmpi.models.options import Inputs, Model, Multiplier
from fedmpi.models.width import Width
from fedmpi.registry import OtherKindError, UnknownError

if TYPE_CHECKING:
    from torch import nn

    from fedmpi.models.surgery.narrowing import Sizes

FILLED = ("num_classes", "example_shape", "vocabulary_size", "width")
_MUST = (
    f"it must take num_classes, and may take {', '.join(FILLED[1:])} and options of its own with a type or a default"
)
_LARGEST = 2**31 - 1
_PLAIN: dict[object, Any] = {
    bool: bool,
    int: Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)],
    float: Annotated[float, Field(allow_inf_nan=False)],
    str: str,
}


class BroughtModel(Model):
    """The options of a net that is made by a user's class or function: its own keywords."""

    model_config = ConfigDict(protected_namespaces=())

    kinds: ClassVar[tuple[str, ...]] = ("image", "vector", "tokens")
    make_net: ClassVar[Callable[..., Any]]
    filled: ClassVar[tuple[str, ...]]
    """Which of `FILLED` it takes."""
    takes_rounding: ClassVar[bool]
    """Whether its `width` is a `Width`."""
    as_lists: ClassVar[tuple[str, ...]]
    """Options that it expects as lists."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        net = self._made(info, width)
        if "width" in self.filled or width.factor == 1:
            return net
        from fedmpi.models.surgery.narrowing import narrowed

        return narrowed(net, _sizes(self, info, width))

    def _made(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.admission import as_module

        own = getattr(self, "width", 1.0)
        known = {name: getattr(info, name) for name in self.filled if name != "width"}
        if "width" in self.filled:
            known["width"] = width.times(own) if self.takes_rounding else width.factor * own
        options = {name: getattr(self, name) for name in type(self).model_fields if name not in ("name", "width")}
        options |= {name: list(options[name]) for name in self.as_lists if options[name] is not None}
        try:
            made = type(self).make_net(**known, **options)
        except (Exception, SystemExit) as error:  # whatever the user's code does
            given = ", ".join(f"{name}={value!r}" for name, value in {**known, **options}.items())
            why = as_one_line(error)
            raise ConfigError("model.name", f"'{self.name}' cannot be made with {given}: {why}") from error
        net = as_module(made, self.name)
        if any(vars(part).get("_made_before") for part in net.modules()):
            raise ConfigError("model.name", f"'{self.name}' gives modules that it has given before; make new ones")
        for part in net.modules():
            vars(part)["_made_before"] = True
        return net


@lru_cache(maxsize=64)
def _sizes(options: BroughtModel, info: Inputs, width: Width) -> Sizes:
    """The layers' sizes at this width. Raises `ConfigError` where they cannot be derived."""
    import torch

    from fedmpi import seeds
    from fedmpi.models.surgery.narrowing import EXAMPLES, leading_sizes

    with seeds.python_and_numpy(0), torch.random.fork_rng(devices=[]), torch.device("cpu"):
        generator = torch.Generator().manual_seed(0)
        whole = options._made(info, Width())
        shape = (EXAMPLES, *info.example_shape)
        examples = torch.randn(shape, generator=generator)
        if info.vocabulary_size:
            examples = torch.randint(info.vocabulary_size, shape, generator=generator)
        try:
            return leading_sizes(whole, examples, info.num_classes, width)
        except Exception as error:
            todo = "give it a keyword `width`, or take a method whose clients train no narrower nets, as fedhm"
            why = one_line(str(error).partition("\n")[0])
            raise ConfigError(
                "model.name", f"'{options.name}' takes no width, and cannot be made narrower without: {why}; {todo}"
            ) from error


def options_of(name: str, found: object) -> type[Section]:
    """The options class of the model `found`, which a config calls `name`. Raises `UnknownError`."""
    if isinstance(found, type) and issubclass(found, Section):
        missing = [part for part in ("net", "kinds", "dense_layers") if not hasattr(found, part)]
        if missing:
            raise UnknownError(f"{name!r} is a class of options without {', '.join(missing)}")
        return found
    torch = sys.modules.get("torch")  # a Module that is here has loaded it
    module: Any = torch.nn.Module if torch else ()
    if isinstance(found, module):
        raise UnknownError(f"{name!r} is a net already; name its class, or a function that makes it anew each time")
    if not callable(found) or (isinstance(found, type) and not issubclass(found, module)):
        expected = "a torch.nn.Module class, a function that makes one, or a class of options"
        raise OtherKindError(f"{name!r} is {_a(found)}; expected {expected}")
    return _options_of_signature(name, found)


def _a(found: object) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"a value of type {type(found).__name__}"


def _options_of_signature(name: str, found: Callable[..., Any]) -> type[Section]:
    parameters, hints = _parameters(name, found), _hints(found)
    if "num_classes" not in parameters:
        taken = ", ".join(parameters) or "nothing"
        raise UnknownError(f"{name!r} takes {taken}; {_MUST}")
    filled = [part for part in FILLED if part in parameters]
    if "width" in filled and not _is_share(parameters["width"], hints.get("width")):
        filled.remove("width")
    fields: dict[str, Any] = {}
    if "width" in filled:
        fields["width"] = (Multiplier, Field(1.0, description="Width multiplier, which the net itself applies."))
    for key, parameter in parameters.items():
        if key not in filled and (field := _field(name, parameter, hints.get(key))):
            fields[key] = field
    about = (inspect.getdoc(found) or "").partition("\n")[0] or f"A net of {found.__module__}."
    fields["name"] = (str, Field(name, description=about))
    made: type[BroughtModel] = create_model("Brought", __base__=BroughtModel, **fields)
    made.make_net, made.filled = staticmethod(found), tuple(filled)
    made.takes_rounding = hints.get("width") is Width
    made.as_lists = tuple(
        key
        for key, parameter in parameters.items()
        if key in fields and (_holds_list(hints.get(key)) or isinstance(parameter.default, list))
    )
    return made


def _parameters(name: str, found: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What can be given by keyword. Raises `UnknownError` for what cannot but must be given."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        raise UnknownError(f"{name!r} does not say what it takes; {_MUST}") from None
    by_place = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    if by_place:
        raise UnknownError(f"{name!r} takes {', '.join(by_place)} by place alone; {_MUST}, all by name")
    return {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _hints(found: Callable[..., Any]) -> dict[str, Any]:
    made_by: Any = found
    try:
        return get_type_hints(made_by.__init__ if isinstance(found, type) else found)
    except (AttributeError, LookupError, NameError, SyntaxError, TypeError, ValueError):
        return {}  # a name that is imported for type checkers alone: defaults must do


def _is_share(parameter: inspect.Parameter, hint: object) -> bool:
    """Whether `width` is a share of the channels, not a number of them."""
    default = parameter.default
    return hint in (float, Width) or (
        hint is None and (default is parameter.empty or (type(default) in (int, float) and default == 1))
    )


def _field(name: str, parameter: inspect.Parameter, hint: object) -> Any:
    """The option of this parameter; None for one that stays at its default. Raises `UnknownError`."""
    key, default = parameter.name, parameter.default
    is_needed = default is parameter.empty
    kind = _kind(hint) if hint is not None else None if is_needed else _kind_of_value(default)
    if kind is None:
        if is_needed:
            why = "of a type that YAML cannot give" if hint else f"without a type or a default; write it as {key}: int"
            raise UnknownError(f"{name!r} takes {key!r} {why}; {_MUST}")
        return None
    if hasattr(BroughtModel, key) or key in (*BroughtModel.__class_vars__, "name") or key.startswith("_"):
        raise UnknownError(f"{name!r} has an option {key!r}, a name that fedmpi uses itself; give it another")
    if is_needed:
        return (kind, ...)
    if default is None:
        kind = kind | None
    return (kind, Field(tuple(default) if isinstance(default, list) else default, validate_default=True))


def _holds_list(hint: object) -> bool:
    """Whether it is a list, or one of several types that is."""
    return get_origin(hint) is list or any(get_origin(arg) is list for arg in get_args(hint))


def _kind(hint: Any) -> Any:
    """The annotation as strict pydantic types that YAML can fill; None if there is no such."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin is Literal:
        return hint
    if origin in (Union, types.UnionType):
        kinds = [arg if arg is type(None) else _kind(arg) for arg in args]
        return None if None in kinds else reduce(or_, kinds)
    if origin in (list, tuple, Sequence) and args:
        kinds = [_kind(arg) for arg in args if arg is not Ellipsis]
        if None in kinds:
            return None
        is_fixed = origin is tuple and Ellipsis not in args
        items: Any = types.GenericAlias(tuple, tuple(kinds) if is_fixed else (kinds[0], ...))
        return Annotated[items, Field(strict=False)]
    return None


def _kind_of_value(value: object) -> Any:
    """The same of a parameter that only has a default."""
    if isinstance(value, (list, tuple)) and value:
        first = type(value[0])
        return _kind(types.GenericAlias(tuple, (first, ...))) if all(type(item) is first for item in value) else None
    return None if value is None else _PLAIN.get(type(value))
