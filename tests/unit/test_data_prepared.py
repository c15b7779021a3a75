"""Prepared files: every form of the originals, what is tried first, what is checked, and what mistakes leave behind."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_fixtures import RunData, refusal
from small_data import GROUPS, TEST, TRAIN, dataset, options_in

from fedmpi import registry
from fedmpi.data import files
from fedmpi.data.dataset import check, digest_of, load_data
from fedmpi.data.sets.har import Har
from fedmpi.data.sets.leaf import Shakespeare

X = dataset().train_x


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("train_x", X.astype(np.float64), "are float64 (20, 768), expected float32"),
        ("train_x", np.repeat(X, 3, axis=0), "are float32 (60, 768), expected float32 (20, 768)"),
        ("train_x", np.where(X == 7, np.nan, X), "training examples have values that are no finite"),
        ("test_y", np.full(TEST, 6), "test targets reach from 6 to 6, expected 0 to 5"),
        ("groups", None, "there are no training groups"),
        ("test_groups", None, "there are no test groups"),
        ("groups", np.arange(TRAIN) % 4 - 1, "training groups reach from -1 to 2, expected 0 to 3"),
        ("groups", np.arange(TRAIN) % 3, "the training examples come from 3 groups, expected 4"),
        ("test_groups", np.arange(TEST) % 4 - 1, "test groups reach from -1 to 2, expected 0 to 3"),
    ],
)
def test_each_array_is_checked(name: str, values: np.ndarray | None, problem: str) -> None:
    changed = replace(dataset(), **{name: values})
    info = replace(Har().complete(), num_train=TRAIN, num_test=TEST, num_groups=GROUPS)
    assert problem in refusal(lambda: check("here", changed, info))


TEXT = "".join(f"{name}:\n{'To be or not to be, that is a question. ' * 40}\n\n" for name in ("First", "Second"))


@pytest.mark.parametrize("form", ["folder", "archive", "text", "below root"])
def test_prepare_takes_every_form(run_data: RunData, no_network: None, tmp_path: Path, form: str) -> None:
    """The counts of a prepared file are those of the data set, which a config may name."""
    root, text = tmp_path / "d", tmp_path / "from" / "input.txt"
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps({"data": {"name": "shakespeare"}, "model": {"name": "lstm_char"}}))
    if "root" in form:
        text = root / "tinyshakespeare" / "input.txt"
    text.parent.mkdir(parents=True)
    text.write_text(TEXT)
    given = text if form == "text" else text.parent
    if form == "archive":
        given = tmp_path / "a.bin"
        with zipfile.ZipFile(given, "w") as file:
            file.write(text, "deep/input.txt")
    words = [] if "root" in form else ["--from", given]
    code, out, error = run_data("prepare", config if form == "text" else "shakespeare", f"data.root={root}", *words)
    assert (code, error) == (0, ""), error
    assert "240 to train, 48 to test, 2 groups" in out
    options = Shakespeare(root=str(root))
    assert (options.info().num_train, options.info().num_groups, len(load_data(options).test_y)) == (240, 2, 48)
    stays = ["tinyshakespeare"] if "root" in form else []
    assert sorted(path.name for path in root.iterdir()) == ["shakespeare.fedmpi.h5", *stays]


def test_the_place_of_the_file_is_tried_before_anything_is_decoded(
    run_data: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.options("data", "imdb"), "prepare", lambda *_: pytest.fail("decoded"))
    (tmp_path / "file").touch()
    code, _, error = run_data("prepare", "imdb", "--from", tmp_path, f"data.root={tmp_path}/file")
    assert code == 2 and "cannot be written" in error and error.count("\n") == 1


def test_where_the_originals_are_only_preparing_is_named(tmp_path: Path) -> None:
    options = registry.options("data", "imdb")(root=str(tmp_path), split="three_quarters")
    assert "fetch imdb" in refusal(lambda: load_data(options))
    (tmp_path / "aclImdb_v1.tar.gz").touch()
    line = refusal(lambda: load_data(options))
    assert "fetch" not in line and "prepare imdb data.split=three_quarters" in line


def test_arrays_are_checked_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_in(tmp_path)
    monkeypatch.setattr(Har, "prepare", lambda *_: replace(dataset(), train_x=X[:, :5]))
    assert "(20, 5), expected float32 (20, 768)" in refusal(files.prepare, options, tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(Har, "prepare", lambda *_: dataset())
    files.prepare(options, tmp_path)
    assert load_data(options).digest == digest_of(dataset().arrays)
