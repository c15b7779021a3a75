"""Prepared files and arrays that are damaged or of another kind: each is refused in one line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_fixtures import refusal
from golden_file import Told
from small_data import GROUPS, TEST, TRAIN, dataset, options_in

from fedmpi.data import prepare
from fedmpi.data.dataset import DataInfo, Dataset, check, load_data
from fedmpi.data.sets.har import Har
from fedmpi.disk import hdf5
from fedmpi.errors import DataError

X = dataset().train_x


@pytest.fixture
def options(tmp_path: Path) -> Har:
    """A good prepared file lies at its path."""
    options = options_in(tmp_path)
    prepare.save(options, dataset())
    return options


def refused(options: Har) -> str:
    line = refusal(lambda: load_data(options))
    assert line.isprintable() and len(line) < 1000
    return line


def test_what_was_saved_is_read(options: Har) -> None:
    ours = load_data(options)
    for name, array in dataset().arrays.items():
        assert np.array_equal(getattr(ours, name), array) and getattr(ours, name).dtype == array.dtype, name


def test_another_recipe_and_no_recipe_are_one_line(options: Har) -> None:
    other = options.model_copy(update={"step": 3})
    options.path.rename(other.path)
    assert "was made with data.step=64, not 3; change the config, or run `fedmpi data prepare har" in refused(other)
    other.path.write_bytes(hdf5.pack(prepare.KIND, {}, {"train_x": X}))
    assert "damaged ('recipe'); make it again by" in refused(other)


def test_no_hdf5_and_cut_off(options: Har, told: Told) -> None:
    content = options.path.read_bytes()
    flipped = content[:4000] + bytes([content[4000] ^ 1]) + content[4001:]
    for damaged, problem in (
        (content[:-100], "is truncated"),
        (content[:100], "is truncated"),
        (b"<html>404</html>", "was not written by fedmpi"),
        (b"", "is empty"),
        (flipped, "is damaged: its checksum does not match its bytes"),
    ):
        options.path.write_bytes(damaged)
        line = refused(options)
        assert problem in line
        told(line, r"\d+ bytes of \d+")


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("train_x", None, "there are no training examples"),
        ("train_x", X.astype(np.float64), "are float64 (20, 48), expected float32"),
        ("train_x", np.float32(1)[...], "are float32 (), expected float32"),
        ("train_x", np.repeat(X, 3, axis=0), "are float32 (60, 48), expected float32 (20, 48)"),
        ("train_x", np.where(X == 7, np.nan, X), "training examples have values that are no finite"),
        ("train_x", np.where(X == 7, -np.inf, X), "training examples have values that are no finite"),
        ("train_y", None, "there are no training labels"),
        ("test_x", None, "there are no test examples"),
        ("test_y", None, "there are no test labels"),
        ("test_y", np.full(TEST, 6), "test labels reach from 6 to 6, expected 0 to 5"),
        ("groups", None, "the groups that the training examples come from are missing"),
        ("test_groups", None, "the groups that the test examples come from are missing"),
        ("groups", np.arange(TRAIN) % 4 - 1, "training groups are 4 numbers from -1 to 2, expected 0 to 3 with"),
        ("groups", np.arange(TRAIN) % 4 * 10**12, "4 numbers from 0 to 3000000000000, expected 0 to 3 without gaps"),
        ("groups", np.arange(TRAIN) % 4 + 1, "4 numbers from 1 to 4, expected 0 to 3 without gaps"),
        ("groups", np.arange(TRAIN) % 3, "the training examples come from 3 groups, expected 4"),
        ("groups", np.arange(TRAIN) % 5, "the training examples come from 5 groups, expected 4"),
        ("groups", np.arange(TRAIN - 1) % 4, "training groups are int64 (19,), expected int64 (20,)"),
        ("test_groups", np.arange(TEST) % 4 - 1, "test groups reach from -1 to 2, expected 0 to 3"),
        ("test_groups", np.full(TEST, 4), "test groups reach from 4 to 4, expected 0 to 3"),
    ],
)
def test_each_array_is_checked(name: str, values: np.ndarray | None, problem: str) -> None:
    changed = replace(dataset(), **{name: values})
    assert problem in refusal(lambda: check("here", changed, options_in(Path()).info()))


@pytest.mark.parametrize(("highest", "is_good"), [(11, True), (12, False)])
def test_people_of_their_own_in_the_test_part(highest: int, is_good: bool, told: Told) -> None:
    """4 training groups and 8 test examples: 12 groups at most, 0 to 11."""
    info = DataInfo("vector", (48,), 6, TRAIN, TEST, num_groups=GROUPS)
    ours = replace(dataset(), test_groups=np.full(TEST, highest))
    if is_good:
        assert check("here", ours, info) is ours
    else:
        with told.by(DataError):
            check("here", ours, info)


def test_empty_parts_are_one_line() -> None:
    nothing, labels = np.empty((0, 48), np.float32), np.empty(0, np.int64)
    with pytest.raises(DataError) as caught:
        check("here", Dataset(nothing, labels, nothing, labels), DataInfo("vector", (48,), 6, 0, 0))
    reason = "too little data, or other options leave none"
    expected = tuple(f"there are no {part} examples: {reason}" for part in ("training", "test"))
    assert caught.value.problems == expected
