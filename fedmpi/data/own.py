"""Data sets and partitions of the user: the arrays of a file, folder or function, and functions named in a config.

Pictures are uint8 (N, H, W, C); (N, H, W) are grey ones, which get one channel. Vectors are float32 (N, features).
Tokens are whole numbers (N, length) of 0 to 32,767. Labels are whole numbers (N,) from 0 without gaps. `groups` (N,),
numbers or names, say whose a training example is, and `test_groups` (M,) the same of a test example.

A data set may be a subclass of `DataOptions`, or a function that returns arrays. A partition may be a subclass of
`PartitionOptions`, or a function of `labels`, `num_clients`, `seed` (and `groups`, if it goes by these) that returns
the example numbers of each client. A function's other arguments are options of the config (`config.keywords`).
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, create_model

from fedmpi.config.fields import Folder, NotNegative, Positive, Section, free
from fedmpi.config.keywords import Keywords
from fedmpi.data.dataset import DTYPES, PARTS, DataInfo, DataOptions, Dataset, Kind, check, number_groups, place_of
from fedmpi.data.partition import PartitionOptions
from fedmpi.data.subset import Ints, stratified_holdout
from fedmpi.errors import DataError, UnknownError, UserError, as_one_line, counted, type_in_words
from fedmpi.seeds import numpy_generator

Function = Callable[..., Any]
Arrays = Mapping[str, Any]
MAX_CLASSES = 1_000_000
MAX_TOKEN = np.iinfo(np.int16).max
_NEEDED = ("train_x", "train_y", "test_x", "test_y")
_CHUNK_PIXELS = 2**20
_EXPECTED = (
    "expected pictures uint8 (N, H, W, C) or, if grey, (N, H, W); vectors float32 (N, features); "
    "or tokens, whole numbers (N, length)"
)
_FLOATS = (
    "; of pixels from 0 to 1 make (255 * {0}).round().astype('uint8'), before they are normalized "
    "(data.mean and data.std normalize them)"
)
# A function that makes as many examples as it is asked for does better than a subset of them.
_MAY_BE_ARGUMENTS = ("num_train", "num_test")
_PARTITION_ARGUMENTS = ("labels", "num_clients", "seed")


class ArrayOptions(DataOptions):
    """Options of a data set of which only its arrays are known; a subclass says how to get these."""

    reads_to_know = True

    def arrays(self) -> Arrays | Dataset:
        """Returns `train_x`, `train_y`, `test_x`, `test_y`, and `groups` and `test_groups` where they are known."""
        raise NotImplementedError

    def info(self) -> DataInfo:
        return known(self).info

    def read(self) -> Dataset:
        if (dataset := known(self).dataset) is None:
            known.cache_clear()
            dataset = self.read()
        return dataset

    def forget(self) -> None:
        known(self).dataset = None


class FileOptions(ArrayOptions):
    """Options of a data set in a file or folder of the user's."""

    path: Folder = free(...)
    """Where the data are."""
    test_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of test examples, drawn class by class, if the data have no test part of their own; 0 if they have."""
    split_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of that draw; the run's own seed does not change it."""
    mean: Annotated[tuple[NotNegative, ...], Field(strict=False)] = ()
    """Mean of each channel of the pictures, of pixels scaled to 0..1; empty means that of the training pixels."""
    std: Annotated[tuple[Positive, ...], Field(strict=False)] = ()
    """Standard deviation of each channel of the pictures; empty means that of the training pixels."""
    crop_padding: Annotated[int, Field(ge=0, le=1024)] = 0
    """Zeros on each side of a picture that training crops are cut out of (`train.augment`)."""
    flip: bool = False
    """Mirror half of the training pictures left to right (`train.augment`)."""


@dataclass
class _Known:
    dataset: Dataset | None
    """None once it was forgotten."""
    info: DataInfo


@functools.lru_cache(maxsize=1)
def known(options: ArrayOptions) -> _Known:
    """Reads and checks the examples, once in a process. Raises DataError."""
    where = place_of(options)
    arrays = _as_arrays(where, options.arrays())
    if problems := _part_problems(arrays, "train") or _part_problems(arrays, "test") or [*_problems_together(arrays)]:
        raise DataError(where, *problems)
    kind = _kind(arrays["train_x"])
    assert kind is not None, "the arrays were checked"
    for name in ("train_x", "test_x"):
        array = arrays[name]
        array = array[..., None] if kind == "image" and array.ndim == 3 else array
        arrays[name] = np.require(array, DTYPES[kind], ["C", "A", "W"])
    for name in ("train_y", "test_y"):
        arrays[name] = arrays[name].astype(np.int64)
    if "groups" in arrays:
        groups, test_groups = number_groups(arrays["groups"], arrays.get("test_groups", []))
        arrays["groups"] = groups
        if "test_groups" in arrays:
            arrays["test_groups"] = test_groups
    whole: dict[str, Any] = arrays
    dataset = Dataset(**whole)
    info = _info(where, options, kind, dataset)
    return _Known(check(where, dataset, info), info)


def _as_arrays(where: str, given: object) -> dict[str, NDArray[Any]]:
    """Returns the arrays by name. Raises DataError for anything else, and for names that are missing or unknown."""
    if isinstance(given, Dataset):
        given = given.arrays
    if not isinstance(given, Mapping):
        expected = f"a dict with {', '.join(_NEEDED)}, or a fedmpi.data.dataset.Dataset"
        raise DataError(where, f"gave {type_in_words(given)}, expected {expected}")
    try:
        arrays = {str(name): np.asarray(array) for name, array in given.items() if array is not None}
    except (TypeError, ValueError) as error:
        raise DataError(where, f"gave something that is no array: {error}") from error
    check_names(where, arrays, _NEEDED, tuple(PARTS))
    if "test_groups" in arrays and "groups" not in arrays:
        raise DataError(where, "has test_groups without groups")
    return arrays


def check_names(where: str, arrays: Arrays, needed: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Raises DataError for names that are missing, and for others, because a misspelled one would be left out."""
    if missing := [name for name in needed if name not in arrays]:
        holds = f"it holds {', '.join(sorted(arrays)[:12]) or 'nothing'}"
        raise DataError(where, f"has no {' and no '.join(missing)}; {holds}")
    if unknown := [name for name in arrays if name not in known]:
        raise DataError(where, f"{unknown[0][:40]!r} means nothing; known: {', '.join(known)}")


def _part_problems(arrays: Mapping[str, NDArray[Any]], part: str) -> list[str]:
    x, y = arrays[f"{part}_x"], arrays[f"{part}_y"]
    problems = _examples_problem(f"{part}_x", x), labels_problem(f"{part}_y", y, f"{part}_x", x)
    return [problem for problem in problems if problem]


def _kind(array: NDArray[Any]) -> Kind | None:
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        return "image"
    if array.ndim == 2 and array.dtype.kind in "fiu":
        return "vector" if array.dtype.kind == "f" else "tokens"
    return None


def _examples_problem(name: str, array: NDArray[Any]) -> str:
    """Returns what is wrong with examples, or ''."""
    kind, shown = _kind(array), f"{name} is {array.dtype} {array.shape}"
    if kind is None:
        is_picture = array.dtype.kind == "f" and array.ndim in (3, 4)
        return f"{shown}; {_EXPECTED}{_FLOATS.format(name) if is_picture else ''}"
    if not array.size:
        return f"{shown}: there are no {PARTS[name]}"
    if kind == "image" and array.ndim == 4 and array.shape[1] in (1, 3) and array.shape[3] > 4:
        return f"{shown}, which looks like (N, C, H, W); give (N, H, W, C): {name}.transpose(0, 2, 3, 1)"
    if kind == "vector" and array.dtype.itemsize != 4:
        return f"{shown}, expected float32: {name}.astype('float32')"
    if kind == "tokens" and (array.min() < 0 or array.max() > MAX_TOKEN):
        return f"{name} has tokens from {array.min()} to {array.max()}, expected 0 to {MAX_TOKEN}"
    return ""


def labels_problem(name: str, labels: NDArray[Any], of: str, examples: NDArray[Any]) -> str:
    """Returns what is wrong with the labels of examples, or ''."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        return f"{name} is {labels.dtype} {labels.shape}, expected whole numbers (N,)"
    num_examples = len(examples) if examples.ndim else 0
    if len(labels) != num_examples:
        return f"{name} has {counted(len(labels), 'label')} for {counted(num_examples, 'example')} in {of}"
    if len(labels) and (labels.min() < 0 or labels.max() >= MAX_CLASSES):
        odd = labels.min() if labels.min() < 0 else labels.max()
        return f"{name} has the label {odd}; labels are whole numbers from 0 to at most {MAX_CLASSES - 1}"
    return ""


def _problems_together(arrays: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    train, test = arrays["train_x"], arrays["test_x"]
    if _kind(train) != _kind(test) or train.shape[1:] != test.shape[1:]:
        yield f"test_x is {test.dtype} {test.shape}, but train_x {train.dtype} {train.shape}"
    train_y, test_y = arrays["train_y"].astype(np.int64), arrays["test_y"].astype(np.int64)
    counts = np.bincount(train_y, minlength=int(test_y.max()) + 1)
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        more = f" (nor have {len(empty) - 1} others)" if len(empty) > 1 else ""
        todo = "number the classes from 0 without gaps, as np.unique(y, return_inverse=True)[1] does"
        if empty[0] in test_y:
            todo = "test_y has it, so add training examples of it or take it out of the test"
        yield f"class {empty[0]} has no training example{more}; {todo}"
    elif len(counts) < 2:
        yield "there is one class; expected two or more"
    for name, of in (("groups", "train_y"), ("test_groups", "test_y")):
        array = arrays.get(name)
        if array is not None and (array.shape != arrays[of].shape or array.dtype.kind not in "iuUS"):
            expected = f"expected whole numbers or names, one for each of the {len(arrays[of])} examples"
            yield f"{name} is {array.dtype} {array.shape}, {expected}"


def _info(where: str, options: ArrayOptions, kind: Kind, dataset: Dataset) -> DataInfo:
    x, y, test_x = dataset.train_x, dataset.train_y, dataset.test_x
    num_groups = 0 if dataset.groups is None else int(dataset.groups.max()) + 1
    info = DataInfo(
        kind,
        (x.shape[3], x.shape[1], x.shape[2]) if kind == "image" else x.shape[1:],
        int(y.max()) + 1,
        len(y),
        len(dataset.test_y),
        vocabulary_size=int(max(x.max(), test_x.max())) + 1 if kind == "tokens" else 0,
        num_groups=num_groups,
        shares_groups=dataset.test_groups is not None and int(dataset.test_groups.max()) < num_groups,
    )
    pictures = {key: getattr(options, key, None) for key in ("mean", "std", "crop_padding", "flip")}
    if kind != "image":
        if asked := [key for key, value in pictures.items() if value]:
            kinds = "tokens" if kind == "tokens" else "vectors"
            raise DataError(where, f"data.{asked[0]} is for pictures, but these are {kinds}")
        return info
    for key in ("mean", "std"):
        values = pictures[key]
        if values and len(values) != x.shape[3]:
            has = f"{counted(len(values), 'number')}, but the pictures have {counted(x.shape[3], 'channel')}"
            raise DataError(where, f"data.{key} has {has}")
    if not (pictures["mean"] and pictures["std"]):
        mean, std = pixel_statistics(x)
        pictures["mean"] = pictures["mean"] or mean
        pictures["std"] = pictures["std"] or std
    return replace(info, **{key: value for key, value in pictures.items() if value})


def pixel_statistics(images: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and standard deviation (1 if it is 0) of each channel of uint8 (N, H, W, C), pixels scaled to 0..1.

    Counted in whole numbers and divided once, so the order of the sums does not matter.
    """
    num_channels = images.shape[3]
    pixels = images.reshape(-1, num_channels)
    counts = np.zeros((num_channels, 256), np.int64)
    for start in range(0, len(pixels), _CHUNK_PIXELS):  # bincount takes 8 bytes for each pixel
        chunk = pixels[start : start + _CHUNK_PIXELS]
        for channel in range(num_channels):
            counts[channel] += np.bincount(chunk[:, channel], minlength=256)
    values = np.arange(256)
    size = len(pixels)
    means, deviations = [], []
    for count in counts:
        total, square = int(count @ values), int(count @ values**2)
        means.append(total / (size * 255))
        variance = (size * square - total**2) / size**2
        deviations.append(math.sqrt(variance) / 255 or 1.0)
    return tuple(means), tuple(deviations)


def divided(where: str, options: FileOptions, x: NDArray[Any], y: NDArray[Any], groups: NDArray[Any] | None) -> Arrays:
    """Divides examples without a test part of their own by `data.test_share`. Raises DataError."""
    if problem := labels_problem("y", y, "x", x):
        raise DataError(where, problem)
    generator = numpy_generator("own-split", options.split_seed)
    train, test = stratified_holdout(np.arange(len(y)), y, options.test_share, generator)
    if not len(test):
        raise DataError(where, f"{len(y)} examples are too few to divide; four or more can be")
    arrays = {"train_x": x[train], "train_y": y[train], "test_x": x[test], "test_y": y[test]}
    if groups is not None:
        arrays |= {"groups": groups[train], "test_groups": groups[test]}
    return arrays


# ---- functions and classes that a config names


class FunctionData(ArrayOptions):
    """The options of a data set that is a function."""

    function: ClassVar[Function]
    keywords: ClassVar[Keywords]

    def arrays(self) -> Arrays | Dataset:
        arrays: Arrays | Dataset = _call(self, f"data.name={self.name}")
        return arrays


class FunctionPartition(PartitionOptions):
    """The options of a partition that is a function."""

    function: ClassVar[Function]
    keywords: ClassVar[Keywords]

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        where = f"partition.name={self.name}"
        more: dict[str, Any] = {"groups": groups} if self.by_groups else {}
        parts = _call(self, where, labels, num_clients, seed, **more)
        return _checked_parts(where, parts, len(labels), num_clients)


def options_of_data(name: str, named: object) -> type[Section]:
    """Returns the options class of the data set that a config calls `name`. Raises `UnknownError`."""
    if isinstance(named, type) and issubclass(named, DataOptions) and named.read is not DataOptions.read:
        return named
    if inspect.isfunction(named):
        return _of_function(name, named, FunctionData, ())
    raise UnknownError(f"{name!r} is neither a subclass of DataOptions with `info` and `read` nor a function")


def options_of_partition(name: str, named: object) -> type[Section]:
    """Returns the options class of the partition that a config calls `name`. Raises `UnknownError`."""
    if isinstance(named, type) and issubclass(named, PartitionOptions) and named.divide is not PartitionOptions.divide:
        return named
    if inspect.isfunction(named):
        return _of_function(name, named, FunctionPartition, _PARTITION_ARGUMENTS)
    raise UnknownError(f"{name!r} is neither a subclass of PartitionOptions with `divide` nor a function")


@functools.cache
def _of_function(name: str, function: Function, base: type[Section], given: tuple[str, ...]) -> type[Section]:
    """Makes a subclass of `base` with a field for each argument that is not `given`. Raises `UnknownError`."""
    keywords = Keywords.of(name, function)
    if missing := [argument for argument in given if argument not in keywords.parameters]:
        raise UnknownError(f"{name!r} has no argument {missing[0]!r}; expected ({', '.join(given)}, **options)")
    by_groups = bool(given) and "groups" in keywords.parameters
    without = (*given, "groups") if by_groups else given
    fields = keywords.fields(base, without, _MAY_BE_ARGUMENTS)
    about = (inspect.getdoc(function) or name).partition("\n\n")[0]
    fields["name"] = (str, Field(name, description=" ".join(about.split())))
    made: Any = create_model(function.__name__, __base__=base, __module__=function.__module__, **fields)
    made.function = staticmethod(function)
    made.keywords = keywords
    made.by_groups = by_groups
    return made


def _call(options: FunctionData | FunctionPartition, where: str, *given: Any, **more: Any) -> Any:
    """Calls the user's function. Raises DataError in one line with the function's own error and where that arose."""
    names = [key for key in type(options).model_fields if key in options.keywords.parameters]
    try:
        return type(options).function(*given, **options.keywords.given(options, names), **more)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code does
        raise DataError(where, f"its function failed: {as_one_line(error)}") from error


def _checked_parts(where: str, given: Any, num_examples: int, num_clients: int) -> tuple[Ints, Ints]:
    """Joins a user's list of example numbers for each client; returns also the sizes. Raises DataError."""
    try:
        parts = [np.asarray(part) for part in given]
    except (TypeError, ValueError):
        expected = "expected a list of arrays, one for each client"
        raise DataError(where, f"gave {type_in_words(given)}, {expected}") from None
    if len(parts) != num_clients:
        raise DataError(where, f"gave the examples of {counted(len(parts), 'client')}, expected {num_clients}")
    for client, part in enumerate(parts):
        if not part.ndim or not part.size:
            raise DataError(where, f"gave client {client} no examples")
        if part.ndim != 1 or part.dtype.kind not in "iu":
            shown = f"gave client {client} an array {part.dtype} {part.shape}"
            raise DataError(where, f"{shown}, expected whole numbers (n,)")
    numbers = np.concatenate(parts).astype(np.int64)
    if numbers.min() < 0 or numbers.max() >= num_examples:
        odd = numbers.min() if numbers.min() < 0 else numbers.max()
        raise DataError(where, f"gave the example {odd}; there are 0 to {num_examples - 1}")
    counts = np.bincount(numbers)
    if (counts > 1).any():
        raise DataError(where, f"gave the example {int(counts.argmax())} to more than one client, or twice to one")
    return numbers, np.array([len(part) for part in parts], dtype=np.int64)
