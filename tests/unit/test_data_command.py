"""`fedmpi data`: its words, what it prints, by hand, too, its exit codes; a run itself never opens a socket."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from data_fixtures import FETCHED, RunData, refusal
from golden_file import Told

from fedmpi import registry
from fedmpi.data import command as data_command
from fedmpi.data import files, partition
from fedmpi.data.dataset import load_data
from fedmpi.data.partition import Partition
from fedmpi.data.sets.digits import Digits


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """File name -> content, which every download gets instead of the network."""
    contents: dict[str, bytes] = {}

    def load(path: str, data_dir: Path, *, force: bool = False) -> None:
        (data_dir / path).parent.mkdir(parents=True, exist_ok=True)
        (data_dir / path).write_bytes(contents[path])

    monkeypatch.setattr(files, "fetch", load)
    return contents


MISTAKES = [
    ([], "list | fetch"),
    (["fetch"], "required: NAME | CONFIG.yaml;"),
    (["fetch", "no.yaml"], "no.yaml: no such file"),
    (["fetch", "cifar"], "data.name  no data 'cifar'. Did you mean 'cifar10'? Known names: digits,"),
    (["fetch", "har", "data.form=x"], "data.form  Input should be 'windows' or 'features', got 'x'"),
    (["fetch", "har", "data.from=windows"], "data.from  no such key. Did you mean 'data.form'?"),
    (["fetch", "har", "form=windows"], "form  no such key. Did you mean 'data.form'?"),
    (["fetch", "mnist", "--from", "x"], "'--from'"),
    (["prepare", "imdb", "data.root=.", "--from", "/no/such/place"], "/no/such/place: no such file or folder"),
    (["show", "a.yaml", "b.yaml"], "one config, or none, is allowed, got a.yaml, b.yaml"),
]


@pytest.mark.parametrize(("argv", "named"), MISTAKES, ids=lambda value: " ".join(value) if type(value) is list else "")
def test_a_mistake_is_one_line(run_data: RunData, no_network: None, argv: list[str], named: str) -> None:
    code, _, error = run_data(*argv)
    assert code == 2 and named in error and error.count("\n") == 1 and "Traceback" not in error


@pytest.mark.parametrize("name", FETCHED)
def test_reading_names_the_command_and_opens_no_socket(name: str, no_network: None, tmp_path: Path, told: Told) -> None:
    told(refusal(lambda: load_data(registry.options("data", name)(root=str(tmp_path)))))


def test_list_says_what_is_there(run_data: RunData, no_network: None, tmp_path: Path) -> None:
    def state(name: str) -> str:
        code, out, _ = run_data("list", f"data.root={tmp_path}")
        assert code == 0 and [line.split()[0] for line in out.splitlines()[1:]] == list(registry.BUILT_IN["data"])
        return next(line[16:42].strip() for line in out.splitlines() if line.startswith(f"  {name} "))

    assert (state("digits"), state("cifar10"), state("imdb")) == ("needs no files", "to fetch", "to fetch")
    (tmp_path / "cifar-10-python.tar.gz").touch()
    assert state("cifar10") == "to fetch", "a run reads the unpacked files"
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "aclImdb_v1.tar.gz").touch()
    assert state("cifar10") == "ready" and state("imdb").startswith("here")
    (tmp_path / "imdb.fedmpi.h5").touch()
    assert state("imdb") == "ready"


def test_fetch_unpacks_what_a_run_reads_unpacked(run_data: RunData, served: dict[str, bytes], tmp_path: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as file:
        file.add(__file__, "cifar-10-batches-py/data_batch_1")
    served["cifar-10-python.tar.gz"] = archive.getvalue()
    batch = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    code, out, _ = run_data("fetch", "cifar10", f"data.root={tmp_path}")
    assert code == 0 and batch.is_file() and "checksum right" in out
    code, out, _ = run_data("fetch", "cifar10", f"data.root={tmp_path}")
    assert code == 0 and "there already; --force loads it again" in out
    batch.write_bytes(b"damaged")
    code, out, _ = run_data("fetch", "cifar10", "--force", f"data.root={tmp_path}")
    assert code == 0 and batch.read_bytes() == Path(__file__).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cifar-10-batches-py", "cifar-10-python.tar.gz"]


def test_fetch_says_what_comes_next(run_data: RunData, served: dict[str, bytes], tmp_path: Path, told: Told) -> None:
    served["har-240.zip"] = b"PK"
    code, out, _ = run_data("fetch", "har", "data.form=features", f"data.root={tmp_path}")
    assert code == 0 and f"prepare har data.form=features data.root={tmp_path}" in out.splitlines()[-1]
    code, out, error = run_data("fetch", "shakespeare", "data.form=leaf", f"data.root={tmp_path}")
    assert code == 2 and "README.md says how to make them" in error
    code, out, error = run_data("fetch", "digits")
    assert (code, error) == (0, "")
    told(out)


def test_show_divides_as_a_run_would(run_data: RunData, no_network: None) -> None:
    """Digits: 1,437 to train, cut into 7 slices of 205 or 206; the same words as `fedmpi.main` takes."""
    words = ["partition.name=iid", "clients.count=7", "clients.per_round=2"]
    code, out, _ = run_data("show", *words)
    assert code == 0 and "1,437 of 1,437" in out and "205 to 206" in out
    assert f"data  {load_data(Digits()).digest}\n" in out


# Client 0 has classes 0 0 1, client 1 class 2, client 2 nothing, client 3 classes 1 1; example 6 is nobody's.
LABELS = np.array([0, 0, 1, 2, 1, 1, 2])
PARTITION = Partition(np.arange(6), np.array([0, 3, 4, 4, 6]))
COUNTS = [[2, 1, 0], [0, 0, 1], [0, 0, 0], [0, 2, 0]]


def test_class_counts_by_hand() -> None:
    assert partition.class_counts(PARTITION, LABELS, 3).tolist() == COUNTS


def test_table_by_hand() -> None:
    """Sizes 3 1 0 2, classes for each client 2 1 0 1, of the classes 2 3 1."""
    lines = data_command.table(PARTITION, LABELS, 3).splitlines()
    assert [line.split(maxsplit=1)[0] for line in lines[:2]] == ["clients", "examples"]
    expected = ["4", "6 of 7 in use", "0 to 3, median 1.5", "0 to 2, median 1", "1 to 3, median 2"]
    assert [line[20:] for line in lines] == expected


def test_shares_are_sorted_by_favourite_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Favourites 0 (two thirds), 2, none, 1: columns are clients 0, 3, 1; of two columns the first and the last."""
    assert np.allclose(partition.sorted_shares(np.array(COUNTS)), [[2 / 3, 1 / 3, 0], [0, 1, 0], [0, 0, 1]])
    monkeypatch.setattr(partition, "MAX_COLUMNS", 2)
    assert np.allclose(partition.sorted_shares(np.array(COUNTS)), [[2 / 3, 1 / 3, 0], [0, 0, 1]])
