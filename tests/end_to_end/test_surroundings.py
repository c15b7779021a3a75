"""Full and read-only disks, folders that go away: nothing saved is lost, and the run says what is wrong."""

import errno
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import failing_disk
import pytest
from fast import fast
from launched import (
    ENDLESS,
    ENDS_WITHIN_S,
    RunMain,
    Start,
    all_end,
    descendants,
    ends_in_time,
    failed_on,
    has_rounds,
    only_starts,
    paused,
)
from small_runs import SMALL, Finished, finished, run_all, small_config, undisturbed

from fedmpi.errors import RoundError, RunDirError
from fedmpi.mpi.communicator import SerialComm
from fedmpi.report.records import read_records
from fedmpi.store import checkpoint
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir

TOPK = ("method.name=topk",)


def without_notes(run: Finished) -> Finished:
    """As if every save had held."""
    records = [{key: value for key, value in record.items() if key != "save_errors"} for record in run.records]
    return replace(run, records=records)


@pytest.mark.parametrize("ranks", fast(1, of=(1, 2)))
def test_a_full_disk_ends_the_run_and_harms_nothing(
    start: Start, run_main: RunMain, tmp_path: Path, ranks: int
) -> None:
    """One block: which file, how much is free, what to do; its command continues to the same bits."""
    with failing_disk.small_disk(tmp_path / "disk", "4m") as disk:
        run_dir = disk / "run"
        launched = start(ranks, *TOPK, *ENDLESS, run_dir=run_dir)
        assert launched.wait_until(has_rounds(run_dir, 2)), launched.err
        filler = failing_disk.fill(disk)
        code = ends_in_time(launched, lambda: "fedmpi: failed" in launched.err)
        assert code not in (0, 2, 75)
        # The rank that meets the end of the disk first: rank 0 with a record, or the one that writes a client's memory.
        assert re.search(
            rf"^{failed_on()}round \d+, .*stage (saving|local_training)\n"
            r"  cause: RunDirError: \S+: cannot be written: .*; needs \S+ k?B, \S+ k?B free; ",
            launched.err,
            re.M,
        ), launched.err
        assert "Traceback" not in launched.err and "\n  at " not in launched.err
        snapshot = checkpoint.load_newest_intact(RunDir(run_dir), pytest.fail)
        assert snapshot is not None and snapshot.round >= 1
        filler.unlink()
        words, rounds = launched.advice(), f"rounds={snapshot.round + 2}"
        code, _, errors = run_main(*words[words.index("fedmpi.main") + 1 :], rounds)
        assert code == 0, errors
        assert not list(run_dir.rglob(".*.tmp"))
        assert finished(run_dir) == undisturbed(tmp_path, *TOPK, *ENDLESS, rounds)


@pytest.mark.slow
def test_a_read_only_disk_is_said_before_anything_is_computed(start: Start, tmp_path: Path) -> None:
    with failing_disk.small_disk(tmp_path / "disk", "1m", "ro") as disk:
        launched = start(3, *TOPK, run_dir=disk / "run")
        assert launched.wait() == 2
        assert f"{disk / 'run'}: cannot be written: {os.strerror(errno.EROFS)}; " in launched.err
        assert "Traceback" not in launched.err and only_starts(launched.out)


GONE = {
    "made anew": "its folder is gone",
    "records are a folder": "{folder}/run/rounds.jsonl: cannot be written: Is a directory",
}


@pytest.mark.slow
@pytest.mark.parametrize("harm", fast("made anew", of=GONE, slow=()))
def test_a_folder_that_goes_away_is_noticed_at_the_next_round(
    start: Start, run_dir: Path, tmp_path: Path, harm: str
) -> None:
    """Though the next checkpoint is far away; and nothing is made anew in its place, or advised to be resumed there."""
    launched = start(2, *ENDLESS, "output.checkpoint_every=100000", run_dir=run_dir)
    assert launched.wait_until(has_rounds(run_dir, 2)), launched.err
    is_there = harm == "records are a folder"
    with paused(launched, 0):  # else it might look between the two steps
        if is_there:
            RunDir(run_dir).records_path.rename(tmp_path / "elsewhere")
            RunDir(run_dir).records_path.mkdir()
        else:
            run_dir.rename(tmp_path / "elsewhere")
            run_dir.mkdir()
    code = ends_in_time(launched, lambda: "fedmpi: failed" in launched.err)
    assert code not in (0, 2)
    blocks = re.findall(r"^fedmpi: failed on .*\n  cause: (.*)\n(.*)$", launched.err, re.M)
    assert len(blocks) == 1 and GONE[harm].format(folder=tmp_path) in blocks[0][0], launched.err
    if is_there:
        assert blocks[0][1] == f"to continue: mpirun -n 2 python -m fedmpi.main --run-dir {run_dir} --resume"
    else:
        assert blocks[0][1].endswith(f" to continue in {run_dir}")
        assert not run_dir.is_dir() or not any(run_dir.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("policy", fast("warn", of=("stop", "warn"), slow=()))
def test_a_memory_that_cannot_be_written_ends_the_run(start: Start, run_dir: Path, policy: str) -> None:
    """Whatever the policy: without it the client's next round would have other bits. The rank that trains says so."""
    saved = str(RunDir(run_dir).checkpoint_path(1))
    patch = failing_disk.PATCH.format(part="/.2-", error="EDQUOT", after=saved)  # memories of round 2
    launched = start(2, *TOPK, f"output.on_save_error={policy}", run_dir=run_dir, patch=patch)
    family = descendants(launched.process.pid)
    assert launched.wait() not in (0, 2)
    assert all_end(family, time.monotonic() + ENDS_WITHIN_S)
    assert re.search(
        rf"^{failed_on(1)}round 2, client \d, stage local_training\n"
        r"  cause: RunDirError: \S+/memory/0/\d/2-\S+\.h5: .*: Disk quota exceeded; .*quota$",
        launched.err,
        re.M,
    ), launched.err
    assert finished(run_dir).records[-1]["round"] == 1


ERRORS = ("ENOSPC", "EDQUOT", "EIO", "ESTALE", "EROFS", "EFBIG")


@pytest.mark.parametrize("error", fast("ENOSPC", of=ERRORS, slow=()))
@pytest.mark.parametrize("part", fast("round-", of=("rounds.jsonl", "round-")))
def test_any_save_may_fail_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd, error: str, part: str) -> None:
    """Under `warn`: the records or the checkpoints of rounds 2 and 3 fail, the next ones hold; bits are the same."""
    words = (*TOPK, "rounds=5")
    expected = undisturbed(tmp_path, *words)
    failures: list[str] = []

    def is_broken(path: str) -> bool:
        rounds = len(read_records(RunDir(tmp_path / "run")))
        is_it = part in path and "/run/" in path and rounds - ("jsonl" in part) >= 1 and len(failures) < 2
        failures.extend([path] * is_it)
        return is_it

    with monkeypatch.context() as patch:
        failing_disk.fail(patch, getattr(errno, error), is_broken)
        run_all(small_config(*words, "output.on_save_error=warn"), SerialComm(), tmp_path / "run")
    shown = capfd.readouterr()
    assert len(failures) == 2 and shown.err.count(" is not saved, ") == 2
    assert without_notes(finished(tmp_path / "run")) == expected


@pytest.mark.slow
@pytest.mark.parametrize("part", ["rounds.jsonl", "round-000003"])
def test_the_last_round_must_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Under `warn`, too; what was saved before stays, and a resume has the rest."""
    words = (*TOPK, "output.on_save_error=warn")

    def is_last(path: str) -> bool:
        return part in path and len(read_records(RunDir(tmp_path / "run"))) >= 3

    with monkeypatch.context() as patch:
        failing_disk.fail(patch, errno.EIO, is_last)
        with pytest.raises(RoundError) as caught:
            run_all(small_config(*words), SerialComm(), tmp_path / "run")
    assert (caught.value.stage, caught.value.round_number) == ("saving", 3)
    assert isinstance(caught.value.__cause__, RunDirError)
    snapshot = checkpoint.load_newest_intact(RunDir(tmp_path / "run"), pytest.fail)
    assert snapshot is not None and snapshot.round == 2
    half_written = tmp_path / "run" / "memory" / "0" / "0" / f".9-{'0' * 32}.h5.{'a' * 16}.tmp"
    half_written.touch()  # as a worker leaves that is killed while it writes
    run_all(small_config(*words), SerialComm(), tmp_path / "run", resume=True)
    assert finished(tmp_path / "run") == undisturbed(tmp_path, *words) and not half_written.exists()


@pytest.mark.slow
def test_a_checkpoint_that_failed_is_made_a_round_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the next one would be due; which is then made as well, and none in between."""
    words = ("rounds=8", "output.checkpoint_every=3", "output.keep_checkpoints=9", "output.on_save_error=warn")
    failing_disk.fail(monkeypatch, errno.EIO, lambda path: "round-000003" in path)
    run_all(small_config(*words), SerialComm(), tmp_path)
    assert [number for number, _ in RunDir(tmp_path).checkpoints()] == [8, 6, 4]


def test_a_run_whose_directory_another_one_took_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it writes another byte there, and whatever the policy; the heartbeat continues through a round."""
    beats: list[int] = []

    def taken(lock: RunLock) -> None:
        raise RunDirError(str(tmp_path), "is in use by pid 7 on elsewhere")

    monkeypatch.setattr(RunLock, "refresh", taken)
    monkeypatch.setattr(RunLock, "beat", lambda lock: beats.append(1))
    with pytest.raises(RoundError) as caught:
        run_all(small_config("output.on_save_error=warn"), SerialComm(), tmp_path)
    assert caught.value.stage == "saving" and "pid 7" in str(caught.value.__cause__)
    assert read_records(RunDir(tmp_path)) == [] and len(beats) == 4


def test_a_run_can_do_without_its_report_and_tensorboard(run_main: RunMain, tmp_path: Path) -> None:
    """A file stands where either's folder should be: one line each, and exit code 0."""
    (tmp_path / "run").mkdir()
    for name in ("report", "tensorboard"):
        (tmp_path / "run" / name).write_text("in the way")
    words = ("rounds=2", "output.tensorboard=true", "output.progress=plain", "--run-dir", str(tmp_path / "run"))
    code, _, err = run_main(*SMALL, *words)
    assert code == 0, err
    lines = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert len(lines) == 2 and "Traceback" not in err
    assert "TensorBoard" in lines[0] and str(tmp_path / "run" / "tensorboard") in lines[0]
    assert "report is not" in lines[1] and str(tmp_path / "run" / "report") in lines[1]
    assert len(finished(tmp_path / "run").records) == 2
