"""LEAF's data sets: FEMNIST, handwritten characters by writer, and Shakespeare, plays by role.

S. Caldas et al., LEAF: A Benchmark for Federated Settings, arXiv:1812.01097: JSON files in the folders train and test
(LEAF's split by sample), in which a user has x and y.

FEMNIST. x are 784 numbers each; labels are 0-9, A-Z, a-z. In TensorFlow Federated's files, examples/<writer> has
`pixels` (float32 (n, 28, 28)) and `label` (n,). In both, ink is dark on paper of 1, and pixels are used as they are.

Shakespeare. x are strings of 80 characters, y the character after each; every next one begins a character later, and
every STRIDE-th is taken. Tokens are positions in an alphabet that is fixed (ALPHABETS). Form `speakers`: blocks with an
empty line between, the first line of each the speaker's name and a colon (tinyshakespeare, A. Karpathy's char-rnn). A
role's text is its speeches, joined by line ends, and is cut once, so that the last fifth of the characters is test;
each side has its own windows of LENGTH characters and a label, a new one every STRIDE characters.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dataset import PARTS, DataInfo, Dataset
from fedmpi.data.files import CountedOptions, find, guarded, read_text, track
from fedmpi.data.sets.steps import ByName, Examples, by_names, first_of_test, windows
from fedmpi.errors import DataError

SIDE, NUM_CLASSES = 28, 62
# The characters in the order of their tokens: those of tinyshakespeare's input.txt, and ALL_LETTERS of LEAF's code.
ALPHABETS = {
    "speakers": "\n !$&',-.3:;?" + ascii_uppercase + ascii_lowercase,
    "leaf": "\n !\"&'(),-.0123456789:;>?" + ascii_uppercase + "[]" + ascii_lowercase + "}",
}
LENGTH = 80
STRIDE = 10
TEST_SHARE = 0.2
MIN_CHARS = 500
"""Roles with fewer characters are left out."""


def _from_leaf(folder: Path, examples: Callable[[Any, Any], Examples]) -> Dataset:
    """Makes a data set of LEAF's JSON files train/*.json and test/*.json below `folder`. Raises DataError. `examples`
    makes arrays of a user's x and y."""
    parts: dict[str, ByName] = {part: {} for part in PARTS}
    for part, users in parts.items():
        for path in track(sorted(folder.rglob(f"{part}/*.json")), "reading files"):
            with guarded(path, "write it again by LEAF's preprocess.sh", "is not a JSON file of LEAF"):
                for name, user in json.loads(path.read_bytes())["user_data"].items():
                    if name in users:
                        raise ValueError(f"{name} is in another file, too")
                    if user["x"] or user["y"]:
                        users[name] = examples(user["x"], user["y"])
    return by_names(folder, parts["train"], parts["test"])


class Femnist(CountedOptions):
    downloads = ("fed_emnist.tar.bz2",)
    name: str = "femnist"
    """Handwritten characters in 62 classes by writer: TensorFlow Federated's or LEAF's files."""

    def complete(self) -> DataInfo:
        return DataInfo("image", (1, SIDE, SIDE), NUM_CLASSES, 671_585, 77_483, num_groups=3400, shares_groups=True)

    def prepare(self, folder: Path) -> Dataset:
        """Returns images uint8 (N, 28, 28, 1), writer after writer in the order of their names. Raises DataError."""
        if any(folder.rglob("train/*.json")):
            return _from_leaf(folder, _images)
        path = find(folder, "fed_emnist_train.h5", "fed_emnist.tar.bz2, or that with LEAF's train/*.json")
        train, test = (_writers(path.with_name(f"fed_emnist_{part}.h5")) for part in ("train", "test"))
        return by_names(folder, train, test)


def _writers(path: Path) -> ByName:
    """Returns the images of each writer who has some, by name."""
    import h5py

    writers: ByName = {}
    with guarded(path, "unpack fed_emnist.tar.bz2 again"), h5py.File(path, "r") as file:
        group = file["examples"]
        for name in track(sorted(group), f"reading {path.name}"):
            writers[name] = _images(group[name]["pixels"][...], group[name]["label"][...])
    return {name: images for name, images in writers.items() if len(images[1])}


def _images(pixels: Any, labels: Any) -> Examples:
    """Returns pixels of 0..1 as bytes, (n, 28, 28, 1), and labels of 0..61. Raises ValueError for other numbers."""
    x = np.asarray(pixels).reshape(len(labels), SIDE, SIDE, 1)
    if len(labels) and not (x.min() >= 0 and x.max() <= 1):
        raise ValueError("there are pixels that are no numbers from 0 to 1")
    return np.rint(x * 255).astype(np.uint8), np.asarray(labels).astype(np.int64)


class Shakespeare(CountedOptions):
    downloads = ("tinyshakespeare/input.txt",)
    name: str = "shakespeare"
    """Plays by role, the next character: tinyshakespeare or LEAF's files."""
    form: Literal["speakers", "leaf"] = "speakers"
    """`speakers`: a text in which each speech begins with its speaker's name and a colon, as tinyshakespeare's
    input.txt (65 characters). `leaf`: LEAF's JSON files (80 characters)."""

    def complete(self) -> DataInfo:
        counts = (79_131, 18_757)
        size = len(ALPHABETS[self.form])
        return DataInfo("tokens", (LENGTH,), size, *counts, vocabulary_size=size, num_groups=181, shares_groups=True)

    def files(self) -> tuple[str, ...]:
        return self.downloads if self.form == "speakers" else ()

    def prepare(self, folder: Path) -> Dataset:
        """Returns the examples by role, in the order of the roles' names. Raises DataError."""
        if self.form == "leaf":
            return _from_leaf(folder, _of_leaf)
        path = find(folder, "input.txt", "tinyshakespeare")
        train: ByName = {}
        test: ByName = {}
        for role, texts in track(sorted(_speeches(path).items()), "reading roles"):
            with guarded(path, "take tinyshakespeare's", "cannot be used"):
                tokens = _tokens("\n".join(texts), ALPHABETS["speakers"])
            cut = first_of_test(len(tokens), TEST_SHARE)
            early, late = (windows(part, LENGTH + 1, STRIDE) for part in (tokens[:cut], tokens[cut:]))
            if len(tokens) >= MIN_CHARS and len(early) and len(late):
                train[role] = _examples(early)
                test[role] = _examples(late)
        return by_names(folder, train, test)


def _of_leaf(x: list[str], y: list[str]) -> Examples:
    texts = [before + after for before, after in zip(x, y, strict=True)]
    tokens = _tokens("".join(texts), ALPHABETS["leaf"]).reshape(len(texts), LENGTH + 1)
    return _examples(tokens[::STRIDE].copy())  # the memory of the others is free


def _speeches(path: Path) -> dict[str, list[str]]:
    """Returns speaker -> speeches in the order of the text; those without a word (stage directions) are left out."""
    speeches: dict[str, list[str]] = {}
    for number, block in enumerate(re.split(r"\n{2,}", read_text(path).strip("\n")), start=1):
        head, _, speech = block.partition("\n")
        if not head.endswith(":"):
            found = f"block {number} begins with {head[:40]!r}"
            raise DataError(str(path), f"{found}, expected a speaker's name and a colon")
        if speech:
            speeches.setdefault(head[:-1], []).append(speech)
    return speeches


def _examples(windows: NDArray[np.int16]) -> Examples:
    """Returns the examples, int16 (n, length), and their labels, int64 (n,): the last token of each window."""
    return windows[:, :-1], windows[:, -1].astype(np.int64)


def _tokens(text: str, alphabet: str) -> NDArray[np.int16]:
    """Returns int16 (characters,). Raises ValueError if one is not in the alphabet."""
    if strange := sorted(set(text) - set(alphabet)):
        raise ValueError(f"it holds {strange[:5]}, none of its {len(alphabet)} characters")
    number_of = {character: number for number, character in enumerate(alphabet)}
    return np.array([number_of[character] for character in text], np.int16)
