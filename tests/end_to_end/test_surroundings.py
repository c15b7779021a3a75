"""Full and read-only disks, folders that go away: nothing saved is lost, and the run says what is wrong."""

import errno
import itertools
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fast import fast
from launched import ENDLESS, RunMain, Start, ends_in_time, failed_on, has_rounds, paused
from small_runs import SMALL, finished, undisturbed

from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir

TOPK = ("method.name=topk",)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own, so small; skips the test where one may not be mounted."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        subprocess.run(words, check=True, capture_output=True, timeout=600)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small file system may be mounted here: {error}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=600)


def fill(disk: Path) -> Path:
    """Writes until nothing more goes there; the file to delete for room."""
    filler = disk / "filler"
    with open(filler, "ab", buffering=0) as file:
        for num_bytes in (65536, 4096, 1):
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                file.writelines(itertools.repeat(b"x" * num_bytes))
    return filler


@pytest.mark.parametrize("ranks", fast(1, of=(1, 2)))
def test_a_full_disk_ends_the_run_and_harms_nothing(
    start: Start, run_main: RunMain, tmp_path: Path, ranks: int
) -> None:
    """One block: which file, how much is free, what to do; its command continues to the same bits."""
    with small_disk(tmp_path / "disk", "4m") as disk:
        run_dir = disk / "run"
        launched = start(ranks, *TOPK, *ENDLESS, run_dir=run_dir)
        assert launched.wait_until(has_rounds(run_dir, 2)), launched.err
        filler = fill(disk)
        code = ends_in_time(launched, lambda: "fedmpi: failed" in launched.err)
        assert code not in (0, 2, 75)
        # The rank that meets the end of the disk first: rank 0 with a record, or the one that writes a client's memory.
        assert re.search(
            rf"^{failed_on()}round \d+, .*stage (saving|local_training)\n"
            r"  cause: RunDirError: \S+: cannot be written: .*; \S+ k?B free; ",
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
def test_a_folder_that_goes_away_is_noticed_at_the_next_round(start: Start, run_dir: Path, tmp_path: Path) -> None:
    """Though the next checkpoint is far away; and nothing is made anew in its place, or advised to be resumed there."""
    launched = start(2, *ENDLESS, "output.checkpoint_every=100000", run_dir=run_dir)
    assert launched.wait_until(has_rounds(run_dir, 2)), launched.err
    with paused(launched, 0):  # else it might look between the two steps
        run_dir.rename(tmp_path / "elsewhere")
        run_dir.mkdir()
    code = ends_in_time(launched, lambda: "fedmpi: failed" in launched.err)
    assert code not in (0, 2)
    ((cause, advice),) = re.findall(r"^fedmpi: failed on .*\n  cause: (.*)\n(.*)$", launched.err, re.M)
    assert "its folder is gone" in cause and advice.endswith(f" to continue in {run_dir}"), launched.err
    assert not any(run_dir.iterdir())


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
