"""What `--resume` accepts and refuses, and what a run leaves behind, with the command in this process."""

import dataclasses
from pathlib import Path

import pytest
from golden_file import Told
from launched import Made, RunMain, narrow, rejoined
from small_runs import SMALL, finished, small_config

from fedmpi.data.dataset import load_data
from fedmpi.data.partition import make_partition, saved
from fedmpi.report.records import read_records
from fedmpi.results.run import Run
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir

ARGUMENTS = (*SMALL, "method.name=fedhm", "rounds=2", "output.progress=plain")


@pytest.fixture
def run_dir(made: Made, tmp_path: Path) -> Path:
    """A run of two rounds that has ended."""
    return made(tmp_path / "run", *ARGUMENTS)


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
    code, _out, errors = run_main(*ARGUMENTS, change, "--run-dir", str(run_dir), "--resume")
    assert code == 2
    said = rejoined(errors)
    assert line in said and "Traceback" not in said and len(said.splitlines()) == 1 and narrow(errors), errors
    assert finished(run_dir) == before


def test_a_cosine_schedule_refuses_other_rounds(run_main: RunMain, tmp_path: Path, told: Told) -> None:
    """Its learning rates depend on the number of rounds."""
    cosine = [*SMALL[:-3], "train.schedule.name=cosine", "rounds=1", "--run-dir", str(tmp_path / "run")]
    cosine = [word for word in cosine if not word.startswith("train.schedule.milestones")]
    assert run_main(*cosine)[0] == 0
    code, _, errors = run_main(*cosine, "rounds=2", "--resume")
    assert code == 2
    told(rejoined(errors))


def test_fewer_rounds_than_are_done_are_refused(run_main: RunMain, run_dir: Path, told: Told) -> None:
    """Where the run has rounds to go: as many as are done end it there. A finished run has nothing left to do."""
    stops = ("mpi.time_limit_s=0.01", "mpi.spare_time_s=0")
    assert run_main("--run-dir", str(run_dir), "--resume", "rounds=15", *stops)[0] == 75
    code, _, errors = run_main("--run-dir", str(run_dir), "--resume", "rounds=2")
    assert code == 2 and Run(run_dir).state == "stopped"
    told(rejoined(errors))
    for rounds in (3, 2):
        assert run_main("--run-dir", str(run_dir), "--resume", f"rounds={rounds}")[0] == 0
        run = Run(run_dir)
        assert (run.state, run.continues_after, run.rounds) == ("finished", 3, 3)


def test_more_rounds_and_other_free_keys_are_accepted(run_main: RunMain, run_dir: Path, tmp_path: Path) -> None:
    """Two rounds and one more, with another exchange and output, equal three rounds in one go."""
    free = ("rounds=3", "mpi.exchange=reduce", "mpi.server_trains=true", "output.keep_checkpoints=5")
    code, out, errors = run_main(*ARGUMENTS, *free, "--run-dir", str(run_dir), "--resume")
    assert code == 0, errors
    assert "resuming after round 2" in out
    assert run_main(*ARGUMENTS, "rounds=3", "--run-dir", str(tmp_path / "one"))[0] == 0
    assert finished(run_dir) == finished(tmp_path / "one")


def test_the_run_s_own_config_is_enough(run_main: RunMain, run_dir: Path) -> None:
    """`--run-dir DIR --resume rounds=3`: everything else comes from the run's config.yaml."""
    code, out, errors = run_main("--run-dir", str(run_dir), "--resume", "rounds=3")
    assert code == 0, errors
    assert [record["cohort"] for record in finished(run_dir).records][2] and "round 3/3" in out


def test_a_run_that_has_ended_says_so_again(run_main: RunMain, run_dir: Path) -> None:
    """Resuming it trains nothing, and shows the same closing table."""
    before = finished(run_dir)
    code, out, errors = run_main(*ARGUMENTS, "--run-dir", str(run_dir), "--resume")
    assert code == 0, errors
    assert "capacity" in out and finished(run_dir) == before


def test_without_a_checkpoint_it_starts_at_round_1_and_says_so(run_main: RunMain, run_dir: Path) -> None:
    expected = finished(run_dir)
    for _, path in RunDir(run_dir).checkpoints():
        path.unlink()
    code, out, errors = run_main(*ARGUMENTS, "--run-dir", str(run_dir), "--resume")
    assert code == 0, errors
    assert f" {run_dir}: no round " in rejoined(out)
    assert finished(run_dir) == expected


def test_a_record_that_was_cut_off_is_said(run_main: RunMain, run_dir: Path) -> None:
    """The results are those of a run with its whole record; only the record says that it lacks a round."""
    path = RunDir(run_dir).records_path
    whole = path.read_text()
    for lines in (1, 1):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
        code, out, errors = run_main("--run-dir", str(run_dir), "--resume", "rounds=2", "output.progress=plain")
        assert code == 0, errors
        assert (out + errors).count("record of round 2, ") == 1
        assert path.read_text() == whole.splitlines(keepends=True)[0]
    code, out, errors = run_main("--run-dir", str(run_dir), "--resume", "rounds=3", "output.progress=plain")
    assert code == 0, errors
    assert [record["round"] for record in read_records(RunDir(run_dir))] == [1, 3]


def test_the_records_of_another_run_are_refused(run_main: RunMain, run_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert run_main(*ARGUMENTS, "seed=3", "--run-dir", str(other))[0] == 0
    content = RunDir(other).records_path.read_bytes()
    RunDir(run_dir).records_path.write_bytes(content)
    code, _out, errors = run_main("--run-dir", str(run_dir), "--resume", "rounds=3", "output.progress=plain")
    assert code == 2 and f"{run_dir}/rounds.jsonl: is of another" in errors, errors
    assert len(errors.splitlines()) == 1 and RunDir(run_dir).records_path.read_bytes() == content
    RunDir(run_dir).records_path.unlink()
    assert run_main("--run-dir", str(run_dir), "--resume", "rounds=3", "output.progress=plain")[0] == 0


def test_an_absent_run_is_begun(run_main: RunMain, tmp_path: Path, told: Told) -> None:
    code, out, errors = run_main(*ARGUMENTS, "--run-dir", str(tmp_path / "new"), "--resume")
    assert code == 0, errors
    assert len(finished(tmp_path / "new").records) == 2
    assert narrow("\n".join(out.splitlines()[:3]))
    told(rejoined(out).splitlines()[1])


def test_the_partition_is_the_one_that_was_used(run_main: RunMain, tmp_path: Path) -> None:
    """partition.h5 equals the one made again from the config that the run has saved."""
    uneven = (*ARGUMENTS, "rounds=1", "partition.name=class_dirichlet", "seed=5")
    assert run_main(*uneven, "--run-dir", str(tmp_path / "run"))[0] == 0
    config = small_config("partition.name=class_dirichlet", "seed=5", "method.name=fedhm")
    again = make_partition(config.partition, load_data(config.data).train_y, config.clients.count, config.seed)
    partition = saved(RunDir(tmp_path / "run").partition_path)[0]
    pairs = zip(dataclasses.astuple(partition), dataclasses.astuple(again), strict=True)
    assert all(ours.tolist() == theirs.tolist() for ours, theirs in pairs)
    assert len(set(partition.sizes.tolist())) > 1


def test_records_and_events(run_main: RunMain, tmp_path: Path) -> None:
    """TensorBoard has a point per round and tag, the closing files are there, the checkpoint says what it is of."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir = tmp_path / "run"
    code, _out, errors = run_main(*ARGUMENTS, "output.tensorboard=true", "--run-dir", str(run_dir))
    assert code == 0, errors
    events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    records = finished(run_dir).records
    for tag in ("train_loss", "tiers/1/accuracy", "tiers/0.125/accuracy"):
        assert [event.step for event in events.Scalars(tag)] == [1, 2]
    assert [event.value for event in events.Scalars("train_loss")] == pytest.approx([r["train_loss"] for r in records])
    for name in ("report/summary.json", "report/summary.md", "config.yaml", "manifest.json"):
        assert (run_dir / name).stat().st_size > 0
    snapshot = checkpoint.load(RunDir(run_dir).checkpoint_path(2))
    assert snapshot.config_hash == small_config(*ARGUMENTS).hash()


def test_a_resume_for_fewer_rounds_says_one_thing(run_main: RunMain, tmp_path: Path) -> None:
    """That nothing is left to do; the page is that of all rounds, though the checkpoint of that round is gone."""
    words = (
        "output.report=true",
        "output.progress=plain",
        "output.keep_checkpoints=1",
        "--run-dir",
        str(tmp_path / "r"),
    )
    assert run_main(*SMALL, *words)[0] == 0
    page = RunDir(tmp_path / "r").page_path
    page.unlink()
    code, out, errors = run_main(*words, "--resume", "rounds=1")
    assert code == 0 and errors == "" and "All 3 rounds" in page.read_text()
    assert out.count("nothing left") == out.count("report.html") == 1
    assert "resuming" not in out and "to continue" not in out
