"""LEAF's sets out of their sources, written here in the formats of LEAF, TensorFlow Federated and tinyshakespeare."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from data_fixtures import GROUPS, TEST, TEST_GROUPS, TRAIN, draw, leaf, refusal, tff, write_leaf

from fedmpi.data.sets.leaf import ALPHABETS, Femnist, Shakespeare


@pytest.mark.parametrize(("write", "below"), [(leaf, "data"), (leaf, "."), (tff, "."), (tff, "fed_emnist")])
def test_both_sources_give_the_same_bytes(tmp_path: Path, write, below: str) -> None:
    write(tmp_path / below)
    ours = Femnist().prepare(tmp_path)
    assert (ours.groups.tolist(), ours.test_groups.tolist()) == (GROUPS, TEST_GROUPS)
    expected = np.concatenate([TRAIN[name][0] for name in sorted(TRAIN)])
    assert np.array_equal(ours.train_x[..., 0], expected)
    assert ours.test_y.tolist() == [label for name in sorted(TEST) for label in TEST[name][1]]


def test_writers_without_training_images_are_left_out(tmp_path: Path) -> None:
    """LEAF's division of a writer's only image may put it into the test part; its `-t user` divides the writers."""
    ours = Femnist().prepare(leaf(tmp_path, TRAIN, TEST | draw(3, f9=1, a0=2)))
    assert len(ours.test_y) == len(TEST_GROUPS) and ours.counts["num_groups"] == 4
    others = leaf(tmp_path, TRAIN, draw(3, f9=1, f8=2))
    assert "nobody with examples in both parts; divide each user's by LEAF's `-t sample`" in refused(others)


def test_pixels_are_rounded_not_cut(tmp_path: Path) -> None:
    """LEAF's decimals: 0.999 * 255 = 254.745 becomes 255."""
    x = np.full((1, 28, 28), 0.999 * 255)
    folder = leaf(tmp_path, {**TRAIN, "a": (x, np.array([1]))}, {**TEST, "a": (x, np.array([1]))})
    assert np.unique(Femnist().prepare(folder).train_x[:1]).tolist() == [255]


def refused(folder: Path) -> str:
    return refusal(lambda: Femnist().prepare(folder))


def test_no_source(tmp_path: Path) -> None:
    assert "expected one fed_emnist_train.h5 in it or below, found none" in refused(tmp_path)
    (tff(tmp_path) / "fed_emnist_test.h5").unlink()
    assert "fed_emnist_test.h5: damaged" in refused(tmp_path)


def test_bad_pixels_are_one_line(tmp_path: Path) -> None:
    for x, problem in (([*[0.5] * 783, 1.1], "no numbers from 0 to 1"), ([0.5] * 783, "cannot reshape")):
        write_leaf(tmp_path / "train" / "a.json", {"a": {"x": [x], "y": [1]}})
        line = refused(tmp_path)
        assert problem in line and str(tmp_path / "train" / "a.json") in line


def test_bad_hdf5_is_one_line(tmp_path: Path) -> None:
    path = tff(tmp_path) / "fed_emnist_train.h5"
    with h5py.File(path, "a") as file:
        del file["examples/f0001_41/label"]
    line = refused(tmp_path)
    assert line.startswith(str(path)) and "damaged or cut off" in line


@pytest.fixture
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
def play(tmp_path: Path, short_roles: None) -> Path:
    (tmp_path / "input.txt").write_text(PLAY)
    return tmp_path


def test_windows_by_hand(play: Path) -> None:
    """ADAM has 11 characters (4 test), ZOE 20 (8 test); ADELE's 10 are too few, the ghost says nothing."""
    ours = Shakespeare().prepare(play)
    adam, zoe = ["ABC|D", "CDE|\n"], ["abc|d", "cde|f", "efg|h", "ghi|j", "ij\n|k"]
    assert texts(ours.train_x, ours.train_y) == adam + zoe
    assert texts(ours.test_x, ours.test_y) == ["GHI|J", "l\nm|n", "mno|p", "opq|r"]
    assert (ours.groups.tolist(), ours.test_groups.tolist()) == ([0] * 2 + [1] * 5, [0] + [1] * 3)


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


def test_leaf_as_divided(tmp_path: Path, short_roles: None) -> None:
    """Roles come in the order of their names, whichever file they are in; a role without test data stays."""
    write_leaf(tmp_path / "train" / "train_0.json", {"Z": leaf_user("abcdefgh"), "M": leaf_user("MNOPQ")})
    write_leaf(tmp_path / "train" / "train_1.json", {"A": leaf_user("01234")})
    write_leaf(tmp_path / "test" / "test.json", {"A": leaf_user("56789"), "Z": leaf_user("wxyz"), "M": leaf_user("")})
    write_leaf(tmp_path / "all_data" / "all_data.json", {"Z": leaf_user("not read")})
    ours = Shakespeare(form="leaf").prepare(tmp_path)
    assert texts(ours.train_x, ours.train_y, "leaf") == ["012|3", "MNO|P", "abc|d", "cde|f", "efg|h"]
    assert texts(ours.test_x, ours.test_y, "leaf") == ["567|8", "wxy|z"]
    assert (ours.groups.tolist(), ours.test_groups.tolist()) == ([0, 1, 2, 2, 2], [0, 2])


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
def test_damaged_leaf_files_are_one_line(
    tmp_path: Path, short_roles: None, train: str, test: str, problem: str
) -> None:
    for part, text in (("train", train), ("test", test)):
        (tmp_path / part).mkdir()
        if text:
            (tmp_path / part / "a.json").write_text(text)
    assert problem in refusal(lambda: Shakespeare(form="leaf").prepare(tmp_path))


def test_a_role_in_two_files_is_one_line(tmp_path: Path, short_roles: None) -> None:
    for name in ("a", "b"):
        write_leaf(tmp_path / "train" / f"{name}.json", {"A": leaf_user("abcde")})
    assert "A is in another file, too" in refusal(lambda: Shakespeare(form="leaf").prepare(tmp_path))
