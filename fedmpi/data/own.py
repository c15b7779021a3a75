"""Data sets and partitions of the user, of which README.md says what they may be: arrays, and functions in a config."""

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, create_model

from fedmpi.config.fields import Folder, Section, Task, free
from fedmpi.config.keywords import Keywords
from fedmpi.data.batches import with_examples
from fedmpi.data.dataset import (
    ARRAYS,
    IGNORED,
    PARTS,
    DataInfo,
    DataOptions,
    Dataset,
    Kind,
    Part,
    check,
    classes_of,
    number_groups,
    place_of,
    task_of,
)
from fedmpi.data.partition import PartitionOptions
from fedmpi.data.subset import Ints, stratified_holdout
from fedmpi.errors import STANDARDIZE, WHOLE_NUMBERS, DataError, UnknownError, counted, type_in_words, users_code
from fedmpi.seeds import numpy_generator

Arrays = Mapping[str, Any]
MAX_TOKEN = np.iinfo(np.int32).max
VocabularySize = Annotated[int, Field(ge=0, le=MAX_TOKEN)]
CLASS_NAMES = "class_names"
NOTES = "notes"
"""Names of arrays that are facts of `DataInfo`."""
_NEEDED = ("train_x", "train_y", "test_x", "test_y")
_EXPECTED = (
    "expected pictures uint8 (N, H, W, C) or, if grey, (N, H, W); vectors float (N, features); "
    f"or tokens, whole numbers (N, length) from 0 to {MAX_TOKEN}"
)
_UNSCALED = 1000
"""Numbers beyond this are not standardized; a usual learning rate diverges on them."""
_TARGETS = (
    "expected classes, whole numbers (N,); numbers to predict, float (N,) or (N, outputs); labels, rows of 0 and 1 "
    "(N, labels); or classes of tokens, whole numbers in their shape (N, length)"
)
_NUMBERED = "np.unique(y, return_inverse=True)[1] numbers classes from 0 without gaps"
_PARTITION_ARGUMENTS = ("labels", "num_clients", "seed")


class ArrayOptions(DataOptions):
    """Options of a data set of which only its arrays are known; a subclass says how to get these."""

    reads_to_know = True

    def arrays(self) -> Arrays | Dataset:
        """Returns the arrays of README.md by name."""
        raise NotImplementedError

    def given_vocabulary(self) -> int:
        """Returns how many tokens there are, whichever occur; 0 if only the data say it."""
        return 0

    def info(self) -> DataInfo:
        return known(self)

    def read(self) -> Dataset:
        """Returns the examples, which are kept no longer: other ranks may lend theirs."""
        dataset, _ = _read(self)
        _read.cache_clear()
        return dataset


class FileOptions(ArrayOptions):
    """Options of a data set in a file or folder of the user's."""

    path: Folder = free(...)
    """Where the data are."""
    test_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of test examples, drawn class by class and the same for every seed, if the data have no test part of
    their own; 0 if they have."""
    crop_padding: Annotated[int, Field(ge=0, le=1024)] = 0
    """Zeros on each side of a picture that training crops are cut out of (`train.augment`)."""
    flip: bool = False
    """Mirror half of the training pictures left to right (`train.augment`)."""

    def divided(self, arrays: Arrays) -> Arrays:
        """Returns `arrays` with a test part: `x`, `y` and perhaps `groups` are divided. Raises DataError."""
        where = place_of(self)
        whole = {name: arrays[name] for name in ("x", "y", "groups") if name in arrays}
        if "x" in whole and not self.test_share:
            raise DataError(where, "has no test part; say by data.test_share, as 0.2, how many examples are for tests")
        if "x" not in whole and self.test_share:
            raise DataError(where, "has a test part, or no x; remove data.test_share, or give x and y")
        if not self.test_share:
            return arrays
        if "y" not in whole or len({array.shape[:1] for array in whole.values()}) > 1:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in whole.items())
            raise DataError(where, f"x and y (and groups, if there are any) are to be of one length, found {shapes}")
        labels = whole["y"]
        generator = numpy_generator("own-split", 0)
        train, test = stratified_holdout(np.arange(len(labels)), classes_of(labels), self.test_share, generator)
        divided = {name: array for name, array in arrays.items() if name not in whole}
        for name, array in whole.items():
            divided[_name_in("train", name)] = array[train]
            divided[_name_in("test", name)] = array[test]
        return divided

    def parted(self, lengths: Mapping[str, int], whole: Arrays, **facts: Any) -> Arrays:
        """Cuts arrays that hold train and test, or the one part '' that is divided, in this order. Raises DataError."""
        arrays = dict(facts)
        start = 0
        for part, length in lengths.items():
            for name, array in whole.items():
                arrays[_name_in(part, name)] = array[start : start + length]
            start += length
        return self.divided(arrays)


def _name_in(part: str, name: str) -> str:
    """Returns what an array of a part is called: `groups` for those of train, else as `test_groups`."""
    return name if not part or (part, name) == ("train", "groups") else f"{part}_{name}"


def forget() -> None:
    """Forgets all examples and facts: a file may have changed between two runs of a process."""
    known.cache_clear()
    _read.cache_clear()


@functools.lru_cache(maxsize=1)
def known(options: ArrayOptions) -> DataInfo:
    """Returns the facts of the examples, also after these are forgotten. Raises DataError."""
    return _read(options)[1]


@functools.lru_cache(maxsize=1)
def _read(options: ArrayOptions) -> tuple[Dataset, DataInfo]:
    """Reads and checks the examples, once in a process until they are forgotten. Raises DataError."""
    where = place_of(options)
    arrays = _as_arrays(where, options.arrays())
    kind, task = _form(where, arrays, "train")
    if (other := _form(where, arrays, "test")) != (kind, task):
        found = f"the training part (x: {kind}, y: {task}) is unlike the test part (x: {other[0]}, y: {other[1]})"
        raise DataError(where, f"{found}; give both alike")
    for part in PARTS:
        if arrays[f"{part}_x"].ndim == 3:
            arrays[f"{part}_x"] = arrays[f"{part}_x"][..., None]
        if task == "regression" and arrays[f"{part}_y"].ndim == 1:
            arrays[f"{part}_y"] = arrays[f"{part}_y"][:, None]
    if "groups" in arrays:
        arrays["groups"], test_groups = number_groups(arrays["groups"], arrays.get("test_groups", []))
        arrays |= {"test_groups": test_groups} if "test_groups" in arrays else {}
    info = _info(where, options, kind, task, arrays)
    for part in PARTS:
        arrays[f"{part}_x"] = np.require(arrays[f"{part}_x"], info.dtype, ["C", "A", "W"])
        arrays[f"{part}_y"] = arrays[f"{part}_y"].astype(info.target_dtype)
    contents: dict[str, Any] = {name: arrays.get(name) for name in ARRAYS}
    dataset = Dataset(**contents)
    return check(where, dataset, info), with_examples(info, dataset)


def _notes(kind: Kind, task: Task, x: NDArray[Any], y: NDArray[Any]) -> Iterator[str]:
    """Yields a line for what is read in a way that the user may not mean, and for numbers that are not standardized."""
    if kind == "tokens" and task != "token_classification":
        yield WHOLE_NUMBERS
    if kind == "vector" and (unscaled := _unscaled(x)):
        yield f"features reach far from 0 ({unscaled}); {STANDARDIZE}"
    if task != "regression":
        return
    if unscaled := _unscaled(y):
        yield f"numbers to predict reach far from 0 ({unscaled}); {STANDARDIZE}"
    numbers = np.unique(y)
    if y.shape[1] == 1 and np.array_equal(numbers, np.arange(len(numbers))):
        todo = "if they are classes, give y.ravel().astype(int)"
        yield f"targets 0.0, 1.0, ... are numbers to predict (regression); {todo}"


def _unscaled(values: NDArray[Any]) -> str:
    """Returns the column of (N, columns) with the largest number, if that is beyond `_UNSCALED`; '' if not."""
    largest = np.nan_to_num(np.abs(values).max(axis=0, initial=0), posinf=0)
    column = int(largest.argmax())
    return f"column {column}: up to {largest[column]:.3g}" if largest[column] > _UNSCALED else ""


def _as_arrays(where: str, given: object) -> dict[str, NDArray[Any]]:
    """Returns the arrays by name. Raises DataError for anything else, and for missing and unknown names."""
    if isinstance(given, Dataset):
        given = given.arrays
    if not isinstance(given, Mapping):
        expected = f"a dict with {', '.join(_NEEDED)}, or a fedmpi.data.dataset.Dataset"
        raise DataError(where, f"gave {type_in_words(given)}, expected {expected}")
    try:
        arrays = {str(name): np.asarray(array) for name, array in given.items() if array is not None}
    except (TypeError, ValueError, RuntimeError) as error:  # the last of a tensor that requires a gradient
        raise DataError(where, f"gave something that is no array: {error}") from error
    allowed = (*ARRAYS, CLASS_NAMES)
    needed = (*_NEEDED, "groups") if "test_groups" in arrays else _NEEDED
    wrong = [f"has no {name}" for name in needed if name not in arrays]
    wrong += [f"has {name[:40]!r}, which means nothing" for name in arrays if name not in (*allowed, NOTES)]
    if wrong:
        has = ", ".join(sorted(arrays)[:12]) or "nothing"
        raise DataError(where, f"{wrong[0]}; it holds {has}; known: {', '.join(allowed)}")
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise objects_in(name, where)
    return arrays


def objects_in(name: str, where: str) -> DataError:
    """Returns the error of an array of Python objects."""
    todo = f"give {name}.astype(str) for names, or an array of one type of numbers"
    return DataError(where, f"{name} holds Python objects, as of pandas; {todo}")


def _form(where: str, arrays: Arrays, part: Part) -> tuple[Kind, Task]:
    """Returns what the examples of a part are, and what their targets are for. Raises DataError."""
    x = arrays[f"{part}_x"]
    y = arrays[f"{part}_y"]
    kind: Kind
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        kind = "image"
        if x.ndim == 4:
            _refuse_channels_first(where, f"{part}_x", x)
    elif x.ndim == 2 and x.dtype.kind == "f":
        kind = "vector"
    elif x.ndim == 2 and x.dtype.kind in "iu" and not ((x < 0) | (x > MAX_TOKEN)).any():
        kind = "tokens"
    else:
        raise DataError(where, f"{part}_x is {x.dtype} {x.shape}; {_EXPECTED}{_remedy(x)}")
    task = task_of(y, x.shape if kind == "tokens" else None)
    if task is None:
        todo = f"; {_NUMBERED}" if y.ndim == 1 else ""
        if y.ndim > 1 and y.size == len(y):
            todo = f"; give {part}_y.ravel()"
        raise DataError(where, f"{part}_y is {y.dtype} {y.shape}; {_TARGETS}{todo}")
    return kind, task


def _remedy(array: NDArray[Any]) -> str:
    """Returns what makes examples of these numbers, '' for what are none."""
    if array.dtype.kind not in "biuf" or array.ndim < 1:
        return ""
    if array.ndim == 2:
        return f"; {WHOLE_NUMBERS}"
    rows = "x.reshape(len(x), -1).astype('float32') makes rows of features"
    if array.ndim not in (3, 4) or not array.size or not np.isfinite(array).all():
        return f"; {rows}"
    low = min(0.0, float(array.min()))
    shifted = f"(x + {-low:.6g})" if low else "x"
    scaled = f"({shifted} / {float(array.max()) - low or 1.0:.6g} * 255).clip(0, 255).astype('uint8')"
    is_channels_first = array.ndim == 4 and array.shape[1] < min(array.shape[2:])
    axes = ".transpose(0, 2, 3, 1)" if is_channels_first else ""
    return f"; {scaled}{axes} makes pictures, {rows}"


def _refuse_channels_first(where: str, name: str, images: NDArray[Any]) -> None:
    """Raises DataError for pictures that are not square and have more than four channels or, read the other way, are
    square. 1 and 3 channels that come last are not doubted."""
    height, breadth, channels = images.shape[1:]
    is_square = breadth == channels not in (1, 3)
    if height != breadth and (is_square or height < channels > 4):
        found = f"{name} is {images.dtype} {images.shape}, which looks like (N, C, H, W)"
        raise DataError(where, f"{found}; give (N, H, W, C): {name}.transpose(0, 2, 3, 1)")


def _info(where: str, options: ArrayOptions, kind: Kind, task: Task, arrays: Arrays) -> DataInfo:
    """Returns the facts of the arrays. Raises DataError where these do not fit each other or the options."""
    x = arrays["train_x"]
    y = arrays["train_y"]
    crop_padding = getattr(options, "crop_padding", 0)
    flip = getattr(options, "flip", False)
    if kind != "image" and (crop_padding or flip):
        raise DataError(where, "data.crop_padding and data.flip are for pictures")
    num_tokens, num_classes = _vocabulary(where, options, task, arrays) if kind == "tokens" else (0, 0)
    if task != "token_classification":
        num_classes = _num_outputs(where, task, y)
    num_groups = len(np.unique(arrays.get("groups", [])))
    info = DataInfo(
        kind,
        x.shape[1:],
        num_classes,
        len(x),
        len(arrays["test_x"]),
        crop_padding=crop_padding,
        flip=flip,
        vocabulary_size=num_tokens,
        num_groups=num_groups,
        shares_groups="test_groups" in arrays and int(arrays["test_groups"].max(initial=0)) < num_groups,
        task=task,
        class_names=tuple(map(str, np.ravel(arrays.get(CLASS_NAMES, [])))),
        notes=(*map(str, arrays.get(NOTES, [])), *_notes(kind, task, x, y)),
    )
    has_names = task in ("classification", "token_classification") and len(info.class_names) == num_classes
    if info.class_names and not has_names:
        found = counted(len(info.class_names), "class name")
        raise DataError(where, f"has {found} for {info.in_words().rpartition('; ')[2]}")
    if kind == "image":
        mean, std = pixel_statistics(x)
        return replace(info, example_shape=(x.shape[3], x.shape[1], x.shape[2]), mean=mean, std=std)
    return info


def _num_outputs(where: str, task: Task, targets: NDArray[Any]) -> int:
    """Counts the classes, numbers or labels. Raises DataError for classes with gaps, and for rows of one 1 each."""
    if task == "classification":
        classes = np.unique(targets)
        if len(classes) < 2 or not np.array_equal(classes, np.arange(len(classes))):
            found = f"train_y has {len(classes)} classes from {classes[:1]} to {classes[-1:]}"
            raise DataError(where, f"{found}; expected two or more, 0, 1, ...; {_NUMBERED}")
        return len(classes)
    num_outputs = targets.shape[1]
    if num_outputs > 1 and (np.sort(targets) == [0] * (num_outputs - 1) + [1]).all():
        raise DataError(where, "each row of train_y has one 1, as of classes; give these as train_y.argmax(1)")
    return num_outputs


def _vocabulary(where: str, options: ArrayOptions, task: Task, arrays: Arrays) -> tuple[int, int]:
    """Returns how many tokens there are and, if they have targets, of how many classes: as many, where each token's
    target is the token that follows it. Raises DataError for a token beyond those that the options give."""
    num_tokens = 1 + max(int(arrays[name].max(initial=0)) for name in ("train_x", "test_x"))
    num_classes = 2
    is_next = False
    if task == "token_classification":
        num_classes = max(2, *(1 + int(arrays[name].max(initial=0)) for name in ("train_y", "test_y")))
        x = arrays["train_x"][:, 1:]
        y = arrays["train_y"][:, :-1]
        is_known = (y != IGNORED) & (arrays["train_y"][:, 1:] != IGNORED)
        is_next = bool(is_known.any()) and bool((x == y)[is_known].all())
    if is_next:
        num_tokens = max(num_tokens, num_classes)
    given = options.given_vocabulary()
    if 0 < given < num_tokens:
        found = f"has the token {num_tokens - 1}, but data.vocabulary_size={given}"
        raise DataError(where, f"{found}; allowed: 0 to {given - 1}")
    return given or num_tokens, (given or num_tokens) if is_next else num_classes


def pixel_statistics(images: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and standard deviation (1 if it is 0) of each channel of uint8 (N, H, W, C), pixels scaled to 0..1.

    Sums are of whole numbers, so their order does not matter.
    """
    size = images[..., 0].size
    totals = images.sum(axis=(0, 1, 2), dtype=np.int64)
    squares = np.einsum("nhwc,nhwc->c", images, images, dtype=np.int64)
    means = []
    deviations = []
    for total, square in zip(totals.tolist(), squares.tolist(), strict=True):
        means.append(total / (size * 255))
        deviations.append(math.sqrt((size * square - total**2) / size**2) / 255 or 1.0)
    return tuple(means), tuple(deviations)


class _Function(Section):
    """The options of a data set or partition that is a function."""

    keywords: ClassVar[Keywords]

    def call(self, where: str, *given: Any, **more: Any) -> Any:
        """Calls the user's function. Raises DataError with the function's own error and where that arose."""
        with users_code(where, "its function failed", DataError):
            return self.keywords.function(*given, **self.keywords.given(self), **more)


class FunctionData(_Function, ArrayOptions):
    def arrays(self) -> Any:
        return self.call(f"data.name={self.name}")


class FunctionPartition(_Function, PartitionOptions):
    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Joins the function's list of example numbers for each client. Raises DataError."""
        where = f"partition.name={self.name}"
        more: dict[str, Any] = {"groups": groups} if self.by_groups else {}
        given = self.call(where, labels, num_clients, seed, **more)
        try:
            parts = [np.asarray(part) for part in given]
        except (TypeError, ValueError):
            expected = "expected a list of arrays, one for each client"
            raise DataError(where, f"gave {type_in_words(given)}, {expected}") from None
        if len(parts) != num_clients:
            raise DataError(where, f"gave the examples of {counted(len(parts), 'client')}, expected {num_clients}")
        for client, part in enumerate(parts):
            if part.ndim != 1 or not part.size or part.dtype.kind not in "iu":
                shown = f"gave client {client} an array {part.dtype} {part.shape}"
                raise DataError(where, f"{shown}, expected whole numbers (n,), one or more")
        return np.concatenate(parts).astype(np.int64), np.array([len(part) for part in parts], dtype=np.int64)


def _options_of(base: type[Section], needed: str, of_function: type[Section], name: str, named: Any) -> type[Section]:
    """Returns the options class of the data set or partition that a config calls `name`. Raises `UnknownError`."""
    if isinstance(named, type) and issubclass(named, base) and getattr(named, needed) is not getattr(base, needed):
        return named
    if inspect.isfunction(named):
        return _of_function(name, named, of_function)
    raise UnknownError(f"{name!r} is neither a subclass of {base.__name__} with `{needed}` nor a function")


options_of_data = functools.partial(_options_of, DataOptions, "read", FunctionData)
options_of_partition = functools.partial(_options_of, PartitionOptions, "divide", FunctionPartition)


@functools.cache
def _of_function(name: str, function: Callable[..., Any], base: type[Section]) -> type[Section]:
    """Makes a subclass of `base` with a field for each argument that is not given. Raises `UnknownError`."""
    keywords = Keywords.of(name, function)
    is_partition = base is FunctionPartition
    given = _PARTITION_ARGUMENTS if is_partition else ()
    if missing := [argument for argument in given if argument not in keywords.parameters]:
        raise UnknownError(f"{name!r} has no argument {missing[0]!r}; expected ({', '.join(given)}, **options)")
    by_groups = is_partition and "groups" in keywords.parameters
    without = (*given, "groups") if by_groups else given
    fields = keywords.fields(base, without)
    about = (inspect.getdoc(function) or name).partition("\n\n")[0]
    fields["name"] = (str, Field(name, description=" ".join(about.split())))
    made: Any = create_model(function.__name__, __base__=base, __module__=function.__module__, **fields)
    made.keywords = keywords
    made.by_groups = by_groups
    return made
