"""Data sets and partitions that a user brings, named in full or by an installed package.

A data set is a subclass of `DataOptions`, or a function that returns arrays (see `arrays.py`). A
partition is a subclass of `PartitionOptions`, or a function of `labels`, `num_clients`, `seed` (and `groups`, if it
goes by these) that returns the example numbers of each client. The other arguments of a function are the options that a
config can set (`config.keywords`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import Field, create_model

from fedmpi.config.fields import Section
from fedmpi.config.keywords import Keywords
from fedmpi.data.arrays import ArrayOptions, Arrays
from fedmpi.data.dataset import Dataset
from fedmpi.data.dealing import Ints, PartitionOptions
from fedmpi.data.options import DataOptions
from fedmpi.errors import DataError, OtherKindError, UnknownError, UserError, as_one_line, counted, type_in_words

Function = Callable[..., Any]
# A function that makes as many examples as it is asked for does better than a subset of them.
_MAY_BE_ARGUMENTS = ("num_train", "num_test")
_GIVEN = ("labels", "num_clients", "seed")


class FunctionData(ArrayOptions):
    """The options of a data set that is a function."""

    function: ClassVar[Function]
    keywords: ClassVar[Keywords]

    def arrays(self) -> Arrays | Dataset:
        return _called(self, f"data.name={self.name}")


class FunctionPartition(PartitionOptions):
    """The options of a partition that is a function."""

    function: ClassVar[Function]
    keywords: ClassVar[Keywords]

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
    keywords = Keywords.of(name, function)
    if missing := [argument for argument in given if argument not in keywords.parameters]:
        raise UnknownError(f"{name!r} has no argument {missing[0]!r}; expected ({', '.join(given)}, **options)")
    by_groups = bool(given) and "groups" in keywords.parameters
    fields = keywords.fields(base, (*given, *["groups"] * by_groups), _MAY_BE_ARGUMENTS)
    about = (inspect.getdoc(function) or name).partition("\n\n")[0]
    fields["name"] = (str, Field(name, description=" ".join(about.split())))
    made: Any = create_model(function.__name__, __base__=base, __module__=function.__module__, **fields)
    made.function, made.keywords, made.by_groups = staticmethod(function), keywords, by_groups
    return made


def _called(options: FunctionData | FunctionPartition, where: str, *given: Any, **more: Any) -> Any:
    """What the user's function returns. Raises DataError in one line with its own error and where that arose."""
    names = [key for key in type(options).model_fields if key in options.keywords.parameters]
    try:
        return type(options).function(*given, **options.keywords.given(options, names), **more)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code does
        raise DataError(where, f"its function failed: {as_one_line(error)}") from error


def _checked(where: str, found: Any, num_examples: int, num_clients: int) -> tuple[Ints, Ints]:
    """A user's list of example numbers for each client as one array, and the sizes. Raises DataError."""
    import numpy as np

    try:
        parts = [np.asarray(part) for part in found]
    except (TypeError, ValueError):
        given = f"gave {type_in_words(found)}"
        raise DataError(where, f"{given}, expected a list of arrays, one for each client") from None
    if len(parts) != num_clients:
        raise DataError(where, f"gave the examples of {counted(len(parts), 'client')}, expected {num_clients}")
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
