"""IMDB film reviews as rows of word numbers.

A. L. Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011. Words, padding and the split
`three_quarters` are PriSM's (official code, data/imdb.py): lower case; every character but letters is taken out of a
word ("don't" is dont, "well-made" is wellmade); words are split at white space; stop words do not count; the
1,000 most frequent words of the training reviews are 1 to 1000 in that order; other words are dropped; the first
500 that remain are used; 0 pads on the left, because the net reads its answer off the last word.

Signs such as ½ and ², which Python's `\\w` knows and `\\d` does not, stay, too, as in that code.

Differences from PriSM's code: the line break `<br />` is a space, not a word "br"; an underscore is not a letter;
words of equal frequency are in the order of the alphabet, not of their first appearance; the split is drawn once
(from our seeds, the same in every run), not in every run.

The film of a review is in urls_pos.txt and urls_neg.txt, line i for the review with the number i.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmpi.config.fields import Count
from fedmpi.data.dataset import DataInfo, Dataset, number_groups
from fedmpi.data.files import Source, find, read_text, track
from fedmpi.data.prepare import PreparedOptions
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


class Review(NamedTuple):
    """Words without anything but letters, the class (0 bad, 1 good), and the film."""

    text: str
    label: int
    film: str


class Imdb(PreparedOptions):
    source = Source(
        "https://ai.stanford.edu/~amaas/data/sentiment/",
        "no formal licence; cite Maas et al., ACL 2011",
        ("aclImdb_v1.tar.gz",),
    )
    name: str = "imdb"
    """50,000 film reviews, good or bad, as rows of word numbers (a vocabulary of 1,001)."""
    split: Literal["original", "three_quarters"] = "original"
    """`original`: 25,000 to train and 25,000 to test, of other films (but one). `three_quarters`: of all 50,000, three
    quarters of each class to train (37,500) and the rest to test, as in PriSM's code: its 100 clients have 375 each.
    """
    length: Count = 500
    """Words of a review that are used, the first ones; shorter reviews are padded on the left."""

    def info(self) -> DataInfo:
        num_train, num_groups = {"original": (25_000, 3456), "three_quarters": (37_500, 6609)}[self.split]
        counts = (num_train, 50_000 - num_train)
        return DataInfo("tokens", (self.length,), 2, *counts, vocabulary_size=NUM_WORDS + 1, num_groups=num_groups)

    def prepare(self, folder: Path) -> Dataset:
        """Returns tokens int16 (N, length), first all bad reviews, then the good. Raises DataError."""
        home = find(folder, "train/urls_pos.txt", "the reviews (aclImdb)").parent.parent
        train_files = _files(home / "train")
        files = train_files + _files(home / "test")
        reviews = [
            Review(_letters(read_text(path)), label, film) for path, label, film in track(files, "reading reviews")
        ]
        train, test = reviews[: len(train_files)], reviews[len(train_files) :]
        if self.split == "three_quarters":
            train, test = _three_quarters(reviews)
        numbers = {word: number for number, word in enumerate(vocabulary(train), start=1)}
        groups = number_groups([review.film for review in train], [review.film for review in test])
        return Dataset(*_encoded(self, train, numbers), *_encoded(self, test, numbers), *groups)


def vocabulary(reviews: Iterable[Review]) -> list[str]:
    """Returns the most frequent words, the most frequent one first."""
    counts: Counter[str] = Counter()
    for review in reviews:
        counts.update(review.text.split())
    kept = (word for word in counts if word not in STOP_WORDS)
    return sorted(kept, key=lambda word: (-counts[word], word))[:NUM_WORDS]


def _files(part: Path) -> list[tuple[Path, int, str]]:
    """Returns file, class and film of each review of a part, by class, then by number."""
    files = []
    for label, name in enumerate(CLASSES):
        urls = part / f"urls_{name}.txt"
        films = FILM.findall(read_text(urls))
        found = [(FILE_NAME.fullmatch(path.name), path) for path in (part / name).glob("*.txt")]
        numbered = sorted((int(match[1]), path) for match, path in found if match)
        if not numbered or numbered[-1][0] >= len(films):
            problem = f"names {len(films)} films (/title/tt...), but {part / name} has {len(numbered)} reviews"
            raise DataError(str(urls), f"{problem} (<number>_<rating>.txt); unpack the files again")
        files += [(path, label, films[number]) for number, path in numbered]
    return files


def _letters(text: str) -> str:
    return NO_LETTER.sub("", text.lower().replace("<br />", " "))


def _three_quarters(reviews: list[Review]) -> tuple[list[Review], list[Review]]:
    """Returns three quarters of each class, drawn once and for all, and the rest; both in the order of the files."""
    generator = numpy_generator("imdb-split")
    is_train = np.zeros(len(reviews), dtype=bool)
    for label in range(len(CLASSES)):
        its_reviews = np.flatnonzero([review.label == label for review in reviews])
        is_train[generator.permutation(its_reviews)[: len(its_reviews) * 3 // 4]] = True
    order = np.argsort([review.label for review in reviews], kind="stable").tolist()
    return [reviews[i] for i in order if is_train[i]], [reviews[i] for i in order if not is_train[i]]


def _encoded(options: Imdb, reviews: list[Review], numbers: dict[str, int]) -> tuple[NDArray[np.int16], Ints]:
    """Returns tokens int16 (N, length), padded on the left by 0, and labels int64 (N,)."""
    tokens = np.zeros((len(reviews), options.length), dtype=np.int16)
    for row, review in zip(tokens, reviews, strict=True):
        known = [numbers[word] for word in review.text.split() if word in numbers][: options.length]
        row[options.length - len(known) :] = known
    return tokens, np.array([review.label for review in reviews], dtype=np.int64)
