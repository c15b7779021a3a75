"""`--resume-from`: a new run that begins where another one is; and what a run that diverged advises to type."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from fast import fast
from golden_file import Told
from launched import Made, RunMain, Start, ends_in_time, launch, narrow, rejoined
from small_runs import SMALL, finished

from fedmpi.report.records import read_records
from fedmpi.results.run import Run
from fedmpi.store import checkpoint, manifest
from fedmpi.store.run_dir import RunDir

# With memory, and two checkpoints that stay.
WORDS = ("method.name=topk", "rounds=3", "output.keep_checkpoints=2", "output.progress=plain")
DIVERGES = ("output.progress=plain", "train.lr=30", "train.schedule.milestones=[]", "method.name=fedavg")
"""Some clients diverge in round 1, and in round 2 after a round of healthy training; at a tenth of it none does."""


@pytest.fixture
def parent(made: Made, tmp_path: Path) -> Path:
    """A run of three rounds that has ended."""
    return made(tmp_path / "parent", *WORDS)


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below, with the time of its last change."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def branch(run_main: RunMain, origin: Path | str, folder: Path, *words: str) -> tuple[str, str]:
    code, out, errors = run_main(*words, "--resume-from", str(origin), "--run-dir", str(folder))
    assert code == 0, errors
    return out, errors


def test_a_branch_with_the_same_config_is_a_resume(run_main: RunMain, parent: Path, tmp_path: Path) -> None:
    """RUN's config comes along, its memories and records, too; RUN itself is not touched."""
    before = content(parent)
    out, _ = branch(run_main, parent, tmp_path / "branch", "rounds=5")
    assert content(parent) == before
    assert f"branch of {parent}: " in rejoined(out) and "resuming after round 3" in out
    assert run_main("--run-dir", str(parent), "--resume", "rounds=5")[0] == 0
    assert finished(tmp_path / "branch") == finished(parent)


def test_what_sums_a_branch_up_is_of_its_own_rounds(run_main: RunMain, parent: Path, tmp_path: Path) -> None:
    """Best accuracy and time: in the closing table, in the checkpoint and for observers. The parent's checkpoint, which
    the branch begins with, is not kept as its best. A second branch, without a change, has the same bits as a resume.
    """
    records = read_records(RunDir(parent))
    for record in records:  # a best round that no branch can reach
        record["tiers"]["1"]["accuracy"] = 1.0
    RunDir(parent).records_path.write_text("".join(json.dumps(record) + "\n" for record in records))
    words = ("rounds=5", "train.lr=0.01", "output.keep_checkpoints=1", "output.report=true")
    out, _ = branch(run_main, parent, tmp_path / "branch", *words)
    folder = RunDir(tmp_path / "branch")
    own = read_records(folder)[3:]
    shares = [record["tiers"]["1"]["accuracy"] for record in own]
    best = 4 + shares.index(max(shares))
    (row,) = json.loads((folder.report_dir / "summary.json").read_text())["tiers"]
    assert (row["accuracy_last"], row["accuracy_best"], row["best_round"]) == (shares[-1], max(shares), best)
    progress = checkpoint.load(folder.checkpoint_path(5)).progress
    assert progress["best_round"] == {"1": best} and "100.00" not in out
    assert progress["seconds"]["wall"] == sum(record["seconds"]["wall"] for record in own)
    assert {number for number, _ in folder.checkpoints()} == {best, 5}
    line = f"rounds 1 to 3 are those of {parent}; "
    assert line in " ".join(out.split()) and line.capitalize()[:20] in (folder.report_dir / "summary.md").read_text()


def test_the_round_may_be_chosen(run_main: RunMain, parent: Path, tmp_path: Path) -> None:
    """As RUN@ROUND or as a checkpoint file; and both lead to where the run itself has come."""
    expected = finished(parent)
    for number, origin in enumerate((f"{parent}@2", RunDir(parent).checkpoint_path(2))):
        out, _ = branch(run_main, origin, tmp_path / str(number))
        assert "resuming after round 2" in out and finished(tmp_path / str(number)) == expected


def test_the_branch_is_on_record(run_main: RunMain, parent: Path, tmp_path: Path) -> None:
    """In the manifest's first start, and in the last record that is the parent's; a resume of the branch keeps both."""
    folder = RunDir(tmp_path / "branch")
    branch(run_main, parent, folder.path, "train.lr=0.01", "rounds=4")
    note = {"run": str(parent), "round": 3, "config": ["train.lr: run has 0.05, you ask 0.01"]}
    assert run_main("--run-dir", str(folder.path), "--resume", "rounds=5")[0] == 0
    assert [start.get("branched_from") for start in manifest.read_starts(folder)] == [note, None]
    assert [record.get("branched_from") for record in read_records(folder)] == [None, None, note, None, None]
    rates = [record["lr"] for record in read_records(folder)]
    assert rates == pytest.approx([0.05, 0.005, 0.005, 0.001, 0.001])


def test_a_fresh_folder_is_made_where_none_is_named(run_main: RunMain, parent: Path, tmp_path: Path) -> None:
    code, _out, errors = run_main("--resume-from", str(parent), "rounds=4", f"output.dir={tmp_path / 'runs'}")
    (folder,) = (tmp_path / "runs").iterdir()
    assert code == 0 and folder.name.startswith("parent-branch-") and len(finished(folder).records) == 4, errors


def test_a_batch_file_that_is_submitted_again_goes_on_with_its_branch(
    run_main: RunMain, parent: Path, tmp_path: Path
) -> None:
    """`--resume-from RUN --run-dir NEW --resume` begins NEW, or continues it, even when RUN is gone by then."""
    words = ("rounds=4", "--resume-from", str(parent), "--run-dir", str(tmp_path / "branch"), "--resume")
    assert run_main(*words)[0] == 0
    before = finished(tmp_path / "branch")
    shutil.rmtree(parent)
    assert run_main(*words)[0] == 0
    assert finished(tmp_path / "branch") == before


def test_a_branch_that_was_killed_while_it_was_made_is_no_run(
    run_main: RunMain, parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    """It cannot be resumed at round 1 by mistake; the same command begins it again."""
    folder = tmp_path / "branch"

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedmpi.running.resuming.write_text", die)
        patch.setattr("fedmpi.mpi.serial.SerialComm.abort", lambda comm, code: None)
        with pytest.raises(KeyboardInterrupt):
            run_main("rounds=4", "--resume-from", str(parent), "--run-dir", str(folder))
    code, _out, errors = run_main("--run-dir", str(folder), "--resume")
    assert code == 2
    told(errors)
    branch(run_main, parent, folder, "rounds=4")
    assert len(finished(folder).records) == 4


def test_a_newer_checkpoint_that_is_damaged_is_skipped(run_main: RunMain, parent: Path, tmp_path: Path) -> None:
    RunDir(parent).checkpoint_path(3).write_bytes(b"no checkpoint")
    out, errors = branch(run_main, parent, tmp_path / "branch", "rounds=3")
    assert "resuming after round 2" in out and errors.count("skipping a checkpoint") == 1


def test_another_method_takes_what_it_has_a_use_for(run_main: RunMain, parent: Path, tmp_path: Path) -> None:
    """From topk to fedavg: the server's net, but not what clients of topk remember."""
    branch(run_main, parent, tmp_path / "branch", "method.name=fedavg", "rounds=4")
    assert finished(tmp_path / "branch").memories == {} and finished(parent).memories


@pytest.mark.parametrize(
    ("origin", "words", "line"),
    [
        ("nowhere", (), "holds no run (no config.yaml)"),
        ("{parent}@7", (), "holds no whole checkpoint of round 7 to begin a branch from; it has those of rounds 3, 2"),
        ("{parent}/checkpoints/round-000009.h5", (), "is no checkpoint of a run"),
        ("{parent}", ("model.width=0.25",), "does not fit this config: its round 3 holds "),
        ("{parent}", ("method.name=scaffold", "train.momentum=0"), "does not fit this config: its round 3 lacks "),
        ("{parent}", ("method.ratio=0.5",), "its clients remember what this setting has shaped"),
        ("{parent}", ("partition.name=class_dirichlet",), "partition.name: run has "),
        ("{parent}", ("seed=1", "rounds=5"), "seed: run has 0, you ask 1; this decides "),
        ("{parent}", ("train.lr=0.01", "rounds=3"), "rounds: is 3, but the branch begins after round 3 of "),
        ("{parent}@2", ("train.lr=0.01", "rounds=1"), "so it would make none; ask for more than 2"),
        ("{parent}", ("--run-dir", "{parent}"), "is the run that the branch begins from"),
        ("{parent}", ("--run-dir", "{parent}/again"), "is inside the run that the branch begins from"),
        ("{parent}", ("--run-dir", "{other}"), "already holds a run"),
    ],
)
def test_what_does_not_fit_is_one_line(
    run_main: RunMain, parent: Path, tmp_path: Path, origin: str, words: tuple[str, ...], line: str
) -> None:
    """Exit code 2, the parent is as it was, and nothing is left."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("seed: 1\n")
    before = content(parent)
    names = {"parent": parent, "other": tmp_path / "other"}
    given = [word.format(**names) for word in words]
    new = [] if "--run-dir" in given else ["--run-dir", str(tmp_path / "branch")]
    code, _out, errors = run_main("rounds=5", "--resume-from", origin.format(**names), *given, *new)
    assert code == 2 and line in rejoined(errors) and len(rejoined(errors).splitlines()) == 1, errors
    assert narrow(errors) or len(errors.splitlines()) == 1  # which is what a mistake in the words has
    assert content(parent) == before and not (tmp_path / "branch").exists()


def test_a_folder_of_the_user_s_stays(run_main: RunMain, parent: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "branch").mkdir()
    assert run_main("seed=1", "--resume-from", str(parent), "--run-dir", str(folder))[0] == 2 and folder.is_dir()


@pytest.mark.parametrize("harm", ["another format", "no memory"])
def test_a_run_without_a_whole_checkpoint_is_one_line(
    run_main: RunMain, parent: Path, tmp_path: Path, harm: str, told: Told
) -> None:
    if harm == "no memory":
        shutil.rmtree(RunDir(parent).memory_dir)
    else:
        for _, path in RunDir(parent).checkpoints():
            path.write_bytes(b"PK\x03\x04 of something else")
    code, _out, errors = run_main("--resume-from", str(parent), "--run-dir", str(tmp_path / "branch"))
    assert code == 2
    told(rejoined(errors))
    assert len(rejoined(errors).splitlines()) == 1 and not (tmp_path / "branch").exists()


@pytest.mark.parametrize("ranks", fast(1, of=(1, 3)))
def test_the_advice_of_a_run_that_diverged_works(start: Start, made: Made, tmp_path: Path, ranks: int) -> None:
    """Exactly the printed command, which finishes the run from the last round before the divergence."""
    healthy = made(tmp_path / "healthy", *DIVERGES, "train.lr=0.05", "rounds=1")
    words = (*DIVERGES, f"output.dir={tmp_path / 'runs'}", "--resume-from", str(healthy))
    diverged = start(ranks, *words, run_dir=tmp_path / "run")
    assert ends_in_time(diverged, lambda: "fedmpi: failed" in diverged.err) not in (0, 2)
    head = r"fedmpi: failed on rank \d on \S+, round 2, client \d, stage local_training\n  cause: DivergenceError: "
    assert re.search(head, diverged.err) and "Traceback" not in diverged.err, diverged.err
    words = diverged.advice()
    assert "--resume" not in words and "stopped by" not in diverged.err, diverged.err
    resumed = launch(tmp_path, words)
    assert resumed.wait() == 0, resumed.err
    (folder,) = (tmp_path / "runs").iterdir()
    assert "resuming after round 1" in resumed.out and len(finished(folder).records) == 3
    assert json.loads((folder / "rounds.jsonl").read_text().splitlines()[1])["lr"] == 0.1


def test_the_advice_of_a_run_that_diverged_before_its_first_save_works(run_main: RunMain, tmp_path: Path) -> None:
    """It begins again, in the same place, with another learning rate."""
    code, _, errors = run_main(*SMALL, *DIVERGES, "--run-dir", str(tmp_path / "run"))
    assert code not in (0, 2) and "DivergenceError" in errors
    assert Run(tmp_path / "run").state == "diverged"
    (advice,) = re.findall(r"^to continue[^:\n]*: python -m fedmpi.main (.*)", errors, re.MULTILINE)
    code, _, errors = run_main(*shlex.split(advice))
    assert code == 0, errors
    assert [record["lr"] for record in finished(tmp_path / "run").records] == [0.1, 0.1, 0.1]


def test_a_parent_that_is_running(start: Start, run_main: RunMain, tmp_path: Path) -> None:
    """It saves, and deletes, while it is read; the branch begins from a whole checkpoint of it."""
    run_dir = tmp_path / "run"
    running = start(1, "method.name=topk", "rounds=100000", "evaluation.every=100", run_dir=run_dir)
    assert running.wait_until(lambda: bool(RunDir(run_dir).checkpoints())), running.err
    for number in range(3):
        new = ("--run-dir", str(tmp_path / str(number)), "output.progress=plain")
        # There is no time for another round, so that it stops after its first one.
        code, out, errors = run_main("--resume-from", str(run_dir), *new, "mpi.time_limit_s=0.01", "mpi.spare_time_s=0")
        assert code == 75, errors
        snapshot = checkpoint.load_newest_intact(RunDir(tmp_path / str(number)), pytest.fail)
        assert snapshot is not None and f"resuming after round {snapshot.round - 1}\n" in out
    assert running.process.poll() is None
