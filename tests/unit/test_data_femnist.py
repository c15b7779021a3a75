"""FEMNIST out of both of its sources, written here in the formats of LEAF and of TensorFlow Federated."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from data_fixtures import GROUPS, TEST, TEST_GROUPS, TRAIN, draw, leaf, refusal, tff

from fedmpi.data.sets.leaf import Femnist


@pytest.mark.parametrize(("write", "below"), [(leaf, "data"), (leaf, "."), (tff, "."), (tff, "fed_emnist")])
def test_both_sources_give_the_same_bytes(tmp_path: Path, write, below: str) -> None:
    write(tmp_path / below)
    ours = Femnist().prepare(tmp_path)
    assert ours.groups is not None and ours.groups.tolist() == GROUPS
    assert ours.test_groups is not None and ours.test_groups.tolist() == TEST_GROUPS
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


def leaf_text(writers: object) -> str:
    return json.dumps({"users": [], "num_samples": [], "user_data": writers})


ROW = [0.5] * 784
BAD_LEAF = {
    "cut off": ('{"users": ["a"], "user_da', "is not a JSON file of LEAF"),
    "pixel above 1": (leaf_text({"a": {"x": [[*ROW[1:], 1.1]], "y": [1]}}), "no numbers from 0 to 1"),
    "pixel missing": (leaf_text({"a": {"x": [ROW[1:]], "y": [1]}}), "cannot reshape"),
    "nobody": (leaf_text({}), "holds nobody with examples in both"),
}


@pytest.mark.parametrize("case", BAD_LEAF)
def test_bad_json_is_one_line(tmp_path: Path, case: str) -> None:
    path, (text, problem) = tmp_path / "train" / "a.json", BAD_LEAF[case]
    path.parent.mkdir()
    path.write_text(text)
    line = refused(tmp_path)
    assert problem in line and str(tmp_path if case == "nobody" else path) in line


def test_bad_hdf5_is_one_line(tmp_path: Path) -> None:
    path = tff(tmp_path) / "fed_emnist_train.h5"
    with h5py.File(path, "a") as file:
        del file["examples/f0001_41/label"]
    line = refused(tmp_path)
    assert line.startswith(str(path)) and "damaged or cut off" in line
