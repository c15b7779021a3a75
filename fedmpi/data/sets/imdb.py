"""IMDB film reviews as rows of word numbers.

A. L. Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011. Words, padding and the split
`three_quarters` are PriSM's (official code, data/imdb.py): lower case; every character but letters is taken out of a
word ("don't" is dont, "well-made" is wellmade); words are split at white space; stop words do not count; the
1,000 most frequent words of the training reviews are 1 to 1000 in that order; other words are dropped; the first
500 that remain are used; 0 pads on the left, because the net reads its answer off the last word.

Differences from PriSM's code: the line break `<br />` is a space, not a word "br"; an underscore is not a letter;
words of equal frequency are in the order of the alphabet, not of their first appearance; the split is drawn once
(from our seeds, the same in every run), not in every run.

The film of review i is in line i of urls_pos.txt and urls_neg.txt.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedmpi.config.fields import Count
from fedmpi.data.dataset import DataInfo, Dataset, number_groups
from fedmpi.data.files import PreparedOptions, find, read_text, track
from fedmpi.data.subset import Ints
from fedmpi.errors import DataError
from fedmpi.seeds import numpy_generator

CLASSES = ("neg", "pos")
NUM_WORDS = 1000
FILE_NAME = re.compile(r"(\d+)_\d+\.txt")
FILM = re.compile(r"/title/(tt\d+)")
NO_LETTER = re.compile(r"[^\w\s]|[\d_]")

# What NLTK's English list has once apostrophes are gone (fragments of contractions included), by kind.
_STOP_WORDS = """
    i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves what which who whom this that these those am is are
    was were be been being have has had having do does did doing can will should a an the and but if or because
    as until while of at by for with about against between into through during before after above below to from
    up down in out on off over under again further then once here there when where why how all any both each few
    more most other some such no nor not only own same so than too very just now s t d m o y ll re ve ma don ain
    aren couldn didn doesn hadn hasn haven isn mightn mustn needn shan shouldn wasn weren won wouldn
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


class Imdb(PreparedOptions):
    downloads = ("aclImdb_v1.tar.gz",)
    name: str = "imdb"
    """50,000 film reviews, good or bad, as rows of word numbers (a vocabulary of 1,001)."""
    split: Literal["original", "three_quarters"] = "original"
    """`original`: 25,000 to train and 25,000 to test, of other films (but one). `three_quarters`: of all 50,000, three
    quarters of each class to train (37,500) and the rest to test, as in PriSM's code: its 100 clients have 375 each."""
    length: Count = 500
    """Words of a review that are used, the first ones; shorter reviews are padded on the left."""

    def info(self) -> DataInfo:
        num_train, num_groups = {"original": (25_000, 3456), "three_quarters": (37_500, 6609)}[self.split]
        counts = (num_train, 50_000 - num_train)
        return DataInfo("tokens", (self.length,), 2, *counts, vocabulary_size=NUM_WORDS + 1, num_groups=num_groups)

    def prepare(self, folder: Path) -> Dataset:
        """Returns tokens int16 (N, length), first all bad reviews, then the good. Raises DataError."""
        home = find(folder, "train/urls_pos.txt", "the reviews (aclImdb)").parent.parent
        reviews = [*_reviews(home / "train"), *_reviews(home / "test")]
        texts = [_letters(read_text(path)) for _, path, _, _ in track(reviews, "reading reviews")]
        parts, _, labels, films = (np.array(column) for column in zip(*reviews, strict=True))
        is_train = parts == "train" if self.split == "original" else _three_quarters(labels)
        order = np.argsort(labels, kind="stable")
        train = order[is_train[order]]
        test = order[~is_train[order]]
        train_texts = [texts[i] for i in train]
        test_texts = [texts[i] for i in test]
        numbers = {word: number for number, word in enumerate(vocabulary(train_texts), start=1)}
        x = self._tokens(train_texts, numbers)
        test_x = self._tokens(test_texts, numbers)
        return Dataset(x, labels[train], test_x, labels[test], *number_groups(films[train], films[test]))

    def _tokens(self, texts: list[str], numbers: dict[str, int]) -> NDArray[np.int16]:
        """Returns int16 (N, length), padded on the left by 0."""
        tokens = np.zeros((len(texts), self.length), dtype=np.int16)
        for row, text in zip(tokens, texts, strict=True):
            known = [numbers[word] for word in text.split() if word in numbers][: self.length]
            row[self.length - len(known) :] = known
        return tokens


def vocabulary(texts: Iterable[str]) -> list[str]:
    """Returns the most frequent words, the most frequent one first."""
    counts = Counter(word for text in texts for word in text.split() if word not in STOP_WORDS)
    return sorted(counts, key=lambda word: (-counts[word], word))[:NUM_WORDS]


def _reviews(folder: Path) -> list[tuple[str, Path, int, str]]:
    """Returns part, file, class (0 bad, 1 good) and film of each review of a part, by class, then by number."""
    reviews = []
    for label, name in enumerate(CLASSES):
        urls = folder / f"urls_{name}.txt"
        films = FILM.findall(read_text(urls))
        found = [(FILE_NAME.fullmatch(path.name), path) for path in (folder / name).glob("*.txt")]
        numbered = sorted((int(match[1]), path) for match, path in found if match)
        if not numbered or numbered[-1][0] >= len(films):
            problem = f"names {len(films)} films (/title/tt...), but {folder / name} has {len(numbered)} reviews"
            raise DataError(str(urls), f"{problem} (<number>_<rating>.txt); unpack the files again")
        reviews += [(folder.name, path, label, films[number]) for number, path in numbered]
    return reviews


def _letters(text: str) -> str:
    return NO_LETTER.sub("", text.lower().replace("<br />", " "))


def _three_quarters(labels: Ints) -> NDArray[np.bool_]:
    """Returns which examples train: three quarters of each class, drawn once and for all."""
    generator = numpy_generator("imdb-split")
    is_train = np.zeros(len(labels), dtype=bool)
    for label in range(len(CLASSES)):
        own = np.flatnonzero(labels == label)
        is_train[generator.permutation(own)[: len(own) * 3 // 4]] = True
    return is_train
