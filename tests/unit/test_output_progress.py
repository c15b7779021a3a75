"""What rank 0 prints: a line for each round, and the closing table."""

import errno
import io
import json
import sys
from pathlib import Path

import pytest

from fedmpi.clock import STAGES
from fedmpi.report.closing import TierRow, closing_lines, print_table, write_summary
from fedmpi.report.progress import Progress
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import duration, joules, short_duration, si, size

ROWS = [
    TierRow("full", 1.0, 11_173_962, 556_651_520, 44_695_848, 44_695_848, 0.91234, 0.92, 7),
    TierRow("eighth", 0.125, 1_236_042, 0, 4_944_168, 4_944_168, None, None, None),
]
SECONDS = {**dict.fromkeys(STAGES, 0.0), "svd": 15.0, "local_training": 45.0, "wall": 60.0}
Capture = pytest.CaptureFixture[str]


def record(number: int, wall_s: float, loss: float | None, **accuracy: float) -> dict[str, object]:
    tiers = {"tiers": {name: {"accuracy": share} for name, share in accuracy.items()}} if accuracy else {}
    return {"round": number, "seconds": {"wall": wall_s}, "train_loss": loss, **tiers}


def run(progress: Progress) -> None:
    for number in (1, 2):
        progress.clients(1, 2)
        progress.round_done(record(number, 1.5, 0.5, full=0.9))
    progress.say("a word [bold]")


def test_plain_lines(capsys: Capture) -> None:
    """Two rounds of ten at 1.5 s each: 9 * 1.5 = 13.5 and 8 * 1.5 = 12 s to go. One that is off prints nothing."""
    run(Progress(10, is_shown=False))
    progress = Progress(10)
    run(progress)
    progress.round_done(record(3, 1.5, None))
    assert capsys.readouterr().out.splitlines() == [
        "accuracy of full",
        "round  1/10  1.50 s  ETA 0:14  loss 0.5  accuracy 90.0 %",
        "round  2/10  1.50 s  ETA 0:12  loss 0.5  accuracy 90.0 %",
        "a word [bold]",
        "round  3/10  1.50 s  ETA 0:10",
    ]


@pytest.mark.parametrize("num_tiers", [1, 4, 5, 40])
def test_every_line_fits_80_columns(num_tiers: int, capsys: Capture) -> None:
    """Of many tiers the accuracies stand on several lines."""
    tiers = {f"{number / num_tiers:g}": number / num_tiers for number in range(1, num_tiers + 1)}
    Progress(1000).round_done(record(999, 12345.678, 0.123456, **tiers))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80 and "12345.68 s  ETA 3:25:46" in text
    assert ", ".join(tiers) in " ".join(line.strip() for line in text.splitlines()) and text.endswith("100.0 %\n")


def test_a_long_round_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Every 10 s, with the end of the run. The first round estimates how long a round is, later ones know it."""
    now_s = [100.0]
    monkeypatch.setattr("fedmpi.report.progress.time.monotonic", lambda: now_s[0])
    progress = Progress(3)
    for second in range(1, 100):
        now_s[0] = 100.0 + second
        progress.clients(second, 100)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 and lines[0] == "round 1/3  clients 10/100  0:10  ETA 4:50"
    progress.round_done(record(1, 100.0, None))
    now_s[0] += 10
    progress.clients(10, 100)
    now_s[0] += 110  # a round that is slower than the last ones has an unknown end
    progress.clients(40, 100)
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert lines == ["round 2/3  clients 10/100  0:10  ETA 3:10", "round 2/3  clients 40/100  2:00  ETA 1:40"]


class Broken(io.StringIO):
    """A stream that cannot be written."""

    error: OSError | None = None

    def flush(self) -> None:
        if self.error:
            raise self.error


def test_a_reader_that_went_away_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a full disk under the log only what did not fit is lost."""
    stream = Broken()
    monkeypatch.setattr(sys, "stdout", stream)
    progress = Progress(5)
    stream.error = OSError(errno.ENOSPC, "No space left on device")
    progress.say("one")
    stream.error = None
    progress.say("two")
    assert stream.getvalue().endswith("two\n")
    stream.error = BrokenPipeError()
    run(progress)
    print_table(ROWS, closing_lines([]), RunDir(tmp_path))


def test_closing_table(run_dir: RunDir, capsys: Capture) -> None:
    """Printed rounded; the report has exact numbers."""
    lines = closing_lines([{"round": 1, "seconds": SECONDS, "method": {"conclusions": ["both are one net"]}}])
    print_table(ROWS, lines, run_dir)
    write_summary(run_dir, ROWS, time_s=SECONDS)
    text = capsys.readouterr().out
    full, eighth = (" ".join(line.split()) for line in text.splitlines() if line.startswith(("full", "eighth")))
    assert full == "full 1 11.17 M 556.65 M 44.70 MB 44.70 MB 91.23 92.00 7"
    assert eighth == "eighth 0.125 1.24 M 0 4.94 MB 4.94 MB - - -"
    assert max(map(len, text.replace(str(run_dir.path), "").splitlines())) <= 80
    assert "time: 1:00 (local training 75.0 % 45.0 s, svd 25.0 % 15.0 s)" in text
    assert f"run directory: {run_dir.path}" in text and text.isascii() and "\nboth are one net\n" in text
    summary = json.loads((run_dir.report_dir / "summary.json").read_text())
    assert summary["tiers"][0]["params"] == 11_173_962 and summary["tiers"][0]["accuracy_last"] == 0.91234
    assert summary["tiers"][1]["accuracy_best"] is None and summary["time_s"] == SECONDS


def test_units() -> None:
    assert [si(n) for n in (0, 999, 1000, 1_236_042, 11_173_962, 999_999.9, 1e18, None)] == [
        *("0", "999", "1.00 k", "1.24 M", "11.17 M", "1.00 M", "1000.00 P", "-")
    ]
    assert [size(n) for n in (0, 12, 44_695_848, None)] == ["0 B", "12 B", "44.70 MB", "-"]
    spans_s = (0, 6.6, 75, 7384, 180_000, None)
    assert [duration(s) for s in spans_s] == ["0:00", "0:07", "1:15", "2:03:04", "2 d 02:00", "-"]
    shorts = {0.0: "0 s", 3e-7: "0.300 us", 0.002: "2.00 ms", 0.0996: "99.6 ms", 0.09996: "0.100 s", 0.42: "0.420 s"}
    assert {s: short_duration(s) for s in shorts} == shorts
    longs = {1.2: "1.20 s", 59.94: "59.9 s", 59.96: "1:00", 7384: "2:03:04", 2166026: "25 d 01:40"}
    assert {s: short_duration(s) for s in longs} == longs
    energies = {0.0: "0 J", 3e-6: "3.00 uJ", 0.0024: "2.40 mJ", 0.3: "0.300 J", 1.0: "1.00 J", 999.9: "1.00 kJ"}
    assert {number: joules(number) for number in energies} == energies
    assert joules(1236042) == "1.24 MJ" and joules(None) == joules(float("nan")) == "-"
