"""Answers and reports of a grid, from records written by hand."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grids import BETTER, FILE, TWO, WORSE, final_runs, grid_of, made, results_of

from fedmpi.results.answers import Choice, answer_all, choose
from fedmpi.results.archive import RunRecord
from fedmpi.results.frame import nets_of, value
from fedmpi.results.grid_file import GridRun, Measure, trials
from fedmpi.results.grid_report import figures_of, latex, markdown, sentence
from fedmpi.store import units

QUESTION = FILE["questions"][0]


def changed(runs: list[RunRecord], which: Callable[[GridRun], bool], **values: Any) -> list[RunRecord]:
    """The runs, those of `which` with other values."""
    return [replace(run, **values) if which(run.run) else run for run in runs]


def is_avg(run: GridRun) -> bool:
    return run.method == "avg"


def test_confirmed_where_all_parts_hold(tmp_path: Path) -> None:
    """Largest: +5 to +10 points in all six seeds, p 2/64. Smallest: -1 point, allowed -2: +1 in all seeds, p 2/64."""
    grid = grid_of(tmp_path)
    (answer,) = answer_all(grid, final_runs(BETTER, WORSE))
    assert (answer.verdict, answer.p) == ("confirmed", 0.03125)
    assert [round(part.mean, 6) for part in answer.parts] == [0.075, -0.01]
    assert [part.p for part in answer.parts] == [0.03125, 0.03125]
    assert answer.parts[0].interval == pytest.approx((0.05, 0.1, 0.96875))
    said = sentence(grid, answer)
    assert "**confirmed**" in said and "+7.50" in said and "-1.00" in said and "+5.00" in said and "-2.00" in said


P = "after Holm's correction)."


@pytest.mark.parametrize(
    ("first", "margin", "verdict", "p", "ends"),
    [
        ([*BETTER[:5], (0.849, 0.8)], 0.02, "not confirmed", 0.0625, P),  # one seed the other way round, 4 of 64 as far
        ([(top, 0.78) for top, _ in BETTER], 0.02, "not confirmed", 1.0, "(condition not met: smallest)."),
        ([(0.95, 0.81)] * 6, 0, "not confirmed", 1.0, "(condition not met: smallest)."),
        (WORSE, 0.02, "not confirmed", 1.0, f"(p = 1 {P}"),  # the largest is as good, which is no condition
        ([(0.7, 0.81)] * 6, 0.02, "not confirmed", 1.0, f"(p = 1 {P}"),  # worse in all seeds
        (BETTER[:5], 0.02, "not decidable here", 1.0, "(no value of hm seed 5)."),
    ],
)
def test_not_confirmed(tmp_path: Path, first: Any, margin: float, verdict: str, p: float, ends: str) -> None:
    """The second method has 85 % and 81 % in all seeds. A condition that fails is said instead of a p-value."""
    grid = grid_of(tmp_path, questions=[{**QUESTION, "provided": [{"measure": "smallest", "margin": margin}]}])
    (answer,) = answer_all(grid, final_runs(first, WORSE))
    assert (answer.verdict, answer.p) == (verdict, p)
    assert sentence(grid, answer).endswith(ends)


def test_holm_counts_all_questions_in_all_settings(tmp_path: Path) -> None:
    """In two settings 2 x 2/64 is above 0.05, whatever the runs say; eight seeds would do. So with five seeds."""
    for more in ({"settings": TWO}, {"seeds": [0, 1, 2, 3, 4]}):
        found = answer_all(grid_of(tmp_path, **more), final_runs(BETTER, WORSE))
        assert found[0].verdict == "not decidable here" and "0.062" in found[0].why
    eight = [*BETTER, *BETTER[:2]], [*WORSE, *WORSE[:2]]
    found = answer_all(grid_of(tmp_path, settings=TWO, seeds=[*range(8)]), final_runs(*eight))
    assert [(one.verdict, one.p) for one in found] == [("confirmed", 2 * 2 / 256), ("not decidable here", 1.0)]


def test_secondary_and_undecidable_questions_do_not_count(tmp_path: Path) -> None:
    questions = [QUESTION, {**QUESTION, "primary": False}, {"ask": "Is it?", "undecidable": "differences below noise"}]
    grid = grid_of(tmp_path, questions=questions)
    found = answer_all(grid, final_runs(BETTER, WORSE))
    verdicts = [("confirmed", 0.03125), ("descriptive", 1.0), ("not decidable here", 1.0)]
    assert [(one.verdict, one.p) for one in found] == verdicts
    assert "+7.50" in sentence(grid, found[1]) and "differences below noise" in sentence(grid, found[2])


def test_a_condition_may_be_judged_by_its_mean(tmp_path: Path) -> None:
    """Smallest: -1 point in five seeds, +2 in one, -0.5 on average; no test can say that it loses less than 0.6."""
    smallest = [0.8, 0.8, 0.8, 0.8, 0.8, 0.83]
    better = [(top, low) for (top, _), low in zip(BETTER, smallest, strict=True)]
    for by, margin, verdict in (("mean", 0.006, "confirmed"), ("mean", 0.004, "not confirmed"), ("test", 0.006, "not")):
        condition = {"measure": "smallest", "margin": margin, "by": by}
        grid = grid_of(tmp_path, questions=[{**QUESTION, "provided": [condition]}])
        (answer,) = answer_all(grid, final_runs(better, WORSE))
        assert answer.verdict.startswith(verdict) and answer.parts[1].mean == pytest.approx(-0.005)
        assert ("an estimate" in sentence(grid, answer)) == (by == "mean")
        if verdict == "confirmed":
            assert answer.p == 0.03125, "that of the largest net alone"


def test_a_target_that_is_never_reached_is_worse_than_one_that_is(tmp_path: Path) -> None:
    """One round of 50 bytes: it is reached with 50, or counts as 100, two rounds, where it never is."""
    measures = {**FILE["measures"], "to": {"quantity": "bytes_to_target", "target": 0.9}}
    grid = grid_of(tmp_path, measures=measures, questions=[{**QUESTION, "measure": "to", "provided": []}])
    reached, never = (0.95, 0.8), (0.85, 0.8)
    (answer,) = answer_all(grid, final_runs([reached] * 5 + [never], [never] * 6))
    assert (*answer.parts[0].differences, answer.parts[0].num_unreached) == (50, 50, 50, 50, 50, 0, 7)
    assert answer.p == 0.0625 and "7 runs never reached" in sentence(grid, answer)
    costly = [{**made(GridRun("final", "one", "avg", 0, 0), *never).records[0], "protocol_up_bytes": 970}]
    (answer,) = answer_all(grid, changed(final_runs([never] * 6, [never] * 6), is_avg, records=costly))
    assert tuple(answer.parts[0].differences) == (0,) * 6, "both count as the costlier run and a round more"


@pytest.mark.parametrize("untested", [{}, {"tiers": {}}])
def test_a_method_may_test_its_clients_nets_alone(tmp_path: Path, untested: dict[str, None]) -> None:
    """In some rounds only; there is no largest net then. Rounds without a test write no tiers, or empty ones."""
    run = made(GridRun("final", "one", "hm", 0, 0), 0.9, 0.8)
    bare = {**{key: value for key, value in run.records[0].items() if key != "tiers"}, **untested}
    names = ("largest", "smallest", "mean", "clients")
    assert [nets_of([bare, *run.records], net) for net in names] == [["0"], ["1"], ["0", "1"], ["clients"]]
    own = replace(run, records=[bare, {**bare, "round": 2, "clients": {"accuracy": 0.7}}])
    assert [value(own, Measure(quantity="accuracy", net=net)) for net in names] == [None, None, None, 0.7]
    assert value(own, Measure(quantity="bytes")) == 100 and value(own, Measure(quantity="train_loss")) == 0.5
    assert "one-curves.svg" in figures_of(results_of(grid_of(tmp_path), [own]))


@pytest.mark.parametrize("clock", [{}, {"simulated_s": 5.0, "simulated_total_s": 5.0}])
def test_a_simulated_target_that_no_run_reached_has_a_column(tmp_path: Path, clock: dict[str, float]) -> None:
    """Without a clock there is nothing to reach."""
    measures = {**FILE["measures"], "never": {"quantity": "simulated_s_to_target", "target": 0.99}}
    runs = [replace(run, records=[{**run.records[0], **clock}]) for run in final_runs(BETTER, WORSE)]
    assert ("| never |" in markdown(results_of(grid_of(tmp_path, measures=measures), runs))) == bool(clock)


def test_a_report_has_curves_by_simulated_time_where_devices_have_a_clock(tmp_path: Path) -> None:
    """Two rounds of 5 seconds."""
    run = made(GridRun("final", "one", "hm", 0, 0), 0.9, 0.8)
    first = {**run.records[0], "simulated_s": 5.0, "simulated_j": 1.0}
    timed = replace(run, records=[first, {**first, "round": 2}])
    axes = {}
    for name, own in (("without", run), ("with", timed)):
        panels = figures_of(results_of(grid_of(tmp_path), [own]))["one-curves.svg"]
        axes[name] = {panel.x: panel.lines[1].x for panel in panels}
    assert axes["without"].keys() == {"rounds", "bytes"}
    assert axes["with"].keys() == {"rounds", "bytes", "simulated_s"} and axes["with"]["simulated_s"] == [5.0, 10.0]


def test_the_best_trial_is_chosen_of_equal_ones_the_first(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, settings=TWO)
    scores = {("one", "avg"): (0.5, 0.6), ("one", "hm"): (0.7, 0.7), ("two", "avg"): (0.2, 0.1), ("two", "hm"): (0, 1)}
    runs = [made(one, scores[one.setting, one.method][one.trial or 0]) for one in trials(grid)]
    found = choose(grid, {run.run: run for run in runs})
    numbers = {key: choice.trial for key, choice in found.items()}
    assert numbers == {("one", "avg"): 1, ("one", "hm"): 0, ("two", "avg"): 0, ("two", "hm"): 1}
    assert found["one", "avg"] == Choice(1, [0.5, 0.6])
    assert choose(grid, {run.run: run for run in runs[:-1]}) == {}, "nothing may be chosen yet"


def test_a_choice_at_an_edge_of_its_grid_is_said(tmp_path: Path) -> None:
    """The edge of three numbers. Words and switches have none, nor have two numbers."""
    hm = {"train.lr": [0.01, 0.1] * 4, "train.nesterov": [True], "method.solver": ["gram"]}
    grids = {"avg": {"train.lr": [0.01, 0.1, 0.02] * 2 + [0.01, 0.1]}, "hm": hm}
    grid = grid_of(tmp_path, methods={name: {"grid": [grid]} for name, grid in grids.items()})
    choices = {("one", "avg"): Choice(0, []), ("two", "avg"): Choice(2, []), ("one", "hm"): Choice(0, [])}
    lines = [line for line in markdown(results_of(grid, [], choices)).splitlines() if "that was tried" in line]
    assert lines == ["- careful: in one, avg took the lowest train.lr that was tried, 0.01"]


def test_what_is_missing_or_was_not_committed_is_said(tmp_path: Path) -> None:
    runs = final_runs(BETTER, WORSE)
    grid = grid_of(tmp_path)
    assert "1 final run missing" in markdown(results_of(grid, runs[1:]))
    dirty = changed(runs, lambda run: run.seed < 2, made_with={"git": "c-dirty"})
    assert "careful: 4 runs began in a checkout with changes" in markdown(results_of(grid, dirty))
    assert "not committed" not in markdown(results_of(grid, runs))


def test_seconds_have_a_unit_and_three_digits(tmp_path: Path) -> None:
    """By hand: 4 s a round in every run, so differences are 0."""
    measures = {**FILE["measures"], "round_s": {"quantity": "seconds"}}
    question = {**QUESTION, "measure": "round_s", "provided": [], "margin": 0}
    text = markdown(results_of(grid_of(tmp_path, measures=measures, questions=[question]), final_runs(BETTER, WORSE)))
    assert "| 4.00 ± 0.00 s |" in text and "round_s +0.00 s (" in text and "interval +0.00 to +0.00" in text
    shown = [units.seconds(number) for number in (0.803891, 11.9827, 99.96, 0.0110172)]
    assert shown == ["0.804 s", "12.0 s", "100 s", "0.0110 s"]


def test_runs_of_one_seed_that_were_not_made_alike_are_no_pair(tmp_path: Path) -> None:
    """Seed 5 of hm is of another commit and torch: +5 to +9 points in five seeds are left, which decide nothing. With
    seven seeds, six are left: p = 2/64."""
    usual = {"git": "a" * 40, "versions": {"torch": "2.15", "numpy": "2"}, "platform": "Linux"}
    other = {"git": "b" * 40, "versions": {"torch": "2.14", "numpy": "2"}, "platform": "Linux"}
    for num_seeds, verdict in ((6, "not decidable here"), (7, "confirmed")):
        grid = grid_of(tmp_path, seeds=[*range(num_seeds)])
        runs = changed(final_runs([*BETTER, BETTER[-1]], [*WORSE, WORSE[-1]]), lambda run: True, made_with=usual)
        runs = [run for run in runs if run.run.seed < num_seeds]
        runs = changed(runs, lambda run: (run.method, run.seed) == ("hm", 5), made_with=other)
        (answer,) = answer_all(grid, runs)
        assert answer.verdict == verdict
        assert [*answer.parts[1].differences.index] == [seed for seed in range(num_seeds) if seed != 5]
        text = markdown(results_of(grid, runs))
        first_line = next(line for line in text.splitlines() if line.startswith("- "))
        assert "seed 5 in one" in first_line and f"hm by commit {'b' * 40}, torch 2.14" in first_line
        assert f"avg by commit {'a' * 40}, torch 2.15" in first_line and "numpy" not in first_line
        assert f"| hm | - | {num_seeds} |" in text, "its own method's mean has it"
    for unlike in ({"made_with": {"git": "c"}}, {"data": "other"}):
        (answer,) = answer_all(grid, changed(runs, is_avg, **unlike))
        assert (answer.verdict, answer.parts, answer.p) == ("not decidable here", [], 1.0) and "no seed" in answer.why


def test_tables_by_hand(tmp_path: Path) -> None:
    """0.9 to 0.95 have mean 0.925 and deviation 0.0187."""
    runs = [replace(run, nets=[{"name": "0", "params": 308538, "macs": 9000}]) for run in final_runs(BETTER, WORSE)]
    results = results_of(grid_of(tmp_path), runs)
    lines = markdown(results).splitlines()
    assert "| hm | 0 | 308.54 k | 9.00 k | 92.50 ± 1.87 % | 92.50 ± 1.87 % |" in lines
    assert "| hm | 1 | - | - | 80.00 ± 0.00 % | 80.00 ± 0.00 % |" in lines
    rows = latex(results).splitlines()
    assert rows[1] == r"\begin{tabular}{llrrrr}" and r"method & chosen & seeds & largest & smallest & bytes \\" in rows
    assert r"hm & - & 6 & 92.50 $\pm$ 1.87 \% & 80.00 $\pm$ 0.00 \% & 50 $\pm$ 0 \\" in rows
