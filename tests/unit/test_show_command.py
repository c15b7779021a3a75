"""`fedmpi show`: the table of runs, pages, figures and numbers; each mistake is one line, and nothing is written."""

import csv
import json
import shlex
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from written_runs import a_run, with_records

from fedmpi.results import show
from fedmpi.results.frame import grouped
from fedmpi.results.run import Run
from fedmpi.results.show import figure_of
from fedmpi.store import manifest
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir


def test_the_table(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All runs below a folder, or the one that it is."""
    a_run(here / "done", [{"1": 0.5, "0.5": 0.25}])
    a_run(here / "own", [{"1": 0.5, "clients": 0.75}], rounds=2)
    (here / "deep").mkdir()
    failed = RunDir(a_run(here / "deep" / "failed", [], rounds=3))
    failed.failure_path.write_text("failed\n")
    manifest.add_start(failed, job="19")
    with RunLock(RunDir(here / "own")):
        assert show.main(["."]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["run", "state", "job", "starts", "ranks", "round", "accuracy"]
    assert lines[2] == ["deep/failed", "failed", "19", "1", "-", "0/3", "-"]
    assert lines[3] == ["done", "finished", "-", "0", "2", "1/1", "50.00", "%"]
    assert lines[4] == ["own", "running", "-", "0", "2", "1/2", "75.00", "%"]
    assert lines[-1] == ["1", "failed,", "1", "finished,", "1", "running"]
    assert show.main(["done"]) == 0 and capsys.readouterr().out.splitlines()[2].startswith("done ")
    assert show.main([str(here / "done" / "report")]) == 0 and capsys.readouterr().out == "no runs there\n"


@pytest.mark.parametrize("line", ['{"round": 1, "tiers": [1]}', '{"round": 1, "seconds": 5}', None])
def test_an_unreadable_run_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str | None
) -> None:
    a_run(tmp_path / "b", [{"1": 0.5}])
    bad = RunDir(a_run(tmp_path / "a", [{"1": 0.5}]))
    bad.records_path.unlink()
    bad.records_path.write_text(f"{line}\n") if line else bad.records_path.mkdir()
    assert show.main([str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "1 unreadable, 1 finished"
    assert err.startswith(f"unreadable: {bad.path}") and err.count("\n") == 1


def test_ctrl_c_ends_a_watch_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def press(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(show.time, "sleep", press)
    assert show.main(["--watch", str(a_run(tmp_path / "run", [{"1": 0.5}]))]) == 130
    out, err = capsys.readouterr()
    assert "finished" in out and err == ""


def test_pages_figures_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run", [{"1": 0.5}])
    a_run(tmp_path / "other", [{"1": 0.5}], seed=1)
    assert show.main([str(tmp_path), "--html"]) == 0
    pages = [str(tmp_path / name / "report" / "report.html") for name in ("other", "run")]
    assert capsys.readouterr().out.split() == pages and all(Path(page).exists() for page in pages)
    out = tmp_path / "f.PDF"
    assert show.main([str(run), "--figure", str(out), "--names", "A name"]) == 0
    assert out.read_bytes().startswith(b"%PDF")
    assert capsys.readouterr().out.split()[-1] == str(out)


def test_all_numbers_and_draws_as_csv(tmp_path: Path) -> None:
    """Runs differ in what they note; a run that notes nothing has an empty cell."""
    drawn = [{"client": 3, "phase": "train", "tier": "1", "bases": [1, 0]}]
    with_records(a_run(tmp_path / "a", [{"1": 0.5}, {}]), {"draws": drawn})
    a_run(tmp_path / "b", [{"0.5": 0.25}], seed=1)
    assert show.main([str(tmp_path), "--csv", str(tmp_path / "all.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    numbers = [(row["run"], row["seed"], row["round"]) for row in rows]
    assert numbers == [("a", "0", "1"), ("a", "0", "2"), ("b", "1", "1")]
    assert [row["tiers/1/accuracy"] for row in rows] == ["0.5", "", ""] and rows[2]["tiers/0.5/loss"] == "0.75"
    assert [json.loads(row["draws"]) for row in rows] == [drawn, drawn, []]


def test_no_panel_of_a_figure_is_empty(tmp_path: Path) -> None:
    """Nets that clients have for themselves have no loss: the next net is drawn."""
    both = Run(a_run(tmp_path / "both", [{"1": 0.25, "clients": 0.5}] * 2))
    for y, net in (("accuracy", "clients"), ("loss", "tier 1")):
        (axes,) = figure_of([both], x="macs", y=y).axes
        assert axes.get_ylabel() == f"test {y}, {net}"
        assert [len(line.get_xdata()) for line in axes.get_lines()] == [2]


def test_a_line_says_what_it_is_the_mean_of(tmp_path: Path) -> None:
    """A seed that was not tested yet is not counted; names that are given stand alone."""
    shares = [[{"1": 0.5}], [{"1": 0.5}], [{}]]
    runs = [Run(a_run(tmp_path / f"{s}", share, seed=s)) for s, share in enumerate(shares)]
    runs.append(Run(a_run(tmp_path / "one", [{"1": 0.5}], lr=0.01)))
    (axes,) = figure_of(runs).axes
    labels = [line.get_label() for line in axes.get_lines()]
    assert labels == ["train.lr 0.1, mean of 2 seeds", "train.lr 0.01"]
    (axes,) = figure_of(runs, names=["ours", "theirs"], ylim=(0.0, 1.0)).axes
    assert [line.get_label() for line in axes.get_lines()] == ["ours", "theirs"] and axes.get_ylim() == (0.0, 1.0)


MISTAKES = """
--watch --html
runs/share --html
nowhere --figure f.pdf
empty --figure f.pdf
runs/young --figure f.pdf
runs --figure f
runs --figure no/f.pdf
runs --tier 1
runs --figure f.pdf --tiers 1
runs --figure f.pdf --tier 0.3
runs/own --figure f.pdf --y loss
runs --figure f.pdf --y loss --tier clients
runs/none --figure f.pdf --x bytes
runs --figure f.pdf --names one
runs/shared --figure f.pdf --width wide
"""


def test_messages(here: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion) -> None:
    for folder in ("runs", "empty"):
        (here / folder).mkdir()
    for name, accuracies in (("shared", [{"1": 0.5, "0.5": 0.25}]), ("own", [{"clients": 0.5}]), ("young", [])):
        a_run(here / "runs" / name, accuracies, method={"shared": "fedhm"}.get(name, "lgfedavg"), rounds=2)
    nothing = {"protocol_down_bytes": 0, "protocol_up_bytes": 0}
    with_records(a_run(here / "runs" / "none", [{"1": 0.5}], method="standalone"), nothing)
    before = {*here.rglob("*")}
    said = []
    for words in MISTAKES.strip().splitlines():
        assert show.main(shlex.split(words)) == 2, words
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1, words
        said.append(f"show {words}\n    {err}")
    assert {*here.rglob("*")} == before
    assert "".join(said) == snapshot


def test_a_setting_without_the_net_asked_for_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path / "avg", [{"1": 0.5}], method="fedavg")
    a_run(tmp_path / "hm", [{"1": 0.5, "0.5": 0.25}])
    figure_of([Run(tmp_path / "avg"), Run(tmp_path / "hm")], tiers=["0.5"])
    assert capsys.readouterr().err.endswith("fedavg has no line: it has no accuracy of these nets by rounds\n")


def test_settings_are_told_apart_by_their_methods_or_by_what_differs(tmp_path: Path) -> None:
    """Also by an option of one method alone. Places are no settings."""
    runs = [Run(a_run(tmp_path / name, [{"1": 0.5}])) for name in ("paper", "delta")]
    places = ("", "output: {dir: /x}\nmpi: {exchange: reduce}\n")
    for run, root, more in zip(runs, ("", ", root: /here"), places, strict=True):
        config = run.path / "config.yaml"
        text = config.read_text().replace("name: fedhm", f"name: fedhm, aggregation: {run.name}")
        config.write_text(text.replace("{name: digits}", f"{{name: digits{root}}}") + more)
    avg = Run(a_run(tmp_path / "avg", [{"1": 0.5}], method="fedavg", lr=0.01))
    assert [group.name for group in grouped([avg, runs[0]])] == ["fedavg", "fedhm"]
    assert [group.name for group in grouped(runs)] == ["method.aggregation paper", "method.aggregation delta"]
    first, _, third = [group.name for group in grouped([*runs, avg])]
    assert first == "method fedhm, method.aggregation paper, train.lr 0.1" and third == "method fedavg, train.lr 0.01"
