"""FEMNIST, handwritten characters by writer, out of either of its two sources.

S. Caldas et al., LEAF: A Benchmark for Federated Settings, arXiv:1812.01097; labels are 0-9, A-Z, a-z. TensorFlow
Federated (its documentation of `simulation.datasets.emnist` has the default counts): fed_emnist_train.h5 and
fed_emnist_test.h5, in which examples/<writer> has `pixels` (float32 (n, 28, 28)) and `label` (n,). LEAF
(https://github.com/TalwalkarLab/leaf): what its preprocess.sh writes, data/train/*.json and data/test/*.json, each
{"users", "num_samples", "user_data": {writer: {"x": [784 numbers each], "y": [...]}}}. In both, ink is dark on paper
of 1, and pixels are used as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field

from fedmpi.config.fields import Count
from fedmpi.data.dataset import Dataset
from fedmpi.data.files.budget import DECODED, Budget, Tell, guarded
from fedmpi.data.files.source import File, Source
from fedmpi.data.options import DataInfo
from fedmpi.data.prepared import PreparedOptions
from fedmpi.data.series import leaf_users, number_groups
from fedmpi.errors import DataError, counted
from fedmpi.seeds import numpy_generator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIDE, NUM_CLASSES = 28, 62
HDF5_FILES = ("fed_emnist_train.h5", "fed_emnist_test.h5")
UNPACK = "unpack fed_emnist.tar.bz2 again"
FOLDERS = ("", "fed_emnist", "femnist", "data", "femnist/data", "leaf/data/femnist/data")
# NIST's forms have a few hundred characters, 1.5 MB: a file that promises far more was made to take memory.
MAX_BYTES = 2**25

Images: TypeAlias = "tuple[NDArray[np.uint8], NDArray[np.int64]]"
"""Images uint8 (n, 28, 28, 1) and labels int64 (n,) of one writer."""
ByWriter = dict[str, Images]


FILE = File(
    "fed_emnist.tar.bz2",
    ("https://storage.googleapis.com/tff-datasets-public/fed_emnist.tar.bz2",),
    "sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
    contents=("fed_emnist_train.h5",),
)


class Femnist(PreparedOptions):
    counts = ("num_train", "num_test", "num_groups", "test_writers")
    source = Source(
        "https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets/emnist",
        "derived from NIST SD 19 by LEAF (BSD) and TensorFlow Federated (Apache 2.0)",
        (FILE,),
        other="LEAF's JSON is made by its own script: `./preprocess.sh -s niid --sf 1.0 -k 0 -t sample` in "
        "data/femnist of https://github.com/TalwalkarLab/leaf; then `prepare femnist --from .../data/femnist/data`",
    )
    traces = ("*.h5", "*.json")
    name: str = "femnist"
    """Handwritten characters in 62 classes by writer: LEAF's or TensorFlow Federated's files."""
    writers: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Take only the first so many writers, in the order of their names; 0 takes all."""
    test_examples: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Take only so many of the test images, drawn at random, the same for every seed; 0 takes all."""
    test_writers: Literal["same", "others"] = "same"
    """Whether the test images are the training writers' (LEAF's `-t sample`) or of other people (`-t user`)."""
    num_train: Count = Field(671_585, json_schema_extra={"subset": True})
    """Training images to use; the default is all of TensorFlow Federated's files. Of files with more, a subset."""
    num_test: Count = Field(77_483, json_schema_extra={"subset": True})
    """Test images to use; the default is all of TensorFlow Federated's files. Of files with more, a subset."""
    num_groups: Count = 3400
    """Writers expected; the default is that of TensorFlow Federated's files."""

    def info(self) -> DataInfo:
        counts, shares = (self.num_train, self.num_test), self.test_writers == "same"
        shape = (1, SIDE, SIDE)
        return DataInfo("image", shape, NUM_CLASSES, *counts, num_groups=self.num_groups, shares_groups=shares)

    def prepare(self, folder: Path, tell: Tell) -> Dataset:
        """Images uint8 (N, 28, 28, 1), writer after writer in the order of their names.

        Raises DataError: neither source there, or both; a damaged file; other test writers than the options promise.
        """
        places = [folder / name for name in FOLDERS]
        sources = [(_read_hdf5, place) for place in places if any((place / name).is_file() for name in HDF5_FILES)]
        sources += [(_read_json, place) for place in places if any((place / "train").glob("*.json"))]
        if len(sources) != 1:
            found = " and ".join(str(place) for _, place in sources) or "neither"
            expected = f"{' and '.join(HDF5_FILES)} (TensorFlow Federated) or train/*.json and test/*.json (LEAF)"
            raise DataError(str(folder), f"expected {expected}, found {found}; give the folder of one")
        read, place = sources[0]
        return _arrange(self, folder, *read(place, tell))


def _arrange(options: Femnist, folder: Path, train: ByWriter, test: ByWriter) -> Dataset:
    """The first writers by name, numbered in that order; test writers of their own are numbered after them."""
    train, test = ({name: part[name] for name in sorted(part) if len(part[name][1])} for part in (train, test))
    writers = list(train)[: options.writers or None]
    if len(writers) < options.writers:
        raise DataError(
            str(folder), f"has {counted(len(writers), 'writer')}, data.writers={options.writers} asks for more"
        )
    others = [name for name in test if name not in train]
    if options.test_writers == "same":
        _expect(folder, not others, f"test writers {others[:3]} have no training images", "others")
        test_writers = [name for name in writers if name in test]
    else:
        _expect(folder, len(others) == len(test), "some test writers have training images, too", "same")
        test_writers = others
    if not writers or not test_writers:
        counts = f"{len(writers)} writers to train and of {len(test_writers)} to test"
        raise DataError(str(folder), f"has images of {counts}; there must be some of both")
    train_x, train_y, train_names = _join(train, writers)
    test_x, test_y, test_names = _join(test, test_writers)
    groups, test_groups = number_groups(train_names, test_names)
    chosen = _choose(options.test_examples, len(test_y), folder)
    return Dataset(train_x, train_y, test_x[chosen], test_y[chosen], groups, test_groups[chosen])


def _expect(folder: Path, is_so: bool, problem: str, other: str) -> None:
    if not is_so:
        raise DataError(str(folder), f"{problem}; set data.test_writers={other}, or take other files")


def _join(images: ByWriter, writers: list[str]) -> tuple[NDArray[Any], ...]:
    """Images, labels and writers' names of all these writers. Takes them out of `images`, which frees memory."""
    import numpy as np

    parts = [images.pop(name) for name in writers]
    names = np.repeat(writers, [len(labels) for _, labels in parts])
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), names


def _choose(num_wanted: int, num_there: int, folder: Path) -> slice | NDArray[np.int64]:
    """Positions of the test images: all, or so many drawn without replacement, in file order."""
    import numpy as np

    if num_wanted > num_there:
        raise DataError(str(folder), f"has {num_there:,} test images, data.test_examples={num_wanted} asks for more")
    if not num_wanted:
        return slice(None)
    return np.sort(numpy_generator("femnist-test").permutation(num_there)[:num_wanted])


def _read_hdf5(folder: Path, tell: Tell) -> tuple[ByWriter, ByWriter]:
    missing = [name for name in HDF5_FILES if not (folder / name).is_file()]
    if missing:
        raise DataError(str(folder), f"{missing[0]} is missing; {UNPACK}")
    budget = Budget(folder, DECODED)
    train, test = (_hdf5_writers(folder / name, budget, tell) for name in HDF5_FILES)
    return train, test


def _hdf5_writers(path: Path, budget: Budget, tell: Tell) -> ByWriter:
    import h5py

    writers: ByWriter = {}
    with guarded(path, UNPACK), h5py.File(path, "r") as file:
        group = file.get("examples")
        if not isinstance(group, h5py.Group):
            raise DataError(str(path), "has no group 'examples'; is it TensorFlow Federated's file?")
        for done, name in enumerate(group, start=1):
            with guarded(path, UNPACK, f"damaged at writer {name}"):
                arrays = [group[name][key] for key in ("pixels", "label")]
                if not all(isinstance(array, h5py.Dataset) and array.nbytes <= MAX_BYTES for array in arrays):
                    raise ValueError(f"no arrays of at most {MAX_BYTES:,} bytes")
                writers[name] = _images(arrays[0][...], arrays[1][...])
            budget.hold(writers[name][0].nbytes, "the images")
            tell(done, len(group))
    return writers


def _read_json(folder: Path, tell: Tell) -> tuple[ByWriter, ByWriter]:
    """All writers of LEAF's files, one file in memory at a time."""
    budget = Budget(folder, DECODED)
    train, test = (_json_writers(sorted((folder / part).glob("*.json")), budget, tell) for part in ("train", "test"))
    return train, test


def _json_writers(paths: list[Path], budget: Budget, tell: Tell) -> ByWriter:
    def shrink(entries: dict[str, Any]) -> Any:
        # A writer's numbers become bytes before the next writer is read.
        return _images(entries["x"], entries["y"]) if {"x", "y"} <= entries.keys() else entries

    writers: ByWriter = {}
    for _, name, images in leaf_users(paths, budget, tell, tuple, shrink):
        budget.hold(images[0].nbytes, "the images")
        writers[name] = images
    return writers


def _images(pixels: Any, labels: Any) -> Images:
    """Pixels of 0..1, 784 an image, become bytes; labels are numbers of 0..61. Raises ValueError if they are not."""
    import numpy as np

    x, y = np.asarray(pixels), np.asarray(labels).reshape(-1)
    if x.size != len(y) * SIDE * SIDE:
        raise ValueError(f"{x.shape} pixels do not make {len(y)} images of {SIDE}x{SIDE}")
    if len(y):
        if x.dtype.kind not in "fiu" or not (x.min() >= 0 and x.max() <= 1):
            raise ValueError("there are pixels that are no numbers from 0 to 1")
        if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= NUM_CLASSES:
            raise ValueError(f"there are labels that are no numbers from 0 to {NUM_CLASSES - 1}")
    return np.rint(x * 255).astype(np.uint8).reshape(-1, SIDE, SIDE, 1), y.astype(np.int64)
