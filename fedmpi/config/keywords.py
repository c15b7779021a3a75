"""The keywords of a user's function or class as options that a config can set: the same for nets, data and partitions.

An option has the type of its annotation, else that of its default: int, float, bool, str, a Literal, a list or tuple of
one of these, or several with `|`, None among them. One with a default that YAML cannot hold (a class, a function) stays
at it. Without a default an option must be given. Lists are kept as tuples, and reach the function as lists.
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

_LARGEST = 2**31 - 1
_PLAIN: dict[object, Any] = {
    bool: bool,
    int: Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)],
    float: Annotated[float, Field(allow_inf_nan=False)],
    str: str,
}


@dataclass(frozen=True)
class Keywords:
    """What a function takes by name: `parameters` with their annotations as `hints`, as far as these can be read."""

    name: str
    """What a config calls the function."""
    parameters: dict[str, inspect.Parameter]
    hints: dict[str, Any]

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> Keywords:
        """Raises `UnknownError` for a function that cannot be called by names alone."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            raise UnknownError(f"{name!r} does not say what it takes") from None
        if by_place := [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]:
            raise UnknownError(f"{name!r} takes {', '.join(by_place)} by place alone, expected all by name")
        by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        return cls(name, by_name, _hints(function))

    def fields(self, base: type[BaseModel], without: Collection[str], may_be: Collection[str] = ()) -> dict[str, Any]:
        """pydantic's fields of a subclass of `base`: the options, which are all parameters but those `without`. Raises
        `UnknownError` for a name that `base` has already (but for those that `may_be` options of the function), or a
        parameter that YAML cannot give and that has no default.
        """
        taken = {"name", *base.model_fields, *base.__class_vars__} - {*may_be}
        options = {key: self._field(base, taken, key) for key in self.parameters if key not in without}
        return {key: field for key, field in options.items() if field is not None}

    def given(self, options: BaseModel, names: Collection[str]) -> dict[str, Any]:
        """The values of the options with these names, as the function expects them."""
        values = {key: getattr(options, key) for key in names}
        return {
            key: list(value) if value is not None and self._is_list(key) else value for key, value in values.items()
        }

    def _is_list(self, key: str) -> bool:
        hint = self.hints.get(key)
        return isinstance(self.parameters[key].default, list) or any(
            get_origin(part) is list for part in (hint, *get_args(hint))
        )

    def _field(self, base: type[BaseModel], taken: Collection[str], key: str) -> Any:
        """The option's type and default; None for one that stays at its default."""
        parameter, hint = self.parameters[key], self.hints.get(key)
        default, is_needed = parameter.default, parameter.default is parameter.empty
        kind = _kind(hint) if hint is not None else None if is_needed else _kind_of_value(default)
        if kind is None and not is_needed:
            return None
        if kind is None:
            allowed = "allowed: int, float, bool, str, a Literal, lists and tuples of these, None"
            why = f"of a type that YAML cannot give; {allowed}" if hint else f"without a type; write {key}: int"
            raise UnknownError(f"{self.name!r} takes {key!r} without a default and {why}")
        if hasattr(base, key) or key in taken or key.startswith("_"):
            raise UnknownError(f"{self.name!r} has an option {key!r}, a name that fedmpi uses itself; give it another")
        if is_needed:
            return (kind, ...)
        kind = kind | None if default is None else kind
        return (kind, Field(tuple(default) if isinstance(default, list) else default, validate_default=True))


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    made_by: Any = function
    try:
        return get_type_hints(made_by.__init__ if isinstance(function, type) else function)
    except (AttributeError, LookupError, NameError, SyntaxError, TypeError, ValueError):
        return {}  # a name that is imported for type checkers alone: defaults must do


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
