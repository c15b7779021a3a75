"""Plays by role: tinyshakespeare whole, and small files in its format and in LEAF's."""

from pathlib import Path

import numpy as np
import pytest
from data_fixtures import refusal, write_leaf

from fedmpi.data.dataset import check
from fedmpi.data.sets.shakespeare import ALPHABETS, Shakespeare


@pytest.fixture(autouse=True)
def short_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmpi.data.sets.shakespeare.MIN_CHARS", 11)
    monkeypatch.setattr("fedmpi.data.sets.shakespeare.STRIDE", 2)


def small_options(**changes: object) -> Shakespeare:
    return Shakespeare.model_validate({"length": 3, "test_share": 0.4, **changes})


def texts(options: Shakespeare, x: np.ndarray, y: np.ndarray) -> list[str]:
    """Examples as text, with | before the label."""
    alphabet = ALPHABETS[options.form]
    rows = ["".join(alphabet[token] for token in row) for row in x.tolist()]
    return [f"{row}|{alphabet[label]}" for row, label in zip(rows, y.tolist(), strict=True)]


# ---- a small text

PLAY = """ZOE:
abcdefghij
kl

ADAM:
ABCDE

ZOE:
mnopqr

ADAM'S GHOST:

ZOE:

ADAM:
FGHIJ

ADELE:
ten letter
"""


@pytest.fixture
def play(tmp_path: Path) -> Path:
    (tmp_path / "input.txt").write_text(PLAY)
    return tmp_path


def test_windows_by_hand(play: Path) -> None:
    """ADAM has 11 characters (4 test), ZOE 20 (8 test); ADELE's 10 are too few, the ghost says nothing."""
    options = small_options(num_train=7, num_test=4, num_groups=2)
    ours = check("here", options.prepare(play), options.used())
    adam, zoe = ["ABC|D", "CDE|\n"], ["abc|d", "cde|f", "efg|h", "ghi|j", "ij\n|k"]
    assert texts(options, ours.train_x, ours.train_y) == adam + zoe
    assert texts(options, ours.test_x, ours.test_y) == ["GHI|J", "l\nm|n", "mno|p", "opq|r"]
    assert ours.groups is not None and ours.groups.tolist() == [0] * 2 + [1] * 5
    assert ours.test_groups is not None and ours.test_groups.tolist() == [0] + [1] * 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (PLAY + "\nno name\nwords\n", "block 8 begins with 'no name', expected a speaker's name and a colon"),
        (PLAY.replace("abc", "a\u2014c"), "holds ['\u2014'], none of the 65 characters of data.form=speakers"),
        ("ADELE:\nten letter\n", "no role has enough text (at least 11 characters; data.length, data.test_share)"),
    ],
)
def test_damaged_plays_are_one_line(play: Path, text: str, problem: str) -> None:
    (play / "input.txt").write_text(text)
    assert problem in refusal(lambda: small_options().prepare(play))


# ---- LEAF's files


def leaf_user(text: str) -> dict[str, list[str]]:
    """What LEAF makes of a role's text, with 3 characters in place of 80."""
    return {"x": [text[i : i + 3] for i in range(len(text) - 3)], "y": list(text[3:])}


def test_leaf_as_divided(tmp_path: Path) -> None:
    """Roles come in the order of their names, whichever file they are in; a role without test data stays."""
    write_leaf(tmp_path / "train" / "train_0.json", {"Z": leaf_user("abcdefgh"), "M": leaf_user("MNOPQ")})
    write_leaf(tmp_path / "train" / "train_1.json", {"A": leaf_user("01234")})
    write_leaf(tmp_path / "test" / "test.json", {"A": leaf_user("56789"), "Z": leaf_user("wxyz"), "M": leaf_user("")})
    write_leaf(tmp_path / "all_data" / "all_data.json", {"Z": leaf_user("not read")})
    options = small_options(form="leaf", num_train=5, num_test=2, num_groups=3)
    ours = check("here", options.prepare(tmp_path), options.used())
    assert texts(options, ours.train_x, ours.train_y) == ["012|3", "MNO|P", "abc|d", "cde|f", "efg|h"]
    assert texts(options, ours.test_x, ours.test_y) == ["567|8", "wxy|z"]
    assert ours.groups is not None and ours.groups.tolist() == [0, 1, 2, 2, 2]
    assert ours.test_groups is not None and ours.test_groups.tolist() == [0, 2]


LEAF = '{"user_data": {"A": {"x": %s, "y": %s}}}'


@pytest.mark.parametrize(
    ("train", "test", "problem"),
    [
        ("{", "", "is not a JSON file of LEAF (Expecting"),
        ('{"user_data": {"A": 1}}', "", "no 'x' and 'y' of each user"),
        (LEAF % ('["abc"]', "[]"), "", "is damaged at role A (zip() argument 2 is shorter"),
        (LEAF % ("[1]", '["a"]'), "", "is damaged at role A (unsupported"),
        (LEAF % ('["abcd"]', '["e"]'), "", "is damaged at role A (cannot reshape"),
        (LEAF % ('["a$c"]', '["d"]'), "", "holds ['$'], none of the 80 characters"),
        (LEAF % ("[]", "[]"), "", "holds nobody with examples"),
        (LEAF % ("[]", "[]"), LEAF % ('["abc"]', '["d"]'), "holds nobody with examples"),
    ],
)
def test_damaged_leaf_files_are_one_line(tmp_path: Path, train: str, test: str, problem: str) -> None:
    for part, text in (("train", train), ("test", test)):
        (tmp_path / part).mkdir()
        if text:
            (tmp_path / part / "a.json").write_text(text)
    assert problem in refusal(lambda: small_options(form="leaf").prepare(tmp_path))


def test_a_role_in_two_files_is_one_line(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_leaf(tmp_path / "train" / f"{name}.json", {"A": leaf_user("abcde")})
    assert "A is in" in refusal(lambda: small_options(form="leaf").prepare(tmp_path))
