"""Answers of a study, from records written by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asked_studies import BETTER, FILE, WORSE, final_runs, made, study_of

from fedmpi.errors import RunDirError
from fedmpi.results.answers import answers
from fedmpi.results.archive import Kept
from fedmpi.results.grid_figures import draw
from fedmpi.results.grid_file import Measure
from fedmpi.results.grid_report import report, sentence, unlike
from fedmpi.results.grid_runs import Wanted, finals, trials
from fedmpi.results.tuning import choose, numbers
from fedmpi.store import units


def test_confirmed_where_all_parts_hold(tmp_path: Path) -> None:
    """Largest: +5 to +10 points in all six seeds, p 2/64. Smallest: -1 point, allowed -2: +1 in all seeds, p 2/64."""
    (answer,) = answers(study_of(tmp_path), final_runs(BETTER, WORSE))
    assert (answer.verdict, answer.p) == ("confirmed", 0.03125)
    assert [round(part.mean, 6) for part in answer.parts] == [0.075, -0.01]
    assert [part.p for part in answer.parts] == [0.03125, 0.03125]
    assert answer.parts[0].interval(0.05) == pytest.approx((0.05, 0.1, 0.96875))
    said = sentence(study_of(tmp_path), answer)
    assert "**confirmed**" in said and "+7.50" in said and "-1.00" in said and "+5.00" in said and "-2.00" in said


@pytest.mark.parametrize(
    ("first", "second", "verdict", "p"),
    [
        ([*BETTER[:5], (0.849, 0.8)], WORSE, "not confirmed", 0.0625),  # one seed the other way round, 4 of 64 as far
        ([(top, 0.78) for top, _ in BETTER], WORSE, "not confirmed", 1.0),  # the smallest loses 3 points
        (WORSE, BETTER, "not confirmed", 1.0),
        (BETTER[:5], WORSE, "not decidable here", 1.0),
        ([], [], "not decidable here", 1.0),
    ],
)
def test_not_confirmed(tmp_path: Path, first: Any, second: Any, verdict: str, p: float) -> None:
    (answer,) = answers(study_of(tmp_path), final_runs(first, second))
    assert (answer.verdict, answer.p) == (verdict, p)


@pytest.mark.parametrize(
    ("top", "low", "margin", "ends"),
    [
        (0.95, 0.78, 0.02, "(condition not met: smallest is -3.00 points, allowed is above -2.00 points)."),
        (0.95, 0.81, 0, "(condition not met: smallest is +0.00 points, allowed is above +0.00 points)."),
        (0.8, 0.7, 0.02, "allowed is above -2.00 points; the difference is the other way round)."),
        (0.85, 0.81, 0.02, "(p = 1 after Holm's correction)."),  # the largest is as good, which is no condition
    ],
)
def test_a_condition_that_fails_is_said_instead_of_a_p_value(
    tmp_path: Path, top: float, low: float, margin: float, ends: str
) -> None:
    """The second method has 85 % and 81 % in all seeds."""
    question = {**FILE["questions"][0], "provided": [{"measure": "smallest", "margin": margin}]}
    study = study_of(tmp_path, questions=[question])
    (answer,) = answers(study, final_runs([(top, low)] * 6, WORSE))
    said = sentence(study, answer)
    assert "**not confirmed**" in said and said.endswith(ends) and ("p = 1" in said) == (not answer.unmet)


def test_holm_counts_all_questions_in_all_settings(tmp_path: Path) -> None:
    """In two settings 2 x 2/64 is above 0.05, whatever the runs say; eight seeds would do. So with five seeds."""
    question = {**FILE["questions"][0], "settings": []}
    for changed in ({"questions": [question]}, {"seeds": [0, 1, 2, 3, 4]}):
        found = answers(study_of(tmp_path, **changed), final_runs(BETTER, WORSE))
        assert found[0].verdict == "not decidable here" and "0.062" in found[0].why
    eight = [*BETTER, *BETTER[:2]], [*WORSE, *WORSE[:2]]
    found = answers(study_of(tmp_path, questions=[question], seeds=[*range(8)]), final_runs(*eight))
    assert [(one.verdict, one.p) for one in found] == [("confirmed", 2 * 2 / 256), ("not decidable here", 1.0)]


def test_secondary_questions_are_described_and_do_not_count(tmp_path: Path) -> None:
    questions = [FILE["questions"][0], {**FILE["questions"][0], "primary": False}]
    found = answers(study_of(tmp_path, questions=questions), final_runs(BETTER, WORSE))
    assert [(one.verdict, one.p) for one in found] == [("confirmed", 0.03125), ("descriptive", 1.0)]
    assert "+7.50" in sentence(study_of(tmp_path, questions=questions), found[1])


def test_what_cannot_be_decided_has_no_runs(tmp_path: Path) -> None:
    study = study_of(tmp_path, methods=None, settings=None, tuning=None, measures=None, questions=[
        {"ask": "Is it?", "undecidable": "differences below noise"}])  # fmt: skip
    assert finals(study, {}) == []
    (answer,) = answers(study, [])
    assert answer.verdict == "not decidable here" and "differences below noise" in sentence(study, answer)


def test_a_condition_may_be_judged_by_its_mean(tmp_path: Path) -> None:
    """Smallest: -1 point in five seeds, +2 in one, -0.5 on average; no test can say that it loses less than 0.6."""
    smallest = [0.8, 0.8, 0.8, 0.8, 0.8, 0.83]
    better = [(top, low) for (top, _), low in zip(BETTER, smallest, strict=True)]
    for by, margin, verdict in (("mean", 0.006, "confirmed"), ("mean", 0.004, "not confirmed"), ("test", 0.006, "not")):
        condition = {"measure": "smallest", "margin": margin, "by": by}
        study = study_of(tmp_path, questions=[{**FILE["questions"][0], "provided": [condition]}])
        (answer,) = answers(study, final_runs(better, WORSE))
        assert answer.verdict.startswith(verdict) and answer.parts[1].mean == pytest.approx(-0.005)
        assert ("an estimate" in sentence(study, answer)) == (by == "mean")
        if verdict == "confirmed":
            assert answer.p == 0.03125, "that of the largest net alone"


def test_a_target_that_is_never_reached_is_worse_than_one_that_is(tmp_path: Path) -> None:
    """One round of 50 bytes: it is reached with 50, or counts as 100, two rounds, where it never is."""
    measures = {**FILE["measures"], "to": {"quantity": "bytes_to_target", "target": 0.9}}
    question = {**FILE["questions"][0], "measure": "to", "provided": []}
    study = study_of(tmp_path, measures=measures, questions=[question])
    reached, never = (0.95, 0.8), (0.85, 0.8)
    (answer,) = answers(study, final_runs([reached] * 5 + [never], [never] * 6))
    assert answer.parts[0].differences == (50, 50, 50, 50, 50, 0) and len(answer.parts[0].unreached) == 7
    assert answer.p == 0.0625 and "7 runs never reached" in sentence(study, answer)
    (answer,) = answers(study, final_runs([reached] * 6, [never] * 6))
    assert (answer.verdict, answer.p) == ("confirmed", 0.03125)
    costly = [replace(run, rounds=[{**run.rounds[0], "protocol_up_bytes": 970}]) for run in final_runs([], [never] * 6)]
    (answer,) = answers(study, [*final_runs([never] * 6, []), *costly])
    assert answer.parts[0].differences == (0,) * 6, "both count as the costlier run and a round more"


@pytest.mark.parametrize(
    ("measure", "value"),
    [
        ({"quantity": "accuracy"}, 0.9),
        ({"quantity": "accuracy", "net": "smallest"}, 0.6),
        ({"quantity": "accuracy", "net": "mean"}, 0.75),
        ({"quantity": "accuracy", "net": "1"}, 0.6),
        ({"quantity": "accuracy", "net": "none"}, None),
        ({"quantity": "bytes"}, 50),
        ({"quantity": "bytes_to_target", "target": 0.9}, 50),
        ({"quantity": "rounds_to_target", "target": 0.95}, None),
        ({"quantity": "train_loss"}, 0.5),
        ({"quantity": "seconds"}, 4.0),
        ({"quantity": "time_share", "net": "svd"}, 0.25),
    ],
)
def test_measures(measure: dict[str, Any], value: float | None) -> None:
    assert made(Wanted("final", "one", "hm", 0, 0), 0.9, 0.6).value(Measure(**measure)) == value


def test_a_method_may_test_its_clients_nets_alone(tmp_path: Path) -> None:
    """In some rounds only; there is no largest net then."""
    run = made(Wanted("final", "one", "hm", 0, 0), 0.9)
    bare = {key: value for key, value in run.rounds[0].items() if key != "tiers"}
    tested = {**bare, "round": 2, "clients": {"accuracy": 0.7}}
    own = replace(run, rounds=[bare, tested])
    assert own.value(Measure(quantity="accuracy", net="clients")) == 0.7
    assert own.value(Measure(quantity="accuracy")) is None and own.nets_of("mean") == []
    assert own.value(Measure(quantity="bytes")) == 100 and own.value(Measure(quantity="train_loss")) == 0.5
    study = study_of(tmp_path)
    assert "one-curves.svg" in draw(study, [own], answers(study, [own]), tmp_path)


def test_the_best_trial_is_chosen_of_equal_ones_the_first(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    scores = {("one", "avg"): (0.5, 0.6), ("one", "hm"): (0.7, 0.7), ("two", "avg"): (0.2, 0.1), ("two", "hm"): (0, 1)}
    runs = [made(one, scores[one.setting, one.method][one.trial or 0]) for one in trials(study)]
    assert numbers(choose(study, runs)) == {("one", "avg"): 1, ("one", "hm"): 0, ("two", "avg"): 0, ("two", "hm"): 1}
    assert choose(study, runs)["one"]["avg"] == {"trial": 1, "values": {"train.lr": 0.1}, "scores": [0.5, 0.6]}
    with pytest.raises(RunDirError, match="tuning-two-hm-trial1"):
        choose(study, runs[:-1])


def test_a_choice_at_an_edge_of_its_grid_is_said(tmp_path: Path) -> None:
    """The edge of three numbers. Words and switches have none, nor have two numbers."""
    own = {"method.tau": [2, 5], "train.nesterov": [False, True], "method.solver": ["gram", "auto", "exact"]}
    grids = {"avg": {"train.lr": [0.01, 0.1, 0.02] * 4}, "hm": {"train.lr": [0.1], **own}}
    study = study_of(tmp_path, methods={name: {"grid": [grid]} for name, grid in grids.items()})
    hm = {"train.lr": 0.1, "method.tau": 5, "train.nesterov": False, "method.solver": "gram"}

    def said(lr: float, *settings: str) -> list[str]:
        values = {"avg": {"train.lr": lr}, "hm": hm}
        of_all = {name: {"trial": 0, "values": of, "scores": []} for name, of in values.items()}
        choices = dict.fromkeys(settings, of_all)
        return [line for line in report(study, choices, [], [], []).splitlines() if "that was tried" in line]

    for lr, settings, words in ((0.01, ("one", "two"), "one, two, lowest"), (0.1, ("one",), "one, highest")):
        (line,) = said(lr, *settings)
        assert all(word in line for word in [*words.split(), "avg", "train.lr", f"{lr}"]), line
    assert said(0.02, "one") == []


def test_the_energy_that_tiers_lack_is_drawn_where_records_have_it(tmp_path: Path) -> None:
    """Of the first seed's run, whose records have it for every round, of nets with several ranks, without zeros."""
    runs, study = final_runs(BETTER, WORSE), study_of(tmp_path)

    def noted(run: Kept, *shares: dict[str, float]) -> Kept:
        method = [{"method": {"spectrum": {"beyond": share}}} for share in shares]
        return replace(run, rounds=[{**run.rounds[0], **one, "round": number} for number, one in enumerate(method, 1)])

    assert "one-energy.svg" not in draw(study, runs, answers(study, runs), tmp_path)
    one_rank = noted(runs[6], {"0.5": 0.3}, {"0.5": 0.2})
    last_only = noted(runs[1], {"0.5": 0.3, "0.25": 0.4})
    first = noted(runs[0], {"0.5": 0.3, "0.25": 0.4}, {"0.5": 1e-9, "0.25": 1e-3}, {"0.5": 0.0, "0.25": 1e-4})
    runs = [first, last_only, *runs[2:6], one_rank, *runs[7:]]
    assert "one-energy.svg" in draw(study, runs, answers(study, runs), tmp_path)
    drawn = (tmp_path / "one-energy.svg").read_text()
    assert "hm, seed 0<" in drawn and "tier 0.25<" in drawn
    assert "avg, seed" not in drawn and "hm, seed 1" not in drawn


@pytest.mark.parametrize("untested", [{}, {"tiers": None}, {"tiers": {}}])
def test_records_without_tiers_have_no_nets(untested: dict[str, None]) -> None:
    """As rounds without a test write them, now and formerly, and methods whose clients alone have nets."""
    whole = made(Wanted("final", "one", "avg", 0, 0), 0.9, 0.8)
    bare = {**{key: value for key, value in whole.rounds[0].items() if key != "tiers"}, **untested}
    some, none = (replace(whole, rounds=rounds) for rounds in ([bare, *whole.rounds], [bare]))
    asked = ("largest", "smallest", "mean", "clients")
    assert [some.nets_of(net) for net in asked] == [["0"], ["1"], ["0", "1"], ["clients"]]
    assert [none.nets_of(net) for net in asked] == [[], [], [], ["clients"]]
    assert [none.value(Measure(quantity="accuracy", net=net)) for net in asked] == [None] * 4
    assert some.value(Measure(quantity="accuracy", net="mean")) == pytest.approx(0.85)


def test_what_runs_do_not_share_is_said(tmp_path: Path) -> None:
    runs, study = final_runs(BETTER, WORSE), study_of(tmp_path)
    assert unlike(study, runs) == unlike(study, []) and len(unlike(study, runs)) == 1
    odd = [replace(run, cohorts="other") if run.wanted.method == "avg" else run for run in runs]
    (line,) = unlike(study, odd)
    assert "12 final runs" in report(study, {}, runs, answers(study, runs), []), "of the other setting"
    assert "one" in line and "avg" in line and "cohorts" in line
    assert line in report(study, {}, odd, answers(study, odd), [])


def test_runs_of_code_that_was_not_committed_are_counted(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    runs = [
        replace(run, made_with={"git": "c" + "-dirty" * (run.wanted.seed < 2)}) for run in final_runs(BETTER, WORSE)
    ]
    for some, count in ((runs, "4 runs"), (runs[2:6], "")):
        lines = [line for line in report(study, {}, some, [], []).splitlines() if "not committed" in line]
        assert len(lines) == bool(count) and all(count in line for line in lines)


def test_cohorts_of_unlike_numbers_of_rounds_are_not_held_against_each_other(tmp_path: Path) -> None:
    runs, study = final_runs(BETTER, WORSE), study_of(tmp_path)
    longer = [
        replace(run, rounds=[*run.rounds, *run.rounds], cohorts="of more rounds") if run.wanted.method == "avg" else run
        for run in runs
    ]
    (line,) = unlike(study, longer)
    assert "cohorts" not in line and f"hm {len(runs[0].rounds)}; avg {2 * len(runs[0].rounds)}" in line


def test_seconds_have_a_unit_and_three_digits(tmp_path: Path) -> None:
    """By hand: 4 s a round in every run, so differences are 0."""
    measures = {**FILE["measures"], "round_s": {"quantity": "seconds"}}
    question = {**FILE["questions"][0], "measure": "round_s", "provided": [], "margin": 0}
    study = study_of(tmp_path, measures=measures, questions=[question])
    runs = final_runs(BETTER, WORSE)
    text = report(study, {}, runs, answers(study, runs), [])
    assert "| 4.00 ± 0.00 s |" in text and "round_s +0.00 s (" in text and "interval +0.00 to +0.00" in text
    shown = [units.seconds(number) for number in (0.803891, 11.9827, 99.94, 99.96, 1234.5, 0.0110172)]
    assert shown == ["0.804 s", "12.0 s", "99.9 s", "100 s", "1234 s", "0.0110 s"]
