"""Data of a user's own: .npz files, folders of pictures, functions and classes; every mistake is one clear line."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_fixtures import refusal
from own_data import arrays_of, blobs, folder_of, save_npz
from PIL import Image

from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.data import reading
from fedmpi.data.arrays import pixel_statistics
from fedmpi.data.reading import digest_of

MLP = ("model.name=mlp", "clients.count=4", "clients.per_round=2", "partition.name=iid")


def config_of(*words: str) -> Config:
    return load(None, [*MLP, *words])


def npz(path: Path, *words: str) -> Config:
    return config_of("data.name=npz", f"data.path={path}", *words)


# ---- .npz


@pytest.mark.parametrize("kind", ["pictures", "grey", "vectors", "tokens"])
def test_an_npz_file_is_what_its_arrays_are(tmp_path: Path, kind: str) -> None:
    given = arrays_of(kind)
    data = npz(save_npz(tmp_path, **given), *(["model.name=lstm_char"] if kind == "tokens" else [])).data
    info, dataset = data.info(), reading.load(data)
    shapes = {"pictures": ("image", (3, 6, 5)), "grey": ("image", (1, 6, 5)), "vectors": ("vector", (7,))}
    assert (info.kind, info.example_shape) == shapes.get(kind, ("tokens", (9,)))
    assert (info.num_classes, info.num_train, info.num_test) == (3, 30, 12)
    assert np.array_equal(dataset.train_x.reshape(given["train_x"].shape), given["train_x"])
    assert dataset.digest == digest_of(dataset.arrays) and dataset.train_x.flags.writeable
    assert info.vocabulary_size == (11 if kind == "tokens" else 0)


def test_pictures_are_normalized_by_their_own_pixels_or_as_given(tmp_path: Path) -> None:
    given = arrays_of("pictures")
    path = save_npz(tmp_path, **given)
    info = npz(path).data.info()
    scaled = given["train_x"] / 255
    assert np.allclose(info.mean, scaled.mean(axis=(0, 1, 2)), rtol=1e-12)
    assert np.allclose(info.std, scaled.std(axis=(0, 1, 2)), rtol=1e-9)
    own = npz(path, "data.mean=[0.5,0.5,0.5]", "data.std=[1,1,1]", "data.crop_padding=1", "data.flip=true").data.info()
    assert (own.mean, own.std, own.crop_padding, own.flip) == ((0.5,) * 3, (1.0,) * 3, 1, True)
    shuffled = np.random.default_rng(0).permutation(given["train_x"])
    assert pixel_statistics(shuffled) == (info.mean, info.std)  # to the last bit, in any order
    assert pixel_statistics(np.full((2, 3, 3, 1), 51, np.uint8)) == ((0.2,), (1.0,))


def test_groups_may_be_names_and_make_natural_clients(tmp_path: Path) -> None:
    given = arrays_of("vectors")
    names = np.array(["ann", "bob", "cy"])[np.arange(42) % 3]
    path = save_npz(tmp_path, **given, groups=names[:30], test_groups=names[30:])
    config = npz(path, "partition.name=natural", "clients.count=3", "method.name=fedavg")
    info, dataset = config.data.info(), reading.load(config.data)
    assert (info.num_groups, info.shares_groups) == (3, True)
    assert dataset.groups is not None and dataset.groups[:4].tolist() == [0, 1, 2, 0]


def test_x_and_y_are_divided_class_by_class_the_same_every_time(tmp_path: Path) -> None:
    given = arrays_of("vectors")
    x, y = (np.concatenate([given[f"train_{key}"], given[f"test_{key}"]]) for key in "xy")
    path = save_npz(tmp_path, x=x, y=y, groups=np.arange(42) % 5)
    first = reading.load(npz(path, "data.test_share=0.25").data)
    other = reading.load(npz(path, "data.test_share=0.25", "data.split_seed=1").data)
    again = reading.load(npz(path, "data.test_share=0.25").data)
    assert len(first.test_y) == 10 and np.bincount(first.test_y).min() >= 3
    assert first.digest == again.digest != other.digest
    assert sorted([*first.train_x[:, 0], *first.test_x[:, 0]]) == sorted(x[:, 0])
    assert refusal(lambda: npz(path)).endswith("say by data.test_share, as 0.2, how many are for tests")
    missing = save_npz(tmp_path / "b", x=x)
    assert refusal(lambda: npz(missing, "data.test_share=0.2")).endswith("has no y; it holds x")
    short = save_npz(tmp_path / "c", x=x[:3], y=y[:3])
    assert "are too few to divide" in refusal(lambda: npz(short, "data.test_share=0.5"))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"train_y": None}, "has no train_y; it holds test_x, test_y, train_x"),
    "labels of floats": ({"train_y": np.zeros(30)}, "train_y is float64 (30,), expected whole numbers (N,)"),
    "one-hot labels": ({"train_y": np.zeros((30, 3), int)}, "train_y is int64 (30, 3), expected whole numbers (N,)"),
    "negative": ({"test_y": np.full(12, -1)}, "test_y has the label -1; labels are whole numbers from 0"),
    "far too large": ({"test_y": np.full(12, 2**63, np.uint64)}, f"test_y has the label {2**63}; labels are"),
    "lengths": ({"train_y": np.zeros(29, int)}, "train_y has 29 labels for 30 examples in train_x"),
    "float64": ({"train_x": np.zeros((30, 7))}, "train_x is float64 (30, 7), expected float32"),
    "float64 in both parts": (
        {"train_x": np.zeros((30, 7)), "test_x": np.zeros((12, 7))},
        "train_x is float64 (30, 7), expected float32: train_x.astype('float32'); the test part likewise",
    ),
    "shape": ({"train_x": np.zeros((30, 7, 1), np.float32)}, "train_x is float32 (30, 7, 1); expected pictures uint8"),
    "pictures of floats": ({"train_x": np.ones((30, 4, 4), np.float32)}, "(255 * train_x).round().astype('uint8')"),
    "normalized pictures": ({"train_x": np.full((30, 4, 4), -2.5)}, "pixels from -2.5 to -2.5: take the pixels"),
    "other shape": (
        {"test_x": np.zeros((12, 8), np.float32)},
        "test_x is float32 (12, 8), but train_x float32 (30, 7)",
    ),
    "no examples": ({"test_x": np.zeros((0, 7), np.float32), "test_y": np.zeros(0, int)}, "there are no test examples"),
    "not finite": ({"train_x": np.full((30, 7), np.nan, np.float32)}, "have values that are no finite numbers"),
    "empty class": ({"train_y": np.arange(30) % 2 * 2}, "class 1 has no training example"),
    "class in test alone": ({"test_y": np.full(12, 5)}, "class 3 has no training example (nor have 2 others)"),
    "one class": ({"train_y": np.zeros(30, int), "test_y": np.zeros(12, int)}, "there is one class; expected two"),
    "channels first": (
        {"train_x": np.zeros((30, 3, 8, 8), np.uint8), "test_x": np.zeros((12, 8, 8, 3), np.uint8)},
        "which looks like (N, C, H, W); give (N, H, W, C): train_x.transpose(0, 2, 3, 1)",
    ),
    "token": (
        {"train_x": np.full((30, 7), 40_000), "test_x": np.zeros((12, 7), int)},
        "train_x has tokens from 40000 to 40000, expected 0 to 32767",
    ),
    "groups": ({"groups": np.zeros(4, int)}, "groups is int64 (4,), expected whole numbers or names, one for each"),
    "test groups alone": ({"test_groups": np.zeros(12, int)}, "has test_groups without groups"),
    "a misspelled name": ({"group": np.zeros(30, int)}, "holds group, which nothing reads; allowed: train_x, train_y"),
    "objects": ({"train_y": np.array([None] * 30)}, "Object arrays cannot be loaded"),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_mistake_in_an_npz_file_is_a_line(tmp_path: Path, name: str) -> None:
    changed, line = WRONG[name]
    given = {key: array for key, array in (arrays_of("vectors") | changed).items() if array is not None}
    path = save_npz(tmp_path, **given)
    assert line in (text := refusal(lambda: npz(path))) and str(path) in text


def test_options_for_pictures_are_refused_for_others_and_for_other_channels(tmp_path: Path) -> None:
    vectors, pictures = (save_npz(tmp_path / kind, **arrays_of(kind)) for kind in ("vectors", "pictures"))
    assert "data.flip is for pictures, but these are vectors" in refusal(lambda: npz(vectors, "data.flip=true"))
    assert "data.mean has 1 number, but the pictures have 3 channels" in refusal(lambda: npz(pictures, "data.mean=[0]"))
    assert "remove data.test_share" in refusal(lambda: npz(pictures, "data.test_share=0.5"))
    assert "data.path  missing; give it by data.path=" in refusal(lambda: config_of("data.name=npz"))


def test_files_that_are_no_npz_are_refused_and_nothing_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = save_npz(tmp_path, **arrays_of("vectors")).read_bytes()
    path = tmp_path / "bad.npz"
    assert f"{path}: no such file" in refusal(lambda: npz(path))
    os.mkfifo(path)
    assert "is a named pipe" in refusal(lambda: npz(path))
    path.unlink()
    for content in (b"", b"text", good[:-200], good[:300] + good[400:]):
        path.write_bytes(content)
        assert refusal(lambda: npz(path)).startswith(f"{path}: ")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 7)})
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("train_x.npy", header.getvalue())
    assert "it takes more memory than there is" in refusal(lambda: npz(path))
    monkeypatch.setattr("fedmpi.data.sets.npz.MAX_BYTES", 5000)
    np.savez_compressed(path, train_x=np.zeros(10_000))
    assert "its arrays would take" in refusal(lambda: npz(path))


# ---- pictures by class


def folder(path: Path, *words: str) -> Config:
    return config_of("data.name=image_folder", f"data.path={path}", *words)


def test_classes_of_a_folder_are_its_sorted_names(tmp_path: Path) -> None:
    root = folder_of(tmp_path, {"train": {"dog": 3, "cat": 4}, "test": {"cat": 2, "dog": 1}})
    (root / "train" / "dog" / "notes.txt").write_text("no picture")
    data = folder(root).data
    info, dataset = data.info(), reading.load(data)
    assert (info.example_shape, info.num_classes, info.num_train, info.num_test) == ((3, 6, 5), 2, 7, 3)
    assert dataset.train_y.tolist() == [0] * 4 + [1] * 3 and dataset.test_y.tolist() == [0, 0, 1]
    assert dataset.train_x[4, 0, 0].tolist() == [0, 10, 20]  # dog, the first picture
    grey = folder(root, "data.grey=true", "data.size=[4,3]").data.info()
    assert grey.example_shape == (1, 4, 3)
    whole = folder_of(tmp_path / "one", {"": {"a": 8, "b": 8}})
    divided = folder(whole, "data.test_share=0.25").data.info()
    assert (divided.num_train, divided.num_test) == (12, 4)


def test_each_mistake_in_a_folder_is_a_line(tmp_path: Path) -> None:
    assert "no such folder; expected one with train/CLASS" in refusal(lambda: folder(tmp_path / "none"))
    root = folder_of(tmp_path, {"train": {"cat": 3, "dog": 3}, "test": {"cat": 2, "cow": 1}})
    assert refusal(lambda: folder(root)).endswith("the class 'cow' is in test, but not in train")
    assert "remove data.test_share" in refusal(lambda: folder(root, "data.test_share=0.2"))
    assert "say by data.test_share" in refusal(lambda: folder(root / "train"))
    assert "data.size" in refusal(lambda: folder(root, "data.size=[4]"))
    (root / "test" / "cow").rename(root / "test" / "dog")
    odd = root / "train" / "dog" / "1.png"
    Image.new("RGB", (9, 6)).save(odd)
    assert f"{odd}: " in (line := refusal(lambda: folder(root))) and "9x6 pixels, expected 5x6" in line
    assert folder(root, "data.size=[6,5]").data.info().num_train == 6
    odd.write_bytes(b"no picture")
    assert str(odd) in (line := refusal(lambda: folder(root))) and "replace it or take it out" in line
    Image.new("I;16", (5, 6)).save(odd)
    assert "of mode I" in refusal(lambda: folder(root))
    bomb = Image.new("1", (20_000, 20_000))
    bomb.save(odd)
    assert str(odd) in (line := refusal(lambda: folder(root))) and "decompression bomb" in line
    for path in (root / "train" / "dog").iterdir():
        path.unlink()
    assert "the class has no pictures" in refusal(lambda: folder(root))
    (root / "train" / "dog").rmdir()
    assert "holds 1 folders, expected one for each of two or more classes" in refusal(lambda: folder(root))


# ---- functions and classes


def test_a_function_s_arguments_are_the_options() -> None:
    config = config_of("data.name=own_data:blobs", "data.num=90", "data.centres=[1,2]", "data.form=flat")
    assert config.to_dict()["data"] == {
        "name": "own_data:blobs",
        "num_train": 0,
        "num_test": 0,
        "num": 90,
        "spread": 0.1,
        "form": "flat",
        "centres": [1.0, 2.0],
    }
    info = config.data.info()
    assert (info.kind, info.num_train, info.num_test) == ("vector", 60, 30)
    again = config_of("data.name=own_data:blobs", "data.num=90", "data.centres=[1,2]", "data.form=flat")
    assert again.data == config.data and again.hash() == config.hash()
    calls = blobs.calls
    assert reading.load(config.data).train_x is reading.load(again.data).train_x and blobs.calls == calls
    mistakes = {
        "data.sprad=1": "no such key. Did you mean 'spread'?",
        "data.num=many": "expected a whole number, got 'many' (text)",
        "data.form=round": "expected one of 'flat', 'high'",
    }
    for word, line in mistakes.items():
        assert line in refusal(lambda word=word: config_of("data.name=own_data:blobs", word))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("own_data:Nothing", "module 'own_data' has no 'Nothing'"),
        ("own_data:MLP", "neither a subclass of DataOptions with `info` and `read` nor a function"),
        ("own_data:shadowing", "'own_data:shadowing' has an option 'read', a name that fedmpi uses itself"),
        ("own_data:typed", "takes 'how' without a default and of a type that YAML cannot give; allowed: int, float"),
        ("own_data:by_place", "takes num by place alone"),
        ("own_data:no_dict", "gave a list, expected a dict with train_x, train_y, test_x, test_y"),
        ("own_data:ragged", "gave something that is no array: "),
        ("own_data:more_keys", "'weights' means nothing; known: train_x"),
        ("own_data:failing", "its function failed: ZeroDivisionError: division by zero ("),
        ("own_broken:data", "'own_broken:data' cannot be imported: RuntimeError: not today"),
        ("own_data_that_is_not_there:x", "cannot be imported: ModuleNotFoundError: No module named"),
    ],
)
def test_what_cannot_be_used_is_a_line(name: str, line: str) -> None:
    assert line in refusal(lambda: config_of(f"data.name={name}"))


def test_a_class_of_options_is_used_as_it_is() -> None:
    config = config_of("data.name=own_data:Squares", "data.side=3")
    assert reading.load(config.data).train_x.shape == (20, 3, 3, 1) and config.data.name == "own_data:Squares"


def divide(name: str, *words: str) -> list[list[int]]:
    from fedmpi.data.partition import make_partition

    partition = config_of(*words, f"partition.name=own_data:{name}").partition
    made = make_partition(partition, np.arange(12) % 3, 4, 0, np.arange(12) % 4)
    return [made.client(client).tolist() for client in range(4)]


def test_a_partition_may_be_a_function() -> None:
    assert divide("rows") == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert divide("rows", "partition.skip=8") == [[8], [9], [10], [11]]
    assert divide("of_groups")[1] == [1, 5, 9]
    assert divide("free")[3] == [9, 10, 11]
    assert divide("free", "partition.share=0.5", "partition.sizes=[2,3]")[0] == [0, 1]
    assert "partition.order" in refusal(lambda: divide("free", "partition.order=x"))


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("few", "gave the examples of 3 clients, expected 4"),
        ("empty", "gave client 3 no examples"),
        ("floats", "gave client 0 an array float64 (3,), expected whole numbers (n,)"),
        ("outside", "gave the example 12; there are 0 to 11"),
        ("twice", "gave the example 0 to more than one client, or twice to one"),
        ("number", "gave a int, expected a list of arrays"),
        ("raise", "its function failed: ValueError: no way ("),
    ],
)
def test_each_mistake_of_a_partition_function_is_a_line(how: str, line: str) -> None:
    assert line in refusal(lambda: divide("wrong", f"partition.how={how}"))
    assert "has no argument 'seed'; expected (labels, num_clients, seed" in refusal(lambda: divide("unseeded"))
