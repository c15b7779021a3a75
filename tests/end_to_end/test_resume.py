"""What `--resume` accepts and refuses, and what a run leaves behind, with the command in this process."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import Made, RunMain, rejoined
from small_runs import SMALL, finished, small_config

from fedmpi.data.dataset import load_data
from fedmpi.data.partition import make_partition, saved
from fedmpi.report.records import read_records
from fedmpi.results.run import Run
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir

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
        ("train.lr=0.2", "train.lr: run has 0.05, you ask 0.2"),
        ("seed=1", "seed: run has 0, you ask 1"),
        ("method.name=fedavg", "method.name: run has 'fedhm', you ask 'fedavg'"),
        ("clients.tier_assignment=dynamic", "clients.tier_assignment: run has 'fixed', you ask 'dynamic'"),
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
def test_a_cosine_schedule_refuses_other_rounds(run_main: RunMain, tmp_path: Path) -> None:
    """Its learning rates depend on the number of rounds."""
    words = [word for word in SMALL if not word.startswith(("rounds=", "train.schedule.milestones"))]
    words += ["train.schedule.name=cosine", "--run-dir", str(tmp_path / "run")]
    assert run_main(*words, "rounds=1")[0] == 0
    code, _, errors = run_main(*words, "rounds=2", "--resume")
    assert code == 2 and "rounds: run has 1, you ask 2; --resume needs the same" in rejoined(errors)


@pytest.mark.slow
def test_as_many_rounds_as_are_done_end_a_run(resume: Resume, run_dir: Path) -> None:
    """With fewer there is nothing to do, either: what is done stays."""
    assert resume("rounds=15", "mpi.time_limit_s=0.01", "mpi.spare_time_s=0")[0] == 75
    code, out, _ = resume("rounds=2")
    assert code == 0 and "nothing left to do: 3 rounds done, and rounds is 2" in out
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


@pytest.mark.slow
def test_without_a_checkpoint_it_starts_at_round_1_and_says_so(resume: Resume, run_dir: Path) -> None:
    expected = finished(run_dir)
    for _, path in RunDir(run_dir).checkpoints():
        path.unlink()
    code, out, errors = resume(*ARGUMENTS)
    assert code == 0 and f" {run_dir}: no round " in out, errors
    assert finished(run_dir) == expected


@pytest.mark.slow
def test_a_record_that_was_cut_off_is_said(resume: Resume, run_dir: Path) -> None:
    """The results are those of a run with its whole record; only the record says that it lacks a round."""
    path = RunDir(run_dir).records_path
    first = path.read_text().splitlines(keepends=True)[0]
    path.write_text(first)
    code, _, errors = resume("rounds=2", "output.progress=plain")
    assert code == 0 and "rounds.jsonl lacks 1 round" in errors and path.read_text() == first
    assert resume("rounds=3", "output.progress=plain")[0] == 0
    assert [record["round"] for record in read_records(RunDir(run_dir))] == [1, 3]


@pytest.mark.slow
def test_an_absent_run_is_begun(run_main: RunMain, tmp_path: Path) -> None:
    code, out, errors = run_main(*ARGUMENTS, "--run-dir", str(tmp_path / "new"), "--resume")
    assert code == 0 and len(finished(tmp_path / "new").records) == 2, errors
    assert f"nothing to continue in {tmp_path}/new: a new run begins at round 1" in rejoined(out)


@pytest.mark.slow
def test_what_a_run_leaves_behind(run_main: RunMain, tmp_path: Path) -> None:
    """TensorBoard has a point per round and tag, the closing files are there, the checkpoint says what it is of, and
    partition.h5 equals the one made again from the config."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir, words = tmp_path / "run", (*ARGUMENTS, "partition.name=class_dirichlet", "seed=5")
    code, _, errors = run_main(*words, "output.tensorboard=true", "--run-dir", str(run_dir))
    assert code == 0, errors
    events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    for tag in ("train_loss", "tiers/1/accuracy", "tiers/0.125/accuracy"):
        assert [event.step for event in events.Scalars(tag)] == [1, 2]
    losses = [record["train_loss"] for record in finished(run_dir).records]
    assert [event.value for event in events.Scalars("train_loss")] == pytest.approx(losses)
    for name in ("report/summary.json", "report/summary.md", "config.yaml", "manifest.json"):
        assert (run_dir / name).stat().st_size > 0
    config = small_config(*words)
    assert checkpoint.load(RunDir(run_dir).checkpoint_path(2)).config_hash == config.hash()
    again = make_partition(config.partition, load_data(config.data).train_y, config.clients.count, config.seed)
    partition = saved(RunDir(run_dir).partition_path)[0]
    pairs = zip(dataclasses.astuple(partition), dataclasses.astuple(again), strict=True)
    assert all(ours.tolist() == theirs.tolist() for ours, theirs in pairs)
    assert len(set(partition.sizes.tolist())) > 1
