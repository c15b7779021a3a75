"""A data set: its options, the facts that models and plans need, its examples, and the check that these agree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedmpi.config.fields import DATA_PLACES, Section
from fedmpi.config.schema import Config
from fedmpi.data.files import Source
from fedmpi.data.subset import Ints, choose
from fedmpi.errors import DataError
from fedmpi.seeds import numpy_generator
from fedmpi.store.files import DIGEST_BYTES

NumExamples = Annotated[int, Field(ge=0, le=2**31 - 1)]
Kind = Literal["image", "vector", "tokens"]
Part = Literal["train", "test"]
Arrays: TypeAlias = "Mapping[str, NDArray[Any] | None]"

DTYPES = {"image": "uint8", "vector": "float32", "tokens": "int16"}
PARTS = {
    "train_x": "training examples",
    "train_y": "training labels",
    "test_x": "test examples",
    "test_y": "test labels",
    "groups": "training groups",
    "test_groups": "test groups",
}
"""The arrays of a Dataset, in words."""
_CHUNK_BYTES = 2**24


@dataclass(frozen=True)
class DataInfo:
    """The facts of a data set that models, plans and batches need.

    `example_shape` is (C, H, W) for images, (features,) for vectors, (length,) for tokens.
    `mean` and `std` are per channel, of pixels scaled to 0..1; empty means that examples are
    used as they are. Random crops are cut out of the image padded by `crop_padding` zeros a side.
    """

    kind: Kind
    example_shape: tuple[int, ...]
    num_classes: int
    num_train: int
    num_test: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    crop_padding: int = 0
    flip: bool = False
    vocabulary_size: int = 0
    """Number of different tokens (kind "tokens" only)."""
    num_groups: int = 0
    """How many groups (writers, subjects, roles) the training examples come from; 0 if that is not known."""
    shares_groups: bool = False
    """True if the test examples come from the same groups."""


@dataclass(frozen=True)
class Dataset:
    """N training and M test examples.

    Images are uint8 (N, H, W, C), vectors float32 (N, features), tokens int16 (N, length);
    labels int64 (N,). `groups` int64 (N,), where a data set has them, says whose a training
    example is (writer, subject, role), numbered from 0 without gaps; `test_groups` int64 (M,) the
    same for test examples, with the numbers of the training groups where these are the same people.
    """

    train_x: NDArray[np.generic]
    train_y: Ints
    test_x: NDArray[np.generic]
    test_y: Ints
    groups: Ints | None = None
    test_groups: Ints | None = None
    digest: str = field(default="", kw_only=True)
    """`digest_of` the arrays; `load_data` fills it in."""

    @property
    def arrays(self) -> dict[str, NDArray[Any] | None]:
        """The arrays by name; None for groups that the data set does not have."""
        return {name: getattr(self, name) for name in PARTS}


class DataOptions(Section):
    """The options of a data set; each is a subclass in a file of its own, which `registry.py` lists by its name."""

    source: ClassVar[Source | None] = None
    """Where the files come from; None if there is nothing to download."""
    reads_to_know: ClassVar[bool] = False
    """True if `info` reads the examples."""
    name: str
    """What the data set is, in one line; the value is the name in a config."""
    num_train: NumExamples = Field(default=0, json_schema_extra={"subset": True})
    """Training examples to use, for trials: so many in all, drawn class by class (or group by group); 0 means all."""
    num_test: NumExamples = Field(default=0, json_schema_extra={"subset": True})
    """Test examples to use, drawn in the same way; 0 means all."""

    def info(self) -> DataInfo:
        """Returns the facts of the whole data set."""
        raise NotImplementedError

    def read(self) -> Dataset:
        """Returns the whole data set. Raises DataError, one line a problem."""
        raise NotImplementedError

    def forget(self) -> None:
        """Frees the examples that `info` has read, which this process has elsewhere by now."""

    def asked(self, part: Part) -> int:
        """Returns how many examples of a part a config asks for; 0 if it does not, or if the key means something else
        here: an option of a subclass, an argument of a function.
        """
        key = f"num_{part}"
        field = type(self).model_fields[key]
        extra = field.json_schema_extra
        is_subset = isinstance(extra, dict) and bool(extra.get("subset"))
        value: int = getattr(self, key)
        return value if is_subset and value != field.default else 0

    def used(self) -> DataInfo:
        """Returns the facts of the examples that a run uses."""
        info = self.info()
        num_train, num_test = self.asked("train") or info.num_train, self.asked("test") or info.num_test
        return replace(info, num_train=num_train, num_test=num_test)

    def info_of(self, counts: Mapping[Part, int]) -> DataInfo:
        """Returns the facts of files with these counts, which may be larger than the counts that a config asks for."""
        info, used = self.info(), self.used()
        if self.asked("train"):
            info = replace(info, num_train=max(counts["train"], used.num_train))
        if self.asked("test"):
            info = replace(info, num_test=max(counts["test"], used.num_test))
        return info

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        info = self.info()
        kind, least = ("groups", info.num_groups) if info.num_groups else ("classes", info.num_classes)
        if problem := _subset_problem(self.asked("train"), "training", info.num_train, kind, least):
            yield "data.num_train", problem
        least = 1 if info.num_groups else least  # `info` does not say how many groups the test examples have
        if problem := _subset_problem(self.asked("test"), "test", info.num_test, kind, least):
            yield "data.num_test", problem


def load_data(options: DataOptions) -> Dataset:
    """Returns the examples that `options` name and ask for, with their digest; never downloads.

    Raises DataError, one line a problem, if files are missing, damaged or not what they should be.
    """
    whole = options.read()
    counts: dict[Part, int] = {"train": _num_rows(whole.train_y), "test": _num_rows(whole.test_y)}
    dataset = _subset(options, check(f"data.name={options.name}", whole, options.info_of(counts)))
    return dataset if dataset.digest else replace(dataset, digest=digest_of(dataset.arrays))


def place_of(options: DataOptions) -> str:
    """Returns where a data set comes from, as a key of the config: its folder, its file, or else its name."""
    key = next((key for key in DATA_PLACES if hasattr(options, key)), "name")
    return f"data.{key}={getattr(options, key)}"


# ---- the digest


def digest_of(arrays: Arrays) -> str:
    """Returns BLAKE2b (128 bits, hex) of the names, types, shapes and values of a Dataset's arrays; skips None.

    It depends on nothing else: neither on the files that the arrays were read from, nor on the byte order or the
    memory layout. Takes 0.8 s for each GB on one core of an AMD EPYC.
    """
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


def short_digest(digest: str) -> str:
    """Returns a digest as messages print it."""
    return digest[:12]


# ---- subsets


def _subset(options: DataOptions, dataset: Dataset) -> Dataset:
    """Returns the part of `dataset` that `options` ask for, in file order. Raises `DataError`.

    The choice depends on the data and the number alone: runs of several seeds have the same examples.
    """
    parts: tuple[tuple[Part, str, str], ...] = (("train", "training", "groups"), ("test", "test", "test_groups"))
    for part, word, groups_name in parts:
        number = options.asked(part)
        labels, groups = getattr(dataset, f"{part}_y"), getattr(dataset, groups_name)
        if number in (0, len(labels)):
            continue
        kind, strata = ("classes", labels) if groups is None else ("groups", groups)
        if problem := _subset_problem(number, word, len(labels), kind, len(np.unique(strata))):
            raise DataError(f"data.num_{part}={number}", problem)
        chosen = choose(labels, groups, number, numpy_generator(f"subset-{part}"))
        arrays = {f"{part}_x": getattr(dataset, f"{part}_x")[chosen], f"{part}_y": labels[chosen]}
        if groups is not None:
            arrays[groups_name] = groups[chosen]
        dataset = replace(dataset, **arrays, digest="")
    return dataset


def _subset_problem(number: int, word: str, has: int, kind: str, least: int) -> str:
    """Returns what is wrong with `number` of `has` examples if each of `least` classes or groups keeps one, or ''."""
    if number in (0, has) or least <= number < has:
        return ""
    allowed = f"allowed: {least} to {has}, or 0 for all"
    if number > has:
        return f"{number}, but there are {has} {word} examples; {allowed}"
    return f"{number}, but each of {least} {kind} keeps an example; {allowed}"


# ---- groups, and the check


def number_groups(train: Sequence[str] | NDArray[Any], test: Sequence[str] | NDArray[Any]) -> tuple[Ints, Ints]:
    """Numbers the group of each example: training groups from 0 in sorted order, then those that only the test has."""
    train_names, train_numbers = np.unique(np.asarray(train), return_inverse=True)
    test_names, test_numbers = np.unique(np.asarray(test), return_inverse=True)
    number_of = {name: number for number, name in enumerate(train_names.tolist())}
    for name in test_names.tolist():
        number_of.setdefault(name, len(number_of))
    renumbered = np.array([number_of[name] for name in test_names.tolist()], dtype=np.int64)
    return train_numbers.astype(np.int64), renumbered[test_numbers]


def check(where: str, dataset: Dataset, info: DataInfo) -> Dataset:
    """Returns `dataset` if shapes, types, counts and values are those of `info`, else raises DataError at `where`."""
    problems = _layout_problems(dataset.arrays, info)
    for name, array in dataset.arrays.items():
        if array is not None and name not in problems:
            problem = _group_problem(dataset, info, name) if "groups" in name else _value_problem(array, info, name)
            problems |= {name: problem} if problem else {}
    if problems:
        raise DataError(where, *problems.values())
    return dataset


def _num_rows(array: Any) -> int:
    """Returns the length of what should be an array; 0 for anything else."""
    return int(next(iter(getattr(array, "shape", ())), 0))


def _layout_problems(arrays: Arrays, info: DataInfo) -> dict[str, str]:
    """Returns what is wrong with the shape or type of a Dataset's arrays, by name."""
    shape = info.example_shape
    if info.kind == "image":
        shape = (*shape[1:], shape[0])
    problems = {}
    for name, words in PARTS.items():
        num_examples = info.num_test if name.startswith("test") else info.num_train
        expected = (num_examples, *shape) if name.endswith("x") else (num_examples,)
        dtype = np.dtype(DTYPES[info.kind] if name.endswith("x") else "int64")
        array = arrays.get(name)
        if array is not None and (array.shape != expected or array.dtype != dtype):
            problems[name] = f"{words} are {array.dtype} {array.shape}, expected {dtype} {expected}"
        elif array is None and "groups" not in name:
            problems[name] = f"there are no {words}"
    needed = {"groups": info.num_groups > 0, "test_groups": info.shares_groups}
    for name, is_needed in needed.items():
        if is_needed and arrays.get(name) is None:
            problems[name] = f"the groups that the {PARTS[name].split()[0]} examples come from are missing"
    return problems


def _value_problem(array: NDArray[Any], info: DataInfo, name: str) -> str:
    """Returns what is wrong with the values of examples or labels of the right shape and type, or ''."""
    is_x = name.endswith("x")
    if not len(array):
        return f"there are no {PARTS[name]}: too little data, or other options leave none" if is_x else ""
    if is_x and info.kind == "image":
        return ""
    lowest, highest = array.min(), array.max()
    if is_x and info.kind == "vector":
        # A NaN anywhere is the lowest and the highest value.
        return "" if np.isfinite([lowest, highest]).all() else f"{PARTS[name]} have values that are no finite numbers"
    limit, word = (info.vocabulary_size, "tokens") if is_x else (info.num_classes, "labels")
    if lowest < 0 or highest >= limit:
        return f"{PARTS[name].split()[0]} {word} reach from {lowest} to {highest}, expected 0 to {limit - 1}"
    return ""


def _group_problem(dataset: Dataset, info: DataInfo, name: str) -> str:
    """Returns what is wrong with the numbers of groups, or '': others would make clients out of nobody."""
    numbers = np.unique(dataset.groups) if dataset.groups is not None else np.empty(0, np.int64)
    if name == "groups":
        if info.num_groups and len(numbers) != info.num_groups:
            return f"the training examples come from {len(numbers)} groups, expected {info.num_groups}"
        if not np.array_equal(numbers, np.arange(len(numbers))):
            found = f"{len(numbers)} numbers from {numbers[0]} to {numbers[-1]}"
            return f"training groups are {found}, expected 0 to {len(numbers) - 1} without gaps"
        return ""
    groups = dataset.test_groups
    limit = (info.num_groups or len(numbers)) + (0 if info.shares_groups else len(dataset.test_y))
    if groups is not None and len(groups) and (groups.min() < 0 or groups.max() >= limit):
        return f"test groups reach from {groups.min()} to {groups.max()}, expected 0 to {limit - 1}"
    return ""
