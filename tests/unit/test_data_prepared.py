"""Prepared files that somebody crafted or damaged: each is refused in one line, before its values are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from fedmpi import data
from fedmpi.data import prepared
from fedmpi.data.dataset import Dataset, check
from fedmpi.errors import DataError

TRAIN, TEST, GROUPS = 20, 8, 4
LINK, NOT_WHOLE = "is a link to another place", "is not stored whole in this file"


def options_in(folder: Path) -> data.Har:
    return data.Har(root=str(folder), num_train=TRAIN, num_test=TEST, num_groups=GROUPS, window=8)


def dataset() -> Dataset:
    x = np.arange(TRAIN * 48, dtype=np.float32).reshape(TRAIN, 48)
    train, test = np.arange(TRAIN), np.arange(TEST)
    return Dataset(x, train % 6, x[:TEST] + 0.5, test % 6, train % GROUPS, test % GROUPS)


@pytest.fixture
def options(tmp_path: Path) -> data.Har:
    """A good prepared file lies at its path."""
    options = options_in(tmp_path)
    prepared.save(options, dataset())
    return options


def refused(options: data.Har) -> str:
    with pytest.raises(DataError) as caught:
        data.load(options)
    line = caught.value.text()
    assert line.isprintable() and len(line) < 1000
    return line


def test_what_was_saved_is_read(options: data.Har) -> None:
    ours = data.load(options)
    for name, array in vars(dataset()).items():
        assert np.array_equal(getattr(ours, name), array) and getattr(ours, name).dtype == array.dtype, name


def external_link(file: h5py.File) -> None:
    with h5py.File(Path(file.filename).with_name("other.h5"), "w") as other:
        other["x"] = dataset().train_x
    file["train_x"] = h5py.ExternalLink("other.h5", "/x")


def soft_link(file: h5py.File) -> None:
    file["elsewhere"] = dataset().train_x
    file["train_x"] = h5py.SoftLink("/elsewhere")


def link_to_nothing(file: h5py.File) -> None:
    file["train_x"] = h5py.SoftLink("/nothing")


def external_storage(file: h5py.File) -> None:
    raw = Path(file.filename).with_name("raw")
    raw.write_bytes(dataset().train_x.tobytes())
    file.create_dataset("train_x", (TRAIN, 48), "f4", external=[(str(raw), 0, TRAIN * 48 * 4)])


def virtual(file: h5py.File) -> None:
    external_link(file)
    del file["train_x"]
    layout = h5py.VirtualLayout((TRAIN, 48), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (TRAIN, 48))
    file.create_virtual_dataset("train_x", layout)


def huge_and_sparse(file: h5py.File) -> None:
    """60 million rows, said to be there: a hole of 10.7 GiB in a small file."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple((60_000_000, 48))
    h5py.h5d.create(file.id, b"train_x", h5py.h5t.IEEE_F32LE, space, plan)


def made_by(**given: object) -> Callable[[h5py.File], None]:
    """A data set with these arguments of h5py in place of train_x."""
    return lambda file: file.create_dataset("train_x", **given)


def lists(file: h5py.File) -> None:
    rows = file.create_dataset("train_x", (TRAIN,), h5py.vlen_dtype("f4"))
    for row in range(TRAIN):
        rows[row] = np.zeros(48, np.float32)


X = dataset().train_x
CRAFTED: dict[str, tuple[Callable[[h5py.File], object], str]] = {
    "missing": (lambda file: None, "there are no training examples"),
    "external link": (external_link, LINK),
    "soft link": (soft_link, LINK),
    "link to nothing": (link_to_nothing, LINK),
    "external storage": (external_storage, NOT_WHOLE),
    "virtual": (virtual, NOT_WHOLE),
    "chunked": (made_by(data=X, chunks=(10, 48)), NOT_WHOLE),
    "compressed": (made_by(data=X, compression="gzip"), NOT_WHOLE),
    "never written": (made_by(shape=(TRAIN, 48), dtype="f4"), NOT_WHOLE),
    "huge and sparse": (huge_and_sparse, "training examples are float32 (60000000, 48), expected float32 (20, 48)"),
    "references": (made_by(shape=(TRAIN, 48), dtype=h5py.ref_dtype), NOT_WHOLE),
    "lists": (lists, "are object (20,), expected float32"),
    "records": (made_by(data=np.zeros((TRAIN, 48), [("a", "f4")])), "(20, 48), expected float32 (20, 48)"),
    "strings": (made_by(data=np.full((TRAIN, 48), b"1")), "|S1 (20, 48), expected float32"),
    "other numbers": (made_by(data=X.astype(np.float64)), "are float64 (20, 48), expected float32"),
    "other bytes": (made_by(data=X.astype(">f4")), "are >f4 (20, 48), expected float32"),
    "one number": (made_by(data=np.float32(1)), "are float32 (), expected float32"),
    "no shape": (made_by(data=h5py.Empty("f4")), "train_x is no array"),
    "a group": (lambda file: file.create_group("train_x"), "train_x is no array"),
    "not finite": (made_by(data=np.where(X == 7, np.nan, X)), "training examples have values that are no finite"),
    "infinite": (made_by(data=np.where(X == 7, -np.inf, X)), "training examples have values that are no finite"),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_crafted_array_is_one_line(options: data.Har, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write, problem = CRAFTED[case]
    with h5py.File(options.path, "a") as file:
        del file["train_x"]
        write(file)
    if "finite" not in problem:
        monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda *_: pytest.fail("values were read"))
    assert problem in refused(options)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("train_y", "there are no training labels"),
        ("test_x", "there are no test examples"),
        ("test_y", "there are no test labels"),
        ("groups", "nobody knows from which groups the training examples come"),
        ("test_groups", "nobody knows from which groups the test examples come"),
    ],
)
def test_missing_array_is_one_line(options: data.Har, name: str, problem: str) -> None:
    with h5py.File(options.path, "a") as file:
        del file[name]
    assert refused(options) == f"{options.path}: {problem}"


RECIPE = options_in(Path()).recipe()
HEADS = {
    "another format": ({"format": "fedmpi data 2"}, "is not a prepared data set (fedmpi data 1)"),
    "no format": ({"format": None}, "is not a prepared data set"),
    "a list of formats": ({"format": [1.0, 2.0]}, "damaged"),
    "no recipe": ({"recipe": None}, "damaged"),
    "no table": ({"recipe": "[]"}, "its recipe is no table"),
    "nested without end": ({"recipe": "[" * 9000}, "damaged"),
    "a long number": ({"recipe": "9" * 6000}, "damaged"),
    "another value": ({"recipe": json.dumps({**RECIPE, "step": 3})}, "was made with data.step=3, not 64; change the"),
    "a key less": (
        {"recipe": json.dumps({key: value for key, value in RECIPE.items() if key != "step"})},
        "was made with data.step=(nothing), not 64",
    ),
    "a key more": ({"recipe": json.dumps({**RECIPE, "axes": None})}, "was made with data.axes=null, not (nothing)"),
    "signs for a terminal": ({"recipe": json.dumps({**RECIPE, "a\n\x1b[31m": "\x1b[0m"})}, r"data.a\n\x1b[31m="),
    "many keys": ({"recipe": json.dumps({**RECIPE, **{str(i): "long" * 50 for i in range(40)}})}, "data.4="),
}


@pytest.mark.parametrize("case", HEADS)
def test_crafted_head_is_one_line(options: data.Har, case: str) -> None:
    head, problem = HEADS[case]
    with h5py.File(options.path, "a") as file:
        for name, value in head.items():
            del file.attrs[name]
            if value is not None:
                file.attrs[name] = value
    assert problem in refused(options)


def test_no_hdf5_and_cut_off(options: data.Har) -> None:
    content = options.path.read_bytes()
    for damaged in (content[:-100], content[:100], b"<html>404</html>", b""):
        options.path.write_bytes(damaged)
        assert "damaged or cut off" in refused(options)


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("groups", np.arange(TRAIN) % 4 - 1, "training groups are 4 numbers from -1 to 2, expected 0 to 3 with"),
        ("groups", np.arange(TRAIN) % 4 * 10**12, "4 numbers from 0 to 3000000000000, expected 0 to 3 without gaps"),
        ("groups", np.arange(TRAIN) % 4 * 2, "4 numbers from 0 to 6, expected 0 to 3 without gaps"),
        ("groups", np.arange(TRAIN) % 4 + 1, "4 numbers from 1 to 4, expected 0 to 3 without gaps"),
        ("groups", np.arange(TRAIN) % 3, "the training examples come from 3 groups, expected 4"),
        ("groups", np.arange(TRAIN) % 5, "the training examples come from 5 groups, expected 4"),
        ("groups", np.arange(TRAIN - 1) % 4, "training groups are int64 (19,), expected int64 (20,)"),
        ("test_groups", np.arange(TEST) % 4 - 1, "test groups reach from -1 to 2, expected 0 to 3"),
        ("test_groups", np.full(TEST, 4), "test groups reach from 4 to 4, expected 0 to 3"),
        ("test_groups", np.full(TEST, 10**12), "from 1000000000000 to 1000000000000, expected 0 to 3"),
    ],
)  # fmt: skip
def test_groups_are_numbers_from_0_without_gaps(options: data.Har, name: str, values: np.ndarray, problem: str) -> None:
    with h5py.File(options.path, "a") as file:
        del file[name]
        file[name] = values
    assert problem in refused(options)


@pytest.mark.parametrize(("highest", "is_good"), [(11, True), (12, False)])
def test_people_of_their_own_in_the_test_part(highest: int, is_good: bool) -> None:
    """4 training groups and 8 test examples: 12 groups at most, 0 to 11."""
    info = data.DataInfo("vector", (48,), 6, TRAIN, TEST, num_groups=GROUPS)
    ours = dataset()
    ours = Dataset(ours.train_x, ours.train_y, ours.test_x, ours.test_y, ours.groups, np.full(TEST, highest))
    if is_good:
        assert check("here", ours, info) is ours
    else:
        with pytest.raises(DataError, match="test groups reach from 12 to 12, expected 0 to 11"):
            check("here", ours, info)


def test_empty_parts_are_one_line() -> None:
    nothing, labels = np.empty((0, 48), np.float32), np.empty(0, np.int64)
    with pytest.raises(DataError) as caught:
        check("here", Dataset(nothing, labels, nothing, labels), data.DataInfo("vector", (48,), 6, 0, 0))
    reason = "too little data, or other options leave none"
    expected = tuple(f"there are no {part} examples: {reason}" for part in ("training", "test"))
    assert caught.value.problems == expected
