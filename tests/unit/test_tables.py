"""CSV and parquet files and Hugging Face folders of a user's own give the arrays that their columns hold."""

from pathlib import Path

import numpy as np
import pytest
from data_fixtures import refusal

from fedmpi.config.load import load
from fedmpi.data.dataset import DataOptions, Dataset, load_data

pandas = pytest.importorskip("pandas")

TABLE = pandas.DataFrame(
    {
        "age": [31, 42, 53, 64, 25, 36],
        "dose": [0.5, 1.0, 1.5, 2.0, 2.5, 3.0],
        "label": ["well", "ill", "well", "ill", "well", "ill"],
        "hospital": ["b", "b", "a", "a", "c", "c"],
    }
)
FEATURES = TABLE[["age", "dose"]].to_numpy(np.float32)


def options(path: Path, *words: str) -> DataOptions:
    given = ["data.name=table", "method.name=fedavg", "clients.count=2", "clients.per_round=2", "partition.name=iid"]
    return load(None, [*given, "model.name=mlp", f"data.path={path}", *words]).data


def read(path: Path, *words: str) -> Dataset:
    return load_data(options(path, *words))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_is_divided_and_its_classes_and_groups_are_numbered_in_sorted_order(
    tmp_path: Path, ending: str
) -> None:
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
    without = TABLE.drop(columns="hospital")
    without[:4].to_csv(tmp_path / "train.csv", index=False)
    without.loc[5:, ["label", "dose", "age"]].to_csv(tmp_path / "test.csv", index=False)  # ill alone
    dataset = read(tmp_path)
    assert dataset.train_y.tolist() == [1, 0, 1, 0]
    assert dataset.test_y.tolist() == [0]
    assert np.array_equal(dataset.test_x, FEATURES[5:])


def test_each_file_of_a_folder_is_a_client(tmp_path: Path) -> None:
    for part, rows in (("train", TABLE[:4]), ("test", TABLE[2:])):
        (tmp_path / part).mkdir()
        for hospital, own in rows.groupby("hospital"):
            own.drop(columns="hospital").to_csv(tmp_path / part / f"{hospital}.csv", index=False)
    dataset = read(tmp_path, "partition.name=natural")
    assert dataset.groups is not None and dataset.test_groups is not None
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
    table = TABLE.copy()
    for name, value in change.items():
        table[name] = table[name].astype(object)
        table.loc[0, name] = value
    table.to_csv(tmp_path / "mine.csv", index=False)
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
    TABLE.assign(label=[0.0, 1.0, 2.0, 0.0, 1.0, 2.0]).drop(columns="hospital").to_csv(tmp_path / "a.csv", index=False)
    TABLE.assign(label=[0.0, 1.5, 1.5, 0.0, 1.5, 2.5]).drop(columns="hospital").to_csv(tmp_path / "b.csv", index=False)
    (note,) = options(tmp_path / "a.csv", "data.test_share=0.34").used().notes
    assert "if they are classes, give y.ravel().astype(int)" in note
    assert options(tmp_path / "b.csv", "data.test_share=0.34").used().notes == ()


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
    TABLE.assign(dose=TABLE["dose"] * 1e6).drop(columns="hospital").to_csv(tmp_path / "mine.csv", index=False)
    (note,) = options(tmp_path / "mine.csv", "data.test_share=0.34").used().notes
    assert note.startswith("features reach far from 0 (column 1: up to ") and "e+06); standardize them" in note


def test_a_place_without_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("a,b\n")
    assert "its ending is .txt); data.path is a file *.csv or *.parquet" in refusal(lambda: read(tmp_path / "mine.txt"))
    assert "holds 0 files *.csv or *.parquet, each a client's" in refusal(lambda: read(tmp_path))
    (tmp_path / "A.csv").write_text(LABELLED.format("well", "ill"))
    assert "leave data.group out" in refusal(lambda: read(tmp_path, "data.group=age"))


# ---- Hugging Face


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
    frame = TABLE[TABLE.age > 25].drop(columns="hospital")
    datasets.Dataset.from_pandas(frame).save_to_disk(str(tmp_path / "mine"))
    line = "the column '__index_level_0__' has row numbers of pandas; write it without"
    assert line in refusal(lambda: read(tmp_path / "mine", "data.test_share=0.34", "data.name=huggingface"))
    assert "is no folder that datasets' save_to_disk wrote" in refusal(lambda: read(tmp_path, "data.name=huggingface"))
