"""Whose rounds a branch's records are, and what sums it up: its own rounds alone, in every place that shows a run."""

from pathlib import Path
from typing import Any

import pytest
from written_runs import a_run, as_branch

import fedmpi
from fedmpi.errors import RunDirError
from fedmpi.export.saved import chosen_round
from fedmpi.report.best import Best
from fedmpi.report.lineage import Parent, lineage
from fedmpi.report.records import read_records
from fedmpi.results.compared import grouped, setting_of
from fedmpi.results.page import page_of
from fedmpi.results.run import Run, read_runs
from fedmpi.results.show import figure_of, main
from fedmpi.running.results import closing_lines
from fedmpi.store.run_dir import RunDir

CHANGE = "train.lr: run has 0.1, you ask 0.01"
SHARES = [0.5, 0.9, 0.25, 0.75]
"""The parent's best accuracy is 0.9, the branch's own 0.75."""


@pytest.fixture
def branch(tmp_path: Path) -> Path:
    """Of four rounds, the first two of which are the parent's."""
    run = a_run(tmp_path / "branch", [{"1": share} for share in SHARES], lr=0.01)
    return as_branch(run, 2, str(tmp_path / "first"), CHANGE)


def records(*notes: Any) -> list[dict[str, Any]]:
    return [{"round": n, **({"branched_from": note} if note else {})} for n, note in enumerate(notes, 1)]


def test_own_rounds_come_after_the_last_branch() -> None:
    """A branch of a branch inherits the rounds of both."""
    first, second = {"run": "/a/one", "round": 1}, {"run": "/a/two", "round": 3, "config": [CHANGE]}
    found = lineage(records(first, None, second, None))
    assert [[one["round"] for one in part] for part in (found.inherited, found.own)] == [[1, 2, 3], [4]]
    assert found.parent == Parent("/a/two", 3, (CHANGE,)) and found.parent.name == "two@3"
    assert found.parent.changed() == "train.lr 0.01 instead of 0.1"
    alone = lineage(records(None, None))
    assert alone.parent is None and len(alone.own) == 2


@pytest.mark.parametrize("note", ["text", {"run": 3, "round": 1}, {"run": "a"}, {"run": "a", "round": "1"}])
def test_a_note_that_says_nothing_makes_no_branch(note: object) -> None:
    assert lineage(records(note, None)).parent is None


def test_the_round_of_the_note_counts_and_not_where_it_stands() -> None:
    """The parent has lost the record of its last round, 2."""
    lost = [{"round": 1, "branched_from": {"run": "a", "round": 2}}, {"round": 3}]
    assert [one["round"] for one in lineage(lost).own] == [3]


def test_the_reader_s_numbers_are_of_own_rounds(branch: Path) -> None:
    run = Run(branch)
    assert (run.done, run.is_finished(), run.course("1")) == (4, True, ([3, 4], [0.25, 0.75]))
    assert run.course("1", inherited=True) == ([1, 2], [0.5, 0.9])
    assert [(row["accuracy_last"], row["accuracy_best"], row["best_round"]) for row in run.nets] == [(0.75, 0.75, 4)]
    assert run.seconds["local_training"] == 4.0


def test_a_branch_without_a_round_of_its_own(tmp_path: Path) -> None:
    run = Run(as_branch(a_run(tmp_path / "run", [{"1": 0.5}] * 2, rounds=4), 2, "/a/first"))
    assert (run.done, run.tested, run.is_finished()) == (2, [], False)
    assert "75.00 %" not in page_of(run)
    with pytest.raises(RunDirError, match=": run was interrupted, "):
        read_runs([tmp_path])


def test_an_export_of_such_a_branch_ends_in_a_command(tmp_path: Path) -> None:
    run = as_branch(a_run(tmp_path / "run", [{"1": 0.5}] * 2, rounds=4), 2, "/a/first")
    with pytest.raises(RunDirError, match="/a/first .*; to continue: .* --resume$"):
        chosen_round(RunDir(run), "last", {record["round"]: record for record in read_records(RunDir(run))})


def test_the_page_says_whose_rounds_they_are(branch: Path, tmp_path: Path) -> None:
    text = page_of(Run(branch))
    assert f"of {tmp_path / 'first'}" in text and "train.lr 0.01 instead of 0.1" in text
    assert "90.00 %" not in text and "stroke-opacity: 0.4" in text
    assert "stroke-opacity: 0.4" not in page_of(Run(a_run(tmp_path / "plain", [{"1": 0.5}] * 2)))


def test_a_branch_is_a_setting_of_its_own(branch: Path, tmp_path: Path) -> None:
    """It is neither a seed nor a repetition of the run that had its settings from the start."""
    whole = a_run(tmp_path / "whole", [{"1": 0.1}] * 4, lr=0.01)
    other = as_branch(
        a_run(tmp_path / "other", [{"1": 0.5}] * 4, lr=0.01, seed=1), 2, "/a/second", CHANGE, "seed: 0, 1"
    )
    later = as_branch(a_run(tmp_path / "later", [{"1": 0.5}] * 4, lr=0.01), 3, "/a/first", CHANGE)
    twice = as_branch(as_branch(a_run(tmp_path / "x", [{"1": 0.5}] * 4, lr=0.01), 1, "/a/b"), 2, "/a/first", CHANGE)
    assert setting_of(Run(twice)) != setting_of(Run(branch))
    groups = grouped(map(Run, (whole, branch, other, later)))
    assert [len(group.runs) for group in groups] == [1, 2, 1]
    ours, theirs = ", branch of first@2 and 1 more", ", branch of first@3"
    assert [group.name for group in groups] == ["fedhm", f"fedhm{ours}", f"fedhm{theirs}"]


def test_curves_have_the_parent_s_rounds_apart_and_paler(branch: Path) -> None:
    """By bytes they stand where the whole net has cost 150 a round."""
    run = Run(branch)
    (group,) = grouped([run])
    line = group.line("1", "bytes")
    assert (line.x_before, line.y_before) == ([150.0, 300.0], [0.5, 0.9])
    assert (line.x, line.y, line.low) == ([450.0, 600.0], [0.25, 0.75], ())
    (axes,) = figure_of([run]).axes
    own, before = axes.lines
    assert own.get_xdata().tolist() == [3, 4] and before.get_xdata().tolist() == [1, 2, 3]
    assert before.get_alpha() == 0.4 and before.get_marker() == "None"
    assert group.name == "fedhm, branch of first@2"


def test_what_closes_a_branch(branch: Path) -> None:
    found = read_records(RunDir(branch))
    assert len(closing_lines(found)) == 1 and closing_lines(found[:1]) == ()
    assert Best.of(lineage(found).own).best == {"1": 0.75}


def test_status_names_the_parent(branch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path / "whole", [{"1": 0.5}])
    assert Run(branch).num_ranks == [2]
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
