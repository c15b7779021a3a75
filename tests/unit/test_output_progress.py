"""What rank 0 prints: plain lines in files and pipes, one live line where a terminal shows it."""

import errno
import io
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedmpi.clock import STAGES
from fedmpi.mpi import launch
from fedmpi.report.closing import TierRow, closing_table, summary_markdown, time_line
from fedmpi.report.progress import Progress, round_line
from fedmpi.report.terminal import columns_of_terminal
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import duration, si, size

ROWS = [
    TierRow("full", 1.0, 11_173_962, 556_651_520, 44_695_848, 44_695_848, 0.91234, 0.92, 7),
    TierRow("eighth", 0.125, 1_236_042, 0, 4_944_168, 4_944_168, None, None, None),
]
SPLIT_S = {**dict.fromkeys((*STAGES, "other"), 0.0), "svd": 15.0, "local_training": 45.0}


def record(number: int, wall_s: float, loss: float | None, **accuracy: float) -> dict[str, object]:
    tiers = {name: {"accuracy": share} for name, share in accuracy.items()}
    return {"round": number, "seconds": {"wall": wall_s}, "train_loss": loss, "tiers": tiers}


def run(progress: Progress, rounds: int = 2) -> None:
    with progress:
        for number in range(1, rounds + 1):
            progress.clients(1, 2)
            progress.round_done(record(number, 1.5, 0.5, full=0.9))
        progress.say("a word [bold]")


def test_plain_lines() -> None:
    """Two rounds of ten at 1.5 s each: 9 * 1.5 = 13.5 and 8 * 1.5 = 12 s to go."""
    stream = io.StringIO()
    run(Progress("auto", 10, stream=stream))
    assert stream.getvalue().splitlines() == [
        "round  1/10  accuracy full 90.0 %  loss 0.5  1.50 s  ETA 0:14",
        "round  2/10  accuracy full 90.0 %  loss 0.5  1.50 s  ETA 0:12",
        "a word [bold]",
    ]


def test_off_is_silent_and_live_can_be_forced() -> None:
    off, live = io.StringIO(), io.StringIO()
    run(Progress("off", 10, stream=off))
    assert off.getvalue() == ""
    run(Progress("live", 10, stream=live))
    assert "\x1b[" in live.getvalue() and "clients 1/2" in live.getvalue() and "a word [bold]" in live.getvalue()


def test_live_updates_are_rate_limited() -> None:
    stream = io.StringIO()
    with Progress("live", 1, stream=stream) as progress:
        for done in range(10_000):
            progress.clients(done, 10_000)
    assert stream.getvalue().count("clients") < 100


def test_a_round_without_evaluation_or_loss() -> None:
    assert round_line(3, 5, None, {}, 2.0, 4.0) == "round 3/5  2.00 s  ETA 0:04"


class HungUp(io.StringIO):
    """A stream whose reader has closed."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_a_reader_that_went_away_does_not_end_the_run(mode: str, tmp_path: Path) -> None:
    run(Progress(mode, 5, stream=HungUp()))
    run_dir = RunDir.open_for(tmp_path, resume=False)
    closing_table(ROWS, SPLIT_S, run_dir, stream=HungUp())
    assert (run_dir.report_dir / "summary.json").exists()


def test_a_full_disk_under_the_log_loses_only_what_did_not_fit() -> None:
    class Full(io.StringIO):
        is_full = True

        def flush(self) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")

    stream = Full()
    progress = Progress("plain", 10, stream=stream)
    progress.say("one")
    stream.is_full = False
    progress.say("two")
    assert stream.getvalue().endswith("two\n")


def test_a_warning_is_always_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Once: on stderr only where nothing else is shown."""
    for mode in ("off", "plain"):
        Progress(mode, 10).warn("a word")
    assert capsys.readouterr() == ("warning: a word\n", "warning: a word\n")


def test_signs_that_the_encoding_lacks_do_not_end_the_run() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    for mode in ("plain", "live"):
        with Progress(mode, 1, stream=stream) as progress:
            progress.round_done(record(1, 1.0, None, γ=0.5))
    stream.flush()
    assert b"accuracy ? 50.0 %" in raw.getvalue()


SHOW = """
from fedmpi.report.progress import Progress
with Progress("auto", 2) as progress:
    progress.clients(1, 2)
    progress.round_done({"round": 1, "seconds": {"wall": 1.0}, "train_loss": 0.5, "tiers": {}})
"""
COMMAND = [sys.executable, "-c", SHOW]
MPI_ENVIRON = {
    **os.environ,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "TERM": "xterm",
}


def _outside_mpi() -> dict[str, str]:
    return {name: value for name, value in MPI_ENVIRON.items() if not name.startswith(("OMPI_COMM", "PMI", "PRTE_"))}


def in_terminal(command: list[str], environ: dict[str, str]) -> bytes:
    """What `command` writes to a pseudo terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environ)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # how Linux says that the last writer has closed
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0, shown
    return shown


def test_a_pipe_gets_plain_lines_and_a_terminal_a_live_one() -> None:
    environ = _outside_mpi()
    piped = subprocess.run(COMMAND, capture_output=True, check=True, env=environ, timeout=60).stdout
    assert piped == b"round 1/2  loss 0.5  1.00 s  ETA 0:01\n"
    shown = in_terminal(COMMAND, environ)
    assert b"\x1b[" in shown and b"clients 1/2" in shown
    assert in_terminal(COMMAND, {**environ, "TERM": "dumb"}) == piped.replace(b"\n", b"\r\n")


needs_mpirun = pytest.mark.skipif(
    any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK")), reason="mpirun does not nest"
)


def _mpirun() -> str:
    found = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    return found or pytest.skip("no mpirun")


@needs_mpirun
def test_a_log_file_behind_mpirun_stays_clean(tmp_path: Path) -> None:
    """Rank 0 has a pseudo terminal there, whatever mpirun writes to; a wrapper in between changes nothing."""
    environ = {**_outside_mpi(), "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    for number, wrapper in enumerate(([], ["sh", "-c", '"$@"; true', "sh"])):
        log = tmp_path / f"{number}.log"
        with log.open("wb") as file:
            command = [_mpirun(), "-n", "1", *wrapper, *COMMAND]
            subprocess.run(command, stdout=file, check=True, env=environ, timeout=60)
        assert log.read_text() == "round 1/2  loss 0.5  1.00 s  ETA 0:01\n"


@needs_mpirun
def test_a_terminal_behind_mpirun_gets_plain_lines() -> None:
    """mpirun forwards whole lines only, so a live one would not be seen before the end."""
    environ = {**_outside_mpi(), "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    assert in_terminal([_mpirun(), "-n", "1", *COMMAND], environ) == b"round 1/2  loss 0.5  1.00 s  ETA 0:01\r\n"


def test_every_launcher_is_known() -> None:
    """`fedmpi.mpi.launch` and the terminal agree on what a launcher leaves in the environment."""

    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

        def fileno(self) -> int:
            raise OSError

    assert columns_of_terminal(Tty(), {}) == 80
    for rank, count in launch._VARIABLES:
        assert columns_of_terminal(Tty(), {rank: "0", count: "2"}) == 0


def test_what_is_no_file_is_no_terminal() -> None:
    assert columns_of_terminal(io.StringIO(), {}) == 0


def test_closing_table(tmp_path: Path) -> None:
    run_dir, stream = RunDir.open_for(tmp_path / "run", resume=False), io.StringIO()
    closing_table(ROWS, SPLIT_S, run_dir, stream=stream)
    text = stream.getvalue()
    full, eighth = (" ".join(line.split()) for line in text.splitlines() if "full" in line or "eighth" in line)
    assert full == "| full | 1 | 11.17 M | 556.65 M | 44.70 MB | 44.70 MB | 91.23 % | 92.00 % | 7 |"
    assert eighth == "| eighth | 0.125 | 1.24 M | 0 | 4.94 MB | 4.94 MB | - | - | - |"
    assert "time: 1:00 (local training 75.0 % 45.0 s, svd 25.0 % 15.0 s)" in text
    assert f"run directory: {run_dir.path}" in text and text.isascii()


def test_the_report_has_exact_numbers(tmp_path: Path) -> None:
    run_dir = RunDir.open_for(tmp_path / "run", resume=False)
    closing_table(ROWS, SPLIT_S, run_dir, stream=io.StringIO())
    summary = json.loads((run_dir.report_dir / "summary.json").read_text())
    assert summary["tiers"][0]["params"] == 11_173_962 and summary["tiers"][0]["accuracy_last"] == 0.91234
    assert summary["tiers"][1]["accuracy_best"] is None and summary["time_s"] == SPLIT_S
    text = (run_dir.report_dir / "summary.md").read_text()
    assert text == summary_markdown(ROWS, SPLIT_S)
    assert "| eighth | 0.125 | 1.24 M | 0 | 4.94 MB | 4.94 MB | - | - | - |" in text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_the_table_fits_every_encoding(encoding: str, tmp_path: Path) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    row = TierRow("\u03b3=\u00bd", None, 1, 1, 1, 1, 0.5, 0.5, 1)
    closing_table([row], {}, RunDir.open_for(tmp_path, resume=False), stream=stream)
    expected = {"ascii": "?=?", "latin-1": "?=\u00bd", "utf-8": "\u03b3=\u00bd"}[encoding]
    assert expected in raw.getvalue().decode(encoding) and "50.00 %" in raw.getvalue().decode(encoding)


def test_units() -> None:
    assert [si(n) for n in (0, 999, 1000, 1_236_042, 11_173_962, 999_999.9, 1e18, None)] == [
        *("0", "999", "1.00 k", "1.24 M", "11.17 M", "1.00 M", "1000.00 P", "-")
    ]
    assert [size(n) for n in (0, 12, 44_695_848, None)] == ["0 B", "12 B", "44.70 MB", "-"]
    spans_s = (0, 6.6, 75, 7384, 180_000, None)
    assert [duration(s) for s in spans_s] == ["0:00", "0:07", "1:15", "2:03:04", "2 d 02:00", "-"]


def test_a_time_line_without_time() -> None:
    assert time_line({"svd": 0.0}) == "0:00" == time_line({})
