"""rounds.jsonl, TensorBoard events and the manifest."""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
from golden_file import Told

from fedmpi.report.events import Events
from fedmpi.report.observer import Started
from fedmpi.report.records import (
    Best,
    Records,
    accuracies,
    is_whole,
    net_scores,
    read_records,
    rounds_done,
    scalars,
    scores_of,
)
from fedmpi.store import manifest
from fedmpi.store.manifest import add_start
from fedmpi.store.run_dir import RunDir


def write(run_dir: RunDir, rounds: range, resume_after: int | None = None, tensorboard: bool = False) -> None:
    records = Records(run_dir, resume_after=resume_after)
    observers = [records, *([Events()] if tensorboard else [])]
    if tensorboard:
        observers[1].run_started(Started({}, run_dir.path, resume_after or 0))
    for number in rounds:
        for observer in observers:
            observer.round_done({"round": number, "loss": 1 / number})


def test_a_record_is_on_disk_as_one_line_at_once(run_dir: RunDir) -> None:
    """What JSON has no word for is null; a fresh start begins afresh."""
    assert read_records(run_dir) == []
    records = Records(run_dir, resume_after=None)
    records.round_done({"round": 1, "x": [math.nan, (math.inf, 0.1)], "text": "a\nb"})
    assert run_dir.records_path.read_text() == '{"round": 1, "x": [null, [null, 0.1]], "text": "a\\nb"}\n'
    write(run_dir, range(0))
    assert read_records(run_dir) == []


def test_resume_takes_back_later_rounds_and_a_torn_line(run_dir: RunDir) -> None:
    write(run_dir, range(1, 6))
    with run_dir.records_path.open("a") as file:
        file.write('{"round": 6, "lo')
    write(run_dir, range(4, 6), resume_after=3)
    once = run_dir.records_path.read_text()
    assert [record["round"] for record in read_records(run_dir)] == [1, 2, 3, 4, 5]
    write(run_dir, range(0), resume_after=5)
    assert run_dir.records_path.read_text() == once


def test_missing_rounds_are_said(run_dir: RunDir, told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever they are; a run that continues says so again."""
    write(run_dir, range(1, 10))
    lines = run_dir.records_path.read_text().splitlines(keepends=True)
    run_dir.records_path.write_text("".join(lines[number - 1] for number in (2, 5, 6)))
    for _ in range(2):
        Records(run_dir, resume_after=8)
        told(capsys.readouterr().err)
        records = read_records(run_dir)
        assert [record["round"] for record in records] == [2, 5, 6] and not is_whole(records)
        assert rounds_done(records) == 6
    write(run_dir, range(9, 11), resume_after=8)
    assert [record["round"] for record in read_records(run_dir)] == [2, 5, 6, 9, 10]


def test_records_of_any_order_are_put_in_order(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """Of several of one round the last one counts; what is no record is left out, and nothing is said of rounds after
    the checkpoint.
    """
    lines = [f'{{"round": {number}, "x": {x}}}'.encode() for x, number in enumerate((2, 1, 3, 2, 9))]
    lines += [b"# my note", b'{"round": 0}', b'{"round": true}', b"", b"[2]", b"[" * 99999]
    lines += [b"\xff\xfe", b'{"loss": 1}', b'{"round": "x"}', b'{"round": 4, "x']
    run_dir.records_path.write_bytes(b"\n".join(lines))
    assert [(record["round"], record["x"]) for record in read_records(run_dir)] == [(1, 1), (2, 3), (3, 2), (9, 4)]
    Records(run_dir, resume_after=3)
    assert capsys.readouterr().err == ""
    assert run_dir.records_path.read_text() == '{"round": 1, "x": 1}\n{"round": 2, "x": 3}\n{"round": 3, "x": 2}\n'


def test_the_best_round_is_the_first_of_equals() -> None:
    courses = {"half": (0.1, 0.3, 0.3, 0.2), "clients": (0.4, 0.4, 0.1, 0.0)}
    records = [
        {"round": n, "tiers": {"half": {"accuracy": half}}, "clients": {"accuracy": own}, "seconds": {"wall": 2.0}}
        for n, (half, own) in enumerate(zip(*courses.values(), strict=True), 1)
    ]
    best = Best.of(records)
    assert best.last == {"half": 0.2, "clients": 0.0} and best.best == {"half": 0.3, "clients": 0.4}
    assert best.best_round == {"half": 2, "clients": 1} and best.split_s() == {"other": 8.0}
    assert best.best_of([4, 3, 2]) == 2 and best.best_of([9]) is None


def test_a_round_without_a_test_has_no_accuracy() -> None:
    record = {"round": 1, "seconds": {}}
    assert accuracies(record) == net_scores(record) == scores_of(record, "1") == Best.of([record]).last == {}


def test_scalars_of_a_record() -> None:
    tiers = {"half": {"accuracy": 0.5, "best": None}, "full": {}}
    record = {"round": 4, "loss": math.nan, "ok": True, "time_s": {"svd": 2}, "tiers": tiers, "cohort": [1, 2]}
    assert dict(scalars(record)) == {"time_s/svd": 2.0, "tiers/half/accuracy": 0.5}


def test_tensorboard_shows_each_round_once_after_a_resume(run_dir: RunDir) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(run_dir, range(1, 6), tensorboard=True)
    write(run_dir, range(4, 6), resume_after=3, tensorboard=True)
    events = EventAccumulator(str(run_dir.tensorboard_dir))
    events.Reload()
    steps = {event.step: event.value for event in events.Scalars("loss")}
    assert list(steps) == [1, 2, 3, 4, 5] and list(steps.values()) == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])


def test_the_manifest_lists_every_start(run_dir: RunDir) -> None:
    ranks = [{"host": "a", "device": "cpu", "threads": 1}, {"host": "a", "device": "cuda:0", "threads": 1}]
    add_start(run_dir, ranks=ranks, resumed_round=None)
    add_start(run_dir, ranks=ranks[:1], resumed_round=12)
    first, second = json.loads(run_dir.manifest_path.read_text())["starts"]
    assert (first["ranks"], first["resumed_round"]) == (ranks, None)
    assert (second["ranks"], second["resumed_round"]) == (ranks[:1], 12)
    assert {"fedmpi", "python", "torch", "numpy", "h5py"} <= set(first["versions"])


def test_a_damaged_manifest_does_not_end_the_run(run_dir: RunDir) -> None:
    for text in ("", "[]", '{"starts": 3}', '{"starts": [1]}', "[" * 99999):
        run_dir.manifest_path.write_text(text)
        add_start(run_dir, command=["x"])
        assert [start["command"] for start in manifest.read_starts(run_dir)] == [["x"]]


def test_a_note_is_one_of_the_last_start(run_dir: RunDir) -> None:
    """Without a start there is none; losses add up."""
    manifest.add_stop(run_dir, 3, "time")
    assert manifest.read_starts(run_dir) == []
    for start in ("first", "last"):
        add_start(run_dir, host=start)
    for rank in (1, 2):
        manifest.add_losses(run_dir, [{"rank": rank}])
    first, last = manifest.read_starts(run_dir)
    assert "losses" not in first and (last["host"], last["losses"]) == ("last", [{"rank": 1}, {"rank": 2}])


def test_git_commit_of_a_repository_that_tracks_the_source(tmp_path: Path) -> None:
    """It is of the source alone, not of results beside it, nor of its documentation; git's index stays as it is."""
    source = tmp_path / "source"
    source.mkdir()
    others = (tmp_path / "report.md", source / "README.md")

    def git(*words: str) -> str:
        who = ["-c", "user.name=n", "-c", "user.email=e@x"]
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    for path in (*others, source / "__init__.py"):
        path.write_text("")
    assert manifest.git_commit(source) is None
    git("init", "-q")
    assert manifest.git_commit(source) is None
    git("add", ".")
    git("commit", "-qm", "x")
    commit = git("rev-parse", "HEAD").strip()
    for path in others:
        path.write_text("1")
    git("config", "core.fsmonitor", f"touch {tmp_path}/asked; false")
    for end in ("", "-dirty"):
        os.utime(source / "__init__.py", (0, 0))  # git would note in its index that it has looked again
        before = (tmp_path / ".git" / "index").read_bytes()
        assert manifest.git_commit(source) == f"{commit}{end}"
        assert (tmp_path / ".git" / "index").read_bytes() == before and not (tmp_path / "asked").exists()
        (source / "__init__.py").write_text("1")
