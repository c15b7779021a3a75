"""Prepared files: every form of the originals, what is tried first, what is checked, and what mistakes leave behind."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_fixtures import RunData, refusal
from golden_file import Told
from small_data import TEST, TRAIN, dataset, options_in

from fedmpi import registry
from fedmpi.data import command as data_command
from fedmpi.data import prepare
from fedmpi.data.dataset import Dataset, check, load_data
from fedmpi.data.sets.har import Har
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


def test_another_recipe_is_one_line(options: Har) -> None:
    other = options.model_copy(update={"test_share": 0.3})
    options.path.rename(other.path)
    line = refused(other)
    assert '"test_share":0.2' in line and "change the config, or run `fedmpi data prepare har" in line


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("train_x", X.astype(np.float64), "are float64 (20, 768), expected float32"),
        ("train_x", np.repeat(X, 3, axis=0), "are float32 (60, 768), expected float32 (20, 768)"),
        ("train_x", np.where(X == 7, np.nan, X), "training examples have values that are no finite"),
        ("test_y", np.full(TEST, 6), "test labels reach from 6 to 6, expected 0 to 5"),
        ("groups", None, "there are no training groups"),
        ("test_groups", None, "there are no test groups"),
        ("groups", np.arange(TRAIN) % 4 - 1, "training groups reach from -1 to 2, expected 0 to 3"),
        ("groups", np.arange(TRAIN) % 3, "the training examples come from 3 groups, expected 4"),
        ("test_groups", np.arange(TEST) % 4 - 1, "test groups reach from -1 to 2, expected 0 to 3"),
    ],
)
def test_each_array_is_checked(name: str, values: np.ndarray | None, problem: str) -> None:
    changed = replace(dataset(), **{name: values})
    assert problem in refusal(lambda: check("here", changed, options_in(Path()).used()))


# ---- the command

TEXT = "".join(f"{name}:\n{'To be or not to be, that is a question. ' * 40}\n\n" for name in ("First", "Second"))


@pytest.mark.parametrize("form", ["folder", "zip", "text", "below root"])
def test_prepare_takes_every_form(run_data: RunData, no_network: None, tmp_path: Path, form: str) -> None:
    root, text = tmp_path / "d", tmp_path / "from" / "input.txt"
    if "root" in form:
        text = root / "tinyshakespeare" / "input.txt"
    text.parent.mkdir(parents=True)
    text.write_text(TEXT)
    given = text if form == "text" else text.parent
    if form == "zip":
        given = tmp_path / "a.bin"
        with zipfile.ZipFile(given, "w") as file:
            file.write(text, "deep/input.txt")
    words = [] if "root" in form else ["--from", given]
    code, out, error = run_data("prepare", "shakespeare", "--data-dir", root, *words)
    assert (code, error) == (0, ""), error
    assert "2 groups" in out and "a config needs data.num_train=" in out
    counts = [word for word in out.split() if word.startswith("data.num_")]
    options = data_command.data_options("shakespeare", counts, str(root))
    assert len(load_data(options).train_y) == options.num_train > 0
    stays = ["tinyshakespeare"] if "root" in form else []
    assert sorted(path.name for path in root.iterdir()) == ["shakespeare.fedmpi.h5", *stays]


def test_messages_name_the_users_own_archive(run_data: RunData, tmp_path: Path, told: Told) -> None:
    """Not the folder that it was unpacked in, which is gone after a failure, too."""
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("deep/input.txt", "no speaker")
    code, _, error = run_data("prepare", "shakespeare", "--from", archive, "--data-dir", tmp_path / "d")
    assert code == 2 and not any((tmp_path / "d").iterdir())
    told(error)


def test_the_place_of_the_file_is_tried_before_anything_is_decoded(
    run_data: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(registry.options("data", "imdb"), "prepare", decode)
    (tmp_path / "file").touch()
    (tmp_path / "imdb.fedmpi.h5").mkdir()
    for folder, named in (("file", "cannot be written"), (".", "a folder has that name")):
        code, _, error = run_data("prepare", "imdb", "--from", tmp_path, "--data-dir", tmp_path / folder)
        assert code == 2 and named in error and error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "imdb.fedmpi.h5"]


def test_a_config_says_what_is_prepared(run_data: RunData, no_network: None, tmp_path: Path) -> None:
    config, play = tmp_path / "c.yaml", tmp_path / "tinyshakespeare" / "input.txt"
    play.parent.mkdir()
    play.write_text(TEXT)
    config.write_text(json.dumps({"data": {"name": "shakespeare", "test_share": 0.3}, "model": {"name": "lstm_char"}}))
    code, _out, error = run_data("prepare", config, "data.length=20", "--data-dir", tmp_path)
    assert code == 0 and (tmp_path / "shakespeare-length=20-test_share=0.3.fedmpi.h5").is_file(), error
    assert run_data("prepare", tmp_path / "no.yaml")[0] == 2


def test_where_the_originals_are_only_preparing_is_named(tmp_path: Path) -> None:
    options = registry.options("data", "imdb")(root=str(tmp_path), split="three_quarters")
    with pytest.raises(DataError, match="fetch imdb"):
        load_data(options)
    (tmp_path / "aclImdb_v1.tar.gz").touch()
    with pytest.raises(DataError) as caught:
        load_data(options)
    assert "fetch" not in str(caught.value) and "prepare imdb data.split=three_quarters" in str(caught.value)


def test_shapes_are_checked_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts may differ from the complete files, shapes may not."""
    options = registry.options("data", "har")(root=str(tmp_path))
    labels = np.zeros(3, np.int64)

    def decode(features: int) -> Dataset:
        x = np.zeros((3, features), np.float32)
        monkeypatch.setattr(type(options), "prepare", lambda *_: Dataset(x, labels, x, labels, labels, labels))
        return prepare.prepare(options, tmp_path)

    with pytest.raises(DataError, match=r"\(3, 5\), expected float32 \(3, 768\)"):
        decode(5)
    assert list(tmp_path.iterdir()) == []
    dataset = decode(768)
    assert [path.name for path in tmp_path.iterdir()] == ["har.fedmpi.h5"]
    with pytest.raises(DataError, match="expected"):
        load_data(options)
    other = prepare.other_counts(options, dataset)
    assert other == ["data.num_train=3", "data.num_test=3", "data.num_groups=1"]
