"""Which runs `jobs/reproduce.py` makes of a table, with which budget and in which folders, and its Slurm array."""

from pathlib import Path

import pytest
from small_runs import small_config
from studied_runs import PAPER, named

from fedmpi import papers
from fedmpi.studies import launch as running
from fedmpi.studies.arguments import changes
from fedmpi.studies.reproduction import Budget, Request, baseline_of, chosen, runs_of

ROOT = Path(__file__).resolve().parents[2]


def test_chosen_cells_and_what_they_are_compared_with() -> None:
    """Words stand whole: `11m fedhm` is two cells, `m` none; the baseline's run is needed though it is not chosen."""
    table = named("table1").table
    assert [(cell.block, cell.row) for cell in chosen(table, ["fedhm 11m"])] == [("IID", "11M"), ("Non-IID", "11M")]
    apart = named("table1", PAPER.replace(", partition.name=iid", "")).table
    assert [cell.block for cell in chosen(apart, ["iid 11m"])] == ["IID", "IID"]  # nothing of Non-IID
    assert [cell.block for cell in chosen(apart, ["non-iid"])] == ["Non-IID"]
    assert len(chosen(table, ["4M", "fedavg"])) == 2 and len(chosen(table, [])) == 4 and chosen(table, ["m"]) == []
    assert [cell.column for cell in chosen(table, ["one"])] == ["FedAvg"]
    assert [run.config for run in runs_of(table, chosen(table, ["4M"]))] == ["two"]

    cost = named("table2").table
    fedhm = chosen(cost, ["fedhm"])
    assert [run.config for run in runs_of(cost, fedhm)] == ["one", "two"]
    assert baseline_of(cost, fedhm[0]) == cost.cells[0] and baseline_of(table, table.cells[0]) is None


def test_a_baseline_is_of_the_same_row_where_there_are_several_and_may_be_a_row() -> None:
    text = """
source: nobody
tables:
  by_column:
    {title: t, quantity: accuracy_drop, baseline: Full, blocks: {
      A: {Full: {cells: {x: {run: a}, y: {run: b}}}, PriSM: {cells: {y: {run: c}, z: {run: d}}}}}}
  by_row:
    {title: t, quantity: relative_cost, baseline: 0.8, blocks: {A: {Cost: {cells: {0.3: {run: a}, 0.8: {run: b}}}}}}
"""
    table = named("by_column", text).table
    found = [baseline_of(table, cell) for cell in table.cells]
    assert [cell and cell.run and cell.run.config for cell in found] == ["a", "b", "b", "a"]
    rows = named("by_row", text).table
    assert [baseline_of(rows, cell) for cell in rows.cells] == [rows.cells[1]] * 2


def test_folders_tell_runs_apart(tmp_path: Path) -> None:
    run = papers.Run(config="fedhm/table8.yaml@cifar10_iid_slim", overrides=("model.width=0.5",))
    request = Request(tmp_path)
    assert (
        request.run_of(run, 3).folder.path == tmp_path / "runs" / "fedhm-table8_cifar10_iid_slim-model.width=0.5-seed3"
    )
    small = Request(tmp_path, Budget(0.05, 0.1), ("train.lr=0.2",))
    assert small.name_of(run).endswith("-model.width=0.5-train.lr=0.2-rounds_x0.05-epochs_x0.1")
    assert Request(tmp_path, data_dir=tmp_path).name_of(run) == request.name_of(run)
    assert changes([" train.lr = 0.1", "rounds=2", "train.lr=0.2"]) == ("rounds=2", "train.lr=0.2")
    assert changes(["b=1", "a=1"]) == changes(["a=1", "b=1"]) == ("a=1", "b=1")
    long = [Request(tmp_path, changed=("x=" + "y" * 200 + end,)).name_of(run) for end in "ab"]
    assert len({*long}) == 2 and {len(name) for name in long} == {160}


def test_a_budget_scales_rounds_milestones_and_epochs_never_below_one() -> None:
    config = small_config("rounds=40", "train.schedule.milestones=[10,30]", "train.local_epochs=5")
    assert Budget.read("0.05") == Budget(0.05, 0.05) and Budget.read("epochs=0.1") == Budget(1.0, 0.1)
    scaled = "rounds=2 train.schedule.milestones=[1,2] evaluation.every=1 train.local_epochs=1"
    assert " ".join(Budget.read("rounds=0.05,epochs=0.1").overrides(config)) == scaled
    assert Budget().overrides(config) == [] and Budget(1.0, 0.5).overrides(config) == ["train.local_epochs=2"]
    assert "rounds x 0.05, local epochs x 0.1" in str(Budget(0.05, 0.1)) and "small" not in str(Budget())


@pytest.mark.parametrize(
    ("rounds", "milestones", "scale", "made"),
    [
        (200, "[100,150]", 0.05, (10, "[5,8]")),  # 7.5 to even
        (200, "[100,150]", 0.015, (3, "[1,2]")),  # 1.5 and 2.25 are both 2
        (200, "[100,198]", 0.05, (10, "[5,9]")),  # 9.9 is 10, which no round follows
        (200, "[190,196,198]", 0.05, (10, "[7,8,9]")),
        (200, "[1,2,150]", 0.05, (10, "[1,2,8]")),
        (200, "[150,100,100]", 0.05, (10, "[8,5,5]")),  # two steps at once stay two steps at once
        (200, "[100,200,300]", 0.05, (10, "[5,10,15]")),  # those that never happen still do not
        (200, "[100,150,180]", 0.01, (2, "[1,2,3]")),  # one of three has a round after it
        (200, "[100]", 0.001, (1, "[1]")),
        (200, "[100,199]", 2, (400, "[200,398]")),
    ],
)
def test_steps_of_the_learning_rate_stay_apart_and_happen(
    rounds: int, milestones: str, scale: float, made: tuple[int, str]
) -> None:
    config = small_config(f"rounds={rounds}", f"train.schedule.milestones={milestones}")
    assert running.scaled(config, scale)[:2] == [f"rounds={made[0]}", f"train.schedule.milestones={made[1]}"]


def test_a_budget_says_how_many_steps_it_has_no_round_for() -> None:
    """Of 100, 150, 180 and 250 in 200 rounds the last never happens; 2 rounds have one step between them."""
    config = small_config("rounds=200", "train.schedule.milestones=[100,150,180,250]")
    assert [Budget(share).lost_steps(config) for share in (1.0, 0.05, 0.01, 0.005)] == [(0, 3), (0, 3), (2, 3), (3, 3)]


def test_a_method_s_round_stays_before_the_last() -> None:
    """800 of 1000 rounds by 0.002 are 1.6 of 2: round 2 would be the last."""
    config = small_config(
        "rounds=1000", "method.name=fdnnc", "method.switch_round=800", "model.name=mlp", "model.hidden=[16,16]"
    )
    assert "method.switch_round=1" in running.scaled(config, 0.002)
    assert "method.switch_round=8" in running.scaled(config, 0.01)
