"""Data of a user's own: files, folders, tables, functions and classes; every mistake is one clear line."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from data_fixtures import refusal
from golden_file import Told
from own_data import arrays_of, blobs, folder_of, save_npz
from PIL import Image

from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.data.dataset import DataOptions, Dataset, digest_of, load_data
from fedmpi.data.own import forget, pixel_statistics
from fedmpi.data.partition import make_partition
from fedmpi.errors import DataError
from fedmpi.running.forecast import forecast

MLP = ("model.name=mlp", "clients.count=4", "clients.per_round=2", "partition.name=iid")


def config_of(*words: str) -> Config:
    return load(None, [*MLP, *words])


def npz(path: Path, *words: str) -> Config:
    return config_of("data.name=npz", f"data.path={path}", *words)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 8, 8), (13, 8, 8), (13, 64, 32), (8, 4, 4), (1, 6, 6)])
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
    told(refusal(lambda: npz(save_npz(tmp_path / "b", x=x), "data.test_share=0.2")))
    told(refusal(lambda: npz(save_npz(tmp_path / "c", x=x[:3], y=y[:3]), "data.test_share=0.5")))


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
    told(refusal(lambda: npz(save_npz(tmp_path, **given))))


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
    Image.new("1", (20_000, 20_000)).save(odd)
    told(refusal(lambda: folder(root)), r"\(Image size.*?attack\.")
    for path in (root / "train" / "dog").iterdir():
        path.unlink()
    told(refusal(lambda: folder(root)))


def test_a_function_s_arguments_are_the_options(told: Told) -> None:
    words = ("data.name=own_data:blobs", "data.num=90", "data.centres=[1,2]", "data.form=flat")
    config, again = config_of(*words), config_of(*words)
    ours = {"num": 90, "spread": 0.1, "form": "flat", "centres": [1.0, 2.0]}
    assert config.to_dict()["data"] == {"name": "own_data:blobs", "num_train": 0, "num_test": 0, **ours}
    info = config.data.info()
    assert (info.kind, info.num_train, info.num_test) == ("vector", 60, 30)
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


TABLE = pandas.DataFrame(
    {
        "age": [31, 42, 53, 64, 25, 36],
        "dose": [0.5, 1.0, 1.5, 2.0, 2.5, 3.0],
        "label": ["well", "ill", "well", "ill", "well", "ill"],
        "hospital": ["b", "b", "a", "a", "c", "c"],
    }
)
FEATURES = TABLE[["age", "dose"]].to_numpy(np.float32)
PATIENTS = TABLE.drop(columns="hospital")


def table(path: Path, *words: str) -> DataOptions:
    return config_of("data.name=table", "method.name=fedavg", "clients.count=2", f"data.path={path}", *words).data


def read(path: Path, *words: str) -> Dataset:
    return load_data(table(path, *words))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_is_divided_and_its_classes_and_groups_are_in_sorted_order(tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"mine.{ending}"
    getattr(TABLE, f"to_{ending}")(path, index=False)
    dataset = read(path, "data.group=hospital", "data.test_share=0.34")
    rows = [*dataset.train_x.tolist(), *dataset.test_x.tolist()]
    assert sorted(rows) == sorted(FEATURES.tolist())
    label_of = dict(zip(map(tuple, FEATURES.tolist()), [1, 0, 1, 0, 1, 0], strict=True))  # ill is 0, well is 1
    assert [label_of[tuple(row)] for row in dataset.train_x.tolist()] == dataset.train_y.tolist()
    assert dataset.groups is not None and dataset.groups.max() <= 2


def test_train_and_test_files_share_the_numbers_of_classes_and_the_order_of_columns(tmp_path: Path) -> None:
    PATIENTS[:4].to_csv(tmp_path / "train.csv", index=False)
    PATIENTS.loc[5:, ["label", "dose", "age"]].to_csv(tmp_path / "test.csv", index=False)  # ill alone
    dataset = read(tmp_path)
    assert (dataset.train_y.tolist(), dataset.test_y.tolist()) == ([1, 0, 1, 0], [0])
    assert np.array_equal(dataset.test_x, FEATURES[5:])


def test_each_file_of_a_folder_is_a_client(tmp_path: Path) -> None:
    for part, rows in (("train", TABLE[:4]), ("test", TABLE[2:])):
        (tmp_path / part).mkdir()
        for hospital, own in rows.groupby("hospital"):
            own.drop(columns="hospital").to_csv(tmp_path / part / f"{hospital}.csv", index=False)
    dataset = read(tmp_path, "partition.name=natural")
    assert dataset.groups.tolist() == [0, 0, 1, 1]  # a, then b
    assert dataset.test_groups.tolist() == [0, 0, 2, 2]  # a again, and c, which does not train
    assert dataset.train_x[:, 0].tolist() == [53, 64, 31, 42]


@pytest.mark.parametrize(
    ("change", "words", "line"),
    [
        ({}, ["data.label=outcome"], "has no column 'outcome'; name it by data.label or data.group: age, dose, label"),
        ({}, [], "the column 'hospital' holds no numbers ('b'); leave the column out, write numbers, or name it by"),
        ({"dose": None}, ["data.group=hospital"], "the column 'dose' has empty cells"),
        ({"label": None}, ["data.group=hospital"], "the column 'label' has empty cells"),
        ({"hospital": None}, ["data.group=hospital"], "the column 'hospital' has empty cells"),
        ({"dose": "NA"}, ["data.group=hospital"], "the column 'dose' holds no numbers ('NA')"),
    ],
)
def test_a_mistake_in_a_table_is_one_line(tmp_path: Path, change: dict[str, None], words: list[str], line: str) -> None:
    frame = TABLE.astype(object)
    for name, value in change.items():
        frame.loc[0, name] = value
    frame.to_csv(tmp_path / "mine.csv", index=False)
    assert line in refusal(lambda: read(tmp_path / "mine.csv", "data.test_share=0.34", *words))


def test_na_may_be_a_class_and_a_group(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    TABLE.replace({"ill": "NA", "c": "None"}).to_csv(path, index=False)
    dataset = read(path, "data.group=hospital", "data.test_share=0.34")
    assert {*dataset.train_y.tolist()} == {0, 1} and dataset.counts["num_groups"] > 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (",age,label\n0,31,a\n1,32,b\n", "the column 'Unnamed: 0' has row numbers of pandas; write it without"),
        ("age,age,label\n0,31,a\n1,32,b\n", "mine.csv: cannot be read (two columns are called 'age')"),
        ("age;dose;label\n31;1,5;a\n32;2,5;b\n", "mine.csv: cannot be read (Length of header"),
        ("age\tlabel\n31\ta\n", "has no column 'label'; name it by data.label or data.group: age"),
        ("age,label\n0,31,a\n1,32,b\n", "mine.csv: cannot be read (Length of header"),
        ("", "mine.csv: cannot be read (No columns"),
        ("age,label\n", "mine.csv: cannot be read (it has no rows)"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "mine.csv").write_text(text)
    assert line in refusal(lambda: read(tmp_path / "mine.csv", "data.test_share=0.5"))


def test_whole_numbers_as_floats_are_said_to_be_numbers_to_predict(tmp_path: Path) -> None:
    PATIENTS.assign(label=[0.0, 1.0, 2.0, 0.0, 1.0, 2.0]).to_csv(tmp_path / "a.csv", index=False)
    PATIENTS.assign(label=[0.0, 1.5, 1.5, 0.0, 1.5, 2.5]).to_csv(tmp_path / "b.csv", index=False)
    (note,) = table(tmp_path / "a.csv", "data.test_share=0.34").used().notes
    assert "if they are classes, give y.ravel().astype(int)" in note
    assert table(tmp_path / "b.csv", "data.test_share=0.34").used().notes == ()


LABELLED = "age,label\n0.5,{}\n1.5,{}\n"


@pytest.mark.parametrize("folder", ["parts", "clients"])
def test_labels_of_all_files_are_of_one_kind(tmp_path: Path, folder: str) -> None:
    """Whole numbers beside fractions are numbers to predict."""
    first, second = ("train.csv", "test.csv") if folder == "parts" else ("A.csv", "B.csv")
    words = [] if folder == "parts" else ["data.test_share=0.5"]
    (tmp_path / first).write_text(LABELLED.format(0, 1))
    (tmp_path / second).write_text(LABELLED.format("well", "ill"))
    assert "the column 'label' has numbers and names; write the labels alike" in refusal(lambda: read(tmp_path, *words))
    (tmp_path / second).write_text(LABELLED.format("0.5", "2.0"))
    assert read(tmp_path, *words).train_y.dtype == np.float32


def test_a_client_s_file_of_another_form_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "A.csv").write_text(LABELLED.format("well", "ill"))
    for text, name in (("label\nill\n", "age"), ("age,dose,label\n1,1,ill\n", "dose")):
        (tmp_path / "B.csv").write_text(text)
        line = refusal(lambda: read(tmp_path, "data.test_share=0.5"))
        assert f"the column '{name}' has empty cells" in line


def test_a_column_that_is_not_standardized_is_named(tmp_path: Path) -> None:
    PATIENTS.assign(dose=TABLE["dose"] * 1e6).to_csv(tmp_path / "mine.csv", index=False)
    (note,) = table(tmp_path / "mine.csv", "data.test_share=0.34").used().notes
    assert note.startswith("features reach far from 0 (column 1: up to ") and "e+06); standardize them" in note


def test_a_place_without_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("a,b\n")
    assert "its ending is .txt); data.path is a file *.csv or *.parquet" in refusal(lambda: read(tmp_path / "mine.txt"))
    assert "holds 0 files *.csv or *.parquet, each a client's" in refusal(lambda: read(tmp_path))
    (tmp_path / "A.csv").write_text(LABELLED.format("well", "ill"))
    assert "leave data.group out" in refusal(lambda: read(tmp_path, "data.group=age"))


def save(path: Path, parts: dict[str, dict[str, object]]) -> Path:
    datasets = pytest.importorskip("datasets")
    rows = {part: datasets.Dataset.from_dict(columns) for part, columns in parts.items()}
    datasets.DatasetDict(rows).save_to_disk(str(path))
    return path


def test_pictures_and_labels_of_a_hugging_face_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    pictures = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"]))
    rows = datasets.Dataset.from_dict({"image": list(pictures), "label": [0, 1] * 3}, features=features)
    datasets.DatasetDict(train=rows.select(range(4)), test=rows.select(range(4, 6))).save_to_disk(str(tmp_path))
    dataset = read(tmp_path, "data.name=huggingface")
    assert np.array_equal(dataset.train_x, pictures[:4]) and np.array_equal(dataset.test_x, pictures[4:])
    assert dataset.train_y.tolist() == [0, 1, 0, 1]


def test_lists_of_whole_numbers_are_tokens_and_numbers_are_vectors(tmp_path: Path) -> None:
    tokens = {"ids": [[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 1, 1]], "label": [0, 1, 0, 1], "user": ["a", "a", "b", "b"]}
    folder = save(tmp_path / "tokens", {"train": tokens, "test": tokens})
    dataset = read(folder, "data.group=user", "model.name=lstm_char", "data.name=huggingface")
    assert dataset.train_x.dtype == np.int16 and dataset.train_x.tolist() == tokens["ids"]
    assert dataset.groups is not None and dataset.groups.tolist() == [0, 0, 1, 1]
    numbers = {"age": [1, 2, 3, 4], "dose": [0.5, 1.5, 2.5, 3.5], "label": [0, 1, 0, 1]}
    dataset = read(save(tmp_path / "numbers", {"train": numbers, "test": numbers}), "data.name=huggingface")
    assert dataset.train_x.tolist() == [[1, 0.5], [2, 1.5], [3, 2.5], [4, 3.5]]


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"text": ["a b", "c", "d", "e"], "label": [0, 1, 0, 1]}, "the column 'text' holds text"),
        ({"ids": [[1], [2, 3], [4], [5]], "label": [0, 1, 0, 1]}, "rows of unequal lengths"),
        ({"ids": [[1, 2]] * 4, "age": [1, 2, 3, 4], "label": [0, 1, 0, 1]}, "select_columns(['ids', 'label'])"),
        ({"ids": [[1, 2]] * 4, "y": [0, 1, 0, 1]}, "no column 'label'; name it by data.label or data.group: ids, y"),
    ],
)
def test_a_mistake_in_a_hugging_face_folder_is_one_line(tmp_path: Path, columns: dict[str, object], line: str) -> None:
    folder = save(tmp_path / "mine", {"train": columns, "test": columns})
    assert line in refusal(lambda: read(folder, "data.name=huggingface"))


def test_the_index_of_a_data_frame_is_no_feature(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_pandas(PATIENTS[PATIENTS.age > 25]).save_to_disk(str(tmp_path / "mine"))
    line = "the column '__index_level_0__' has row numbers of pandas; write it without"
    assert line in refusal(lambda: read(tmp_path / "mine", "data.test_share=0.34", "data.name=huggingface"))
    assert "is no folder that datasets' save_to_disk wrote" in refusal(lambda: read(tmp_path, "data.name=huggingface"))
