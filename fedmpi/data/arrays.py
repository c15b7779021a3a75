"""Data sets out of arrays that a user brings: what these may be, and what is known of them.

Pictures are uint8 (N, H, W, C); (N, H, W) are grey ones, which get one channel. Vectors are float32 (N, features).
Tokens are whole numbers (N, length) of 0 to 32,767. Labels are whole numbers (N,) from 0 without gaps. `groups` (N,),
numbers or names, say whose a training example is, and `test_groups` (M,) the same of a test example.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from fedmpi.config.fields import Folder, NotNegative, Positive, free
from fedmpi.data.dataset import DTYPES, PARTS, Dataset, check
from fedmpi.data.holdout import stratified_holdout
from fedmpi.data.options import DataInfo, DataOptions
from fedmpi.data.reading import place
from fedmpi.data.series import number_groups
from fedmpi.errors import DataError, counted, type_in_words
from fedmpi.seeds import numpy_generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind = Literal["image", "vector", "tokens"]
Arrays = Mapping[str, Any]
MAX_CLASSES = 1_000_000
_NEEDED = ("train_x", "train_y", "test_x", "test_y")
_CHUNK_IMAGES = 4096
_EXPECTED = (
    "expected pictures uint8 (N, H, W, C) or, if grey, (N, H, W); vectors float32 (N, features); "
    "or tokens, whole numbers (N, length)"
)


class ArrayOptions(DataOptions):
    """Options of a data set of which only its arrays are known; a subclass says how to get these."""

    reads_to_know = True

    def arrays(self) -> Arrays | Dataset:
        """`train_x`, `train_y`, `test_x`, `test_y`, and `groups` and `test_groups` where they are known."""
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
    """The examples and what is known of them: read and checked once in a process. Raises DataError."""
    import numpy as np

    where = place(options)
    found = options.arrays()
    given = found.arrays if isinstance(found, Dataset) else found
    if not isinstance(given, Mapping):
        expected = f"a dict with {', '.join(_NEEDED)}, or a fedmpi.data.dataset.Dataset"
        raise DataError(where, f"gave {type_in_words(given)}, expected {expected}")
    try:
        arrays = {str(name): np.asarray(array) for name, array in given.items() if array is not None}
    except (TypeError, ValueError) as error:
        raise DataError(where, f"gave something that is no array: {error}") from error
    if problem := _names_problem(arrays):
        raise DataError(where, problem)
    problems: list[str] = []
    kinds = [_normal(arrays, name, problems) for name in ("train_x", "test_x")]
    for part in ("train", "test"):
        y = arrays[f"{part}_y"]
        if problem := labels_problem(f"{part}_y", y, f"{part}_x", arrays[f"{part}_x"]):
            problems.append(problem)
        else:
            arrays[f"{part}_y"] = y.astype(np.int64)
    problems = _told_once(problems) or [*_problems_together(arrays, kinds)]
    if problems:
        raise DataError(where, *problems)
    return _Known(*_described(where, options, kinds[0], arrays))


def _told_once(problems: list[str]) -> list[str]:
    """A mistake that both parts have is one line. Lines of the two differ in the part's name and in numbers only."""
    alike: dict[str, list[str]] = {}
    for problem in problems:
        alike.setdefault(re.sub(r"train|test|[-+.e\d]", "", problem), []).append(problem)
    return [first + "; the test part likewise" * bool(others) for first, *others in alike.values()]


def _described(
    where: str, options: ArrayOptions, kind: Kind, arrays: dict[str, NDArray[Any]]
) -> tuple[Dataset, DataInfo]:
    x, y, test_x, test_y = (arrays[name] for name in _NEEDED)
    groups, test_groups = arrays.get("groups"), arrays.get("test_groups")
    if groups is not None:
        groups, others = number_groups(groups, [] if test_groups is None else test_groups)
        test_groups = None if test_groups is None else others
    num_groups = 0 if groups is None else int(groups.max()) + 1
    info = DataInfo(
        kind,
        (x.shape[3], x.shape[1], x.shape[2]) if kind == "image" else x.shape[1:],
        int(y.max()) + 1,
        len(y),
        len(test_y),
        *_normalization(where, options, kind, x),
        crop_padding=_of_pictures(where, options, "crop_padding", kind) or 0,
        flip=bool(_of_pictures(where, options, "flip", kind)),
        vocabulary_size=int(max(x.max(), test_x.max())) + 1 if kind == "tokens" else 0,
        num_groups=num_groups,
        shares_groups=test_groups is not None and int(test_groups.max()) < num_groups,
    )
    return check(where, Dataset(x, y, test_x, test_y, groups, test_groups), info), info


def _names_problem(arrays: Arrays) -> str:
    holds = f"it holds {', '.join(sorted(arrays)[:12]) or 'nothing'}"
    if missing := [name for name in _NEEDED if name not in arrays]:
        return f"has no {', '.join(missing)}; {holds}"
    if unknown := [name for name in arrays if name not in PARTS]:
        return f"{unknown[0][:40]!r} means nothing; known: {', '.join(PARTS)}"
    return "" if "groups" in arrays or "test_groups" not in arrays else "has test_groups without groups"


def _normal(arrays: dict[str, NDArray[Any]], name: str, problems: list[str]) -> Kind:
    """Replaces examples by the same of a Dataset's own type and layout; returns their kind."""
    import numpy as np

    array = arrays[name]
    found, kind = f"{name} is {array.dtype} {array.shape}", _kind(array)
    if kind is None:
        problems.append(f"{found}; {_EXPECTED}{_of_floats(name, array)}")
        return "vector"
    if not array.size:
        problems.append(f"{found}: there are no {PARTS[name]}")
    elif kind == "image" and array.ndim == 4 and array.shape[1] in (1, 3) and array.shape[3] > 4:
        problems.append(f"{found}, which looks like (N, C, H, W); give (N, H, W, C): {name}.transpose(0, 2, 3, 1)")
    elif kind == "vector" and array.dtype.itemsize != 4:
        problems.append(f"{found}, expected float32: {name}.astype('float32')")
    elif kind == "tokens" and (array.min() < 0 or array.max() > np.iinfo(np.int16).max):
        problems.append(
            f"{name} has tokens from {array.min()} to {array.max()}, expected 0 to {np.iinfo(np.int16).max}"
        )
    else:
        array = array[..., None] if kind == "image" and array.ndim == 3 else array
        arrays[name] = np.require(array, DTYPES[kind], ["C", "A", "W"])
    return kind


def _of_floats(name: str, array: NDArray[Any]) -> str:
    """How floats that may be pictures become some."""
    if array.dtype.kind != "f" or array.ndim not in (3, 4) or not array.size:
        return ""
    low, high = float(array.min()), float(array.max())
    if 0 <= low <= high <= 255:
        scaled = f"(255 * {name})" if high <= 1 else name
        return f"; of pixels from {low:g} to {high:g} make {scaled}.round().astype('uint8')"
    todo = "take the pixels from before they were normalized, as uint8 (data.mean and data.std normalize them)"
    return f"; of pixels from {low:g} to {high:g}: {todo}"


def _kind(array: NDArray[Any]) -> Kind | None:
    import numpy as np

    if array.dtype == np.uint8 and array.ndim in (3, 4):
        return "image"
    if array.ndim == 2 and array.dtype.kind in "fiu":
        return "vector" if array.dtype.kind == "f" else "tokens"
    return None


def labels_problem(name: str, labels: NDArray[Any], of: str, examples: NDArray[Any]) -> str:
    """What is wrong with the labels of examples; empty if nothing is."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        return f"{name} is {labels.dtype} {labels.shape}, expected whole numbers (N,)"
    if not examples.ndim or len(labels) != len(examples):
        num_examples = len(examples) if examples.ndim else 0
        return f"{name} has {counted(len(labels), 'label')} for {counted(num_examples, 'example')} in {of}"
    if len(labels) and (labels.min() < 0 or labels.max() >= MAX_CLASSES):
        odd = labels.min() if labels.min() < 0 else labels.max()
        return f"{name} has the label {odd}; labels are whole numbers from 0 to at most {MAX_CLASSES - 1}"
    return ""


def _problems_together(arrays: dict[str, NDArray[Any]], kinds: list[Kind]) -> Iterator[str]:
    import numpy as np

    train, test = arrays["train_x"], arrays["test_x"]
    if kinds[0] != kinds[1] or train.shape[1:] != test.shape[1:]:
        yield f"test_x is {test.dtype} {test.shape}, but train_x {train.dtype} {train.shape}"
    counts = np.bincount(arrays["train_y"], minlength=int(arrays["test_y"].max()) + 1)
    if len(empty := np.flatnonzero(counts == 0)):
        more = f" (nor have {len(empty) - 1} others)" if len(empty) > 1 else ""
        todo = "number the classes from 0 without gaps, as np.unique(y, return_inverse=True)[1] does"
        if empty[0] in arrays["test_y"]:
            todo = "test_y has it, so add training examples of it or take it out of the test"
        yield f"class {empty[0]} has no training example{more}; {todo}"
    elif len(counts) < 2:
        yield "there is one class; expected two or more"
    for name, of in (("groups", "train_y"), ("test_groups", "test_y")):
        array = arrays.get(name)
        if array is not None and (array.shape != arrays[of].shape or array.dtype.kind not in "iuUS"):
            expected = f"expected whole numbers or names, one for each of the {len(arrays[of])} examples"
            yield f"{name} is {array.dtype} {array.shape}, {expected}"


def _of_pictures(where: str, options: ArrayOptions, key: str, kind: Kind) -> Any:
    """The value of an option that only pictures have. Raises DataError if it is set for others."""
    value = getattr(options, key, None)
    if value and kind != "image":
        raise DataError(where, f"data.{key} is for pictures, but these are {kind if kind == 'tokens' else 'vectors'}")
    return value


def _normalization(
    where: str, options: ArrayOptions, kind: Kind, x: NDArray[Any]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel: those of the options, else those of the training pixels."""
    given = {key: _of_pictures(where, options, key, kind) for key in ("mean", "std")}
    if kind != "image":
        return (), ()
    for key, values in given.items():
        if values and len(values) != x.shape[3]:
            has = f"{counted(len(values), 'number')}, but the pictures have {counted(x.shape[3], 'channel')}"
            raise DataError(where, f"data.{key} has {has}")
    mean, std = ((), ()) if all(given.values()) else pixel_statistics(x)
    return tuple(given["mean"] or mean), tuple(given["std"] or std)


def pixel_statistics(images: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation (1 if it is 0) of each channel of uint8 (N, H, W, C), of pixels scaled to 0..1.

    Counted in whole numbers and divided once, so the order of the sums does not matter.
    """
    import numpy as np

    counts = np.zeros((images.shape[3], 256), np.int64)
    for start in range(0, len(images), _CHUNK_IMAGES):
        for channel, count in enumerate(counts):
            count += np.bincount(images[start : start + _CHUNK_IMAGES, ..., channel].ravel(), minlength=256)
    values = np.arange(256)
    size = images[..., 0].size
    sums, squares = (counts @ values).tolist(), (counts @ values**2).tolist()
    variances = [(size * square - total**2) / size**2 for total, square in zip(sums, squares, strict=True)]
    return tuple(total / (size * 255) for total in sums), tuple(math.sqrt(v) / 255 or 1.0 for v in variances)


def divided(where: str, options: FileOptions, x: NDArray[Any], y: NDArray[Any], groups: NDArray[Any] | None) -> Arrays:
    """Examples without a test part of their own, as `data.test_share` says. Raises DataError."""
    import numpy as np

    if problem := labels_problem("y", y, "x", x):
        raise DataError(where, problem)
    generator = numpy_generator("own-split", options.split_seed)
    train, test = stratified_holdout(np.arange(len(y)), y, options.test_share, generator)
    if not len(test):
        raise DataError(where, f"{len(y)} examples are too few to divide; four or more can be")
    of_groups = {} if groups is None else {"groups": groups[train], "test_groups": groups[test]}
    return {"train_x": x[train], "train_y": y[train], "test_x": x[test], "test_y": y[test], **of_groups}
