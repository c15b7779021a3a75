"""`fedmpi data prepare`: every form of the originals, what is tried first, and what mistakes leave behind."""

import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_fixtures import RunData
from golden_file import Told

from fedmpi import registry
from fedmpi.data import command as data_command
from fedmpi.data import prepare
from fedmpi.data.dataset import Dataset, load_data
from fedmpi.errors import DataError

TEXT = "".join(f"{name}:\n{'To be or not to be, that is a question. ' * 40}\n\n" for name in ("First", "Second"))


@pytest.mark.parametrize("form", ["folder", "zip", "tar", "text", "below root", "unpacked below root"])
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
    if form == "tar":
        given = tmp_path / "b.bin"
        with tarfile.open(given, "w:xz") as tar:
            tar.add(text, "deep/input.txt")
    words = [] if "root" in form else ["--from", given]
    code, out, error = run_data("prepare", "shakespeare", "--data-dir", root, *words)
    assert (code, error) == (0, ""), error
    assert "2 groups" in out and "a config needs data.num_train=" in out
    counts = [word for word in out.split() if word.startswith("data.num_")]
    options = data_command.data_options("shakespeare", counts, str(root))
    assert len(load_data(options).train_y) == options.num_train > 0
    stays = ["tinyshakespeare"] if "root" in form else []
    assert sorted(path.name for path in root.iterdir()) == ["shakespeare.fedmpi.h5", *stays]


def test_unpacked_originals_are_found_before_the_archive(tmp_path: Path) -> None:
    options = registry.options("data", "femnist")(root=str(tmp_path))
    for name in ("fed_emnist_train.h5", "fed_emnist.tar.bz2"):
        (tmp_path / name).touch()
    assert prepare._find(options) == tmp_path
    (tmp_path / "fed_emnist_train.h5").unlink()
    assert prepare._find(options) == tmp_path / "fed_emnist.tar.bz2"


@pytest.mark.parametrize("what", ["text", "archive"])
def test_messages_name_the_users_own_file(run_data: RunData, tmp_path: Path, what: str, told: Told) -> None:
    """Not the folder that the archive was unpacked in, which is gone after a failure, too."""
    text, archive, memory = tmp_path / "input.txt", tmp_path / "a.zip", tmp_path / "memory"
    given = text if what == "text" else archive
    memory.mkdir()

    def refused() -> str:
        words = ["--from", given, "--data-dir", tmp_path / "d" / "e", "--unpack-in", memory]
        code, _, error = run_data("prepare", "shakespeare", *words)
        assert code == 2 and not any(memory.iterdir())
        return error

    text.write_text("no speaker")
    with zipfile.ZipFile(archive, "w") as file:
        file.write(text, "deep/input.txt")
    told(refused())
    text.write_text("Short:\nNot enough.")
    with zipfile.ZipFile(archive, "w") as file:
        for place in ("a/input.txt", "b/input.txt"):
            file.write(text, place)
    line = refused()
    assert line.startswith(f"{given}: ")
    assert what == "text" or f"2 of them ({archive}/a/input.txt, {archive}/b/input.txt)" in line


def test_the_place_of_the_file_is_tried_before_anything_is_decoded(
    run_data: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(registry.options("data", "imdb"), "prepare", decode)
    (tmp_path / "file").touch()
    (tmp_path / "imdb.fedmpi.h5").mkdir()
    for folder, named in (("file", "is not a folder"), ("file/x", "Not a directory"), (".", "a folder has that name")):
        code, _, error = run_data("prepare", "imdb", "--from", tmp_path, "--data-dir", tmp_path / folder)
        assert code == 2 and named in error and error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "imdb.fedmpi.h5"]


def test_a_file_that_cannot_be_written_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = registry.options("data", "imdb")(root=str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot be written"):
        prepare.save(options, Dataset(*[np.zeros(1)] * 4))


def test_a_config_says_what_is_prepared(run_data: RunData, no_network: None, tmp_path: Path) -> None:
    config, play = tmp_path / "c.yaml", tmp_path / "tinyshakespeare" / "input.txt"
    play.parent.mkdir()
    play.write_text(TEXT)
    config.write_text(json.dumps({"data": {"name": "shakespeare", "stride": 7}, "model": {"name": "lstm_char"}}))
    code, _out, error = run_data("prepare", config, "data.length=20", "--data-dir", tmp_path)
    assert code == 0 and (tmp_path / "shakespeare-length=20-stride=7.fedmpi.h5").is_file(), error
    assert run_data("prepare", tmp_path / "no.yaml")[0] == 2


def test_where_the_originals_are_only_preparing_is_named(tmp_path: Path) -> None:
    options = registry.options("data", "imdb")(root=str(tmp_path), split="three_quarters")
    with pytest.raises(DataError, match="fetch imdb"):
        load_data(options)
    (tmp_path / "aclImdb_v1.tar.gz").touch()
    with pytest.raises(DataError) as caught:
        load_data(options)
    assert "fetch" not in str(caught.value) and 'prepare imdb data.split="three_quarters"' in str(caught.value)


def test_shapes_are_checked_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts may differ from the complete files, shapes may not."""
    options = registry.options("data", "har")(root=str(tmp_path))
    labels = np.zeros(3, np.int64)

    def decode(features: int) -> Dataset:
        x = np.zeros((3, features), np.float32)
        monkeypatch.setattr(type(options), "prepare", lambda *_: Dataset(x, labels, x, labels, labels, labels))
        return prepare.prepare(options, tmp_path, lambda *_: None, lambda *_: None)[1]

    with pytest.raises(DataError, match=r"\(3, 5\), expected float32 \(3, 768\)"):
        decode(5)
    assert list(tmp_path.iterdir()) == []
    dataset = decode(768)
    assert [path.name for path in tmp_path.iterdir()] == ["har.fedmpi.h5"]
    with pytest.raises(DataError, match="expected"):
        load_data(options)
    other = prepare.other_counts(options, dataset)
    assert other == ["data.num_train=3", "data.num_test=3", "data.num_groups=1"]


def test_what_is_read_as_distributed_needs_no_preparing(run_data: RunData, told: Told) -> None:
    code, out, error = run_data("prepare", "cifar10")
    assert (code, error) == (0, "")
    told(out)
