"""Options of the prepared data sets of signals and texts: har, imdb, shakespeare. Imports neither torch nor numpy."""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase
from typing import Annotated, Literal

from pydantic import Field

from fedmpi.config.schema import Count
from fedmpi.data.options import DataInfo
from fedmpi.data.prepared_options import PreparedOptions

NumExpected = Annotated[int, Field(ge=0, le=2**31 - 1)]
PartialShare = Annotated[float, Field(gt=0, lt=1)]

HAR_AXES = 6
HAR_FEATURES = 561

# The characters in the order of their tokens: those of tinyshakespeare's input.txt, and ALL_LETTERS of LEAF's code.
ALPHABETS = {
    "speakers": "\n !$&',-.3:;?" + ascii_uppercase + ascii_lowercase,
    "leaf": "\n !\"&'(),-.0123456789:;>?" + ascii_uppercase + "[]" + ascii_lowercase + "}",
}


class SeriesOptions(PreparedOptions):
    """A prepared data set whose counts hang on its options."""

    num_train: NumExpected = 0
    """Training examples expected; 0 means those of the complete files under the default options. Needed where other
    options (or a part of the files) give another number: the error then says which.
    """
    num_test: NumExpected = 0
    """Test examples expected; 0 as above."""
    num_groups: NumExpected = 0
    """Subjects, films or roles expected in the training examples; 0 as above."""

    def expected(self, complete: tuple[int, int, int]) -> tuple[int, int, int]:
        """Training examples, test examples and groups: what is told, else `complete`."""
        told = (self.num_train, self.num_test, self.num_groups)
        return (told[0] or complete[0], told[1] or complete[1], told[2] or complete[2])


class Har(SeriesOptions):
    """Human activities from a phone at the waist of 30 people, 6 classes; a group is a subject.

    D. Anguita et al., A Public Domain Dataset for Human Activity Recognition Using Smartphones, ESANN 2013 (UCI HAR,
    `features`); J.-L. Reyes-Ortiz et al., Neurocomputing 2015 (HAPT, its raw signals, `windows`).
    """

    name: str = "har"
    """Activities of 30 people from a phone's sensors, 6 classes: HAPT's raw signals or UCI HAR's features."""
    form: Literal["windows", "features"] = "windows"
    """`windows`: pieces of HAPT's raw signals, `window` samples of 6 axes (3 of acceleration, 3 of rotation), cut out
    of each labelled stretch. `features`: UCI HAR's 561 numbers, as distributed.
    """
    split: Literal["each_subject", "original"] = "each_subject"
    """`each_subject`: the later part of each subject's time in each activity is test data, and no training example
    overlaps it. `original`: UCI HAR's own, 21 subjects to train and 9 others to test.
    """
    test_share: PartialShare = 0.2
    """The share of test data under `split: each_subject`."""
    window: Count = 128
    """Samples in a window, 50 a second (`form: windows`)."""
    step: Count = 64
    """Samples from the start of a window to that of the next (`form: windows`)."""
    standardize: bool = True
    """Each of the 6 axes minus its mean over all training windows, divided by its standard deviation there
    (`form: windows`); else acceleration in g and rotation in rad/s, as recorded.
    """

    def info(self) -> DataInfo:
        complete = {
            ("windows", "each_subject"): (8180, 1982, 30),
            ("windows", "original"): (7415, 2996, 21),
            ("features", "each_subject"): (8059, 2060, 30),
            ("features", "original"): (7352, 2947, 21),
        }[self.form, self.split]
        num_train, num_test, num_groups = self.expected(complete)
        num_features = HAR_FEATURES if self.form == "features" else HAR_AXES * self.window
        return DataInfo(
            "vector",
            (num_features,),
            6,
            num_train,
            num_test,
            num_groups=num_groups,
            shares_groups=self.split == "each_subject",
        )


class Imdb(SeriesOptions):
    """A. L. Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011; words as in PriSM's code."""

    name: str = "imdb"
    """50,000 film reviews, good or bad, as rows of word numbers (a vocabulary of 1,001)."""
    split: Literal["original", "three_quarters"] = "original"
    """`original`: 25,000 to train and 25,000 to test, of other films (but one). `three_quarters`: of all 50,000, three
    quarters of each class to train (37,500) and the rest to test, as in PriSM's code: its 100 clients have 375 each.
    """
    words: Annotated[int, Field(ge=1, le=32_766)] = 1000
    """The most frequent words of the training reviews, numbered from 1; others are left out, 0 is padding."""
    length: Count = 500
    """Words of a review that are used, the first ones; shorter reviews are padded on the left."""
    drop_stop_words: bool = True
    """Leave out what only grammar needs (the, and, was ...), as PriSM's code does."""

    def info(self) -> DataInfo:
        complete = {"original": (25_000, 25_000, 3456), "three_quarters": (37_500, 12_500, 6609)}[self.split]
        num_train, num_test, num_groups = self.expected(complete)
        return DataInfo(
            "tokens", (self.length,), 2, num_train, num_test, vocabulary_size=self.words + 1, num_groups=num_groups
        )


class Shakespeare(SeriesOptions):
    """S. Caldas et al., LEAF, arXiv:1812.01097; tinyshakespeare is A. Karpathy's, of his char-rnn."""

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
        num_train, num_test, num_groups = self.expected((79_131, 18_757, 181))
        size = len(ALPHABETS[self.form])
        return DataInfo(
            "tokens",
            (self.length,),
            size,
            num_train,
            num_test,
            vocabulary_size=size,
            num_groups=num_groups,
            shares_groups=True,
        )
