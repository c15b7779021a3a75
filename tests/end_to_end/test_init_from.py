"""`--init-from`: a new run whose first state is another's; and what a run that diverged advises to type."""

import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from fast import fast
from launched import Made, RunMain, Start, rejoined
from small_runs import SMALL, finished

from fedmpi.report.records import read_records
from fedmpi.results.run import Run
from fedmpi.store import checkpoint, manifest, memory
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


def begin(run_main: RunMain, origin: Path | str, folder: Path, *words: str) -> tuple[str, str]:
    code, out, errors = run_main(*words, "--init-from", str(origin), "--run-dir", str(folder))
    assert code == 0, errors
    return out, errors


@contextmanager
def killed_in(function: str) -> Iterator[None]:
    """What the block runs ends where it calls this function."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedmpi.mpi.communicator.SerialComm.abort", lambda comm, code: None)
        patch.setattr(function, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.parametrize(("origin", "number"), fast(("parent@2", 2), of=[("parent", 3), ("parent@2", 2)]))
def test_the_first_state_is_the_saved_one(
    run_main: RunMain, parent: Path, tmp_path: Path, origin: str, number: int
) -> None:
    """With the memories that go with it, under RUN's config. RUN is not touched, and the manifest names it."""
    before = content(parent)
    folder = RunDir(tmp_path / "new")
    out, _ = begin(run_main, tmp_path / origin, folder.path, "rounds=1", "train.lr=0.01", "output.keep_checkpoints=5")
    assert content(parent) == before and f"begins with the state of {parent} after round {number}: " in rejoined(out)
    first = checkpoint.load(folder.checkpoint_path(0))
    saved = checkpoint.load(RunDir(parent).checkpoint_path(number))
    assert first.server.keys() == saved.server.keys()
    assert all(torch.equal(first.server[name], saved.server[name]) for name in saved.server)
    digests = [{client: digest for client, (_, digest) in one.clients.items()} for one in (first, saved)]
    assert digests[0] == digests[1] != {}
    (start,) = manifest.read_starts(folder)
    changes = ["train.lr: run has 0.05, you ask 0.01"]
    assert start["init_from"] == {"run": str(parent), "round": number, "config": changes}
    assert Run(folder.path).init_from == f"parent@{number}" and len(read_records(folder)) == 1


@pytest.mark.parametrize("change", ["train.lr=0.01", "method.prune_rate=0.1"])
def test_what_hermes_has_of_the_other_run_is_older_than_the_new_rounds(
    made: Made, run_main: RunMain, tmp_path: Path, change: str
) -> None:
    """Versions and memories, so that clients take what the new run averages; their order stays that of RUN."""
    hermes = ("method.name=hermes", "method.accuracy_threshold=0", "rounds=3", "output.progress=plain")
    parent = RunDir(made(tmp_path / "parent", *hermes))
    folder = RunDir(tmp_path / "new")
    begin(run_main, parent.path, folder.path, change, "rounds=1", "output.keep_checkpoints=5")
    saved = checkpoint.load(parent.checkpoint_path(3))
    first = checkpoint.load(folder.checkpoint_path(0))
    versions = [name for name in saved.server if name.startswith("round..")]
    assert any(bool(saved.server[name].any()) for name in versions)
    assert all(torch.equal(first.server[name], saved.server[name] - 3) for name in versions)
    assert saved.clients and bool(first.clients) == (change == "train.lr=0.01")
    for client, version in first.clients.items():
        before = memory.load(parent, client, saved.clients[client])["round..own.."]
        assert int(memory.load(folder, client, version)["round..own.."]) == int(before) - 3 <= 0


@pytest.mark.parametrize("stage", fast("first", of=["first", "second"]))
def test_it_goes_on_without_the_other_run(run_main: RunMain, parent: Path, tmp_path: Path, stage: str) -> None:
    """Killed before its first save, or after its last: `--resume`, with `--init-from` or without, needs RUN no more."""
    begin(run_main, parent, tmp_path / "whole")
    folder = tmp_path / "new"
    with killed_in(f"fedmpi.running.server.Server.{'round_done' if stage == 'first' else 'close_run'}"):
        run_main("--init-from", str(parent), "--run-dir", str(folder))
    shutil.rmtree(parent)
    again = ("--init-from", str(parent)) if stage == "first" else ()
    code, _out, errors = run_main("--run-dir", str(folder), "--resume", *again)
    assert code == 0, errors
    assert finished(folder) == finished(tmp_path / "whole")


def test_a_kill_before_the_state_is_saved_leaves_no_run(run_main: RunMain, parent: Path, tmp_path: Path) -> None:
    """It cannot be resumed with another first state by mistake; the same command begins it again."""
    folder = tmp_path / "new"
    with killed_in("fedmpi.running.resuming.checkpoint.save"):
        run_main("rounds=1", "--init-from", str(parent), "--run-dir", str(folder))
    code, _out, errors = run_main("--run-dir", str(folder), "--resume")
    assert code == 2 and "holds no run to continue" in rejoined(errors)
    begin(run_main, parent, folder, "rounds=1")


def test_a_newer_checkpoint_that_is_damaged_is_skipped(run_main: RunMain, parent: Path, tmp_path: Path) -> None:
    """A fresh folder is made where none is named; without any whole checkpoint there is no new run."""
    RunDir(parent).checkpoint_path(3).write_bytes(b"no checkpoint")
    words = ("--init-from", str(parent), "rounds=1", f"output.dir={tmp_path / 'runs'}")
    code, out, errors = run_main(*words)
    assert code == 0 and "after round 2" in rejoined(out) and errors.count("skipping a checkpoint") == 1
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("parent-continued-")
    shutil.rmtree(RunDir(parent).memory_dir)
    code, _out, errors = run_main(*words)
    assert code == 2 and "holds no whole checkpoint to begin from; " in rejoined(errors)


@pytest.mark.parametrize(
    "change",
    fast("seed=1", of=["method.name=fedavg", "method.ratio=0.5", "seed=1", "partition.name=class_dirichlet"], slow=()),
)
def test_other_settings_take_the_server_s_net_alone(
    run_main: RunMain, parent: Path, tmp_path: Path, change: str
) -> None:
    folder = RunDir(tmp_path / "new")
    begin(run_main, parent, folder.path, change, "rounds=1", "output.keep_checkpoints=5")
    assert checkpoint.load(RunDir(parent).checkpoint_path(3)).clients
    assert not checkpoint.load(folder.checkpoint_path(0)).clients


@pytest.mark.parametrize(
    ("origin", "words", "line"),
    [
        ("nowhere", (), "holds no run (no config.yaml)"),
        ("{parent}@7", (), "holds no whole checkpoint of round 7 to begin from; saved rounds: 3, 2"),
        ("{parent}", ("model.width=0.25",), "does not fit this config: its round 3 holds "),
        ("{parent}", ("method.name=scaffold", "train.momentum=0"), "does not fit this config: its round 3 lacks "),
        ("{parent}", ("--run-dir", "{parent}"), "which is only read"),
        ("{parent}", ("--run-dir", "{parent}/again"), "which is only read"),
        ("{parent}", ("--run-dir", "{other}"), "already holds a run"),
    ],
)
def test_what_does_not_fit_is_one_line(
    run_main: RunMain, parent: Path, tmp_path: Path, origin: str, words: tuple[str, ...], line: str
) -> None:
    """Exit code 2, the other run is as it was, and there is no new one."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("seed: 1\n")
    before = content(parent)
    names = {"parent": parent, "other": tmp_path / "other"}
    given = [word.format(**names) for word in words]
    new = [] if "--run-dir" in given else ["--run-dir", str(tmp_path / "new")]
    code, _out, errors = run_main("rounds=5", "--init-from", origin.format(**names), *given, *new)
    assert code == 2 and line in rejoined(errors) and len(rejoined(errors).splitlines()) == 1, errors
    assert content(parent) == before and not RunDir(tmp_path / "new").holds_run()


@pytest.mark.slow
def test_the_advice_of_a_run_that_diverged_before_its_first_save_works(run_main: RunMain, tmp_path: Path) -> None:
    """It begins again, in the same place, with another learning rate."""
    code, _, errors = run_main(*SMALL, *DIVERGES, "--run-dir", str(tmp_path / "run"))
    assert code not in (0, 2) and "DivergenceError" in errors
    assert Run(tmp_path / "run").state == "diverged"
    (advice,) = re.findall(r"; to continue[^:]*:\s+python -m fedmpi.main (.*)", errors)
    code, _, errors = run_main(*shlex.split(advice))
    assert code == 0, errors
    assert [record["lr"] for record in finished(tmp_path / "run").records] == [0.1, 0.1, 0.1]


@pytest.mark.slow
def test_a_run_that_is_running_can_be_begun_from(start: Start, run_main: RunMain, tmp_path: Path) -> None:
    """It saves, and deletes, while it is read."""
    run_dir = tmp_path / "run"
    running = start(1, "method.name=topk", "rounds=100000", "evaluation.every=100", run_dir=run_dir)
    assert running.wait_until(lambda: bool(RunDir(run_dir).checkpoints())), running.err
    for number in range(3):
        new = ("--run-dir", str(tmp_path / str(number)), "rounds=1", "output.progress=plain")
        code, out, errors = run_main("--init-from", str(run_dir), *new)
        assert code == 0 and f"the state of {run_dir} after round" in rejoined(out), errors
    assert running.process.poll() is None
