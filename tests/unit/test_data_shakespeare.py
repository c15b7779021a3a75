"""Plays by role: tinyshakespeare whole, and small files in its format and in LEAF's."""

from pathlib import Path

import numpy as np
import pytest
from data_fixtures import SHARED_DATA, refusal, silent, write_leaf

from fedmpi.data import prepare
from fedmpi.data.dataset import check, load_data
from fedmpi.data.sets.shakespeare import ALPHABETS, Shakespeare

REAL = SHARED_DATA / "tinyshakespeare"


def small_options(**changes: object) -> Shakespeare:
    return Shakespeare.model_validate({"length": 3, "stride": 2, "min_chars": 11, "test_share": 0.4, **changes})


def texts(options: Shakespeare, x: np.ndarray, y: np.ndarray) -> list[str]:
    """Examples as text, with | before the label."""
    alphabet = ALPHABETS[options.form]
    rows = ["".join(alphabet[token] for token in row) for row in x.tolist()]
    return [f"{row}|{alphabet[label]}" for row, label in zip(rows, y.tolist(), strict=True)]


# ---- the whole real text


@pytest.mark.skipif(not (REAL / "input.txt").is_file(), reason=f"real tinyshakespeare needs {REAL}/input.txt")
def test_tinyshakespeare(tmp_path: Path) -> None:
    """The promised counts (checked by load); 65 characters in all; a role's examples are its own speeches, in time."""
    text = (REAL / "input.txt").read_text()
    assert "".join(sorted(set(text))) == ALPHABETS["speakers"]
    options = Shakespeare(root=str(tmp_path))
    prepare.save(options, options.prepare(REAL, silent))
    ours = load_data(options)
    assert ours.groups is not None and ours.test_groups is not None
    assert set(ours.groups) == set(ours.test_groups) == set(range(181))
    train, test = (texts(options, x, y) for x, y in ((ours.train_x, ours.train_y), (ours.test_x, ours.test_y)))
    # The alphabet's first role is a lady; her text by hand: blocks that begin with her name, 500 characters or more.
    blocks = text.strip().split("\n\n")
    speeches: dict[str, str] = {}
    for block in blocks:
        name, _, speech = block.strip("\n").partition("\n")
        speeches[name] = speeches[name] + "\n" + speech if speeches.get(name) else speech
    role = min(name for name, speech in speeches.items() if len(speech) >= 500)
    whole = speeches[role]
    cut = len(whole) - int(len(whole) * 0.2 + 0.5)
    assert train[0] == f"{whole[:80]}|{whole[80]}" and train[1] == f"{whole[10:90]}|{whole[90]}"
    assert test[0] == f"{whole[cut : cut + 80]}|{whole[cut + 80]}"
    assert (ours.groups == 0).sum() == len(range(0, cut - 80, 10))


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
    ours = check("here", options.prepare(play, silent), options.info())
    adam, zoe = ["ABC|D", "CDE|\n"], ["abc|d", "cde|f", "efg|h", "ghi|j", "ij\n|k"]
    assert texts(options, ours.train_x, ours.train_y) == adam + zoe
    assert texts(options, ours.test_x, ours.test_y) == ["GHI|J", "l\nm|n", "mno|p", "opq|r"]
    assert ours.groups is not None and ours.groups.tolist() == [0] * 2 + [1] * 5
    assert ours.test_groups is not None and ours.test_groups.tolist() == [0] + [1] * 3


def test_roles_need_an_example_on_both_sides(play: Path) -> None:
    """Of a fifth for test ADAM gets 2 characters, too few for an example, and ZOE 4."""
    options = small_options(test_share=0.2)
    ours = options.prepare(play, silent)
    assert set(texts(options, ours.train_x, ours.train_y)) & {"ABC|D", "abc|d"} == {"abc|d"}
    assert texts(options, ours.test_x, ours.test_y) == ["opq|r"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "expected one input.txt in it or below, found none; give the folder of tinyshakespeare"),
        (PLAY + "\nno name\nwords\n", "block 8 begins with 'no name', expected a speaker's name and a colon"),
        (PLAY.replace("abc", "a\u2014c"), "holds ['\u2014'], none of the 65 characters of data.form=speakers"),
        ("ADELE:\nten letter\n", "no role has enough text (data.min_chars=11, length and test_share)"),
        ("ZOE:\n\udcff\udcfe\n", "cannot be read as text"),
    ],
)
def test_damaged_plays_are_one_line(play: Path, text: str | None, problem: str) -> None:
    path = play / "input.txt"
    path.unlink() if text is None else path.write_bytes(text.encode(errors="surrogateescape"))
    assert problem in refusal(lambda: small_options().prepare(play, silent))


# ---- LEAF's files


def leaf_user(text: str) -> dict[str, list[str]]:
    """What LEAF makes of a role's text, with 3 characters in place of 80."""
    return {"x": [text[i : i + 3] for i in range(len(text) - 3)], "y": list(text[3:])}


def test_leaf_not_yet_divided(tmp_path: Path) -> None:
    """Of 13 examples a character apart 5 are test (0.4), 3 overlap these, 5 are left; every second one is taken."""
    users = {"Z": leaf_user("abcdefghijklmnop"), "A": leaf_user("012345678")}  # A has 6
    write_leaf(tmp_path / "train" / "no test beside it.json", users)
    options = small_options(form="leaf", min_chars=7)
    ours = options.prepare(tmp_path, silent)
    assert texts(options, ours.train_x, ours.train_y) == ["abc|d", "cde|f", "efg|h"]
    assert texts(options, ours.test_x, ours.test_y) == ["ijk|l", "klm|n", "mno|p"]
    # With 8 of 13 for test, A's 4 of 6 would leave 2, and both overlap these.
    options = small_options(form="leaf", min_chars=5, test_share=0.6)
    ours = options.prepare(tmp_path, silent)
    assert texts(options, ours.train_x, ours.train_y) == ["abc|d"]
    assert texts(options, ours.test_x, ours.test_y) == ["fgh|i", "hij|k", "jkl|m", "lmn|o"]
    assert len(ALPHABETS["leaf"]) == 80 and ALPHABETS["leaf"] == "".join(sorted(ALPHABETS["leaf"]))


def test_leaf_as_divided(tmp_path: Path) -> None:
    """Roles come in the order of their names, whichever file they are in; a role without test data stays."""
    write_leaf(tmp_path / "train" / "train_0.json", {"Z": leaf_user("abcdefgh"), "M": leaf_user("MNOPQ")})
    write_leaf(tmp_path / "train" / "train_1.json", {"A": leaf_user("01234")})
    write_leaf(tmp_path / "test" / "test.json", {"A": leaf_user("56789"), "Z": leaf_user("wxyz"), "M": leaf_user("")})
    write_leaf(tmp_path / "all_data" / "all_data.json", {"Z": leaf_user("not read")})
    options = small_options(form="leaf", num_train=5, num_test=2, num_groups=3)
    ours = check("here", options.prepare(tmp_path, silent), options.info())
    assert texts(options, ours.train_x, ours.train_y) == ["012|3", "MNO|P", "abc|d", "cde|f", "efg|h"]
    assert texts(options, ours.test_x, ours.test_y) == ["567|8", "wxy|z"]
    assert ours.groups is not None and ours.groups.tolist() == [0, 1, 2, 2, 2]
    assert ours.test_groups is not None and ours.test_groups.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "no .json file in it or below"),
        ({"a.json": "{"}, "is not a JSON file of LEAF (Expecting"),
        ({"a.json": '{"user_data": {"A": 1}}'}, "no 'user_data' with"),
        ({"a.json": '{"user_data": {"A": {"x": ["abc"], "y": []}}}'}, "role A: x and y are not as many texts"),
        ({"a.json": '{"user_data": {"A": {"x": [1], "y": ["a"]}}}'}, "role A: x and y are not as many texts"),
        ({"a.json": '{"user_data": {"A": {"x": ["abcd"], "y": ["e"]}}}'}, "[4] characters, expected data.length=3"),
        ({"a.json": '{"user_data": {"A": {"x": ["abc"], "y": ["de"]}}}'}, "A: labels of [2] characters, expected 1"),
        ({"a.json": "[" * 100_000}, "is not a JSON file of LEAF (it is nested too deeply"),
        ({"a.json": '{"user_data": {"A": {"x": ["a$c"], "y": ["d"]}}}'}, "holds ['$'], none of the 80 characters"),
        ({"a.json": '{"user_data": {"A": {"x": [], "y": []}}}'}, "no role has enough text"),
        (dict.fromkeys(("a.json", "b.json"), '{"user_data": {"A": {"x": [], "y": []}}}'), "A is in"),
        (
            {
                "train/a.json": '{"user_data": {"B": {"x": [], "y": []}}}',
                "test/a.json": '{"user_data": {"B": {"x": ["abc"], "y": ["d"]}}}',
            },
            "1 roles (B, ...) are in test alone; make the files with LEAF's `-t sample`",
        ),
    ],
)
def test_damaged_leaf_files_are_one_line(tmp_path: Path, files: dict[str, str], problem: str) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert problem in refusal(lambda: small_options(form="leaf").prepare(tmp_path, silent))
