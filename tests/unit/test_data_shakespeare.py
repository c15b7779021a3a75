"""Plays by role: small files in the formats of tinyshakespeare and LEAF."""

from pathlib import Path

import numpy as np
import pytest
from data_fixtures import refusal, write_leaf

from fedmpi.data.sets.leaf import ALPHABETS, Shakespeare


@pytest.fixture(autouse=True)
def short_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MIN_CHARS", 11), ("STRIDE", 2), ("LENGTH", 3), ("TEST_SHARE", 0.4)):
        monkeypatch.setattr(f"fedmpi.data.sets.leaf.{name}", value)


def texts(x: np.ndarray, y: np.ndarray, form: str = "speakers") -> list[str]:
    """Examples as text, with | before the label."""
    alphabet = ALPHABETS[form]
    rows = ["".join(alphabet[token] for token in row) for row in x.tolist()]
    return [f"{row}|{alphabet[label]}" for row, label in zip(rows, y.tolist(), strict=True)]


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
    ours = Shakespeare().prepare(play)
    adam, zoe = ["ABC|D", "CDE|\n"], ["abc|d", "cde|f", "efg|h", "ghi|j", "ij\n|k"]
    assert texts(ours.train_x, ours.train_y) == adam + zoe
    assert texts(ours.test_x, ours.test_y) == ["GHI|J", "l\nm|n", "mno|p", "opq|r"]
    assert ours.groups is not None and ours.groups.tolist() == [0] * 2 + [1] * 5
    assert ours.test_groups is not None and ours.test_groups.tolist() == [0] + [1] * 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (PLAY + "\nno name\nwords\n", "block 8 begins with 'no name', expected a speaker's name and a colon"),
        (PLAY.replace("abc", "a\u2014c"), "holds ['\u2014'], none of its 65 characters"),
    ],
)
def test_damaged_plays_are_one_line(play: Path, text: str, problem: str) -> None:
    (play / "input.txt").write_text(text)
    assert problem in refusal(lambda: Shakespeare().prepare(play))


def leaf_user(text: str) -> dict[str, list[str]]:
    """What LEAF makes of a role's text, with 3 characters in place of 80."""
    return {"x": [text[i : i + 3] for i in range(len(text) - 3)], "y": list(text[3:])}


def test_leaf_as_divided(tmp_path: Path) -> None:
    """Roles come in the order of their names, whichever file they are in; a role without test data stays."""
    write_leaf(tmp_path / "train" / "train_0.json", {"Z": leaf_user("abcdefgh"), "M": leaf_user("MNOPQ")})
    write_leaf(tmp_path / "train" / "train_1.json", {"A": leaf_user("01234")})
    write_leaf(tmp_path / "test" / "test.json", {"A": leaf_user("56789"), "Z": leaf_user("wxyz"), "M": leaf_user("")})
    write_leaf(tmp_path / "all_data" / "all_data.json", {"Z": leaf_user("not read")})
    ours = Shakespeare(form="leaf").prepare(tmp_path)
    assert texts(ours.train_x, ours.train_y, "leaf") == ["012|3", "MNO|P", "abc|d", "cde|f", "efg|h"]
    assert texts(ours.test_x, ours.test_y, "leaf") == ["567|8", "wxy|z"]
    assert ours.groups is not None and ours.groups.tolist() == [0, 1, 2, 2, 2]
    assert ours.test_groups is not None and ours.test_groups.tolist() == [0, 2]


LEAF = '{"user_data": {"A": {"x": %s, "y": %s}}}'


@pytest.mark.parametrize(
    ("train", "test", "problem"),
    [
        ("{", "", "is not a JSON file of LEAF (Expecting"),
        (LEAF % ('["abc"]', "[]"), "", "is not a JSON file of LEAF (zip() argument 2 is shorter"),
        (LEAF % ('["abcd"]', '["e"]'), "", "is not a JSON file of LEAF (cannot reshape"),
        (LEAF % ('["a$c"]', '["d"]'), "", "holds ['$'], none of its 80 characters"),
        (LEAF % ("[]", "[]"), LEAF % ('["abc"]', '["d"]'), "holds nobody with examples"),
    ],
)
def test_damaged_leaf_files_are_one_line(tmp_path: Path, train: str, test: str, problem: str) -> None:
    for part, text in (("train", train), ("test", test)):
        (tmp_path / part).mkdir()
        if text:
            (tmp_path / part / "a.json").write_text(text)
    assert problem in refusal(lambda: Shakespeare(form="leaf").prepare(tmp_path))


def test_a_role_in_two_files_is_one_line(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_leaf(tmp_path / "train" / f"{name}.json", {"A": leaf_user("abcde")})
    assert "A is in another file, too" in refusal(lambda: Shakespeare(form="leaf").prepare(tmp_path))
