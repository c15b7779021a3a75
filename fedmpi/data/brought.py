"""Data sets and partitions that a user brings, named in full or by an installed package.

A data set is a subclass of `DataOptions`, or a function that returns arrays (see `arrays.py`). A
partition is a subclass of `PartitionOptions`, or a function of `labels`, `num_clients`, `seed` (and `groups`, if it
goes by these) that returns the example numbers of each client. The other arguments of a function are the options that a
config can set. Their types are those of its annotations, else those of their defaults; a list reaches it as a tuple.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

import numpy as np
from pydantic import Field, create_model
from pydantic_core import PydanticUndefined

from fedmpi.config.schema import Section
from fedmpi.data.arrays import ArrayOptions, Arrays
from fedmpi.data.dataset import Dataset
from fedmpi.data.dealing import Ints, PartitionOptions
from fedmpi.data.options import DataOptions
from fedmpi.errors import DataError, UserError, as_one_line, one_line
from fedmpi.registry import OtherKindError, UnknownError

Function = Callable[..., Any]
_PLAIN = (int, float, bool, str)
# A function that makes as many examples as it is asked for does better than a subset of them.
_MAY_BE_ARGUMENTS = {"num_train", "num_test"}
_GIVEN = ("labels", "num_clients", "seed")


class FunctionData(ArrayOptions):
    """The options of a data set that is a function."""

    function: ClassVar[Function]
    takes: ClassVar[tuple[str, ...]]
    """The options that are arguments of the function."""

    def arrays(self) -> Arrays | Dataset:
        found: Arrays | Dataset = _called(self, f"data.name={self.name}")
        return found


class FunctionPartition(PartitionOptions):
    """The options of a partition that is a function."""

    function: ClassVar[Function]
    takes: ClassVar[tuple[str, ...]]

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        where = f"partition.name={self.name}"
        given: dict[str, Any] = {"groups": groups} if self.by_groups else {}
        found = _called(self, where, labels, num_clients, seed, **given)
        return _checked(where, found, len(labels), num_clients)


def options_of_data(name: str, found: object) -> type[Section]:
    """The options class of the data set `found`, which a config calls `name`. Raises `UnknownError`."""
    if isinstance(found, type) and issubclass(found, DataOptions) and found.read is not DataOptions.read:
        return found
    if inspect.isfunction(found):
        return _of_function(name, found, FunctionData, ())
    raise OtherKindError(f"{name!r} is neither a subclass of DataOptions with `info` and `read` nor a function")


def options_of_partition(name: str, found: object) -> type[Section]:
    """The options class of the partition `found`, which a config calls `name`. Raises `UnknownError`."""
    if isinstance(found, type) and issubclass(found, PartitionOptions) and found.divide is not PartitionOptions.divide:
        return found
    if inspect.isfunction(found):
        return _of_function(name, found, FunctionPartition, _GIVEN)
    raise OtherKindError(f"{name!r} is neither a subclass of PartitionOptions with `divide` nor a function")


@functools.cache
def _of_function(name: str, function: Function, base: type[Section], given: tuple[str, ...]) -> type[Section]:
    """A subclass of `base` with a field for each argument that is not `given`. Raises `UnknownError`."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise UnknownError(f"the annotations of {name!r} cannot be read: {one_line(str(error))}") from None
    parameters = dict(signature.parameters)
    if missing := [argument for argument in given if parameters.pop(argument, None) is None]:
        raise UnknownError(f"{name!r} has no argument {missing[0]!r}; expected ({', '.join(given)}, **options)")
    by_groups = bool(given) and parameters.pop("groups", None) is not None
    fields: dict[str, Any] = {argument: _field(name, base, parameter) for argument, parameter in parameters.items()}
    about = (inspect.getdoc(function) or name).partition("\n\n")[0]
    takes = tuple(fields)
    fields["name"] = (str, Field(name, description=" ".join(about.split())))
    made: Any = create_model(function.__name__, __base__=base, __module__=function.__module__, **fields)
    made.function, made.takes, made.by_groups = staticmethod(function), takes, by_groups
    options: type[Section] = made
    return options


def _field(name: str, base: type[Section], parameter: inspect.Parameter) -> tuple[Any, Any]:
    """The type and the default of an option."""
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise UnknownError(f"{name!r} takes {parameter}; expected arguments with names, each of them an option")
    is_taken = hasattr(base, parameter.name) or parameter.name in {*base.model_fields} - _MAY_BE_ARGUMENTS
    if is_taken or parameter.name.startswith("_"):
        raise UnknownError(f"the argument {parameter.name!r} of {name!r} cannot be an option; give it another name")
    has_default = parameter.default is not parameter.empty
    given = type(parameter.default) if has_default else str
    kind = _option_type(given if parameter.annotation is parameter.empty else parameter.annotation)
    if kind is None:
        allowed = "int, float, bool, str, a Literal of these, or a list or tuple of one of these"
        raise UnknownError(f"the argument {str(parameter)[:80]!r} of {name!r} cannot be an option; allowed: {allowed}")
    default = parameter.default if has_default else PydanticUndefined
    return kind, tuple(default) if isinstance(default, list) else default


def _option_type(annotation: Any) -> Any:
    """The type of an option with this annotation; None if a config cannot have it. Lists are kept as tuples."""
    if annotation in _PLAIN or get_origin(annotation) is Literal:
        return annotation
    if get_origin(annotation) not in (list, tuple) or not get_args(annotation):
        return None
    items = [item for item in get_args(annotation) if item is not Ellipsis]
    if not all(item in _PLAIN for item in items):
        return None
    is_long = get_origin(annotation) is list or Ellipsis in get_args(annotation)
    any_tuple: Any = tuple
    return Annotated[any_tuple[(items[0], ...) if is_long else tuple(items)], Field(strict=False)]


def _called(options: FunctionData | FunctionPartition, where: str, *given: Any, **more: Any) -> Any:
    """What the user's function returns. Raises DataError in one line with its own error and where that arose."""
    try:
        return options.function(*given, **{key: getattr(options, key) for key in options.takes}, **more)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code does
        raise DataError(where, f"its function failed: {as_one_line(error)}") from error


def _checked(where: str, found: Any, num_examples: int, num_clients: int) -> tuple[Ints, Ints]:
    """A user's list of example numbers for each client as one array, and the sizes. Raises DataError."""
    try:
        parts = [np.asarray(part) for part in found]
    except (TypeError, ValueError):
        given = f"gave a {type(found).__name__}"
        raise DataError(where, f"{given}, expected a list of arrays, one for each client") from None
    if len(parts) != num_clients:
        raise DataError(where, f"gave the examples of {len(parts)} clients, expected {num_clients}")
    for client, part in enumerate(parts):
        if not part.ndim or not part.size:
            raise DataError(where, f"gave client {client} no examples")
        if part.ndim != 1 or part.dtype.kind not in "iu":
            given = f"gave client {client} an array {part.dtype} {part.shape}"
            raise DataError(where, f"{given}, expected whole numbers (n,)")
    numbers = np.concatenate(parts).astype(np.int64)
    if numbers.min() < 0 or numbers.max() >= num_examples:
        odd = numbers.min() if numbers.min() < 0 else numbers.max()
        raise DataError(where, f"gave the example {odd}; there are 0 to {num_examples - 1}")
    counts = np.bincount(numbers)
    if (counts > 1).any():
        raise DataError(where, f"gave the example {int(counts.argmax())} to more than one client, or twice to one")
    return numbers, np.array([len(part) for part in parts], dtype=np.int64)
