"""Whose rounds a branch's records are, and what sums it up: its own rounds alone, in every place that shows a run."""

import json
from pathlib import Path
from typing import Any

import pytest
from written_runs import a_run

import fedmpi
from fedmpi.errors import RunDirError
from fedmpi.export.saved import chosen_round
from fedmpi.pages import charts, drawing, facts, plotted, settings
from fedmpi.pages.page import page
from fedmpi.report.best import Best
from fedmpi.report.lineage import Parent, lineage, own_rounds
from fedmpi.report.records import read_records
from fedmpi.running.results import closing_lines
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.slurm.status import main, status_of

CHANGE = "train.lr: run has 0.1, you ask 0.01"
SHARES = [0.5, 0.9, 0.25, 0.75]
"""The parent's best accuracy is 0.9, the branch's own 0.75."""


def marked(run: Path, after: int, parent: str, *changes: str) -> Path:
    """The run as a branch of `parent`, whose rounds up to `after` it has."""
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    lines[after - 1]["branched_from"] = {"run": parent, "round": after, "config": list(changes)}
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


@pytest.fixture
def branch(tmp_path: Path) -> Path:
    """Of four rounds, the first two of which are the parent's."""
    run = a_run(tmp_path / "branch", [{"1": share} for share in SHARES], lr=0.01)
    return marked(run, 2, str(tmp_path / "first"), CHANGE)


def records(*notes: Any) -> list[dict[str, Any]]:
    return [{"round": n, **({"branched_from": note} if note else {})} for n, note in enumerate(notes, 1)]


def test_own_rounds_come_after_the_last_branch() -> None:
    """A branch of a branch inherits the rounds of both."""
    first, second = {"run": "/a/one", "round": 1}, {"run": "/a/two", "round": 3, "config": [CHANGE]}
    found = lineage(records(first, None, second, None))
    assert [[one["round"] for one in part] for part in (found.inherited, found.own)] == [[1, 2, 3], [4]]
    assert found.parent == Parent("/a/two", 3, (CHANGE,)) and found.parent.name == "two@3"
    assert found.parent.changed() == "train.lr 0.01 instead of 0.1"
    assert lineage(records(None, None)).parent is None and len(own_rounds(records(None, None))) == 2


@pytest.mark.parametrize("note", ["text", {"run": 3, "round": 1}, {"run": "a"}, {"run": "a", "round": "1"}])
def test_a_note_that_says_nothing_makes_no_branch(note: object) -> None:
    assert lineage(records(note, None)).parent is None


def test_the_round_of_the_note_counts_and_not_where_it_stands() -> None:
    """The parent has lost the record of its last round, 2."""
    lost = [{"round": 1, "branched_from": {"run": "a", "round": 2}}, {"round": 3}]
    assert [one["round"] for one in own_rounds(lost)] == [3]


def test_facts_are_of_own_rounds(branch: Path) -> None:
    found = facts.read(branch)
    assert (found.done, found.is_finished, found.course("1")) == (4, True, ([3, 4], [0.25, 0.75]))
    assert found.course_before("1") == ([1, 2], [0.5, 0.9])
    assert [(row["accuracy_best"], row["best_round"]) for row in found.tiers] == [(0.75, 4)]
    assert found.cumulated("protocol_down_bytes")[1].tolist() == [100, 200]
    assert found.time_s["local_training"] == 4.0


def test_a_report_of_an_older_version_does_not_bring_the_parent_s_rounds_back(branch: Path) -> None:
    (branch / "report").mkdir()
    row = {"name": "1", "params": 7, "accuracy_last": 0.75, "accuracy_best": 0.9, "best_round": 2}
    (branch / "report" / "summary.json").write_text(json.dumps({"tiers": [row], "time_s": {}}))
    assert facts.read(branch).tiers == [{**row, "accuracy_best": 0.75, "best_round": 4}]


def test_a_branch_without_a_round_of_its_own(tmp_path: Path) -> None:
    run = marked(a_run(tmp_path / "run", [{"1": 0.5}] * 2, rounds=4), 2, "/a/first")
    found = facts.read(run)
    assert (found.done, found.tested, found.is_finished) == (2, [], False)
    assert "75.00 %" not in page([found]) and status_of(RunDir(run)).accuracy is None
    with pytest.raises(RunDirError, match=": run was interrupted, "):
        facts.read_all([tmp_path])


def test_an_export_of_such_a_branch_ends_in_a_command(tmp_path: Path) -> None:
    run = marked(a_run(tmp_path / "run", [{"1": 0.5}] * 2, rounds=4), 2, "/a/first")
    with pytest.raises(RunDirError, match="/a/first .*; to continue: .* --resume$"):
        chosen_round(RunDir(run), "last", {record["round"]: record for record in read_records(RunDir(run))})


def test_the_page_says_whose_rounds_they_are(branch: Path, tmp_path: Path) -> None:
    text = page([facts.read(branch)])
    assert f"of {tmp_path / 'first'}" in text and "train.lr 0.01 instead of 0.1" in text
    assert '<g opacity="0.4">' in text and "90.00 %" not in text
    assert "<g opacity" not in page([facts.read(a_run(tmp_path / "plain", [{"1": 0.5}] * 2))])


def test_a_branch_is_a_setting_of_its_own(branch: Path, tmp_path: Path) -> None:
    """It is neither a seed nor a repetition of the run that had its settings from the start."""
    whole = a_run(tmp_path / "whole", [{"1": 0.1}] * 4, lr=0.01)
    other = marked(a_run(tmp_path / "other", [{"1": 0.5}] * 4, lr=0.01, seed=1), 2, "/a/second", CHANGE, "seed: 0, 1")
    later = marked(a_run(tmp_path / "later", [{"1": 0.5}] * 4, lr=0.01), 3, "/a/first", CHANGE)
    of_another = marked(marked(a_run(tmp_path / "x", [{"1": 0.5}] * 4, lr=0.01), 1, "/a/b"), 2, "/a/first", CHANGE)
    assert settings.setting_of(facts.read(of_another)) != settings.setting_of(facts.read(branch))
    groups = settings.grouped(map(facts.read, (whole, branch, other, later)))
    assert [len(group.runs) for group in groups] == [1, 2, 1]
    ours, theirs = ", branch of first@2 and 1 more", ", branch of first@3"
    assert [group.name for group in groups] == ["fedhm", f"fedhm{ours}", f"fedhm{theirs}"]


def test_curves_have_the_parent_s_rounds_apart(branch: Path) -> None:
    """By bytes they stand where the whole net has cost 150 a round."""
    (group,) = settings.grouped([facts.read(branch)])
    line = group.line("1", "bytes", "accuracy", "ours")
    assert (line.x_before, line.y_before) == ([150.0, 300.0], [0.5, 0.9])
    assert (line.x, line.y, line.low) == ([450.0, 600.0], [0.25, 0.75], [])
    drawn = charts.lines([line], "title", "bytes")
    pale, _, own = drawn.partition("</g>")
    assert pale.rpartition("<g ")[2].count("L") == 2 and own.partition('d="M')[2].partition('"')[0].count("L") == 1


def test_figures_have_the_parent_s_rounds_paler(branch: Path) -> None:
    groups = settings.grouped([facts.read(branch)])
    (axes,) = plotted.drawn(groups, "rounds", "accuracy", ["1"]).axes
    own, before = axes.lines
    assert own.get_xdata().tolist() == [3, 4] and before.get_xdata().tolist() == [1, 2, 3]
    assert before.get_color() == drawing._paler("#000000") == (0.6, 0.6, 0.6)
    assert before.get_marker() == "None" and [*plotted.tex(groups, "accuracy").split("75.00")] != []
    assert ", branch of first@2" in plotted.tex(groups, "accuracy")


def test_what_closes_a_branch(branch: Path) -> None:
    found = read_records(RunDir(branch))
    assert len(closing_lines(found)) == 1 and closing_lines(found[:1]) == ()
    assert Best.of(own_rounds(found)).best == {"1": 0.75}


def test_status_names_the_parent(branch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path / "whole", [{"1": 0.5}])
    assert status_of(RunDir(branch)).branch_of == "first@2" and status_of(RunDir(branch)).ranks == (2,)
    assert main([str(tmp_path / "whole")]) == 0 and "branch of" not in capsys.readouterr().out
    assert main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out.replace(",", "").split()
    assert shown[1:3] == ["branch", "of"]
    assert shown[shown.index("branch", 3) + 1] == "first@2" and shown[shown.index("whole") + 1] == "-"


def test_the_library_counts_own_rounds(branch: Path, tmp_path: Path) -> None:
    run = fedmpi.open_run(branch)
    assert run.branched_from == (tmp_path / "first", 2)
    assert [row["round"] for row in run.rounds()] == [3, 4] and len(run.records) == 4
    found = run._scores(None)["1"]
    assert (found.last.accuracy, found.best.accuracy, found.best.round) == (0.75, 0.75, 4)
    assert ", branch of first@2: " in str(run)


def test_exports_are_of_own_rounds(branch: Path, tmp_path: Path) -> None:
    """The best one is not the parent's, whose checkpoint the branch began with."""
    folder, by_round = RunDir(branch), {one["round"]: one for one in read_records(RunDir(branch))}
    folder.checkpoint_path(4).rename(folder.checkpoint_path(2))
    for which in ("last", "best", "2", "1"):
        with pytest.raises(RunDirError, match=str(tmp_path / "first")):
            chosen_round(folder, which, by_round)
    for number in (3, 4):
        folder.checkpoint_path(number).touch()
    assert [chosen_round(folder, which, by_round) for which in ("last", "best", "3")] == [4, 4, 3]
    with pytest.raises(RunDirError, match="saved: 4, 3$"):
        chosen_round(folder, "9", by_round)
