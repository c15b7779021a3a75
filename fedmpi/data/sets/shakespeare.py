"""Plays by role: `length` characters, and the next one to predict.

Form `speakers`: blocks with an empty line between, the first line of each the speaker's name and a colon
(tinyshakespeare, A. Karpathy's char-rnn). A role's text is its speeches, without the names, joined by line ends.
It is cut once, so that the last `test_share` of the characters is test; each side has its own windows of `length`
characters and a label, a new one every STRIDE characters. So no character is on both sides.

Form `leaf`: S. Caldas et al., LEAF, arXiv:1812.01097: JSON files in the folders train and test (LEAF's split by
sample), whose `user_data` has for each role x, strings of 80 characters, and y, the character after each; every next
one begins a character later. Every STRIDE-th is taken.

Tokens are the position in an alphabet that is fixed (ALPHABETS); any other character is an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedmpi.config.fields import Count
from fedmpi.data.dataset import DataInfo, Dataset
from fedmpi.data.files import Source, find, guarded, read_text, track
from fedmpi.data.prepare import CountedOptions
from fedmpi.data.sets.steps import ByName, PartialShare, by_names, first_of_test, leaf_users, windows
from fedmpi.data.subset import Ints
from fedmpi.errors import DataError

Tokens: TypeAlias = NDArray[np.int16]
# The characters in the order of their tokens: those of tinyshakespeare's input.txt, and ALL_LETTERS of LEAF's code.
ALPHABETS = {
    "speakers": "\n !$&',-.3:;?" + ascii_uppercase + ascii_lowercase,
    "leaf": "\n !\"&'(),-.0123456789:;>?" + ascii_uppercase + "[]" + ascii_lowercase + "}",
}
# Roles with fewer characters are left out (`form: speakers`).
MIN_CHARS = 500
# Characters from the start of an example to that of the next.
STRIDE = 10


class Shakespeare(CountedOptions):
    source = Source("https://github.com/karpathy/char-rnn", "public domain (the text)", ("tinyshakespeare/input.txt",))
    name: str = "shakespeare"
    """Plays by role, the next character: tinyshakespeare or LEAF's files."""
    form: Literal["speakers", "leaf"] = "speakers"
    """`speakers`: a text in which each speech begins with its speaker's name and a colon, as tinyshakespeare's
    input.txt (65 characters). `leaf`: LEAF's JSON files (80 characters).
    """
    length: Count = 80
    """Characters in an example; the one after them is its label."""
    test_share: PartialShare = 0.2
    """The later part of each role's text is test data (`form: speakers`); no training example has a character of it."""

    def info(self) -> DataInfo:
        counts = (79_131, 18_757)
        size = len(ALPHABETS[self.form])
        return DataInfo(
            "tokens", (self.length,), size, *counts, vocabulary_size=size, num_groups=181, shares_groups=True
        )

    def files(self) -> tuple[str, ...]:
        return self.source.files if self.form == "speakers" else ()

    def prepare(self, folder: Path) -> Dataset:
        """Returns the examples by role, in the order of the roles' names. Raises DataError."""
        train, test = _speakers(self, folder) if self.form == "speakers" else _leaf(self, folder)
        return by_names(folder, train, test)


def _speakers(options: Shakespeare, folder: Path) -> tuple[ByName, ByName]:
    path = find(folder, "input.txt", "tinyshakespeare")
    train, test = ByName(), ByName()
    for role, texts in track(sorted(_speeches(path).items()), "reading roles"):
        tokens = _tokens("\n".join(texts), options, path)
        cut = first_of_test(len(tokens), options.test_share)
        early, late = (windows(part, options.length + 1, STRIDE) for part in (tokens[:cut], tokens[cut:]))
        if len(tokens) >= MIN_CHARS and len(early) and len(late):
            train[role] = _examples(early)
            test[role] = _examples(late)
    if not train:
        limits = f"at least {MIN_CHARS} characters; data.length, data.test_share"
        raise DataError(str(path), f"no role has enough text ({limits})")
    return train, test


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


def _leaf(options: Shakespeare, folder: Path) -> tuple[ByName, ByName]:
    """Returns the roles of LEAF's folders train and test, each with every STRIDE-th of its examples."""
    train, test = ByName(), ByName()
    for roles, part in ((train, "train"), (test, "test")):
        for path, role, user in leaf_users(sorted(folder.rglob(f"{part}/*.json")), dict):
            with guarded(path, "take LEAF's files with data.length=80", f"is damaged at role {role}"):
                texts = [x + y for x, y in zip(user["x"], user["y"], strict=True)]
                tokens = _tokens("".join(texts), options, path).reshape(len(texts), options.length + 1)
            if texts:
                roles[role] = _examples(tokens[::STRIDE].copy())  # the memory of the others is free
    return train, test


def _examples(windows: Tokens) -> tuple[Tokens, Ints]:
    """Returns the examples, int16 (n, length), and their labels, int64 (n,): the last token of each window."""
    return windows[:, :-1], windows[:, -1].astype(np.int64)


def _tokens(text: str, options: Shakespeare, path: Path) -> Tokens:
    """Returns int16 (characters,). Raises DataError if one is not in the alphabet."""
    alphabet = ALPHABETS[options.form]
    if strange := sorted(set(text) - set(alphabet)):
        allowed = f"none of the {len(alphabet)} characters of data.form={options.form}"
        raise DataError(str(path), f"holds {strange[:5]}, {allowed}")
    number_of = np.zeros(256, dtype=np.int16)
    number_of[np.frombuffer(alphabet.encode("latin-1"), np.uint8)] = np.arange(len(alphabet))
    return number_of[np.frombuffer(text.encode("latin-1"), np.uint8)]
