"""Answers and reports of a grid, from records written by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grids import BETTER, FILE, WORSE, final_runs, grid_of, made, results_of
from small_runs import small_config

from fedmpi.results.answers import answer_all, mixed_seeds
from fedmpi.results.archive import RunRecord
from fedmpi.results.grid_figures import draw, figures_of
from fedmpi.results.grid_file import Measure
from fedmpi.results.grid_report import effort_lines, latex, markdown, sentence, spectrum_lines, unlike, usual_number
from fedmpi.results.grid_runs import GridRun, finals, trials
from fedmpi.results.measures import nets_of
from fedmpi.results.tuning import Choice, choose
from fedmpi.store import units


def test_confirmed_where_all_parts_hold(tmp_path: Path) -> None:
    """Largest: +5 to +10 points in all six seeds, p 2/64. Smallest: -1 point, allowed -2: +1 in all seeds, p 2/64."""
    (answer,) = answer_all(grid_of(tmp_path), final_runs(BETTER, WORSE))
    assert (answer.verdict, answer.p) == ("confirmed", 0.03125)
    assert [round(part.mean, 6) for part in answer.parts] == [0.075, -0.01]
    assert [part.p for part in answer.parts] == [0.03125, 0.03125]
    assert answer.parts[0].interval == pytest.approx((0.05, 0.1, 0.96875))
    said = sentence(grid_of(tmp_path), answer)
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
    (answer,) = answer_all(grid_of(tmp_path), final_runs(first, second))
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
    grid = grid_of(tmp_path, questions=[question])
    (answer,) = answer_all(grid, final_runs([(top, low)] * 6, WORSE))
    said = sentence(grid, answer)
    assert "**not confirmed**" in said and said.endswith(ends) and ("p = 1" in said) == (not answer.unmet)


def test_holm_counts_all_questions_in_all_settings(tmp_path: Path) -> None:
    """In two settings 2 x 2/64 is above 0.05, whatever the runs say; eight seeds would do. So with five seeds."""
    question = {**FILE["questions"][0], "settings": []}
    for changed in ({"questions": [question]}, {"seeds": [0, 1, 2, 3, 4]}):
        found = answer_all(grid_of(tmp_path, **changed), final_runs(BETTER, WORSE))
        assert found[0].verdict == "not decidable here" and "0.062" in found[0].why
    eight = [*BETTER, *BETTER[:2]], [*WORSE, *WORSE[:2]]
    found = answer_all(grid_of(tmp_path, questions=[question], seeds=[*range(8)]), final_runs(*eight))
    assert [(one.verdict, one.p) for one in found] == [("confirmed", 2 * 2 / 256), ("not decidable here", 1.0)]


def test_secondary_questions_are_described_and_do_not_count(tmp_path: Path) -> None:
    questions = [FILE["questions"][0], {**FILE["questions"][0], "primary": False}]
    found = answer_all(grid_of(tmp_path, questions=questions), final_runs(BETTER, WORSE))
    assert [(one.verdict, one.p) for one in found] == [("confirmed", 0.03125), ("descriptive", 1.0)]
    assert "+7.50" in sentence(grid_of(tmp_path, questions=questions), found[1])


def test_what_cannot_be_decided_has_no_runs(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, methods=None, settings=None, tuning=None, measures=None, questions=[
        {"ask": "Is it?", "undecidable": "differences below noise"}])  # fmt: skip
    assert finals(grid, {}) == []
    (answer,) = answer_all(grid, [])
    assert answer.verdict == "not decidable here" and "differences below noise" in sentence(grid, answer)


def test_a_condition_may_be_judged_by_its_mean(tmp_path: Path) -> None:
    """Smallest: -1 point in five seeds, +2 in one, -0.5 on average; no test can say that it loses less than 0.6."""
    smallest = [0.8, 0.8, 0.8, 0.8, 0.8, 0.83]
    better = [(top, low) for (top, _), low in zip(BETTER, smallest, strict=True)]
    for by, margin, verdict in (("mean", 0.006, "confirmed"), ("mean", 0.004, "not confirmed"), ("test", 0.006, "not")):
        condition = {"measure": "smallest", "margin": margin, "by": by}
        grid = grid_of(tmp_path, questions=[{**FILE["questions"][0], "provided": [condition]}])
        (answer,) = answer_all(grid, final_runs(better, WORSE))
        assert answer.verdict.startswith(verdict) and answer.parts[1].mean == pytest.approx(-0.005)
        assert ("an estimate" in sentence(grid, answer)) == (by == "mean")
        if verdict == "confirmed":
            assert answer.p == 0.03125, "that of the largest net alone"


def test_a_target_that_is_never_reached_is_worse_than_one_that_is(tmp_path: Path) -> None:
    """One round of 50 bytes: it is reached with 50, or counts as 100, two rounds, where it never is."""
    measures = {**FILE["measures"], "to": {"quantity": "bytes_to_target", "target": 0.9}}
    question = {**FILE["questions"][0], "measure": "to", "provided": []}
    grid = grid_of(tmp_path, measures=measures, questions=[question])
    reached, never = (0.95, 0.8), (0.85, 0.8)
    (answer,) = answer_all(grid, final_runs([reached] * 5 + [never], [never] * 6))
    assert (
        tuple(answer.parts[0].differences.values()) == (50, 50, 50, 50, 50, 0) and len(answer.parts[0].unreached) == 7
    )
    assert answer.p == 0.0625 and "7 runs never reached" in sentence(grid, answer)
    (answer,) = answer_all(grid, final_runs([reached] * 6, [never] * 6))
    assert (answer.verdict, answer.p) == ("confirmed", 0.03125)
    costly = [
        replace(run, records=[{**run.records[0], "protocol_up_bytes": 970}]) for run in final_runs([], [never] * 6)
    ]
    (answer,) = answer_all(grid, [*final_runs([never] * 6, []), *costly])
    assert tuple(answer.parts[0].differences.values()) == (0,) * 6, "both count as the costlier run and a round more"


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
    assert made(GridRun("final", "one", "hm", 0, 0), 0.9, 0.6).value(Measure(**measure)) == value


def test_a_method_may_test_its_clients_nets_alone(tmp_path: Path) -> None:
    """In some rounds only; there is no largest net then."""
    run = made(GridRun("final", "one", "hm", 0, 0), 0.9)
    bare = {key: value for key, value in run.records[0].items() if key != "tiers"}
    tested = {**bare, "round": 2, "clients": {"accuracy": 0.7}}
    own = replace(run, records=[bare, tested])
    assert own.value(Measure(quantity="accuracy", net="clients")) == 0.7
    assert own.value(Measure(quantity="accuracy")) is None and nets_of(own.records, "mean") == []
    assert own.value(Measure(quantity="bytes")) == 100 and own.value(Measure(quantity="train_loss")) == 0.5
    grid = grid_of(tmp_path)
    assert "one-curves.svg" in figures_of(grid, [own], answer_all(grid, [own]))


def test_the_best_trial_is_chosen_of_equal_ones_the_first(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    scores = {("one", "avg"): (0.5, 0.6), ("one", "hm"): (0.7, 0.7), ("two", "avg"): (0.2, 0.1), ("two", "hm"): (0, 1)}
    runs = [made(one, scores[one.setting, one.method][one.trial or 0]) for one in trials(grid)]
    chosen = choose(grid, {run.run: run for run in runs})
    numbers = {key: choice.trial for key, choice in chosen.items()}
    assert numbers == {("one", "avg"): 1, ("one", "hm"): 0, ("two", "avg"): 0, ("two", "hm"): 1}
    assert chosen["one", "avg"] == Choice(1, {"train.lr": 0.1}, [0.5, 0.6])
    assert choose(grid, {run.run: run for run in runs[:-1]}) == {}, "nothing may be chosen yet"


def test_a_choice_at_an_edge_of_its_grid_is_said(tmp_path: Path) -> None:
    """The edge of three numbers. Words and switches have none, nor have two numbers."""
    own = {"method.tau": [2, 5], "train.nesterov": [False, True], "method.solver": ["gram", "auto", "exact"]}
    grids = {"avg": {"train.lr": [0.01, 0.1, 0.02] * 4}, "hm": {"train.lr": [0.1], **own}}
    grid = grid_of(tmp_path, methods={name: {"grid": [grid]} for name, grid in grids.items()})
    hm = {"train.lr": 0.1, "method.tau": 5, "train.nesterov": False, "method.solver": "gram"}

    def said(lr: float, *settings: str) -> list[str]:
        values = {"avg": {"train.lr": lr}, "hm": hm}
        choices = {(setting, name): Choice(0, values[name], []) for setting in settings for name in values}
        return [line for line in markdown(results_of(grid, [], choices)).splitlines() if "that was tried" in line]

    for lr, settings, words in ((0.01, ("one", "two"), "one, two, lowest"), (0.1, ("one",), "one, highest")):
        (line,) = said(lr, *settings)
        assert all(word in line for word in [*words.split(), "avg", "train.lr", f"{lr}"]), line
    assert said(0.02, "one") == []


def test_the_energy_that_tiers_lack_is_drawn_where_records_have_it(tmp_path: Path) -> None:
    """Of the first seed's run, whose records have it for every round, of nets with several ranks, without zeros."""
    runs, grid = final_runs(BETTER, WORSE), grid_of(tmp_path)

    def noted(run: RunRecord, *shares: dict[str, float]) -> RunRecord:
        method = [{"method": {"spectrum": {"beyond": share}}} for share in shares]
        return replace(
            run, records=[{**run.records[0], **one, "round": number} for number, one in enumerate(method, 1)]
        )

    assert "one-energy.svg" not in figures_of(grid, runs, answer_all(grid, runs))
    one_rank = noted(runs[6], {"0.5": 0.3}, {"0.5": 0.2})
    last_only = noted(runs[1], {"0.5": 0.3, "0.25": 0.4})
    first = noted(runs[0], {"0.5": 0.3, "0.25": 0.4}, {"0.5": 1e-9, "0.25": 1e-3}, {"0.5": 0.0, "0.25": 1e-4})
    runs = [first, last_only, *runs[2:6], one_rank, *runs[7:]]
    draw(grid, runs, answer_all(grid, runs), tmp_path)
    drawn = (tmp_path / "one-energy.svg").read_text()
    assert "hm, seed 0<" in drawn and "tier 0.25<" in drawn
    assert "avg, seed" not in drawn and "hm, seed 1" not in drawn


@pytest.mark.parametrize("untested", [{}, {"tiers": None}, {"tiers": {}}])
def test_records_without_tiers_have_no_nets(untested: dict[str, None]) -> None:
    """As rounds without a test write them, now and formerly, and methods whose clients alone have nets."""
    whole = made(GridRun("final", "one", "avg", 0, 0), 0.9, 0.8)
    bare = {**{key: value for key, value in whole.records[0].items() if key != "tiers"}, **untested}
    some, none = (replace(whole, records=rounds) for rounds in ([bare, *whole.records], [bare]))
    asked = ("largest", "smallest", "mean", "clients")
    assert [nets_of(some.records, net) for net in asked] == [["0"], ["1"], ["0", "1"], ["clients"]]
    assert [nets_of(none.records, net) for net in asked] == [[], [], [], ["clients"]]
    assert [none.value(Measure(quantity="accuracy", net=net)) for net in asked] == [None] * 4
    assert some.value(Measure(quantity="accuracy", net="mean")) == pytest.approx(0.85)


def test_what_runs_do_not_share_is_said(tmp_path: Path) -> None:
    runs, grid = final_runs(BETTER, WORSE), grid_of(tmp_path)
    assert unlike(grid, runs) == unlike(grid, []) and len(unlike(grid, runs)) == 1
    odd = [replace(run, cohorts="other") if run.run.method == "avg" else run for run in runs]
    (line,) = unlike(grid, odd)
    assert "12 final runs" in markdown(results_of(grid, runs)), "of the other setting"
    assert "one" in line and "avg" in line and "cohorts" in line
    assert line in markdown(results_of(grid, odd))


def test_runs_of_code_that_was_not_committed_are_counted(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    runs = [
        replace(run, made_with={"git": "c-dirty" if run.run.seed < 2 else "c"}) for run in final_runs(BETTER, WORSE)
    ]
    for some, count in ((runs, "4 runs"), (runs[2:6], "")):
        lines = [line for line in markdown(results_of(grid, some)).splitlines() if "not committed" in line]
        assert len(lines) == bool(count) and all(count in line for line in lines)


def test_cohorts_of_unlike_numbers_of_rounds_are_not_held_against_each_other(tmp_path: Path) -> None:
    runs, grid = final_runs(BETTER, WORSE), grid_of(tmp_path)
    longer = [
        replace(run, records=[*run.records, *run.records], cohorts="of more rounds") if run.run.method == "avg" else run
        for run in runs
    ]
    assert unlike(grid, longer) == unlike(grid, runs)


def test_seconds_have_a_unit_and_three_digits(tmp_path: Path) -> None:
    """By hand: 4 s a round in every run, so differences are 0."""
    measures = {**FILE["measures"], "round_s": {"quantity": "seconds"}}
    question = {**FILE["questions"][0], "measure": "round_s", "provided": [], "margin": 0}
    grid = grid_of(tmp_path, measures=measures, questions=[question])
    runs = final_runs(BETTER, WORSE)
    text = markdown(results_of(grid, runs))
    assert "| 4.00 ± 0.00 s |" in text and "round_s +0.00 s (" in text and "interval +0.00 to +0.00" in text
    shown = [units.seconds(number) for number in (0.803891, 11.9827, 99.94, 99.96, 1234.5, 0.0110172)]
    assert shown == ["0.804 s", "12.0 s", "99.9 s", "100 s", "1234 s", "0.0110 s"]


def made_by(run: RunRecord, commit: str, torch: str = "2.15") -> RunRecord:
    return replace(run, made_with={"git": commit, "versions": {"torch": torch, "numpy": "2"}, "platform": "Linux"})


def test_runs_of_one_seed_that_were_not_made_alike_are_no_pair(tmp_path: Path) -> None:
    """Seed 5 of hm is of another commit and torch: +5 to +9 points in five seeds are left, which decide nothing. With
    seven seeds, six are left: p = 2/64."""
    better = [*BETTER, BETTER[-1]]
    worse = [*WORSE, WORSE[-1]]
    for num_seeds, verdict in ((6, "not decidable here"), (7, "confirmed")):
        grid = grid_of(tmp_path, seeds=[*range(num_seeds)])
        runs = [
            made_by(run, "b" * 40, "2.14") if (run.run.method, run.run.seed) == ("hm", 5) else made_by(run, "a" * 40)
            for run in final_runs(better[:num_seeds], worse[:num_seeds])
        ]
        (answer,) = answer_all(grid, runs)
        assert answer.verdict == verdict and [part.mixed for part in answer.parts] == [(5,), (5,)]
        assert 5 not in answer.parts[0].differences and len(answer.parts[0].differences) == num_seeds - 1
        text = markdown(results_of(grid, runs))
        first_line = next(line for line in text.splitlines() if line.startswith("- "))
        assert "seed 5 in one" in first_line and "hm by commit bbbbbbbbbbbb, torch 2.14" in first_line
        assert "avg by commit aaaaaaaaaaaa, torch 2.15" in first_line and "numpy" not in first_line
        assert "without seed 5" in sentence(grid, answer)
        assert f"| hm | - | {num_seeds} |" in text, "its own method's mean has it"
    alike = [made_by(run, "a" * 40) if run.run.seed else made_by(run, "b" * 40) for run in final_runs(BETTER, WORSE)]
    assert list(mixed_seeds(grid_of(tmp_path), alike)) == [], "each pair was made alike"


def test_where_no_pair_is_left_nothing_is_decided(tmp_path: Path) -> None:
    runs = [made_by(run, run.run.method) for run in final_runs(BETTER, WORSE)]
    (answer,) = answer_all(grid_of(tmp_path), runs)
    assert answer.verdict == "not decidable here" and answer.parts == () and answer.p == 1.0
    assert "pair" in markdown(results_of(grid_of(tmp_path), runs))


def test_nets_have_their_sizes_and_accuracies(tmp_path: Path) -> None:
    """Last and best are means over six seeds: 0.9 to 0.95 have mean 0.925 and deviation 0.0187."""
    runs = [replace(run, nets=[{"name": "0", "params": 308538, "macs": 9000}]) for run in final_runs(BETTER, WORSE)]
    lines = markdown(results_of(grid_of(tmp_path), runs)).splitlines()
    assert "| hm | 0 | 308.54 k | 9.00 k | 92.50 ± 1.87 % | 92.50 ± 1.87 % |" in lines
    assert "| hm | 1 | - | - | 80.00 ± 0.00 % | 80.00 ± 0.00 % |" in lines


def test_a_table_for_a_paper(tmp_path: Path) -> None:
    rows = latex(results_of(grid_of(tmp_path), final_runs(BETTER, WORSE))).splitlines()
    assert rows[1] == r"\begin{tabular}{llrrrr}" and r"method & chosen & seeds & largest & smallest & bytes \\" in rows
    assert r"hm & - & 6 & 92.50 $\pm$ 1.87 \% & 80.00 $\pm$ 0.00 \% & 50 $\pm$ 0 \\" in rows


@pytest.mark.parametrize(
    ("examples", "usual"),
    [
        ({"standalone": 500, "fedavg": 100}, (100, "fedavg")),
        ({"a": 500, "b": 100.00000001, "c": 100}, (100, "most methods")),
        ({"a": 60, "b": 30, "c": 40}, (30, "b")),
        ({"a": 20, "b": 20, "c": 10, "d": 10}, (10, "c and d")),
    ],
)
def test_what_a_budget_is_measured_by(examples: dict[str, float], usual: tuple[float, str]) -> None:
    """The most common number, up to rounding, else the smallest: of two methods only one is to blame."""
    number, owners = usual_number(examples)
    assert (pytest.approx(number), owners) == usual


def test_unequal_budgets_and_settings_are_said(tmp_path: Path) -> None:
    """FedAvg: 3 rounds x 4 clients x 120 / 8 examples x 2 epochs = 360; half the epochs are half of that."""
    more = ("train.local_epochs=2",)
    configs = {
        ("one", "avg"): small_config("method.name=fedavg", *more),
        ("one", "hm"): small_config("method.name=fedhm", "train.lr=0.2", "seed=3", "output.dir=x", *more),
        ("one", "prox"): small_config("method.name=fedprox"),
    }
    results = replace(results_of(grid_of(tmp_path), []), configs=configs)
    assert list(effort_lines(results, "one")) == [
        "examples passed forward and backward in a run, by the plan: 360; prox 180",
        "careful: prox trains on 0.50 times the examples of most methods: no equal budget",
        "not alike: train.local_epochs is 2; prox 1",
        "not alike: train.lr is 0.05; hm 0.2",
    ]
    assert list(effort_lines(results, "two")) == []


def test_spectra_are_means_over_seeds(tmp_path: Path) -> None:
    """Shares .2 and .4 of one tier, 0 twice of the other; ranks 2 and 4 of two layers of one seed, 6 and 8 of the
    other; factors .5 and 1. A method that notes nothing has no line."""

    def noted(run: RunRecord, share: float, ranks: tuple[float, float], factor: float) -> RunRecord:
        layers = {name: {"effective_rank": rank} for name, rank in zip("ab", ranks, strict=True)}
        spectrum = {"beyond": {"0.5": 0.0, "0.25": share}, "layers": layers}
        note = {"spectrum": spectrum, "band_factor": {"0.5": factor}}
        return replace(run, records=[{**run.records[0], "method": note}])

    hm = final_runs(BETTER[:2], [])
    runs = [noted(hm[0], 0.2, (2, 4), 0.5), noted(hm[1], 0.4, (6, 8), 1.0), *final_runs([], WORSE[:2])]
    beyond, rank, factor = spectrum_lines(results_of(grid_of(tmp_path), runs), "one")
    assert beyond.startswith("hm: ") and beyond.endswith("0.5 0, 0.25 0.3")
    assert rank.split()[-3:] == ["5", "on", "average"] and factor.endswith("tier 0.5 0.75")
