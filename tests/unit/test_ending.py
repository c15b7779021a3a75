"""How runs with rounds to go have ended: from the note of a rank, the manifest and the lock, and as it is told."""

import json
from pathlib import Path

import pytest
from data_fixtures import refusal
from golden_file import Told
from small_runs import small_config
from written_runs import a_run, with_records

from fedmpi.errors import DivergenceError, RoundError, RunDirError
from fedmpi.export.saved import chosen_round
from fedmpi.report.records import incidents
from fedmpi.results import show
from fedmpi.results.page import page_of
from fedmpi.results.run import Run
from fedmpi.running.folder import Advice
from fedmpi.store import manifest
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir

WHERE = "round 3, client 17, stage local_training"
LOSS = "the loss is nan"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Two of five rounds, the second saved, on three ranks."""
    found = RunDir(a_run(tmp_path / "run", [{"1": 0.5}, {"1": 0.75}], rounds=5))
    found.checkpoints_dir.mkdir()
    found.checkpoint_path(2).touch()
    manifest.add_start(found, launch="mpirun -n 3 python -m fedmpi.main")
    return found


def noted(run: RunDir, error: BaseException) -> Run:
    """As a rank notes it that ends the job."""
    advice = Advice(small_config())
    advice.run_is_in(run, 3)
    failed = RoundError(WHERE)
    failed.__cause__ = error
    assert advice.note_failure(failed)
    return Run(run.path)


def test_a_run_that_diverged(run: RunDir, told: Told) -> None:
    """Cause and advice are in one line each, the command as the rank has printed it."""
    found = noted(run, DivergenceError(LOSS))
    assert (found.state, found.done, found.continues_after) == ("diverged", 2, 2)
    assert found.cause == f"{WHERE}: {LOSS}" and found.briefly() == f"diverged in {WHERE}"
    assert found.advice.endswith(f"mpirun -n 3 python -m fedmpi.main --init-from {run.path} train.lr=0.005")
    told(found.paragraph())


def test_a_run_that_failed(run: RunDir, told: Told) -> None:
    found = noted(run, error := OSError(5, "no network"))
    assert (found.state, found.cause) == ("failed", f"{WHERE}: OSError: {error}")
    with RunLock(run):  # the process may take a moment to end
        assert Run(run.path).state == "failed"
    told(found.paragraph())


def test_runs_without_a_note(run: RunDir, told: Told) -> None:
    told(Run(run.path).paragraph())
    assert (Run(run.path).state, Run(run.path).cause) == ("interrupted", "")
    with RunLock(run):
        assert Run(run.path).state == "running"
        told(Run(run.path).paragraph())
    manifest.add_stop(run, 2, "SIGUSR1")
    assert (Run(run.path).state, Run(run.path).cause) == ("stopped", "SIGUSR1")
    told(Run(run.path).paragraph())


def test_the_command_is_that_of_the_last_start(run: RunDir) -> None:
    """Where the run is now. Without a note of the command it is on one rank."""
    launch = "cd '/home/me/my work' && mpirun -n 5 python -m fedmpi.main method.name=mymod:M"
    manifest.add_start(run, launch=launch)
    assert Run(run.path).advice == f"to continue: {launch} --run-dir {run.path} --resume"
    run.manifest_path.unlink()
    assert Run(run.path).advice == f"to continue: python -m fedmpi.main --run-dir {run.path} --resume"


def test_a_page_begins_with_the_end_of_its_run(run: RunDir) -> None:
    noted(run, DivergenceError(LOSS))
    text = page_of(Run(run.path))
    assert '<span class="state">diverged, 2 of 5 rounds</span>' in text
    head = text.partition('<p class="note">')[2].partition("</p>")[0]
    assert WHERE in head and LOSS in head and f"--init-from {run.path}" in head
    finished = Run(a_run(run.path.parent / "whole", [{"1": 0.5}]))
    assert finished.is_finished and 'class="note"' not in page_of(finished)


def test_several_runs_say_which_are_left_out(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str], told: Told
) -> None:
    """On stderr: shown in part, without a round, a second run of a setting and seed."""
    noted(run, DivergenceError(LOSS))
    noted(RunDir(a_run(tmp_path / "never", [], rounds=5, lr=0.3)), DivergenceError(LOSS))
    a_run(tmp_path / "shorter", [{"1": 0.5}], rounds=5)
    out = str(tmp_path / "a.svg")
    assert show.main([str(tmp_path), "--figure", out]) == 0
    told(capsys.readouterr().err)
    assert show.main([str(tmp_path / "never"), "--figure", out]) == 2
    told(capsys.readouterr().err)


def test_an_export_says_why_nothing_is_saved(run: RunDir, told: Told) -> None:
    """And what is possible instead: only of a run that is running the end of a round is worth waiting for."""
    run.checkpoint_path(2).unlink()
    with RunLock(run), told.by(RunDirError):
        chosen_round(run, "last", {})
    told(refusal(chosen_round, run, "last", {}))
    noted(run, DivergenceError(LOSS))
    told(refusal(chosen_round, run, "best", {}))


def test_a_page_of_a_run_with_more_rounds_has_their_numbers(run: RunDir) -> None:
    run.report_dir.mkdir(exist_ok=True)
    rows = [{"name": "1", "accuracy_last": 0.1, "accuracy_best": 0.1, "best_round": 1}]
    (run.report_dir / "summary.json").write_text(json.dumps({"tiers": rows, "time_s": {"wall": 9}}))
    assert Run(run.path).best.last == {"1": 0.75} and Run(run.path).seconds["other"] == 1.0


@pytest.mark.parametrize("rounds", [2, 5])
def test_a_page_says_how_many_rounds_are_saved(run: RunDir, rounds: int) -> None:
    """Killed between the record of a round, which may be the last one, and its checkpoint."""
    run.config_path.write_text(run.config_path.read_text().replace("rounds: 5", f"rounds: {rounds}"))
    run.checkpoint_path(2).rename(run.checkpoint_path(1))
    text = page_of(Run(run.path))
    assert text.count(f"2 of {rounds} rounds (1 saved)") == 2
    run.checkpoint_path(1).unlink()
    run.report_dir.mkdir()
    (run.report_dir / "summary.json").write_text("{}")
    assert Run(run.path).is_finished == (rounds == 2)


def test_clients_that_diverged_are_counted(tmp_path: Path, told: Told) -> None:
    """Of five trainings in two rounds three were dropped, of two clients, and one was set back."""
    rounds = [{"cohort": [4, 7], "dropped": [4, 7]}, {"cohort": [4, 7, 9], "dropped": [4], "restored": [9]}]
    found = incidents(rounds)
    assert ("3 of 5" in found[0], "4, 7:" in found[0], "1 of 5" in found[1]) == (True, True, True)
    told("\n".join(found))
    assert incidents([{"cohort": [1], "dropped": []}, {}]) == ()
    (many,) = incidents([{"cohort": [*range(30)], "dropped": [*range(20)]}])
    assert "of clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...: " in many
    run = with_records(a_run(tmp_path / "run", [{"1": 0.5}]), rounds[0])
    assert "2 of 2 trainings" in page_of(Run(run))
