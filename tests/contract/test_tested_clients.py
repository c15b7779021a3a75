"""A choice of clients is tested (`evaluation.clients`), and only those that trained leave something on disk."""

from pathlib import Path

import numpy as np
import pytest
from small_runs import finished, run_all, small_config, small_setup

from fedmpi.errors import UserError
from fedmpi.mpi.serial import SerialComm

WORDS = ("method.name=lgfedavg", "clients.count=12", "clients.per_round=2", "rounds=2", "output.progress=off")


def test_the_same_clients_in_every_round_with_the_same_scores(tmp_path: Path) -> None:
    """3 of 12: the records count them, and each scores what it scores where all are tested."""
    scores = {}
    for asked in (0, 3):
        folder = tmp_path / str(asked)
        run_all(small_config(*WORDS, f"evaluation.clients={asked}"), SerialComm(), folder)
        lines = (folder / "report" / "clients.csv").read_text().splitlines()[1:]
        scores[asked] = dict(line.split(",") for line in lines)
    records = finished(tmp_path / "3").records
    assert [record["clients"]["clients"] for record in records] == [3, 3]
    assert [record["clients"]["without_test_data"] for record in records] == [0, 0]
    assert len(scores[3]) == 3 and scores[3].items() <= scores[0].items() and len(scores[0]) > 3


def test_only_who_trained_has_files(tmp_path: Path) -> None:
    run_all(small_config(*WORDS), SerialComm(), tmp_path)
    trained = {client for record in finished(tmp_path).records for client in record["cohort"]}
    found = {int(folder.name) for folder in (tmp_path / "memory").glob("*/*")}
    assert found == trained and len(found) < 12


def test_those_without_test_data_are_counted(tmp_path: Path) -> None:
    """12 clients and 5 test examples, each of which is one client's: 5 or fewer can be tested of the 8 asked for."""
    setup = small_setup(tmp_path, *WORDS, "data.num_test=5", "evaluation.clients=8")
    num_tested = int(np.count_nonzero(setup.personal_tests.sizes))
    assert 0 < num_tested <= 5
    run_all(small_config(*WORDS, "data.num_test=5", "evaluation.clients=8"), SerialComm(), tmp_path / "run")
    assert finished(tmp_path / "run").records[-1]["clients"]["without_test_data"] == 8 - num_tested


def test_nobody_with_test_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedmpi.data.partition import Partition
    from fedmpi.rounds import evaluate

    nothing = Partition(np.empty(0, np.int64), np.zeros(13, np.int64))
    monkeypatch.setattr(evaluate, "personal_tests", lambda *arguments: nothing)
    with pytest.raises(UserError, match="evaluation.personal_test.*no client has a test example"):
        small_setup(tmp_path, *WORDS)
