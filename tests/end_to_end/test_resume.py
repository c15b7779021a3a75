"""What `--resume` accepts and refuses, with the command in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import Made, RunMain, rejoined
from small_runs import SMALL, finished

from fedmpi.results.run import Run

ARGUMENTS = (*SMALL, "method.name=fedhm", "rounds=2", "output.progress=plain")
Resume = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_dir(made: Made, tmp_path: Path) -> Path:
    """A run of two rounds that has ended."""
    return made(tmp_path / "run", *ARGUMENTS)


@pytest.fixture
def resume(run_main: RunMain, run_dir: Path) -> Resume:
    """Resumes that run; returns the exit code, and output and errors with their lines rejoined."""

    def call(*words: str) -> tuple[int, str, str]:
        code, out, errors = run_main(*words, "--run-dir", str(run_dir), "--resume")
        assert "Traceback" not in errors
        return code, rejoined(out), rejoined(errors)

    return call


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("seed=1", "seed: run has 0, you ask 1"),
        ("method.name=fedavg", "method.name: run has 'fedhm', you ask 'fedavg'"),
    ],
)
def test_a_config_that_would_change_results_is_refused(
    run_main: RunMain, run_dir: Path, change: str, line: str
) -> None:
    before = finished(run_dir)
    code, _, errors = run_main(*ARGUMENTS, change, "--run-dir", str(run_dir), "--resume")
    said = rejoined(errors)
    assert code == 2 and line in said and "Traceback" not in said, errors
    assert len(errors.splitlines()) == 1, errors
    assert finished(run_dir) == before


def state_digest(run_dir: Path) -> str:
    summary = json.loads((run_dir / "report" / "summary.json").read_text())
    assert len(summary["state_digest"]) == 32
    return str(summary["state_digest"])


@pytest.mark.slow
def test_as_many_rounds_as_are_done_end_a_run(resume: Resume, run_dir: Path) -> None:
    """With fewer there is nothing to do, either: what is done stays."""
    assert resume("rounds=15", "mpi.time_limit_s=0.01", "mpi.spare_time_s=0")[0] == 75
    code, out, _ = resume("rounds=2")
    assert code == 0 and "nothing left to do: 3 rounds done; rounds is 2" in out
    assert len(finished(run_dir).records) == 3
    assert resume("rounds=3")[0] == 0
    run = Run(run_dir)
    assert (run.state, run.continues_after, run.num_rounds) == ("finished", 3, 3)


@pytest.mark.slow
def test_a_run_that_has_ended_goes_on_for_more_rounds(
    resume: Resume, run_main: RunMain, run_dir: Path, tmp_path: Path
) -> None:
    """Resumed as it was it trains nothing, and shows the same closing table. One round more, with another exchange and
    output, the rest from its own config, equals three rounds in one go."""
    before = finished(run_dir)
    before_digest = state_digest(run_dir)
    code, out, errors = resume(*ARGUMENTS)
    assert state_digest(run_dir) == before_digest
    assert code == 0 and "capacity" in out and finished(run_dir) == before, errors
    free = ("mpi.exchange=reduce", "mpi.server_trains=true", "output.keep_checkpoints=5")
    code, out, errors = resume("rounds=3", *free)
    assert code == 0 and "resuming after round 2" in out and "round 3/3" in out, errors
    assert run_main(*ARGUMENTS, "rounds=3", "--run-dir", str(tmp_path / "one"))[0] == 0
    assert finished(run_dir) == finished(tmp_path / "one")
    assert state_digest(run_dir) == state_digest(tmp_path / "one") != before_digest
