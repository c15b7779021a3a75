"""A data set: its options, the facts that models and plans need, its examples, and the check that these agree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedmpi.config.fields import DATA_PLACES, METRICS, CountOrZero, Section, Task
from fedmpi.config.schema import Config
from fedmpi.config.yaml_text import found
from fedmpi.data.subset import Ints, choose
from fedmpi.errors import DataError, counted
from fedmpi.seeds import numpy_generator
from fedmpi.store.files import DIGEST_BYTES

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["image", "vector", "tokens"]
Part = Literal["train", "test"]
Arrays: TypeAlias = Mapping[str, NDArray[Any] | None]

DTYPES = {"image": "uint8", "vector": "float32"}
IGNORED = -100
"""The target of a token that has none, as in torch and transformers."""
PARTS: tuple[Part, ...] = ("train", "test")
ARRAYS = ("train_x", "train_y", "test_x", "test_y", "groups", "test_groups")
_CHUNK_BYTES = 2**24


@dataclass(frozen=True)
class DataInfo:
    """The facts of a data set that models, plans and batches need."""

    kind: Kind
    example_shape: tuple[int, ...]
    """(C, H, W) for images, (features,) for vectors, (length,) for tokens."""
    num_classes: int
    """How many outputs a net has: one for each class, label or number."""
    num_train: int
    num_test: int
    mean: tuple[float, ...] = ()
    """Of each channel, of pixels scaled to 0..1; empty: examples are used as they are. `std` likewise."""
    std: tuple[float, ...] = ()
    crop_padding: int = 0
    """Zeros on each side of an image that random crops are cut out of."""
    flip: bool = False
    vocabulary_size: int = 0
    num_groups: int = 0
    """How many groups (writers, subjects, roles) the training examples come from; 0 if that is not known."""
    shares_groups: bool = False
    """True if the test examples come from the same groups."""
    task: Task = "classification"
    class_names: tuple[str, ...] = ()
    """The classes' names in the order of their numbers; empty where they have none."""
    notes: tuple[str, ...] = ()
    """What is read in a way that the user may not mean, a line each."""
    examples: Tensor | None = field(default=None, compare=False, repr=False)
    """The first training examples as `data.batches` gives them to a net; None before the data are read."""

    def in_words(self) -> str:
        """Returns the shape and type in which a net gets an example, and what it predicts."""
        sizes = self.example_shape
        if self.kind == "image":
            shape = f"pictures of {counted(sizes[0], 'channel')}, {sizes[1]} high and {sizes[2]} wide, float32"
        elif self.kind == "vector":
            shape = f"rows of {counted(sizes[0], 'feature')}, float32"
        else:
            shape = f"rows of {counted(sizes[0], 'token')} from 0 to {self.vocabulary_size - 1}, int64"
        if self.task == "classification":
            return f"{shape}; {self.num_classes} classes"
        if self.task == "token_classification":
            return f"{shape}; {self.num_classes} classes of each token"
        if self.task == "regression":
            return f"{shape}; {counted(self.num_classes, 'number')} to predict (regression)"
        return f"{shape}; {counted(self.num_classes, 'label')} of 0 or 1 (multi-label)"

    @property
    def dtype(self) -> str:
        """Returns the type in which examples are stored."""
        return DTYPES.get(self.kind) or integer_type(self.vocabulary_size)

    @property
    def target_dtype(self) -> str:
        """Returns the type in which targets are stored."""
        types = {"classification": "int64", "token_classification": integer_type(self.num_classes)}
        return types.get(self.task, "float32")

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Returns the shape of an example's targets: (), (length,) for the classes of tokens, else (outputs,)."""
        shapes = {"classification": (), "token_classification": self.example_shape}
        return shapes.get(self.task, (self.num_classes,))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Returns the shape of what a net gives for an example: (outputs,), or (length, classes) for tokens."""
        return (*self.example_shape, self.num_classes) if self.task == "token_classification" else (self.num_classes,)

    @property
    def num_strata(self) -> int:
        """Returns how many classes `Dataset.classes` has."""
        return self.num_classes if self.task == "classification" else 1


@dataclass(frozen=True)
class Dataset:
    """N training and M test examples.

    Images are uint8 (N, H, W, C), vectors float32 (N, features), tokens (N, length) of `integer_type`. Targets are
    classes int64 (N,); classes of tokens (N, length) of `integer_type`, IGNORED where a token has none; or float32
    (N, outputs): numbers to predict, or a 0 or 1 for each label. `groups` int64 (N,), where they are known, say whose
    a training example is, numbered from 0 without gaps, `test_groups` int64 (M,) whose a test example is.
    """

    train_x: NDArray[np.generic]
    train_y: NDArray[Any]
    test_x: NDArray[np.generic]
    test_y: NDArray[Any]
    groups: Ints | None = None
    test_groups: Ints | None = None
    digest: str = field(default="", kw_only=True)
    """`digest_of` the arrays, by `load_data`."""

    @property
    def arrays(self) -> dict[str, NDArray[Any] | None]:
        """Returns the arrays by name; None for groups that are not known."""
        return {name: getattr(self, name) for name in ARRAYS}

    def classes(self, part: Part) -> Ints:
        """Returns the class of each example of a part, int64 (N,): all 0 where the targets are no classes."""
        return classes_of(self.part(part)[1])

    def part(self, part: Part) -> tuple[NDArray[np.generic], NDArray[Any], Ints | None]:
        """Returns the examples of a part, their targets and their groups."""
        if part == "train":
            return self.train_x, self.train_y, self.groups
        return self.test_x, self.test_y, self.test_groups

    @property
    def counts(self) -> dict[str, Any]:
        """Returns how many training and test examples there are, and of how many groups the training examples are."""
        num_groups = 0 if self.groups is None else len(np.unique(self.groups))
        return {"num_train": len(self.train_y), "num_test": len(self.test_y), "num_groups": num_groups}


class DataOptions(Section):
    """The options of a data set; `registry.py` lists its subclasses by name."""

    reads_to_know: ClassVar[bool] = False
    """True if `info` reads the examples."""
    name: str
    """What the data set is, in one line; the value is the name in a config."""
    num_train: CountOrZero = 0
    """Training examples to use, for trials: so many in all, drawn class by class (or group by group); 0 means all."""
    num_test: CountOrZero = 0
    """Test examples to use, drawn in the same way; 0 means all."""

    def info(self) -> DataInfo:
        """Returns the facts of the whole data set."""
        raise NotImplementedError

    def read(self) -> Dataset:
        """Returns the whole data set. Raises DataError, one line a problem."""
        raise NotImplementedError

    def used(self) -> DataInfo:
        """Returns the facts of the examples that a run uses."""
        info = self.info()
        return replace(info, num_train=self.num_train or info.num_train, num_test=self.num_test or info.num_test)

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        info = self.info()
        yield from _problems_of_task(info.task, config)
        kind = "groups" if info.num_groups else "classes"
        if problem := _subset_problem(self.num_train, info.num_train, info.num_groups or info.num_strata, kind):
            yield "data.num_train", problem
        least = 1 if info.num_groups else info.num_strata  # `info` does not say how many groups the test part has
        if problem := _subset_problem(self.num_test, info.num_test, least, kind):
            yield "data.num_test", problem


def _problems_of_task(task: Task, config: Config) -> Iterator[tuple[str, str]]:
    """Yields what cannot be done with targets for this task."""
    asks = f"{config.data.name} has targets for {task}"
    of_tokens = task == "token_classification"  # a metric would need the outputs for each token of all test examples
    for name in config.evaluation.metrics:
        if task not in METRICS.get(name, () if of_tokens else (task,)):
            metrics = [metric for metric, tasks in METRICS.items() if task in tasks]
            allowed = "none" if of_tokens else ", ".join([*metrics, "package.module:function"])
            yield "evaluation.metrics", f"{name}, but {asks}; allowed: {allowed}"
    if task == "classification":
        return
    allowed_values = {f"method.{key}": allowed for key, allowed in config.method.needs_classes().items()}
    if config.partition.by_classes:
        allowed_values["partition.name"] = "iid, quantity_skew, natural, package.module:function"
    if config.train.masked_loss:
        allowed_values["train.masked_loss"] = "false"
    if config.evaluation.personal_test == "classes":
        allowed_values["evaluation.personal_test"] = "auto, matching, groups"
    for key, allowed in allowed_values.items():
        section, _, option = key.partition(".")
        value = getattr(getattr(config, section), option)
        yield key, f"{found(value)} needs classes, and {asks}; allowed: {allowed}"


def load_data(options: DataOptions) -> Dataset:
    """Returns the examples that `options` name and ask for, with their digest; never downloads. Raises DataError."""
    info = options.used()
    dataset = options.read()
    dataset = _subset(dataset, "train", options.num_train)
    dataset = _subset(dataset, "test", options.num_test)
    check(f"data.name={options.name}", dataset, info)
    return dataset if dataset.digest else replace(dataset, digest=digest_of(dataset.arrays))


def place_of(options: DataOptions) -> str:
    """Returns where a data set comes from, as a key of the config: its folder, its file, or else its name."""
    key = next((key for key in DATA_PLACES if hasattr(options, key)), "name")
    return f"data.{key}={getattr(options, key)}"


def digest_of(arrays: Arrays) -> str:
    """Returns BLAKE2b (128 bits, hex) of the names, types, shapes and values of a Dataset's arrays, whatever their byte
    order and memory layout. Takes 0.8 s for each GB on one core of an AMD EPYC."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name, array in sorted(arrays.items()):
        if array is None:
            continue
        dtype = array.dtype.newbyteorder("<")
        state.update(repr((name, dtype.str, array.shape)).encode())
        for chunk in chunks(array, dtype):
            state.update(chunk)
    return state.hexdigest()


def chunks(array: NDArray[Any], dtype: np.dtype[Any] | None = None) -> Iterator[memoryview]:
    """Yields the bytes of an array, C-ordered, some rows at a time: a copy of the whole would double the memory."""
    rows = max(1, _CHUNK_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        yield np.ascontiguousarray(array[start : start + rows], dtype).data


def _subset(dataset: Dataset, part: Part, number: int) -> Dataset:
    """Returns `dataset` with `number` examples of a part, in file order, the same for every seed of a run; 0 keeps all.
    Raises DataError."""
    x, y, groups = dataset.part(part)
    classes = dataset.classes(part)
    if number in (0, len(y)):
        return dataset
    least = len(np.unique(classes if groups is None else groups))
    if problem := _subset_problem(number, len(y), least, "classes" if groups is None else "groups"):
        raise DataError(f"data.num_{part}={number}", problem)
    chosen = choose(classes, groups, number, numpy_generator(f"subset-{part}"))
    arrays: dict[str, Any] = {f"{part}_x": x[chosen], f"{part}_y": y[chosen]}
    if groups is not None:
        arrays["groups" if part == "train" else "test_groups"] = groups[chosen]
    return replace(dataset, **arrays, digest="")


def _subset_problem(number: int, has: int, least: int, kind: str) -> str:
    """Returns what is wrong with `number` of `has` examples if each of `least` classes or groups keeps one, or ''."""
    if number in (0, has) or least <= number < has:
        return ""
    return f"{number} of {has} examples; allowed: {least} (one for each of the {kind}) to {has}, or 0 for all"


def task_of(targets: NDArray[Any], tokens: tuple[int, ...] | None = None) -> Task | None:
    """Returns what targets of this type and shape are for; None if they are for nothing.

    Whole numbers (N,) are classes, in the shape of `tokens` (N, length) those of tokens; floats (N,) or (N, outputs)
    are numbers to predict, rows of 0 and 1 (N, labels) labels.
    """
    if targets.dtype.kind in "iu" and targets.shape == tokens:
        return "token_classification"
    if targets.dtype.kind == "f" and targets.ndim in (1, 2):
        return "regression"
    if targets.dtype.kind in "iu" and targets.ndim == 1:
        return "classification"
    is_binary = targets.dtype.kind in "biu" and targets.ndim == 2 and bool(((targets == 0) | (targets == 1)).all())
    return "multi_label" if is_binary else None


def classes_of(targets: NDArray[Any]) -> Ints:
    """Returns class numbers int64 (N,): all 0 where the targets are no classes."""
    is_class = targets.ndim == 1 and targets.dtype.kind in "iu"
    return targets.astype(np.int64, copy=False) if is_class else np.zeros(len(targets), np.int64)


def integer_type(size: int) -> Literal["int16", "int32"]:
    """Returns the type that stores whole numbers below `size`: the smaller one where they fit."""
    return "int16" if size <= 2**15 else "int32"


def number_groups(train: Sequence[str] | NDArray[Any], test: Sequence[str] | NDArray[Any]) -> tuple[Ints, Ints]:
    """Numbers the group of each example: training groups from 0 in sorted order, then those that only the test has."""
    names, numbers = np.unique(np.asarray(train), return_inverse=True)
    number_of = {name: number for number, name in enumerate(names.tolist())}
    for name in np.unique(np.asarray(test)).tolist():
        number_of.setdefault(name, len(number_of))
    test_numbers = [number_of[name] for name in np.asarray(test).tolist()]
    return numbers.astype(np.int64), np.array(test_numbers, dtype=np.int64)


def check(where: str, dataset: Dataset, info: DataInfo) -> Dataset:
    """Returns `dataset` if shapes, types, counts and values are those of `info`, else raises DataError at `where`."""
    problems = [line for part in PARTS for line in _problems_of_part(dataset, info, part)]
    num_groups = dataset.counts["num_groups"]
    if not problems and num_groups != info.num_groups:  # a group without examples would be a client without any
        problems = [f"the training examples come from {num_groups} groups, expected {info.num_groups}"]
    if problems:
        raise DataError(where, *problems)
    return dataset


def _problems_of_part(dataset: Dataset, info: DataInfo, part: Part) -> Iterator[str]:
    x, targets, groups = dataset.part(part)
    words = "training" if part == "train" else "test"
    count = info.num_train if part == "train" else info.num_test
    if count == 0:
        yield f"there are no {words} examples: too little data, or other options leave none"
        return
    shape = info.example_shape
    if info.kind == "image":
        shape = (*shape[1:], shape[0])
    yield from _problems(f"{words} examples", x, (count, *shape), info.dtype, info.vocabulary_size)
    if info.task == "token_classification":
        if (empty := (targets == IGNORED).all(axis=-1)).any():
            yield f"no token of {words} example {empty.argmax()} has a label; all are {IGNORED}, so leave it out"
        targets = np.where(targets == IGNORED, 0, targets)
    yield from _problems(f"{words} targets", targets, (count, *info.target_shape), info.target_dtype, info.num_classes)
    is_same_people = part == "train" or info.shares_groups
    if groups is not None:
        limit = info.num_groups if is_same_people else info.num_groups + count
        yield from _problems(f"{words} groups", groups, (count,), "int64", limit)
    elif info.num_groups and is_same_people:
        yield f"there are no {words} groups"


def _problems(words: str, array: NDArray[Any], shape: tuple[int, ...], dtype: str, limit: int) -> Iterator[str]:
    """Yields what is wrong with an array that should have this shape and type, whole numbers below `limit` (0: any)."""
    if array.shape != shape or array.dtype != dtype:
        yield f"{words} are {array.dtype} {array.shape}, expected {dtype} {shape}"
    elif dtype == "float32":
        if not np.isfinite([array.min(), array.max()]).all():  # a NaN anywhere is both
            yield f"{words} have values that are no finite numbers"
    elif limit and (array.min() < 0 or array.max() >= limit):
        yield f"{words} reach from {array.min()} to {array.max()}, expected 0 to {limit - 1}"
