"""Data of a user's own: .npz files, folders of pictures, functions and classes; every mistake is one clear line."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_fixtures import refusal
from golden_file import Told
from own_data import arrays_of, blobs, folder_of, save_npz
from PIL import Image

from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.data.dataset import digest_of, load_data
from fedmpi.data.own import forget, pixel_statistics
from fedmpi.data.partition import make_partition
from fedmpi.errors import DataError
from fedmpi.running.forecast import forecast

MLP = ("model.name=mlp", "clients.count=4", "clients.per_round=2", "partition.name=iid")


def config_of(*words: str) -> Config:
    return load(None, [*MLP, *words])


def npz(path: Path, *words: str) -> Config:
    return config_of("data.name=npz", f"data.path={path}", *words)


@pytest.mark.parametrize("shape", [(2, 8, 8), (13, 64, 64), (13, 8, 8), (13, 64, 32), (8, 4, 4), (1, 6, 6)])
def test_pictures_whose_channels_come_first_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Bands of a satellite, near infrared, few large ones or many small ones."""
    examples = np.zeros((8, *shape), np.uint8)
    arrays = {"train_x": examples, "train_y": np.arange(8) % 2, "test_x": examples, "test_y": np.arange(8) % 2}
    with pytest.raises(DataError, match=r"looks like \(N, C, H, W\); give .*train_x.transpose\(0, 2, 3, 1\)"):
        npz(save_npz(tmp_path, **arrays)).data.info()
    last = {name: value.transpose(0, 2, 3, 1) if name.endswith("x") else value for name, value in arrays.items()}
    assert npz(save_npz(tmp_path / "last", **last)).data.info().example_shape == shape


@pytest.mark.parametrize("kind", ["pictures", "grey", "vectors", "tokens"])
def test_an_npz_file_is_what_its_arrays_are(tmp_path: Path, kind: str) -> None:
    given = arrays_of(kind)
    data = npz(save_npz(tmp_path, **given), *(["model.name=lstm_char"] if kind == "tokens" else [])).data
    info, dataset = data.info(), load_data(data)
    shapes = {"pictures": ("image", (3, 6, 5)), "grey": ("image", (1, 6, 5)), "vectors": ("vector", (7,))}
    assert (info.kind, info.example_shape) == shapes.get(kind, ("tokens", (9,)))
    assert (info.num_classes, info.num_train, info.num_test) == (3, 30, 12)
    assert np.array_equal(dataset.train_x.reshape(given["train_x"].shape), given["train_x"])
    assert dataset.digest == digest_of(dataset.arrays) and dataset.train_x.flags.writeable
    assert info.vocabulary_size == (11 if kind == "tokens" else 0)


def test_pictures_are_normalized_by_their_own_pixels(tmp_path: Path) -> None:
    given = arrays_of("pictures")
    path = save_npz(tmp_path, **given)
    info = npz(path).data.info()
    scaled = given["train_x"] / 255
    assert np.allclose(info.mean, scaled.mean(axis=(0, 1, 2)), rtol=1e-12)
    assert np.allclose(info.std, scaled.std(axis=(0, 1, 2)), rtol=1e-9)
    own = npz(path, "data.crop_padding=1", "data.flip=true").data.info()
    assert (own.crop_padding, own.flip) == (1, True)
    shuffled = np.random.default_rng(0).permutation(given["train_x"])
    assert pixel_statistics(shuffled) == (info.mean, info.std)  # to the last bit, in any order
    assert pixel_statistics(np.full((2, 3, 3, 1), 51, np.uint8)) == ((0.2,), (1.0,))


def test_groups_may_be_names_and_make_natural_clients(tmp_path: Path) -> None:
    given = arrays_of("vectors")
    names = np.array(["ann", "bob", "cy"])[np.arange(42) % 3]
    path = save_npz(tmp_path, **given, groups=names[:30], test_groups=names[30:])
    config = npz(path, "partition.name=natural", "clients.count=3", "method.name=fedavg")
    info, dataset = config.data.info(), load_data(config.data)
    assert (info.num_groups, info.shares_groups) == (3, True)
    assert dataset.groups is not None and dataset.groups[:4].tolist() == [0, 1, 2, 0]


def test_x_and_y_are_divided_class_by_class_the_same_every_time(tmp_path: Path, told: Told) -> None:
    given = arrays_of("vectors")
    x, y = (np.concatenate([given[f"train_{key}"], given[f"test_{key}"]]) for key in "xy")
    path = save_npz(tmp_path, x=x, y=y, groups=np.arange(42) % 5)
    first = load_data(npz(path, "data.test_share=0.25").data)
    again = load_data(npz(path, "data.test_share=0.25").data)
    assert len(first.test_y) == 10 and np.bincount(first.test_y).min() >= 3
    assert first.digest == again.digest
    assert sorted([*first.train_x[:, 0], *first.test_x[:, 0]]) == sorted(x[:, 0])
    told(refusal(lambda: npz(path)))
    missing = save_npz(tmp_path / "b", x=x)
    told(refusal(lambda: npz(missing, "data.test_share=0.2")))
    short = save_npz(tmp_path / "c", x=x[:3], y=y[:3])
    told(refusal(lambda: npz(short, "data.test_share=0.5")))


WRONG: dict[str, dict[str, Any]] = {
    "missing": {"train_y": None},
    "labels of floats": {"train_y": np.zeros(30)},
    "negative": {"test_y": np.full(12, -1)},
    "pictures of floats": {"train_x": np.ones((30, 4, 4), np.float32)},
    "other shape": {"test_x": np.zeros((12, 8), np.float32)},
    "no examples": {"test_x": np.zeros((0, 7), np.float32), "test_y": np.zeros(0, int)},
    "not finite": {"train_x": np.full((30, 7), np.nan, np.float32)},
    "empty class": {"train_y": np.arange(30) % 2 * 2},
    "class in test alone": {"test_y": np.full(12, 5)},
    "token": {"train_x": np.full((30, 7), 2**31), "test_x": np.zeros((12, 7), int)},
    "groups": {"groups": np.zeros(4, int)},
    "test groups alone": {"test_groups": np.zeros(12, int)},
    "a misspelled name": {"group": np.zeros(30, int)},
    "objects": {"train_y": np.array([None] * 30)},
}


@pytest.mark.parametrize("name", WRONG)
def test_each_mistake_in_an_npz_file_is_a_line(tmp_path: Path, name: str, told: Told) -> None:
    given = {key: array for key, array in (arrays_of("vectors") | WRONG[name]).items() if array is not None}
    path = save_npz(tmp_path, **given)
    told(refusal(lambda: npz(path)))


def test_options_for_pictures_are_refused_for_others_and_for_other_channels(tmp_path: Path, told: Told) -> None:
    vectors, pictures = (save_npz(tmp_path / kind, **arrays_of(kind)) for kind in ("vectors", "pictures"))
    told(refusal(lambda: npz(vectors, "data.flip=true")))
    assert "remove data.test_share" in refusal(lambda: npz(pictures, "data.test_share=0.5"))
    told(refusal(lambda: config_of("data.name=npz")))


def test_files_that_are_no_npz_are_refused_and_nothing_is_unpickled(tmp_path: Path, told: Told) -> None:
    good = save_npz(tmp_path, **arrays_of("vectors")).read_bytes()
    path = tmp_path / "bad.npz"
    assert f"{path}: cannot be read (No such file" in refusal(lambda: npz(path))
    os.mkfifo(path)
    told(refusal(lambda: npz(path)))
    path.unlink()
    for content in (b"", b"text", good[:-200], good[:300] + good[400:]):
        path.write_bytes(content)
        assert refusal(lambda: npz(path)).startswith(f"{path}: ")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 7)})
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("train_x.npy", header.getvalue())
    told(refusal(lambda: npz(path)))


def folder(path: Path, *words: str) -> Config:
    return config_of("data.name=image_folder", f"data.path={path}", *words)


def test_classes_of_a_folder_are_its_sorted_names(tmp_path: Path) -> None:
    root = folder_of(tmp_path, {"train": {"dog": 3, "cat": 4}, "test": {"cat": 2, "dog": 1}})
    (root / "train" / "dog" / "notes.txt").write_text("no picture")
    data = folder(root).data
    info, dataset = data.info(), load_data(data)
    assert (info.example_shape, info.num_classes, info.num_train, info.num_test) == ((3, 6, 5), 2, 7, 3)
    assert dataset.train_y.tolist() == [0] * 4 + [1] * 3 and dataset.test_y.tolist() == [0, 0, 1]
    assert dataset.train_x[4, 0, 0].tolist() == [0, 10, 20]  # dog, the first picture
    grey = folder(root, "data.grey=true", "data.size=[4,3]").data.info()
    assert grey.example_shape == (1, 4, 3)
    whole = folder_of(tmp_path / "one", {"": {"a": 8, "b": 8}})
    divided = folder(whole, "data.test_share=0.25").data.info()
    assert (divided.num_train, divided.num_test) == (12, 4)


def test_a_transparent_picture_is_said(tmp_path: Path) -> None:
    """An alpha channel that hides nothing is not."""
    root = folder_of(tmp_path, {"": {"cat": 4, "dog": 4}})
    Image.new("RGBA", (5, 6), (1, 2, 3, 255)).save(root / "cat" / "0.png")
    assert folder(root, "data.test_share=0.25").data.info().notes == ()
    forget()
    Image.new("RGBA", (5, 6), (1, 2, 3, 0)).save(root / "dog" / "1.png")
    (note,) = folder(root, "data.test_share=0.25").data.info().notes
    assert note.startswith(f"1 picture with transparent pixels, as {root}/dog/1.png: the alpha channel is left out")


def test_each_mistake_in_a_folder_is_a_line(tmp_path: Path, told: Told) -> None:
    told(refusal(lambda: folder(tmp_path / "none")))
    root = folder_of(tmp_path, {"train": {"cat": 3, "dog": 3}, "test": {"cat": 2, "cow": 1}})
    told(refusal(lambda: folder(root)))
    assert "data.size" in refusal(lambda: folder(root, "data.size=[4]"))
    (root / "test" / "cow").rename(root / "test" / "dog")
    assert "remove data.test_share" in refusal(lambda: folder(root, "data.test_share=0.2"))
    assert "say by data.test_share" in refusal(lambda: folder(root / "train"))
    odd = root / "train" / "dog" / "1.png"
    Image.new("RGB", (9, 6)).save(odd)
    told(refusal(lambda: folder(root)))
    assert folder(root, "data.size=[6,5]").data.info().num_train == 6
    odd.write_bytes(b"no picture")
    told(refusal(lambda: folder(root)))
    Image.new("I;16", (5, 6)).save(odd)
    told(refusal(lambda: folder(root)))
    bomb = Image.new("1", (20_000, 20_000))
    bomb.save(odd)
    told(refusal(lambda: folder(root)), r"\(Image size.*?attack\.")
    for path in (root / "train" / "dog").iterdir():
        path.unlink()
    told(refusal(lambda: folder(root)))


def test_a_function_s_arguments_are_the_options(told: Told) -> None:
    config = config_of("data.name=own_data:blobs", "data.num=90", "data.centres=[1,2]", "data.form=flat")
    ours = {"num": 90, "spread": 0.1, "form": "flat", "centres": [1.0, 2.0]}
    assert config.to_dict()["data"] == {"name": "own_data:blobs", "num_train": 0, "num_test": 0, **ours}
    info = config.data.info()
    assert (info.kind, info.num_train, info.num_test) == ("vector", 60, 30)
    again = config_of("data.name=own_data:blobs", "data.num=90", "data.centres=[1,2]", "data.form=flat")
    assert again.data == config.data and again.hash() == config.hash()
    calls = blobs.calls
    assert len(load_data(again.data).train_x) == 60 and again.data.info() == info and blobs.calls == calls
    for word in ("data.sprad=1", "data.num=many", "data.form=round"):
        told(refusal(lambda word=word: config_of("data.name=own_data:blobs", word)))


@pytest.mark.parametrize(
    "name", ["own_data:MLP", "own_data:shadowing", "own_data:no_dict", "own_data:ragged", "own_data:failing"]
)
def test_what_cannot_be_used_is_a_line(name: str, told: Told) -> None:
    told(refusal(lambda: config_of(f"data.name={name}")), r"(?<=no array: ).*", r"(?<=folder \().*?(?=\))")


def test_a_class_of_options_is_used_as_it_is() -> None:
    config = config_of("data.name=own_data:Squares", "data.side=3")
    assert load_data(config.data).train_x.shape == (20, 3, 3, 1) and config.data.name == "own_data:Squares"


def divide(name: str, *words: str) -> list[list[int]]:
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
    assert "'own_data:unseeded' has no argument 'seed'; expected (labels," in refusal(lambda: divide("unseeded"))


@pytest.mark.parametrize("how", ["few", "empty", "floats", "outside", "twice", "number", "raise"])
def test_each_mistake_of_a_partition_function_is_a_line(how: str, told: Told) -> None:
    told(refusal(lambda: divide("wrong", f"partition.how={how}")))


def test_a_plan_divides_data_that_it_has_read() -> None:
    few = ("data.name=own_data:blobs", "method.name=fedavg", "clients.count=4", "clients.per_round=4")
    config = config_of(*few, "partition.name=own_data:wrong", "partition.how=twice")
    assert "to more than one client" in refusal(lambda: forecast(config, 1))
    plan = forecast(config_of(*few, "partition.name=quantity_skew", "partition.alpha=0.1"), 1)
    assert not any("weighs them alike" in line for line in plan.warnings)
    plan = forecast(config_of(*few, "partition.name=quantity_skew", "method.weighting=uniform"), 1)
    assert any("method.weighting=uniform weighs them alike" in line for line in plan.warnings)
