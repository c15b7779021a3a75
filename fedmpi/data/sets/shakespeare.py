"""Plays by role: `length` characters, and the next one to predict.

Form `speakers`: blocks with an empty line between, the first line of each the speaker's name and a colon
(tinyshakespeare, A. Karpathy's char-rnn). A role's text is its speeches, without the names, joined by line ends.
It is cut once, so that the last `test_share` of the characters is test; each side has its own windows of `length`
characters and a label, a new one every `stride` characters. So no character is on both sides.

Form `leaf`: S. Caldas et al., LEAF, arXiv:1812.01097: JSON files whose `user_data` has for each role x, strings of 80
characters, and y, the character after each; every next one begins a character later. Every `stride`-th is taken.
Where there are folders train and test, they are the split (LEAF's own, by sample). Else the later examples of a role
are test, and the `length` examples before these, which overlap them, are in neither part.

Tokens are the position in an alphabet that is fixed (ALPHABETS); any other character is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedmpi.config.fields import Count
from fedmpi.data.dataset import DataInfo, Dataset, number_groups
from fedmpi.data.files import File, Source, Tell, find, read_text
from fedmpi.data.sets.series import PartialShare, SeriesOptions, first_of_test, leaf_users, windows
from fedmpi.data.subset import Ints
from fedmpi.errors import DataError

Tokens: TypeAlias = NDArray[np.int16]
Roles = dict[str, Tokens]
"""Role -> its examples, int16 (n, length + 1): the last token is the label."""


# The characters in the order of their tokens: those of tinyshakespeare's input.txt, and ALL_LETTERS of LEAF's code.
ALPHABETS = {
    "speakers": "\n !$&',-.3:;?" + ascii_uppercase + ascii_lowercase,
    "leaf": "\n !\"&'(),-.0123456789:;>?" + ascii_uppercase + "[]" + ascii_lowercase + "}",
}
FILE = File(
    "tinyshakespeare/input.txt",
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
    "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    1_115_394,
    needed_if=("form", "speakers"),
)


class Shakespeare(SeriesOptions):
    source = Source(
        "https://github.com/karpathy/char-rnn",
        "public domain (the text)",
        (FILE,),
        other="LEAF's JSON is made by its own script: `./preprocess.sh -s niid --sf 1.0 -k 0 -t sample` in "
        "data/shakespeare of https://github.com/TalwalkarLab/leaf; then `prepare shakespeare data.form=leaf "
        "--from .../data/shakespeare/data`",
    )
    name: str = "shakespeare"
    """Plays by role, the next character: tinyshakespeare or LEAF's files."""
    form: Literal["speakers", "leaf"] = "speakers"
    """`speakers`: a text in which each speech begins with its speaker's name and a colon, as tinyshakespeare's
    input.txt (65 characters). `leaf`: LEAF's JSON files (80 characters).
    """
    length: Count = 80
    """Characters in an example; the one after them is its label."""
    stride: Count = 10
    """Characters from the start of an example to that of the next; 1 takes them all (LEAF: every such example)."""
    test_share: PartialShare = 0.2
    """The later part of each role's text is test data; no training example has a character of it. LEAF's files that
    are already divided (folders train and test) stay so.
    """
    min_chars: Count = 500
    """Roles with fewer characters are left out, as are those with no example in one part. (LEAF: fewer examples; where
    its files are already divided, no role is left out.)
    """

    def info(self) -> DataInfo:
        size = len(ALPHABETS[self.form])
        complete = DataInfo("tokens", (self.length,), size, 79_131, 18_757, num_groups=181, shares_groups=True)
        return self.expected(replace(complete, vocabulary_size=size))

    def prepare(self, folder: Path, tell: Tell) -> Dataset:
        """Returns the examples by role, in the order of the roles' names. Raises DataError."""
        train, test = (_speakers if self.form == "speakers" else _leaf)(self, folder, tell)
        if not train or not test:
            limits = f"data.min_chars={self.min_chars}, length and test_share"
            raise DataError(str(folder), f"no role has enough text ({limits})")
        (x, y, names), (test_x, test_y, test_names) = _joined(train), _joined(test)
        return Dataset(x, y, test_x, test_y, *number_groups(names, test_names))


def _joined(roles: Roles) -> tuple[Tokens, Ints, NDArray[np.str_]]:
    """Returns tokens int16 (N, length), labels int64 (N,) and the role of each example."""
    names = sorted(roles)
    examples = np.concatenate([roles[name] for name in names])
    whose = np.repeat(names, [len(roles[name]) for name in names])
    return np.ascontiguousarray(examples[:, :-1]), examples[:, -1].astype(np.int64), whose


def _speakers(options: Shakespeare, folder: Path, tell: Tell) -> tuple[Roles, Roles]:
    path = find(folder, "input.txt", "tinyshakespeare")
    train, test, speeches = Roles(), Roles(), _speeches(path)
    for done, (role, texts) in enumerate(sorted(speeches.items()), start=1):
        tokens = _tokens("\n".join(texts), options, path)
        cut = first_of_test(len(tokens), options.test_share)
        early, late = (windows(part, options.length + 1, options.stride) for part in (tokens[:cut], tokens[cut:]))
        if len(tokens) >= options.min_chars and len(early) and len(late):
            train[role], test[role] = early, late
        tell(done, len(speeches))
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


def _leaf(options: Shakespeare, folder: Path, tell: Tell) -> tuple[Roles, Roles]:
    paths = sorted(folder.rglob("*.json"))
    if not paths:
        raise DataError(str(folder), "no .json file in it or below; give the folder data of LEAF's shakespeare")
    by_part = [[path for path in paths if path.parent.name == part] for part in ("train", "test")]
    if all(by_part):
        return _as_divided(options, folder, by_part, tell)
    train, test = Roles(), Roles()
    for role, examples in _roles(options, paths, tell):
        first = first_of_test(len(examples), options.test_share)
        if len(examples) >= options.min_chars and options.length < first < len(examples):
            train[role] = _thinned(options, examples[: first - options.length])
            test[role] = _thinned(options, examples[first:])
    return train, test


def _as_divided(options: Shakespeare, folder: Path, by_part: list[list[Path]], tell: Tell) -> tuple[Roles, Roles]:
    """Returns the split of LEAF's folders train and test, which must be one by sample: roles have both."""
    train, test = (
        {role: _thinned(options, examples) for role, examples in _roles(options, paths, tell) if len(examples)}
        for paths in by_part
    )
    only_test = sorted(set(test) - set(train))
    if only_test:
        found = f"{len(only_test)} roles ({only_test[0]}, ...) are in test alone"
        raise DataError(str(folder), f"{found}; make the files with LEAF's `-t sample`")
    return train, test


def _thinned(options: Shakespeare, examples: Tokens) -> Tokens:
    """Returns every `stride`-th example, copied so that the others' memory is free."""
    return examples[:: options.stride].copy()


def _roles(options: Shakespeare, paths: list[Path], tell: Tell) -> Iterator[tuple[str, Tokens]]:
    """Yields each role of LEAF's files with all its examples, int16 (n, length + 1)."""
    for path, role, part in leaf_users(paths, tell, dict):
        yield role, _examples(options, path, role, part)


def _examples(options: Shakespeare, path: Path, role: str, part: Mapping[str, Any]) -> Tokens:
    x: Any = part.get("x")
    y: Any = part.get("y")
    is_text = isinstance(x, list) and isinstance(y, list) and all(isinstance(text, str) for text in [*x, *y])
    if not is_text or len(x) != len(y):
        raise DataError(str(path), f"role {role}: x and y are not as many texts")
    for name, given, length in (("texts", x, options.length), ("labels", y, 1)):
        others = sorted({len(text) for text in given} - {length})
        if others:
            expected = f"expected data.length={length}" if given is x else "expected 1"
            raise DataError(str(path), f"role {role}: {name} of {others[:5]} characters, {expected}")
    joined = "".join(text + label for text, label in zip(x, y, strict=True))
    return _tokens(joined, options, path).reshape(-1, options.length + 1)


def _tokens(text: str, options: Shakespeare, path: Path) -> Tokens:
    """Returns int16 (characters,). Raises DataError if one is not in the alphabet."""
    alphabet = ALPHABETS[options.form]
    if strange := sorted(set(text) - set(alphabet)):
        allowed = f"none of the {len(alphabet)} characters of data.form={options.form}"
        raise DataError(str(path), f"holds {strange[:5]}, {allowed}")
    number_of = np.zeros(256, dtype=np.int16)
    number_of[np.frombuffer(alphabet.encode("latin-1"), np.uint8)] = np.arange(len(alphabet))
    return number_of[np.frombuffer(text.encode("latin-1"), np.uint8)]
