"""The reader of a run's folder: its numbers are the files' own; whether it is finished, and what it is doing."""

import json
import os
import re
from pathlib import Path

import pytest
from data_fixtures import refusal
from small_runs import small_config
from written_runs import a_run

import fedmpi
from fedmpi.mpi.communicator import SerialComm
from fedmpi.results.run import Run, read_runs
from fedmpi.running.folder import RunRequest
from fedmpi.running.stopping import Stopping
from fedmpi.store import manifest
from fedmpi.store.lock import STALE_AFTER_S, RunLock
from fedmpi.store.run_dir import RunDir


def test_numbers_are_the_files_own(tmp_path: Path) -> None:
    run = Run(a_run(tmp_path / "run", [{"1": 0.25, "0.5": 0.5}, {"1": 0.75, "clients": 0.5}], rounds=5))
    assert (run.num_rounds, run.seed, run.done, run.is_finished) == (5, 0, 2, False)
    assert run.tested == ["clients", "1", "0.5"]
    assert run.seconds == {"local_training": 4.0, "idle": 2.0, "other": 1.0}
    assert [row["name"] for row in run.nets] == ["1", "0.5"]
    assert (run.best.best["0.5"], run.best.best_round["1"]) == (0.5, 2)


def test_a_run_is_finished_when_all_rounds_are_on_record_and_its_report_is_written(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", [{"1": 0.5}] * 2)
    assert Run(path).is_finished and Run(path).state == "finished"
    (path / "config.yaml").write_text((path / "config.yaml").read_text().replace("rounds: 2", "rounds: 3"))
    assert not Run(path).is_finished
    (path / "config.yaml").write_text((path / "config.yaml").read_text().replace("rounds: 3", "rounds: 2"))
    (path / "report" / "summary.json").unlink()
    assert not Run(path).is_finished and Run(path).state == "interrupted"
    assert not Run(tmp_path / "nowhere").is_finished


def test_made_with_is_of_the_last_start_that_did_rounds(tmp_path: Path) -> None:
    run = RunDir(a_run(tmp_path / "run", [{"1": 0.5}] * 3))
    made = {"git": "abc", "versions": {"torch": "2"}, "platform": "here"}
    code = {"model": {"digest": "12", "file": "/home/me/net.py"}}
    manifest.add_start(run, **made, data_digest="ff", brought=code)
    manifest.add_start(run, git="later", resumed_round=3)
    assert Run(run.path).made_with == {**made, "brought": {"model": {"digest": "12"}}}
    assert Run(run.path).noted("data_digest") == "ff"


@pytest.mark.parametrize("config", ["x: [", "rounds: x", "- 1"])
def test_a_damaged_config_is_one_error_and_harms_no_other_run(tmp_path: Path, config: str) -> None:
    for name in ("good", "damaged"):
        a_run(tmp_path / name, [{"1": 0.5}])
    path = tmp_path / "damaged" / "config.yaml"
    path.write_text(config)
    assert str(path) in refusal(lambda: Run(path.parent).values)
    (run,), (line,) = read_runs([tmp_path])
    assert run.name == "good" and str(path) in line


def test_a_folder_stands_for_its_runs(tmp_path: Path) -> None:
    """One that has not done a round is left out, with a line; where none has, an error counts them."""
    for name in ("a", "deep/b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        a_run(tmp_path / name, [{"1": 0.5}])
    a_run(tmp_path / "young", [], rounds=3)
    runs, left_out = read_runs([tmp_path])
    assert [run.name for run in runs] == ["a", "b"]
    assert left_out == ["left out: young was interrupted, and has no round"]
    (tmp_path / "others").mkdir()
    for number in range(2):
        a_run(tmp_path / "others" / f"young{number}", [], rounds=3)
    assert re.search("others: young0 .*; and 1 more$", refusal(read_runs, [tmp_path / "others"]))


class StopsAfter(Stopping):
    """Asks to stop after so many rounds."""

    def __init__(self, rounds: int) -> None:
        super().__init__(0.0)
        self._rounds = rounds

    def vote(self, round_s: float) -> int:
        super().vote(round_s)
        self._rounds -= 1
        return int(self._rounds == 0)


@pytest.fixture
def stopped(tmp_path: Path) -> RunDir:
    """A run of three rounds that stopped after two."""
    from fedmpi.experiment import run

    config = small_config("method.name=fedavg", "output.checkpoint_every=9")
    folder = tmp_path / "runs" / "a"
    assert run(config, SerialComm(), RunRequest(str(folder)), stopping=StopsAfter(2)) is False
    return RunDir(folder)


def test_a_run_that_is_to_go_on(stopped: RunDir) -> None:
    run = Run(stopped.path)
    assert (run.state, len(run.starts), run.continues_after, run.num_rounds) == ("stopped", 1, 2, 3)
    with RunLock(stopped):
        assert Run(stopped.path).state == "running"
    assert Run(stopped.path).state == "stopped"


def test_what_is_saved_counts_where_less_is_saved_than_done(stopped: RunDir) -> None:
    """Killed between a round's record and its checkpoint: a resume continues after the round before."""
    record = json.loads(stopped.records_path.read_text().splitlines()[0])
    lines = (json.dumps(record | {"round": number, "seconds": {"wall": 4.0}}) + "\n" for number in (1, 2, 3))
    stopped.records_path.write_text("".join(lines))
    stopped.config_path.write_text(stopped.config_path.read_text().replace("rounds: 3", "rounds: 4"))
    assert Run(stopped.path).continues_after == 2
    assert "2 of 4 rounds, stopped" in str(fedmpi.open_run(stopped.path))
    with RunLock(stopped):
        assert Run(stopped.path).continues_after == 3


def test_a_run_on_another_host(stopped: RunDir) -> None:
    """Believed to run for ten minutes after its last sign of life, or three of its longest rounds."""
    note = json.dumps({"host": "node7", "pid": 1, "started_s": 1.0})
    now_s = stopped.lock_path.stat().st_mtime

    def after(silent_s: float) -> str:
        stopped.lock_path.write_text(note)
        os.utime(stopped.lock_path, (now_s - silent_s, now_s - silent_s))
        return Run(stopped.path).state

    assert [after(STALE_AFTER_S - 60), after(STALE_AFTER_S + 60)] == ["running", "stopped"]
    with stopped.records_path.open("a") as file:
        file.write(json.dumps({"round": 3, "seconds": {"wall": 400.0}}) + "\n")
    assert [after(1100), after(1300)] == ["running", "stopped"]
