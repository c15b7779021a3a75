"""What a program gives to the functions of `import fedmpi`, held against their annotations before they run.

numpy's numbers count as Python's, so that a loop over `np.arange` can name clients. A True is no number.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import AfterValidator, Field, InstanceOf, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from fedmpi.config import explain
from fedmpi.config.reference import allowed
from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError
from fedmpi.library.spoken import in_python

P = ParamSpec("P")
R = TypeVar("R")


def _can_be_a_path(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    if "\0" in (text := os.fspath(path)) or not text:
        raise ValueError
    return path


StrPath = Annotated[str | os.PathLike[str], AfterValidator(_can_be_a_path)]
APath = Annotated[StrPath, Field(description="a path")]
ConfigName = Annotated[StrPath, Field(description="the path or name of a config")]
Ranks = Annotated[int, Field(ge=1, le=2**31 - 1)]
AConfig = Annotated[InstanceOf[Config], Field(description="what fedmpi.load_config() gives")]
Keys = Annotated[Mapping[Any, Any], Field(description="a mapping of dotted keys, as {'train.lr': 0.1}")]
TierName = Annotated[str | float, Field(description="the name of a tier, as '0.5' or 0.5")]
TierNames = Annotated[Sequence[str | float], Field(description="a list of names of tiers, as ['1', '0.5']")]
_PLAIN = {NoneType: "None", bool: "True or False"}


def checks_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, with a ConfigError that names every argument that is not what its annotation says. Errors within name
    arguments, too, where those of the command name options.
    """
    signature, name = inspect.signature(function), f"fedmpi.{function.__qualname__.removesuffix('.__init__')}"

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = _bound(signature, name, *args, **kwargs)
        given.arguments.update({key: _without_numpy(value) for key, value in given.arguments.items()})
        problems = [
            f"{key}: expected {_allowed(annotation)}, got {_found(value)}"
            for key, annotation in _annotations(function).items()
            for value in _values(given.arguments, signature.parameters[key])
            if not _fits(annotation, value)
        ]
        if problems:
            raise ConfigError(name, *problems)
        try:
            return function(*given.args, **given.kwargs)
        except Exception as error:
            in_python(error, name, signature.parameters)
            raise

    return call


def _bound(signature: inspect.Signature, function: str, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        known = [name for name in signature.parameters if name != "self"]
        unknown = next((name for name in kwargs if name not in known), None)
        raise ConfigError(
            function, f"{error}.{explain.suggest(unknown, known)} Arguments: {', '.join(known)}"
        ) from None


@functools.cache
def _annotations(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Those of the arguments: what a function gives may be of a package that loads later."""
    own = {name: text for name, text in function.__annotations__.items() if name != "return"}
    return get_type_hints(SimpleNamespace(__annotations__=own), function.__globals__, include_extras=True)


def _values(given: Mapping[str, Any], parameter: inspect.Parameter) -> Sequence[Any]:
    """One value, or those of `*others` and `**sections`; none for what is left to its default."""
    if parameter.name not in given:
        return ()
    value = given[parameter.name]
    if parameter.kind is parameter.VAR_POSITIONAL:
        return tuple(value)
    return tuple(value.values()) if parameter.kind is parameter.VAR_KEYWORD else (value,)


def _fits(annotation: Any, value: Any) -> bool:
    try:
        _adapter(annotation).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _without_numpy(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return tuple(map(_without_numpy, value)) if type(value) is tuple else value


@functools.cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def _allowed(annotation: Any) -> str:
    info = FieldInfo.from_annotation(annotation)
    core: Any = info.annotation
    if info.description:
        return info.description
    if get_origin(core) in (Union, UnionType):
        return " or ".join(map(_allowed, get_args(core)))
    if getattr(core, "__module__", "").startswith("fedmpi."):
        return f"a fedmpi.{core.__qualname__}"
    return _PLAIN.get(core) or allowed(_adapter(annotation).json_schema())


def _found(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, bool) else explain.found(value)
