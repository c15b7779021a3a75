"""Where the files of each data set come from, with checksums and sizes, and where they lie below the data folder.

Checksums are those of torchvision (md5), of its prototype readers, tensorflow_datasets and TensorFlow
Federated (sha256). UCI publishes none: its two are those that several public repositories recorded
independently. A file without a checksum is checked by its reader alone. Imports neither torch nor numpy.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedmpi.data.folders import below_home
from fedmpi.data.options import DataOptions


@dataclass(frozen=True)
class File:
    """One file to download to `path` below the data folder; `urls` are tried in turn."""

    path: str
    urls: tuple[str, ...]
    checksum: str = ""
    """`md5:` or `sha256:` and the digits; empty where none is known."""
    num_bytes: int = 0
    """0 where unknown."""
    unpack_to: str = ""
    """The folder, below the data folder, that a run reads the unpacked archive from; empty where it is not unpacked."""
    contents: tuple[str, ...] = ()
    """What unpacking makes, below `unpack_to`; any of them shows that somebody has unpacked it."""
    needed_if: tuple[str, str] | None = None
    """(option, value): needed only by a configuration that says so."""


@dataclass(frozen=True)
class Source:
    """The files of a data set, the page that describes them and the terms of use."""

    page: str
    terms: str
    files: tuple[File, ...]
    other: str = ""
    """Other forms of the same data that the reader takes, and how to get them."""

    def needed(self, options: DataOptions) -> tuple[File, ...]:
        """The files that a configuration with these options reads."""
        return tuple(
            file
            for file in self.files
            if file.needed_if is None or str(getattr(options, file.needed_if[0], None)) == file.needed_if[1]
        )


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
_UCI = "https://archive.ics.uci.edu/"
_CIFAR_TERMS = "no formal licence; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
_UCI_TERMS = "CC BY 4.0 by UCI's page; the README within bars commercial use"


def _mnist(name: str, sha256: str, num_bytes: int) -> File:
    mirrors = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
    return File(f"MNIST/raw/{name}", tuple(f"{mirror}{name}" for mirror in mirrors), f"sha256:{sha256}", num_bytes)


def _qmnist(name: str, sha256: str, num_bytes: int) -> File:
    return File(f"QMNIST/raw/{name}", (f"{_QMNIST}{name}",), f"sha256:{sha256}", num_bytes)


_MNIST_FILES = (
    _mnist("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9912422),
    _mnist("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28881),
    _mnist("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1648877),
    _mnist("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4542),
)
_QMNIST_LABELS = (
    _qmnist(
        "qmnist-train-labels-idx2-int.gz", "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f", 463024
    ),
    _qmnist(
        "qmnist-test-labels-idx2-int.gz", "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06", 526800
    ),
)

SOURCES: Mapping[str, Source] = {
    "cifar10": Source(
        f"{_TORONTO}cifar.html",
        _CIFAR_TERMS,
        (
            File(
                "cifar-10-python.tar.gz",
                (f"{_TORONTO}cifar-10-python.tar.gz",),
                "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                170_498_071,
                unpack_to=".",
                contents=("cifar-10-batches-py",),
            ),
        ),
    ),
    "cifar100": Source(
        f"{_TORONTO}cifar.html",
        _CIFAR_TERMS,
        (
            File(
                "cifar-100-python.tar.gz",
                (f"{_TORONTO}cifar-100-python.tar.gz",),
                "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                169_001_437,
                unpack_to=".",
                contents=("cifar-100-python",),
            ),
        ),
    ),
    "mnist": Source("http://yann.lecun.com/exdb/mnist/", "usually given as CC BY-SA 3.0", _MNIST_FILES),
    "qmnist": Source(
        "https://github.com/facebookresearch/qmnist", "labels BSD; images as MNIST", (*_MNIST_FILES, *_QMNIST_LABELS)
    ),
    "emnist": Source(
        "https://www.nist.gov/itl/products-and-services/emnist-dataset",
        "public domain (NIST); cite Cohen et al., EMNIST, 2017",
        (
            File(
                "EMNIST/raw/gzip.zip",
                ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
                "md5:58c8d27c78d21e728a6bc7b3cc06412e",
                561_753_746,
                unpack_to="EMNIST/raw",
                contents=("gzip", "emnist-byclass-train-images-idx3-ubyte.gz"),
            ),
        ),
    ),
    "femnist": Source(
        "https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets/emnist",
        "derived from NIST SD 19 by LEAF (BSD) and TensorFlow Federated (Apache 2.0)",
        (
            File(
                "fed_emnist.tar.bz2",
                ("https://storage.googleapis.com/tff-datasets-public/fed_emnist.tar.bz2",),
                "sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
                contents=("fed_emnist_train.h5",),
            ),
        ),
        other="LEAF's JSON is made by its own script: `./preprocess.sh -s niid --sf 1.0 -k 0 -t sample` in "
        "data/femnist of https://github.com/TalwalkarLab/leaf; then `prepare femnist --from .../data/femnist/data`",
    ),
    "tinyimagenet": Source(
        "http://cs231n.stanford.edu/",
        "ImageNet's: non-commercial research and education only",
        (
            File(
                "tiny-imagenet-200.zip",
                ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                248_100_043,
                contents=("tiny-imagenet-200",),
            ),
        ),
    ),
    "har": Source(
        f"{_UCI}dataset/240 and {_UCI}dataset/341",
        _UCI_TERMS,
        (
            File(
                "har-240.zip",
                (f"{_UCI}static/public/240/human+activity+recognition+using+smartphones.zip",),
                "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
                61_005_872,
                contents=("UCI HAR Dataset",),
                needed_if=("form", "features"),
            ),
            File(
                "har-341.zip",
                (
                    f"{_UCI}static/public/341/"
                    "smartphone+based+recognition+of+human+activities+and+postural+transitions.zip",
                ),
                "sha256:4ac4ae064227c07045a99551876b54d204837e995e298b6488559e209b3deb09",
                79_596_192,
                contents=("HAPT", "RawData"),
                needed_if=("form", "windows"),
            ),
        ),
    ),
    "imdb": Source(
        "https://ai.stanford.edu/~amaas/data/sentiment/",
        "no formal licence; cite Maas et al., ACL 2011",
        (
            File(
                "aclImdb_v1.tar.gz",
                ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
                "md5:7c2ac02c03563afcf9b574c7e56c153a",
                84_125_825,
                contents=("aclImdb",),
            ),
        ),
    ),
    "shakespeare": Source(
        "https://github.com/karpathy/char-rnn",
        "public domain (the text)",
        (
            File(
                "tinyshakespeare/input.txt",
                ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
                "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                1_115_394,
                needed_if=("form", "speakers"),
            ),
        ),
        other="LEAF's JSON is made by its own script: `./preprocess.sh -s niid --sf 1.0 -k 0 -t sample` in "
        "data/shakespeare of https://github.com/TalwalkarLab/leaf; then `prepare shakespeare data.form=leaf "
        "--from .../data/shakespeare/data`",
    ),
}


def how_to_fetch(options: DataOptions) -> str:
    """What a run that misses its files tells: the command that gets them."""
    told = [f"data.{file.needed_if[0]}={file.needed_if[1]}" for file in _files(options) if file.needed_if is not None]
    return get_again(options.name, str(getattr(options, "root", "")), *told)


def get_again(name: str, data_dir: str | Path, *words: str) -> str:
    """The same for a reader that knows the folder only; `words` as `--force` go into the command."""
    command = " ".join(["python -m fedmpi.data fetch", name, *words, "--data-dir", quoted(str(data_dir))])
    return f"get the files by `{command}`, where there is a network"


def _files(options: DataOptions) -> tuple[File, ...]:
    """The needed files that a fetch with default options would not get."""
    source = SOURCES.get(options.name)
    if source is None:
        return ()
    by_default = source.needed(type(options)())
    return tuple(file for file in source.needed(options) if file not in by_default)


def present(file: File, data_dir: Path) -> bool:
    """Whether a run or `prepare` finds the file, or what unpacking it makes; says nothing about what is in it."""
    return unpacked(file, data_dir) is not None or (not file.unpack_to and (data_dir / file.path).is_file())


def is_here(options: DataOptions) -> bool:
    """Whether all original files that these options need are below data.root, and there are any to need."""
    files = SOURCES[options.name].needed(options)
    root = below_home(str(getattr(options, "root", "")))
    return bool(files) and all(present(file, root) for file in files)


def unpacked(file: File, data_dir: Path) -> Path | None:
    """Where the unpacked contents are, if they are."""
    places = (data_dir / file.unpack_to / name for name in file.contents)
    return next((place for place in places if place.exists()), None)


def quoted(word: str) -> str:
    """A word for a shell; a leading ~ stays bare, so that the shell may expand it."""
    return word if re.fullmatch(r"[\w@%+=:,./~-]+", word) else shlex.quote(word)


def total_bytes(files: Iterable[File]) -> int:
    """Bytes to download; files of unknown size count nothing."""
    return sum(file.num_bytes for file in files)
