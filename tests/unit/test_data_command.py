"""`python -m fedmpi.data`: its words, what it prints, its exit codes; and that a run itself never opens a socket."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_fixtures import pickle_as_python2

from fedmpi import data, data_command
from fedmpi.data import fetching, prepared, preparing, sources
from fedmpi.data.dataset import Dataset
from fedmpi.data.sources import SOURCES
from fedmpi.errors import DataError

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process: exit code, stdout, stderr."""

    def command(*argv: object) -> tuple[int, str, str]:
        code = data_command.main([str(word) for word in argv])
        return code, *capsys.readouterr()

    return command


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("opened a socket")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """File name -> content, which every download gets instead of the network."""
    contents: dict[str, bytes] = {}

    def load(file: sources.File, data_dir: Path, tell: Any, *, force: bool = False) -> bool:
        target = data_dir / file.path
        if target.is_file() and not force:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(contents[target.name])
        return True

    monkeypatch.setattr(fetching, "fetch", load)
    return contents


def tar_gz(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


# ---- mistakes


MISTAKES = [
    ([], "list | fetch"),
    (["load"], "load"),
    (["fetch"], "NAME"),
    (["fetch", "cifar"], "no data set 'cifar'. Did you mean 'cifar10'? Known names: digits,"),
    (["fetch", "har", "data.form=x"], "data.form  expected one of 'windows', 'features', got 'x'"),
    (["fetch", "har", "data.from=windows"], "data.from  no such key. Did you mean 'form'?"),
    (["fetch", "har", "form=windows"], "expected data.key=value, got 'form=windows'"),
    (["fetch", "har", "windows"], "expected data.key=value, got 'windows'"),
    (["fetch", "har", "data.form=[1"], "data.form=[1"),
    (["fetch", "mnist", "--from", "x"], "'--from'"),
    (["list", "mnist"], "'mnist'"),
    (["prepare", "har", "--force"], "'--force'"),
    (["prepare", "imdb", "--from", "/no/such/place"], "/no/such/place: no such file or folder"),
    (["show", "a.yaml", "b.yaml"], "one config, or none, is allowed, got a.yaml, b.yaml"),
    (["show", "data.name=har", "rounds=x"], "rounds  expected"),
    (["show", "--out", "no/such/folder/x.png"], "--out no/such/folder/x.png: cannot be drawn"),
]


@pytest.mark.parametrize(("argv", "named"), MISTAKES, ids=lambda value: " ".join(value) if type(value) is list else "")
def test_a_mistake_is_one_line(run: Run, no_network: None, argv: list[str], named: str) -> None:
    code, _, error = run(*argv)
    assert code == 2 and named in error and error.count("\n") == 1 and "Traceback" not in error


def test_words_and_options_in_any_order(run: Run, no_network: None, tmp_path: Path) -> None:
    for argv in (
        ["prepare", "har", "data.form=features", "--data-dir", tmp_path],
        ["prepare", "--data-dir", tmp_path, "har", "data.form=features"],
        ["prepare", "har", "--data-dir", tmp_path, "data.form=features"],
    ):
        code, _, error = run(*argv)
        assert code == 2 and "fetch har data.form=features --data-dir" in error


# ---- a run


@pytest.mark.parametrize("name", SOURCES)
def test_reading_names_the_command_and_opens_no_socket(name: str, no_network: None, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        data.load(data.NAMES[name].options(root=str(tmp_path)))
    line = str(caught.value)
    assert f"`python -m fedmpi.data fetch {name} --data-dir {tmp_path}`, where there is a network" in line
    assert "\n" not in line


def test_a_run_without_its_data_ends_with_one_line(tmp_path: Path) -> None:
    """In a process of its own, in which every socket that Python opens is an event on stderr."""
    script = (
        "import runpy, sys\n"
        "sys.addaudithook(lambda event, _: event.startswith('socket.') and print(event, file=sys.stderr))\n"
        "runpy.run_module('fedmpi.main', run_name='__main__')"
    )
    overrides = ["data.name=cifar10", f"data.root={tmp_path}", f"output.dir={tmp_path / 'runs'}"]
    argv = [sys.executable, "-c", script, *overrides]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"python -m fedmpi.data fetch cifar10 --data-dir {tmp_path}" in done.stderr
    assert list(tmp_path.iterdir()) == []


# ---- list, fetch


def test_list_says_what_is_there(run: Run, no_network: None, tmp_path: Path) -> None:
    def state(name: str) -> str:
        code, out, _ = run("list", "--data-dir", tmp_path)
        assert code == 0 and [line.split()[0] for line in out.splitlines()[1:]] == list(data.NAMES)
        return next(line[16:42].strip() for line in out.splitlines() if line.startswith(f"  {name} "))

    assert (state("digits"), state("cifar10"), state("imdb")) == (
        "needs no files", "to fetch (170.50 MB)", "to fetch (84.13 MB)")  # fmt: skip
    (tmp_path / "cifar-10-python.tar.gz").touch()
    assert state("cifar10") == "to fetch (170.50 MB)", "a run reads the unpacked files"
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "aclImdb_v1.tar.gz").touch()
    assert (state("cifar10"), state("imdb")) == ("ready", "here, to be prepared")
    (tmp_path / "imdb.fedmpi.h5").touch()
    assert state("imdb") == "ready"


def test_fetch_unpacks_what_a_run_reads_unpacked(run: Run, served: dict[str, bytes], tmp_path: Path) -> None:
    served["cifar-10-python.tar.gz"] = tar_gz(data_batch_1=pickle_as_python2({"one": 1}))
    batch = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    code, out, _ = run("fetch", "cifar10", "--data-dir", tmp_path)
    assert code == 0 and batch.is_file() and "sha256 right" in out and "cifar.html" in out
    code, out, _ = run("fetch", "cifar10", "--data-dir", tmp_path)
    assert code == 0 and "there already; --force loads it again" in out
    batch.write_bytes(b"damaged")
    code, out, _ = run("fetch", "cifar10", "--force", "--data-dir", tmp_path)
    assert code == 0 and batch.read_bytes() == pickle_as_python2({"one": 1})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cifar-10-batches-py", "cifar-10-python.tar.gz"]


def test_fetch_says_what_comes_next(run: Run, served: dict[str, bytes], tmp_path: Path) -> None:
    served["har-240.zip"] = b"PK"
    code, out, _ = run("fetch", "har", "data.form=features", "--data-dir", tmp_path)
    assert code == 0 and f'prepare har data.form="features" --data-dir {tmp_path}' in out.splitlines()[-1]
    code, out, error = run("fetch", "shakespeare", "data.form=leaf", "--data-dir", tmp_path)
    assert code == 2 and "preprocess.sh" in out and "cannot be downloaded" in error
    assert run("fetch", "digits") == (0, "digits needs no files\n", "")


def test_a_file_without_a_checksum_is_told(
    run: Run, served: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCES["shakespeare"]
    without = replace(source, files=(replace(source.files[0], checksum=""),))
    monkeypatch.setitem(SOURCES, "shakespeare", without)  # type: ignore[arg-type]
    served["input.txt"] = b"text"
    assert "no published checksum" in run("fetch", "shakespeare", "--data-dir", tmp_path)[1]


def test_a_network_that_fails_is_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise fetching.DownloadError("here", "not loaded")

    monkeypatch.setattr(fetching, "fetch", fail)
    assert run("fetch", "mnist", "--data-dir", tmp_path)[::2] == (1, "here: not loaded\n")


def test_ctrl_c_says_what_is_kept(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop(file: sources.File, data_dir: Path, *_: object, **__: object) -> None:
        (data_dir / f"{file.path}.part").write_bytes(bytes(1234))
        raise KeyboardInterrupt

    monkeypatch.setattr(fetching, "fetch", stop)
    code, _, error = run("fetch", "imdb", "--data-dir", tmp_path)
    assert code == 130 and f"1,234 bytes are kept in {tmp_path / 'aclImdb_v1.tar.gz.part'}; the same command" in error


# ---- prepare


TEXT = "".join(f"{name}:\n{'To be or not to be, that is a question. ' * 40}\n\n" for name in ("First", "Second"))


@pytest.mark.parametrize("form", ["folder", "zip", "tar", "text", "below root", "unpacked below root"])
def test_prepare_takes_every_form(run: Run, no_network: None, tmp_path: Path, form: str) -> None:
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
    code, out, error = run("prepare", "shakespeare", "--data-dir", root, *words)
    assert (code, error) == (0, ""), error
    assert "2 groups" in out and "a config needs data.num_train=" in out
    counts = [word for word in out.split() if word.startswith("data.num_")]
    options = data_command.data_options("shakespeare", counts, str(root))
    assert len(data.load(options).train_y) == options.num_train > 0
    stays = ["tinyshakespeare"] if "root" in form else []
    assert sorted(path.name for path in root.iterdir()) == ["shakespeare.fedmpi.h5", *stays]


def test_unpacked_originals_are_found_before_the_archive(tmp_path: Path) -> None:
    options = data.NAMES["femnist"].options(root=str(tmp_path))
    for name in ("fed_emnist_train.h5", "fed_emnist.tar.bz2"):
        (tmp_path / name).touch()
    with preparing.originals(options, None, lambda *_: None, tmp_path) as folder:
        assert folder == tmp_path


def test_an_archive_is_gone_after_a_failure_too(run: Run, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("other.txt", "x")
    code, _, error = run("prepare", "shakespeare", "--from", tmp_path / "a.zip", "--data-dir", tmp_path / "d",
                         "--unpack-in", tmp_path / "memory")  # fmt: skip
    assert code == 2 and "expected one input.txt" in error
    assert list((tmp_path / "memory").iterdir()) == [] and not (tmp_path / "d").exists()


def test_shapes_are_checked_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts may differ from the complete files, shapes may not."""
    options = data.NAMES["har"].options(root=str(tmp_path))
    labels = np.zeros(3, np.int64)

    def decode(features: int) -> None:
        x = np.zeros((3, features), np.float32)
        monkeypatch.setitem(preparing.PREPARERS, "har", lambda *_: Dataset(x, labels, x, labels, labels, labels))
        preparing.prepare(options, tmp_path, lambda *_: None, lambda *_: None)

    with pytest.raises(DataError, match=r"\(3, 5\), expected float32 \(3, 768\)"):
        decode(5)
    assert list(tmp_path.iterdir()) == []
    decode(768)
    assert [path.name for path in tmp_path.iterdir()] == ["har.fedmpi.h5"]
    with pytest.raises(DataError, match="expected"):
        data.load(options)
    other = preparing.other_counts(options.info(), prepared.read(options))
    assert other == ["data.num_train=3", "data.num_test=3", "data.num_groups=1"]


def test_what_is_read_as_distributed_needs_no_preparing(run: Run) -> None:
    assert run("prepare", "cifar10") == (0, "cifar10 is read as it is: nothing to prepare\n", "")


# ---- show


def test_show_divides_as_a_run_would(run: Run, no_network: None, tmp_path: Path) -> None:
    """Digits: 1,437 to train, cut into 7 slices of 205 or 206; the same words as `fedmpi.main` takes."""
    code, out, _ = run("show", "partition.name=iid", "clients.count=7", "clients.per_round=2", "--data-dir", tmp_path,
                       "--out", tmp_path / "x.png")  # fmt: skip
    assert code == 0 and "1,437 of 1,437" in out and "205 to 206" in out and f"drawn: {tmp_path / 'x.png'}" in out
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_show_reads_a_config_and_the_data_folder(run: Run, no_network: None, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(json.dumps({"data": {"name": "cifar10"}}))
    code, _, error = run("show", config, "--data-dir", tmp_path / "d")
    assert code == 2 and f"data.root={tmp_path / 'd'}" in error and "fetch cifar10" in error


# ---- the process


def test_the_command_as_a_process_loads_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import atexit, runpy, sys\n"
        "heavy = {'torch', 'numpy', 'h5py', 'mpi4py', 'urllib.request'}\n"
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules))))\n"
        "sys.argv = ['fedmpi.data', 'list', '--data-dir', sys.argv[1]]\n"
        "runpy.run_module('fedmpi.data', run_name='__main__')"
    )
    argv = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[]"), done.stderr
