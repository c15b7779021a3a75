"""A user's observers: their hooks in order, on rank 0 alone, and a run that does not mind what they do."""

import re
import sys
from pathlib import Path

import pytest
from data_fixtures import refusal
from launched import rejoined
from small_runs import run_all, run_alone, small_config

from fedmpi.main import parse, read_config
from fedmpi.mpi.communicator import SerialComm
from fedmpi.report import observer

WATCH = """
heard = []

class Notes:
    def run_started(self, started):
        heard.append(("started", started.done, started.config["rounds"], started.run_dir.name))

    def round_done(self, record):
        heard.append(("round", record["round"], record["train_loss"] > 0))
        record.clear()

    def run_ended(self, ended):
        heard.append(("ended", ended.done, ended.stopped, sorted(ended.best) == sorted(ended.best_round)))

class Fails:
    def run_start(self, started): ...

    def round_done(self, record):
        heard.append("fails")
        raise SystemExit("no network\\n") if record["round"] > 1 else ValueError("first")

class CannotBeMade:
    def __init__(self):
        raise OSError("no licence")

    run_ended = None

class NoHook: ...
"""
QUIET = ("rounds=2", "method.name=fedavg")


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    (tmp_path / "watch_it.py").write_text(WATCH)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "watch_it", raising=False)
    import watch_it

    return watch_it.heard


def test_hooks_in_order_and_after_a_resume(tmp_path: Path, heard: list[object]) -> None:
    watched = (*QUIET, "output.observers=[watch_it:Notes]")
    run_alone(tmp_path / "run", *watched)
    ended = ("ended", 2, "", True)
    assert heard == [("started", 0, 2, "run"), ("round", 1, True), ("round", 2, True), ended]
    run_alone(tmp_path / "run", *watched, "rounds=3", resume=True)
    assert heard[4:] == [("started", 2, 3, "run"), ("round", 3, True), ("ended", 3, "", True)]


def test_one_that_raises_is_reported_once_and_changes_nothing(
    tmp_path: Path, heard: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    words = "output.observers=[watch_it:Fails,watch_it:CannotBeMade,watch_it:Notes]"
    watched = run_alone(tmp_path / "watched", *QUIET, words)
    said = rejoined(capsys.readouterr().err)
    assert heard.count("fails") == 1 and ("round", 2, True) in heard
    assert said.count("warning: the observer watch_it:Fails ") == 1 and "round_done raised ValueError: first" in said
    assert "Fails.run_start is never called; did you mean run_started?" in said
    assert said.count("warning: the observer watch_it:CannotBeMade ") == 1 and "OSError: no licence" in said
    assert watched == run_alone(tmp_path / "alone", *QUIET)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("watch_it:Nothing", "has no attribute 'Nothing'"),
        ("no_such_module:X", "No module named"),
        ("watch_it:NoHook", "watch_it:NoHook.*round_done"),
    ],
)
def test_a_class_that_is_none_is_refused_before_anything_starts(
    tmp_path: Path, heard: list[object], place: str, why: str
) -> None:
    assert re.search(why, refusal(run_alone, tmp_path / "run", f"output.observers=[{place}]"))
    assert not (tmp_path / "run").exists() and not heard


def test_only_rank_0_imports_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Worker(SerialComm):
        is_root = False

        def allgather_object(self, text: str) -> list[str]:
            raise KeyboardInterrupt  # the first thing that ranks do together is over

    monkeypatch.setattr(observer, "named", pytest.fail)
    with pytest.raises(KeyboardInterrupt):
        run_all(small_config("output.observers=[watch_it:Notes]"), Worker(), tmp_path / "run")


def test_what_only_a_run_directory_names_is_not_imported(tmp_path: Path, heard: list[object]) -> None:
    """Neither by a resume nor by `--init-from`; the hash and the resume do not mind other observers."""
    named = "output.observers=[watch_it:Notes]"
    run_alone(tmp_path / "run", *QUIET, named)
    for words in (["--run-dir", str(tmp_path / "run"), "--resume"], ["--init-from", str(tmp_path / "run")]):
        assert re.search(r"config.yaml: .*output.observers=\[watch_it:Notes\]", refusal(read_config, parse(words)))
        assert read_config(parse([*words, named])).output.observers == ("watch_it:Notes",)
        assert read_config(parse([*words, "output.observers=[]"])).hash() == small_config(*QUIET, named).hash()
