"""Activities of 30 people: HAPT's real signals, and small files in its format and in UCI HAR's."""

from pathlib import Path

import numpy as np
import pytest
from data_fixtures import refusal
from golden_file import Told

from fedmpi.data.sets import har
from fedmpi.data.sets.har import Har

standardized = har._standardized


LABELS = """1 1 5 3 12
1 1 1 13 22
1 1 7 23 30
2 1 1 1 10
3 2 1 5 14
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Windows of 4 samples, a new one every 2, as recorded.

    Subject 1: activities 5 and 1 in experiment 1, 1 in experiment 2; subject 2: activity 1.
    """
    monkeypatch.setattr(har, "WINDOW", 4)
    monkeypatch.setattr(har, "STEP", 2)
    monkeypatch.setattr(har, "TEST_SHARE", 0.4)
    monkeypatch.setattr(har, "_standardized", lambda x, is_test: x)
    raw = tmp_path / "HAPT" / "RawData"
    raw.mkdir(parents=True)
    (raw / "labels.txt").write_text(LABELS)
    for experiment, user in ((1, 1), (2, 1), (3, 2)):
        for sensor, first_axis in (("acc", 0), ("gyro", 3)):
            samples = 1000 * experiment + np.arange(30)[:, None] + (first_axis + np.arange(3)) / 10
            np.savetxt(raw / f"{sensor}_exp{experiment:02d}_user{user:02d}.txt", samples)
    return tmp_path


def firsts(x: np.ndarray) -> list[int]:
    """The first sample of every window."""
    return [round(float(row[0])) for row in x]


def test_windows_by_hand(small: Path) -> None:
    """Subject 1 walks 10 + 10 samples: the last 8 are test (0.4), all in experiment 2; its first 2 give no window."""
    ours = Har().prepare(small)
    walking = [1012, 1014, 1016, 1018]
    standing = [1002, 1004]  # samples 3 to 8 of 3 to 12, counted from 1
    assert firsts(ours.train_x) == [*walking, *standing, 3004, 3006]
    assert ours.train_y.tolist() == [0, 0, 0, 0, 4, 4, 0, 0]
    assert firsts(ours.test_x) == [2002, 2004, 2006, 1008, 3010]
    assert ours.test_y.tolist() == [0, 0, 0, 4, 0]
    assert (ours.groups.tolist(), ours.test_groups.tolist()) == ([0] * 6 + [1] * 2, [0] * 4 + [1])
    sample = 1012 + np.arange(6) / 10
    assert np.allclose(ours.train_x[0].reshape(4, 6), [sample, sample + 1, sample + 2, sample + 3])
    assert ours.train_x.dtype == np.float32 and ours.train_x.shape == (8, 24)


@pytest.mark.parametrize("test_share", [0.25, 0.73])
def test_no_sample_is_on_both_sides(small: Path, test_share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(har, "WINDOW", 1)
    monkeypatch.setattr(har, "STEP", 1)
    monkeypatch.setattr(har, "TEST_SHARE", test_share)
    ours = Har().prepare(small)
    train, test = (set(firsts(x)) for x in (ours.train_x, ours.test_x))
    assert not train & test and len(train) + len(test) == 40
    assert len(test) == sum(int(size * test_share + 0.5) for size in (20, 10, 10))


def test_standardized_by_the_training_windows(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Har().prepare(small)
    monkeypatch.setattr(har, "_standardized", standardized)
    ours = Har().prepare(small)
    samples = ours.train_x.reshape(-1, 6).astype(np.float64)
    assert np.abs(samples.mean(axis=0)).max() < 1e-6 and np.abs(samples.std(axis=0) - 1).max() < 1e-6
    axis = plain.train_x.reshape(-1, 6)[:, 2].astype(np.float64)
    expected = (plain.test_x.reshape(-1, 6)[:, 2] - axis.mean()) / axis.std()
    assert np.allclose(ours.test_x.reshape(-1, 6)[:, 2], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("labels.txt", "1 1 5 0 9\n", "labels.txt stretches from 0 to 9: a file is cut off"),
        ("labels.txt", "1 1 5 9\n", "cannot be read as a table of numbers (it has 4 columns, expected 5)"),
        ("acc_exp02_user01.txt", None, "acc_exp02_user01.txt: cannot be read"),
        ("gyro_exp02_user01.txt", "1 2 3\n", "acc_exp02_user01.txt has 30 samples, gyro_exp02_user01.txt 1"),
    ],
)
def test_damaged_signals_are_one_line(small: Path, file: str, text: str | None, problem: str) -> None:
    path = small / "HAPT" / "RawData" / file
    path.unlink() if text is None else path.write_text(text)
    assert problem in refusal(lambda: Har().prepare(small))


@pytest.fixture
def uci(tmp_path: Path) -> Path:
    """Subjects 1 and 3 train, subject 2 tests; example i (train) or 100 + i (test) has that number as its features."""
    activities = {"train": [5, 5, 5, 5, 5, 1, 1, 1, 6, 6, 6, 6], "test": [2, 2, 2, 2, 2, 4]}
    subjects = {"train": [1] * 8 + [3] * 4, "test": [2] * 6}
    for part, first in (("train", 0), ("test", 100)):
        folder = tmp_path / "UCI HAR Dataset" / part
        folder.mkdir(parents=True)
        numbers = first + np.arange(len(activities[part]))
        np.savetxt(folder / f"X_{part}.txt", np.repeat(numbers[:, None], 561, axis=1), fmt="%15.7e")
        np.savetxt(folder / f"y_{part}.txt", activities[part], fmt="%d")
        np.savetxt(folder / f"subject_{part}.txt", subjects[part], fmt="%d")
    # Archives of UCI hold such a tree, too.
    (tmp_path / "__MACOSX" / "train").mkdir(parents=True)
    (tmp_path / "__MACOSX" / "train" / "subject_train.txt").write_text("")
    return tmp_path


def test_features_of_each_subject(uci: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each subject and activity the last are test (0.4: 2 of 5, 1 of 3, 2 of 4); the one before is left out."""
    monkeypatch.setattr(har, "TEST_SHARE", 0.4)
    ours = Har(form="features").prepare(uci)
    # Subject 1: activity 1 (5, 6, 7), then 5 (0 to 4); subject 2: 2 (100 to 104), 4 (105, no test); subject 3.
    assert ours.train_x[:, 0].tolist() == [5, 0, 1, 100, 101, 105, 8]
    assert ours.test_x[:, 560].tolist() == [7, 3, 4, 103, 104, 10, 11]
    assert ours.train_y.tolist() == [0, 4, 4, 1, 1, 3, 5] and ours.test_y.tolist() == [0, 4, 4, 1, 1, 5, 5]
    assert (ours.groups.tolist(), ours.test_groups.tolist()) == ([0, 0, 0, 1, 1, 1, 2], [0, 0, 0, 1, 1, 2, 2])


def test_features_that_do_not_fit_are_one_line(uci: Path, told: Told) -> None:
    (uci / "UCI HAR Dataset" / "test" / "y_test.txt").write_text("1\n2\n")
    told(refusal(lambda: Har(form="features").prepare(uci)))
