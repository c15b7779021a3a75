"""The table of `jobs/compare.py`: sums and means by hand, what its caption says, and how it is written."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import studied_runs
from golden_file import Told
from small_runs import small_config

from fedmpi.store.run_dir import RunDir
from fedmpi.studies import comparison
from fedmpi.studies.comparison import Effort, Row, effort_of, rows_of
from fedmpi.studies.runs import Run, accuracy_of, mean_std, missing_rounds, to_target


def record(number: int, tiers: Mapping[str, float], *, clients: float | None = None) -> dict[str, object]:
    """A round that moves 10 bytes down and 5 up, and takes 100 MACs, all times its number."""
    own = {} if clients is None else {"clients": {"accuracy": clients, "std": 0.1, "worst_decile": clients - 0.3}}
    costs = {"protocol_down_bytes": 10 * number, "protocol_up_bytes": 5 * number, "training_macs": 100.0 * number}
    return studied_runs.record(number, tiers, **costs, **own)


def finished_run(folder: Path, seed: int, records: list[dict[str, object]], **more: Any) -> Run:
    """A run's folder as the command would leave it, with a tier `1` that is tested and `0.5` that is not."""
    run = Run("fedavg_synthetic", seed, RunDir(folder / f"fedavg_synthetic-seed{seed}"))
    nets = ["1", "0.5", *(["clients"] if "clients" in records[-1] else [])]
    return studied_runs.write(run, records, **{"nets": nets, **more})


def test_to_target_sums_up_to_and_with_the_first_round_that_reaches_it() -> None:
    """Round 2 is not evaluated but costs: rounds 1 to 3 move 15 (1 + 2 + 3) = 90 bytes and take 100 x 6 MACs; round 4
    falls below the target again, which changes nothing."""
    records = [record(1, {"1": 0.4}), record(2, {}), record(3, {"1": 0.5}), record(4, {"1": 0.3})]
    assert to_target(records, "1", 0.5) == (90, 600.0, 3) and to_target(records, "1", 0.4) == (15, 100.0, 1)
    assert to_target(records, "1", 0.51) is None is to_target(records, "0.5", 0.1)
    of_clients = [record(1, {"1": 0.9}, clients=0.2), record(2, {}, clients=0.6)]
    assert to_target(of_clients, "clients", 0.6) == (45, 300.0, 2) and accuracy_of(of_clients[1], "1") is None
    assert accuracy_of(record(1, {"1": 0.9}), "clients") is None


def test_sums_over_missing_rounds_are_not_shown(tmp_path: Path, told: Told) -> None:
    """Of what was moved until the target nobody knows if a record before it is gone; accuracies are as recorded."""
    records = [record(1, {"1": 0.4}), record(3, {"1": 0.5}), record(4, {"1": 0.6})]
    assert to_target(records, "1", 0.4) == (15, 100.0, 1) and to_target(records, "1", 0.5) is None
    run = finished_run(tmp_path, 0, records, rounds=4, nets=["1"])
    assert run.is_finished()
    told(missing_rounds(run.records))
    (row,) = rows_of([run], 0.5, Effort(1, 1, 1, 1))
    assert (row.accuracy, row.bytes_to_target, row.seeds_at_target) == (0.6, None, 0)
    assert missing_rounds(records[:1]) == missing_rounds([]) == ""


def test_mean_and_sample_deviation() -> None:
    """1, 2, 6: mean 3; squares 4 + 1 + 9 = 14 over n - 1 = 2 give sqrt(7)."""
    mean, std = mean_std([1, 2, 6])
    assert mean == 3 and std == pytest.approx(7**0.5)
    assert mean_std([4]) == (4, None) and mean_std([]) == (None, None)


def test_rows_of_two_finished_runs_and_a_failed_one(tmp_path: Path, told: Told) -> None:
    """Last 0.6 and 0.8: mean 0.7, deviation sqrt(2 x 0.01) = 0.1414. Best 0.7 and 0.8. Only the second run reaches 0.8,
    in round 3. The tier that nobody tests has its costs."""
    runs = [
        finished_run(tmp_path, 0, [record(1, {"1": 0.1}), record(2, {"1": 0.7}), record(3, {"1": 0.6})]),
        finished_run(tmp_path, 1, [record(1, {"1": 0.2}), record(2, {}), record(3, {"1": 0.8})]),
        finished_run(tmp_path, 2, [record(1, {"1": 0.9})]),
        Run("fedavg_synthetic", 3, RunDir(tmp_path / "gone")),
    ]
    tested, untested, unfinished, gone = rows_of(runs, 0.8, Effort(1, 1, 1, 1), failed=runs[3:])
    assert (tested.method, tested.tier, tested.status, tested.seeds) == ("fedavg", "1", "", 2)
    assert tested.accuracy == pytest.approx(0.7) and tested.accuracy_std == pytest.approx(0.02**0.5)
    assert tested.best_accuracy == pytest.approx(0.75) and (tested.params, tested.macs) == (7, 9)
    assert (tested.seeds_at_target, tested.bytes_to_target, tested.macs_to_target) == (1, 90, 600.0)
    assert tested.rounds_to_target == 3 and tested.clients_std is None
    assert (untested.tier, untested.status, untested.params, untested.accuracy) == ("0.5", "untested", 7, None)
    assert (unfinished.tier, gone.method, gone.tier) == ("seed 2", "fedavg", "seed 3")
    told(unfinished.status)
    told(gone.status)


@pytest.mark.parametrize("failed", [True, False])
def test_a_run_that_diverged_says_where(tmp_path: Path, failed: bool, told: Told) -> None:
    """By the note of its rank, whether this command has made it or only collects it."""
    run = finished_run(tmp_path, 0, [record(1, {"1": 0.1})])
    run.folder.failure_path.write_text("diverged\nround 2, client 3, stage local_training: the loss is nan\nadvice\n")
    (row,) = rows_of([run], 0.8, None, failed=[run] if failed else [])
    told(row.status)


def test_the_legend_is_of_rows_that_are_there() -> None:
    def keys(*tiers: str) -> list[str]:
        rows = [Row("fedavg", tier, seeds=1) for tier in tiers]
        return [line.partition(":")[0] for line in comparison.what_is_shown(rows, {"a": [1]}, 0.8, 1, ())]

    assert len(keys("1")) == 2
    assert keys("1", "clients") == [*keys("1"), "clients"]


def test_rows_where_clients_have_nets_of_their_own(tmp_path: Path) -> None:
    """Instead of the untested tier: means over the clients' tiers, and what is told of the clients."""
    runs = [finished_run(tmp_path, 0, [record(number, {"1": 0.1}, clients=number / 5) for number in (1, 2, 3)])]
    tier, clients = rows_of(runs, 0.4, Effort(1, 1, 11.5, 12.5))
    assert (tier.tier, tier.seeds_at_target, clients.tier) == ("1", 0, "clients")
    assert (clients.params, clients.macs, clients.accuracy, clients.accuracy_std) == (11.5, 12.5, 0.6, None)
    assert clients.clients_std == 0.1 and clients.clients_worst_decile == pytest.approx(0.3)
    assert clients.rounds_to_target == 2 and clients.bytes_to_target == 45


def test_cells() -> None:
    row = Row("fedhm", "1", "", 3, 0.93214, 0.0045, 1.0, 0.0, None, None, 308538, 993536, 2, 14.8e6, 423e6, 12.5)
    of = "(2 of 3)"
    to_target = [f"14.80 MB {of}", f"423.00 M {of}", f"12.5 {of}"]
    assert row.cells() == ("fedhm", "1", "93.21 ± 0.45 %", "308.54 k", "993.54 k", *to_target)
    assert Row("fedhm", "seed 1", "failed").cells()[2:] == ("failed", *"-----")
    assert Row("fedhm", "1", seeds=1, accuracy=0.5, seeds_at_target=1, rounds_to_target=7).cells()[-1] == "7"


def test_csv_is_exact_and_markdown_whole() -> None:
    rows = [Row("a|b", "1", "", 3, 1 / 3, 0.1, params=308538)]
    (read,) = csv.DictReader(comparison.comma_separated(rows).splitlines())
    assert float(read["accuracy"]) == 1 / 3 and read["params"] == "308538" and read["rounds_to_target"] == ""
    text = comparison.markdown(rows, ["clients: all"], ["python jobs/compare.py", "again"])
    assert "| a\\|b | 1 | 33.33 ± 10.00 % | 308.54 k | - | - | - | - |" in text.splitlines()
    assert "\n\n    python jobs/compare.py\n    again\n\n| method" in text and text.endswith("- Clients: all\n")


def test_the_caption_says_deviation_only_where_there_is_one() -> None:
    def said(seeds: dict[str, list[int]]) -> list[str]:
        return [line.partition("; bytes")[0] for line in comparison.what_is_shown([], seeds, 0.8, 1, ())[:2]]

    last = "accuracy: after the last round"
    target = "bytes, compute and rounds to target: until an evaluation first gives this row 80 % or more"
    assert said({}) == []
    assert said({"a": [1], "b": [1]}) == [f"{last}, of seed 1", target]
    several = f"{last}, mean ± sample standard deviation over seeds 0, 1", f"{target}, mean over the seeds that do"
    assert said({"a": [0, 1], "b": [0, 1]}) == [*several]
    assert said({"a": [0, 1], "b": [0, 1], "c": [0]}) == [f"{several[0]}; c 0", several[1]]


def test_the_budget_is_what_the_plan_counts() -> None:
    """3 rounds x 4 clients x 120 / 8 examples x 2 epochs = 360; FedHM's clients have nets of four sizes."""
    plain = effort_of(small_config("method.name=fedavg", "train.local_epochs=2"))
    assert plain.examples == 360 and plain.training_macs == 360 * plain.mean_macs
    low = effort_of(small_config("method.name=fedhm", "train.local_epochs=2", "clients.tier_blocks=[2,2,2,2]"))
    assert low.examples == pytest.approx(360) and low.mean_macs < plain.mean_macs


def test_a_budget_far_from_that_of_most_is_warned_of(told: Told) -> None:
    """Two spend 100, half of all: 110 is within a tenth, 111 and 50 are not."""
    budgets = {name: Effort(number, 2 * number, 1, 1) for name, number in zip("abcd", (100, 100, 110, 50), strict=True)}
    said, compute, *warnings = comparison.effort_lines(budgets)
    assert said.endswith(": 100; c 110; d 50") and "c 220" in compute
    assert len(warnings) == 1
    told(warnings[0])
    assert len(comparison.effort_lines(budgets | {"c": Effort(111, 1, 1, 1)})) == 4
    assert comparison.effort_lines({}) == []


TIMES = ("a trains on 2.00", "c trains on 1.33")


@pytest.mark.parametrize(
    ("examples", "warnings"),
    [
        ({"standalone": 500, "fedavg": 100}, ["standalone trains on 5.00 times the examples of fedavg"]),
        ({"a": 500, "b": 100.00000001, "c": 100}, ["a trains on 5.00 times the examples of most methods"]),
        ({"a": 60, "b": 30, "c": 40}, [f"{what} times the examples of b" for what in TIMES]),
        ({"a": 20, "b": 20, "c": 10, "d": 10}, [f"{who} trains on 2.00 times the examples of c and d" for who in "ab"]),
    ],
)
def test_what_a_budget_is_measured_by(examples: Mapping[str, float], warnings: list[str]) -> None:
    """The most common number, up to rounding, else the smallest: of two methods only one is to blame."""
    lines = comparison.effort_lines({name: Effort(number, 1, 1, 1) for name, number in examples.items()})
    assert [line.partition(": ")[2].rpartition(": ")[0] for line in lines[2:]] == warnings


def test_settings_that_are_not_alike_are_told() -> None:
    base = small_config("method.name=fedavg")
    configs = {"a": base, "b": base, "c": small_config("method.name=fedhm", "train.lr=0.2", "seed=3", "output.dir=x")}
    plain = {name: config.to_dict() for name, config in configs.items()}
    assert comparison.difference_lines(plain) == ["rounds: 3", "not alike: train.lr is 0.05; c 0.2"]


def test_what_tiers_lack_is_the_mean_over_seeds() -> None:
    """Shares .2 and .4 of one tier, 0 twice of the other; a method that notes nothing has no line."""

    def run(share: float) -> list[dict[str, Any]]:
        return [record(1, {}), {**record(2, {}), "method": {"spectrum": {"beyond": {"0.5": 0.0, "0.25": share}}}}]

    (line,) = comparison.spectrum_lines({"fedhm": [run(0.2), run(0.4)], "fedavg": [[record(1, {})]]})
    assert line.startswith("fedhm: ") and line.endswith("0.5 0, 0.25 0.3")


def test_ranks_and_factors_are_means_over_seeds() -> None:
    """Ranks 2 and 4 of two layers of one seed, 6 and 8 of the other; factors .5 and 1."""

    def run(ranks: tuple[float, float], factor: float) -> list[dict[str, Any]]:
        layers = {
            name: {"effective_rank": rank, "beyond": {"0.5": 0.1}} for name, rank in zip("ab", ranks, strict=True)
        }
        spectrum = {"beyond": {"0.5": 0.1}, "layers": layers}
        return [{**record(1, {}), "method": {"spectrum": spectrum, "band_factor": {"0.5": factor}}}]

    _, rank, factor = comparison.spectrum_lines({"fedhm": [run((2.0, 4.0), 0.5), run((6.0, 8.0), 1.0)]})
    assert rank.split()[-3:] == ["5", "on", "average"] and factor.endswith("tier 0.5 0.75")
