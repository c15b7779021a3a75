"""Plays by role: 80 characters, and the next one to predict.

Form `speakers`: blocks with an empty line between, the first line of each the speaker's name and a colon
(tinyshakespeare, A. Karpathy's char-rnn). A role's text is its speeches, without the names, joined by line ends. It is
cut once, so that the last fifth of the characters is test; each side has its own windows of LENGTH characters and a
label, a new one every STRIDE characters. So no character is on both sides.

Form `leaf`: S. Caldas et al., LEAF, arXiv:1812.01097: JSON files in the folders train and test (LEAF's split by
sample), in which a role has x, strings of 80 characters, and y, the character after each; every next one begins a
character later. Every STRIDE-th is taken.

Tokens are the position in an alphabet that is fixed (ALPHABETS); any other character is an error.
"""

import re
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dataset import DataInfo, Dataset
from fedmpi.data.files import CountedOptions, find, guarded, read_text, track
from fedmpi.data.sets.steps import ByName, by_names, first_of_test, leaf_users, windows
from fedmpi.data.subset import Ints
from fedmpi.errors import DataError

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


class Shakespeare(CountedOptions):
    downloads = ("tinyshakespeare/input.txt",)
    name: str = "shakespeare"
    """Plays by role, the next character: tinyshakespeare or LEAF's files."""
    form: Literal["speakers", "leaf"] = "speakers"
    """`speakers`: a text in which each speech begins with its speaker's name and a colon, as tinyshakespeare's
    input.txt (65 characters). `leaf`: LEAF's JSON files (80 characters).
    """

    def complete(self) -> DataInfo:
        size = len(ALPHABETS[self.form])
        return DataInfo(
            "tokens", (LENGTH,), size, 79_131, 18_757, vocabulary_size=size, num_groups=181, shares_groups=True
        )

    def files(self) -> tuple[str, ...]:
        return self.downloads if self.form == "speakers" else ()

    def prepare(self, folder: Path) -> Dataset:
        """Returns the examples by role, in the order of the roles' names. Raises DataError."""
        if self.form == "leaf":
            return by_names(folder, *leaf_users(folder, _of_leaf))
        path = find(folder, "input.txt", "tinyshakespeare")
        train, test = ByName(), ByName()
        for role, texts in track(sorted(_speeches(path).items()), "reading roles"):
            with guarded(path, "take tinyshakespeare's", "cannot be used"):
                tokens = _tokens("\n".join(texts), ALPHABETS["speakers"])
            cut = first_of_test(len(tokens), TEST_SHARE)
            early, late = (windows(part, LENGTH + 1, STRIDE) for part in (tokens[:cut], tokens[cut:]))
            if len(tokens) >= MIN_CHARS and len(early) and len(late):
                train[role] = _examples(early)
                test[role] = _examples(late)
        return by_names(folder, train, test)


def _of_leaf(x: list[str], y: list[str]) -> tuple[NDArray[np.int16], Ints]:
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


def _examples(windows: NDArray[np.int16]) -> tuple[NDArray[np.int16], Ints]:
    """Returns the examples, int16 (n, length), and their labels, int64 (n,): the last token of each window."""
    return windows[:, :-1], windows[:, -1].astype(np.int64)


def _tokens(text: str, alphabet: str) -> NDArray[np.int16]:
    """Returns int16 (characters,). Raises ValueError if one is not in the alphabet."""
    if strange := sorted(set(text) - set(alphabet)):
        raise ValueError(f"it holds {strange[:5]}, none of its {len(alphabet)} characters")
    number_of = {character: number for number, character in enumerate(alphabet)}
    return np.array([number_of[character] for character in text], np.int16)
