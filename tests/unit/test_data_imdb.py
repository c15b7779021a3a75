"""Film reviews: real ones, and small files in the distributed format."""

from pathlib import Path

import numpy as np
import pytest
from data_fixtures import refusal

from fedmpi.data.sets import imdb
from fedmpi.data.sets.imdb import Imdb

REVIEWS = {
    ("train", "neg", "0_1"): "Bad film. Bad, bad!<br /><br />The worst",
    ("train", "neg", "10_2"): "worst of 1999's ACTING",
    ("train", "neg", "2_4"): "it was what it was",
    ("train", "pos", "0_10"): "good film, don't miss; well-made",
    ("train", "pos", "1_7"): "a_film good ACTING",
    ("test", "neg", "0_3"): "unseen bad",
    ("test", "neg", "1_3"): "worst film film film film film",
    ("test", "pos", "0_9"): "the dont",
    ("test", "pos", "1_8"): "GOOD",
}
FILMS = {("train", "neg"): 11, ("train", "pos"): 2, ("test", "neg"): 2, ("test", "pos"): 2}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six words are numbered. The film of review i is tt<i> (train neg), tt<i>, tt<7 + i> (test neg), tt<i>."""
    monkeypatch.setattr(imdb, "NUM_WORDS", 6)
    for (part, kind), count in FILMS.items():
        (tmp_path / "aclImdb" / part / kind).mkdir(parents=True)
        shift = 7 if (part, kind) == ("test", "neg") else 0
        lines = [f"http://www.imdb.com/title/tt{i + shift}/usercomments\n" for i in range(count)]
        (tmp_path / "aclImdb" / part / f"urls_{kind}.txt").write_text("".join(lines))
    for (part, kind, name), text in REVIEWS.items():
        (tmp_path / "aclImdb" / part / kind / f"{name}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "aclImdb" / "train" / "neg" / "notes.txt").write_text("no review")
    return tmp_path


def small_options(**changes: object) -> Imdb:
    return Imdb.model_validate({"length": 5, **changes})


def test_words_by_hand(small: Path) -> None:
    """bad 3; acting, film, good, worst 2 (by the alphabet); then afilm, the first of the words that are there once."""
    ours = small_options().prepare(small)
    bad, acting, film, good, worst, afilm = 1, 2, 3, 4, 5, 6
    assert ours.train_x.tolist() == [
        [bad, film, bad, bad, worst],
        [0, 0, 0, 0, 0],  # it was what it was: review 2 stands before review 10
        [0, 0, 0, worst, acting],
        [0, 0, 0, good, film],
        [0, 0, afilm, good, acting],
    ]
    assert ours.test_x.tolist() == [[0, 0, 0, 0, bad], [worst, film, film, film, film], [0] * 5, [0, 0, 0, 0, good]]
    assert ours.train_y.tolist() == [0, 0, 0, 1, 1] and ours.test_y.tolist() == [0, 0, 1, 1]
    # Films tt0, tt2, tt10, tt0, tt1: numbered as text is sorted (tt0, tt1, tt10, tt2); then tt7 and tt8 of the test.
    assert (ours.groups.tolist(), ours.test_groups.tolist()) == ([0, 3, 2, 0, 1], [4, 5, 0, 1])


def test_what_counts_as_a_letter() -> None:
    """Digits and the underscore do not; a fraction or a small digit does, as Python's \\w has it."""
    assert imdb._letters("It's 7/10, WELL-made<br />Café: 2½ m², a_b!") == "its  wellmade café ½ m² ab"


def test_three_quarters_of_each_class(small: Path) -> None:
    """5 bad reviews and 4 good ones in all: 3 and 3 to train, the others to test, by class."""
    options = small_options(split="three_quarters")
    first, again = (options.prepare(small) for _ in range(2))
    assert first.train_y.tolist() == [0, 0, 0, 1, 1, 1] and first.test_y.tolist() == [0, 0, 1]
    assert np.array_equal(first.train_x, again.train_x) and np.array_equal(first.test_x, again.test_x)
    num_films = len(np.unique(np.concatenate([first.groups, first.test_groups])))
    assert num_films == 6 and set(first.groups) == set(range(len(set(first.groups))))  # tt0, 1, 2, 7, 8, 10


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("train/urls_neg.txt", b"/title/tt1\n" * 10, "names 10 films (/title/tt...), but "),
        ("test/pos/*.txt", None, "has 0 reviews (<number>_<rating>.txt)"),
    ],
)
def test_damaged_files_are_one_line(small: Path, file: str, content: bytes | None, problem: str) -> None:
    for path in sorted((small / "aclImdb").glob(file)):
        path.unlink() if content is None else path.write_bytes(content)
    assert problem in refusal(lambda: small_options().prepare(small))
