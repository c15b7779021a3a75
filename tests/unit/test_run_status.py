"""`jobs/submit.py status`: how far runs are, as their directories show it."""

import json
import os
from pathlib import Path

import pytest
from golden_file import Told
from small_runs import small_config
from studied_runs import Called

import fedmpi
from fedmpi.errors import DivergenceError, RoundError
from fedmpi.mpi.serial import SerialComm
from fedmpi.running.advice import Advice
from fedmpi.running.folder import Asked
from fedmpi.running.stopping import Stopping
from fedmpi.store import manifest
from fedmpi.store.lock import STALE_AFTER_S, Holder, RunLock
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.slurm import status, submit


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Called:
    return lambda *folders: (submit.main(["status", *map(str, folders)]), *capsys.readouterr())


class StopsAfter(Stopping):
    """Wishes to stop after so many rounds."""

    def __init__(self, rounds: int) -> None:
        super().__init__(0.0)
        self._rounds = rounds

    def wish(self, round_s: float, share: float = 1.0) -> int:
        super().wish(round_s, share)
        self._rounds -= 1
        return int(self._rounds == 0)


@pytest.fixture
def stopped(tmp_path: Path) -> RunDir:
    """A run of three rounds that stopped after two."""
    from fedmpi.experiment import run

    config = small_config("method.name=fedavg", "output.checkpoint_every=9")
    folder = tmp_path / "runs" / "a"
    assert run(config, SerialComm(), Asked(str(folder)), stopping=StopsAfter(2)) is False
    return RunDir(folder)


def test_a_run_that_is_to_go_on(stopped: RunDir) -> None:
    found = status.status_of(stopped)
    assert (found.state, found.starts, found.round, found.rounds) == ("stopped", 1, 2, 3)
    records = [json.loads(line) for line in stopped.records_path.read_text().splitlines()]
    assert found.accuracy == records[1]["tiers"]["1"]["accuracy"]
    assert found.eta_s == pytest.approx(sum(record["seconds"]["wall"] for record in records) / 2)
    with RunLock(stopped):
        assert status.status_of(stopped).state == "running"
    assert status.status_of(stopped).state == "stopped"


def test_what_is_saved_counts_where_less_is_saved_than_done(stopped: RunDir) -> None:
    """Killed between a round's record and its checkpoint: a resume continues after the round before. Two rounds are
    left then, and one while it runs.
    """
    record = json.loads(stopped.records_path.read_text().splitlines()[0])
    lines = (json.dumps(record | {"round": number, "seconds": {"wall": 4.0}}) + "\n" for number in (1, 2, 3))
    stopped.records_path.write_text("".join(lines))
    stopped.config_path.write_text(stopped.config_path.read_text().replace("rounds: 3", "rounds: 4"))
    found = status.status_of(stopped)
    assert (found.line(stopped.path.parent)[5], found.eta_s) == ("2/4", 8.0)
    assert "2 of 4 rounds, stopped" in str(fedmpi.open_run(stopped.path))
    with RunLock(stopped):
        assert (status.status_of(stopped).round, status.status_of(stopped).eta_s) == (3, 4.0)


def with_ranks(run: RunDir, *counts: int) -> None:
    """Another round for each of these, done by so many ranks."""
    records = run.records_path.read_text().splitlines()
    last = json.loads(records[-1])
    for number, count in enumerate(counts, len(records) + 1):
        busy_s = dict.fromkeys(map(str, range(count)), 1.0)
        records.append(json.dumps(last | {"round": number, "busy_s": busy_s}))
    run.records_path.write_text("".join(f"{line}\n" for line in records))


def test_the_ranks_are_those_that_did_the_rounds(stopped: RunDir) -> None:
    """Not those of a start that found nothing left to do; one that is in its first round counts."""
    with_ranks(stopped, 5)
    for ranks, resumed in ((5, 2), (1, 3)):
        manifest.add_start(stopped, {"ranks": [{}] * ranks, "resumed_round": resumed})
    assert status.status_of(stopped).ranks == (1, 5)
    assert status.status_of(stopped).line(stopped.path.parent)[4] == "1, 5"
    manifest.add_start(stopped, {"ranks": [{}] * 3, "resumed_round": 3})
    assert status.status_of(stopped).ranks == (1, 5)
    with RunLock(stopped):
        assert status.status_of(stopped).ranks == (1, 5, 3)
    stopped.records_path.unlink()
    assert status.status_of(stopped).ranks == (3,)


def test_a_run_that_says_why_it_ended(stopped: RunDir) -> None:
    """As a rank's note says; nothing is left to wait for. An older version left an empty note."""
    manifest.add_start(stopped, {})
    advice = Advice(small_config())
    advice.run_is_in(stopped, 1)
    for error, state in ((DivergenceError("the loss is nan"), "diverged"), (OSError("no network"), "failed")):
        cause = RoundError("local_training")
        cause.__cause__ = error
        assert advice.note_failure(cause)
        with RunLock(stopped):  # the process may take a moment to end
            assert (status.status_of(stopped).state, status.status_of(stopped).eta_s) == (state, None)
        stopped.failure_path.unlink()
    stopped.failure_path.touch()
    assert status.status_of(stopped).state == "failed"
    stopped.submission_path.write_text(json.dumps({"job": "19", "starts": 2}))
    assert status.status_of(stopped).state == "queued"


def test_a_run_that_was_killed(stopped: RunDir) -> None:
    """Started once more, and nobody is there: its lock is of a process that is gone, or is empty."""
    manifest.add_start(stopped, {"job": "18"})
    found = status.status_of(stopped)
    assert (found.state, found.job, found.starts) == ("interrupted", "18", 2)
    gone = Holder.this_process("18").__dict__ | {"start": "another boot:1"}
    stopped.lock_path.write_text(json.dumps(gone))
    assert status.status_of(stopped).state == "interrupted"
    stopped.submission_path.write_text(json.dumps({"job": "19", "starts": 2}))
    assert (status.status_of(stopped).state, status.status_of(stopped).job) == ("queued", "19")


def test_a_run_that_lost_ranks(stopped: RunDir) -> None:
    """What a newer version notes with a start, or beside the starts, changes nothing: rank 0 taken over, ranks lost."""
    losses = [{"ranks": [0, 3], "hosts": ["a", "b"], "round": 2, "seconds": 0.3, "rank_0": 1}]
    before = status.status_of(stopped)
    starts = [start | {"losses": losses, "taken_over": {"by": 1}} for start in manifest.read_starts(stopped)]
    stopped.manifest_path.write_text(json.dumps({"starts": starts, "version": 9}))
    assert status.status_of(stopped) == before and before.state == "stopped"
    manifest.add_start(stopped, {"job": "18", "losses": losses})
    manifest.add_stop(stopped, 2, "SIGUSR1")
    found = status.status_of(stopped)
    assert (found.state, found.job, found.starts) == ("stopped", "18", 2)
    assert manifest.read_starts(stopped)[-1]["losses"] == losses
    stopped.lock_path.write_text(json.dumps(Holder.this_process("18").__dict__))
    assert status.status_of(stopped).state == "running"
    records = stopped.records_path.read_text().splitlines()
    records = [json.dumps(json.loads(line) | {"losses": losses, "ranks_left": 3}) + "\n" for line in records]
    stopped.records_path.write_text("".join(records))
    stopped.lock_path.unlink()
    assert status.status_of(stopped).accuracy == before.accuracy


def test_a_run_whose_job_went_back(stopped: RunDir) -> None:
    """Said by slurm/life_cycle.sh, not where a later start says otherwise; submitted again it is queued."""
    stopped.requeued_path.write_text("18\n")
    assert status.status_of(stopped).state == "requeued"
    stopped.submission_path.write_text(json.dumps({"job": "19", "starts": 1}))
    assert status.status_of(stopped).state == "queued"
    stopped.submission_path.unlink()
    manifest.add_start(stopped, {"job": "20"})
    os.utime(stopped.requeued_path, ns=(0, stopped.manifest_path.stat().st_mtime_ns - 1))
    assert status.status_of(stopped).state == "interrupted"
    stopped.manifest_path.unlink()
    assert status.status_of(stopped).state == "requeued"


def test_a_run_on_another_host(stopped: RunDir) -> None:
    """Believed to run for ten minutes after its last sign of life, or three of its longest rounds."""
    note = json.dumps({"host": "node7", "pid": 1, "start": "", "job": "18"})
    now_s = stopped.lock_path.stat().st_mtime

    def state(silent_s: float) -> str:
        stopped.lock_path.write_text(note)
        os.utime(stopped.lock_path, (now_s - silent_s, now_s - silent_s))
        return status.status_of(stopped).state

    assert [state(STALE_AFTER_S - 60), state(STALE_AFTER_S + 60)] == ["running", "silent"]
    record = {"round": 3, "seconds": {"wall": 400.0}}
    with stopped.records_path.open("a") as file:
        file.write(json.dumps(record) + "\n")
    assert [state(1100), state(1300)] == ["running", "silent"]


def test_status_of_a_folder(stopped: RunDir, capsys: pytest.CaptureFixture[str], shown: Called, told: Told) -> None:
    """All runs below it, or the one that it is; a damaged run is a line, too."""
    (stopped.path.parent / "deep" / "b").mkdir(parents=True)
    (stopped.path.parent / "deep" / "b" / "config.yaml").write_text("nonsense: [")
    code, out, _ = shown(stopped.path.parent)
    assert code == 0
    lines = [line.split()[:2] for line in out.splitlines() if "/" in line]
    assert lines == [["a", "stopped"], ["deep/b", "interrupted"]]
    assert out.splitlines()[-1] == "1 stopped, 1 interrupted"
    assert "2/3" in shown(stopped.path)[1]
    assert shown(stopped.path / "checkpoints")[1] == "no runs there\n"
    told(shown(stopped.path / "gone")[2])
    assert shown(capsys)[0] == 2


def test_ctrl_c_ends_a_watch_without_a_word(
    stopped: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def press(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", press)
    assert status.main(["--watch", str(stopped.path)]) == 130
    out, err = capsys.readouterr()
    assert "stopped" in out and err == ""


@pytest.mark.parametrize(
    "line", ['{"round": 1, "tiers": [1]}', '{"round": 1, "seconds": {"wall": "x"}}', '{"round": 1, "seconds": 5}', None]
)
def test_an_unreadable_run_does_not_hide_the_others(stopped: RunDir, line: str | None, shown: Called) -> None:
    bad = RunDir(stopped.path.parent / "A")  # comes first
    bad.path.mkdir()
    bad.config_path.write_text("rounds: 3\n")
    bad.records_path.write_text(f"{line}\n") if line else bad.records_path.mkdir()
    code, out, errors = shown(stopped.path.parent)
    assert code == 0 and out.splitlines()[-1] == "1 unreadable, 1 stopped"
    assert errors.startswith(f"unreadable: {bad.path}") and errors.count("\n") == 1
