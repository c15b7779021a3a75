"""The keywords of a user's function or class as options that a config can set: the same for nets, data and partitions.

An option has the type of its annotation, else that of its default: int, float, bool, str, a Literal, a list or tuple of
one of these, or several with `|`, None among them. A default that YAML cannot hold (a class, a function) is no option.
Without a default an option must be given. Lists are kept as tuples, and reach the function as lists.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, Field

from fedmpi.errors import UnknownError

_PLAIN = (bool, int, float, str, types.NoneType)


@dataclass(frozen=True)
class Keywords:
    """The `parameters` of a function that can be given by name, with their annotations as `hints`."""

    name: str
    """The function's name in a config."""
    function: Callable[..., Any]
    parameters: dict[str, inspect.Parameter]
    hints: dict[str, Any]

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> Keywords:
        """Raises `UnknownError` for a function that does not say what it takes."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            raise UnknownError(f"{name!r} does not say what it takes") from None
        by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        return cls(name, function, by_name, _hints(function))

    def fields(self, base: type[BaseModel], without: Collection[str]) -> dict[str, Any]:
        """Returns the options, all parameters but those `without`, as pydantic's fields. Raises `UnknownError`."""
        taken = {"name", *base.model_fields, *base.__class_vars__}
        fields: dict[str, Any] = {}
        for key, parameter in self.parameters.items():
            default = parameter.default
            kind = self._kind_of(parameter)
            if key in without or (kind is None and default is not parameter.empty):
                continue
            if kind is None:
                allowed = f"write {key}: int, float, bool, str, a Literal, a list or tuple of these, or None"
                raise UnknownError(f"{self.name!r} takes {key!r} without a default and of no type of YAML; {allowed}")
            if hasattr(base, key) or key in taken or key.startswith("_"):
                raise UnknownError(f"{self.name!r} has an option {key!r}, a name of fedmpi's own; give it another")
            plain = tuple(default) if isinstance(default, list) else default
            fields[key] = (kind, ... if default is parameter.empty else Field(plain, validate_default=True))
        return fields

    def given(self, options: BaseModel, without: Collection[str] = ()) -> dict[str, Any]:
        """Returns the values of the options, but those `without`, as the function expects them."""
        values = {}
        for key in sorted({*type(options).model_fields} & {*self.parameters} - {*without}):
            value = getattr(options, key)
            hint = self.hints.get(key)
            takes_list = any(get_origin(part) is list for part in (hint, *get_args(hint)))
            is_list = takes_list or isinstance(self.parameters[key].default, list)
            values[key] = list(value) if is_list and value is not None else value
        return values

    def _kind_of(self, parameter: inspect.Parameter) -> Any:
        """Returns the option's type; None for a parameter that YAML cannot give."""
        default = parameter.default
        hint = self.hints.get(parameter.name)
        if hint is None and isinstance(default, (list, tuple)) and default:
            hint = types.GenericAlias(tuple, (type(default[0]), ...))
        if hint is None and type(default) in _PLAIN[:4]:
            hint = type(default)
        kind = _kind(hint)
        return kind | None if kind is not None and default is None else kind


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    annotated: Any = function
    try:
        return get_type_hints(annotated.__init__ if isinstance(function, type) else function)
    except (AttributeError, LookupError, NameError, SyntaxError, TypeError, ValueError):
        return {}  # a name that is imported for type checkers only: defaults must do


def _kind(hint: Any) -> Any:
    """Returns the annotation as a strict pydantic type that YAML can fill; None if there is no such."""
    origin = get_origin(hint)
    args = get_args(hint)
    if hint in _PLAIN or origin is Literal:
        return hint
    kinds = [_kind(arg) for arg in args if arg is not Ellipsis]
    if not kinds or None in kinds:
        return None
    if origin in (Union, types.UnionType):
        return reduce(or_, kinds)
    if origin not in (list, tuple, Sequence):
        return None
    is_fixed = origin is tuple and Ellipsis not in args
    items: Any = types.GenericAlias(tuple, tuple(kinds) if is_fixed else (kinds[0], ...))
    return Annotated[items, Field(strict=False)]
