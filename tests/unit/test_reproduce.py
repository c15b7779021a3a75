"""`jobs/reproduce.py`: what it refuses, which runs a table needs, how they are made and resumed, the Slurm array."""

from __future__ import annotations

import csv
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from reproduced_runs import PAPER, named
from small_runs import small_config

from fedmpi import papers
from fedmpi.config import yaml_text
from fedmpi.main import main

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "jobs"))  # scripts, and no package

import reproduce  # noqa: E402
import running  # noqa: E402
import slurm_array  # noqa: E402
from reproduction import Budget, Request, baseline_of, chosen, every, runs_of  # noqa: E402

FAST = ("data.num_train=48", "data.num_test=16", "clients.count=4", "clients.per_round=2", "clients.tier_blocks=[]")


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A paper's file whose runs are FedAvg and FedHM on tiny data, 4 rounds."""
    for name, method in (("one", "fedavg"), ("two", "fedhm")):
        config = small_config(*FAST, f"method.name={method}", "rounds=4", "train.schedule.milestones=[2]")
        (tmp_path / f"{name}.yaml").write_text(yaml_text.dump(config.to_dict()))
    text = PAPER.replace("run: one", f"run: {tmp_path}/one").replace("run: two", f"run: {tmp_path}/two")
    (tmp_path / "own.yaml").write_text(text)
    return str(tmp_path / "own.yaml")


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sequence[str]]]:
    """Runs the command here, which is a tenth of the time; a list of what was run."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    commands: list[Sequence[str]] = []

    def launch(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
        assert command[:3] == [sys.executable, "-m", "fedmpi.main"]
        commands.append(command)
        return main(command[3:])

    monkeypatch.setattr(running, "launch", launch)
    yield commands
    for number, handler in handlers.items():
        signal.signal(number, handler)


def called(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[int, str, str]:
    code = reproduce.main([*given])
    return (code, *capsys.readouterr())


# The command line.


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "--list names all"),
        (["fedhm"], "expected PAPER:TABLE, as fedhm:table3, got 'fedhm'"),
        (["fedhn:table3"], "no paper 'fedhn'. Did you mean 'fedhm'? Known: fedhm, prism, hermes, fdnnc"),
        (["fedhm:tabel3"], "fedhm has no 'tabel3'. Did you mean 'table3'? Known: table2, table3"),
        (["none/such.yaml:table1"], "none/such.yaml: cannot be read"),
        (["fedhm:table3", "--only", "Hermes"], "--only: nothing in fedhm:table3 has 'Hermes'; columns: Split-Mix"),
        (["fedhm:table3", "--run", "1000"], "--run: no run 1000; fedhm:table3 has 108"),
        (["fedhm:table3", "--run", "0"], "a whole number >= 1"),
        (["fedhm:table3", "--seeds", "0,0"], "different whole numbers"),
        (["fedhm:table3", "--budget", "0"], "a number > 0"),
        (["fedhm:table3", "--budget", "epoch=1"], "rounds=0.05,epochs=0.1"),
        (["fedhm:table3", "--budget", "rounds=1,rounds=2"], "rounds=0.05,epochs=0.1"),
        (["fedhm:table3", "--budget", "rounds="], "a number > 0"),
        (["fedhm:table3", "--submit"], "need --slurm"),
        (["fedhm:table3", "--array-max", "3"], "need --slurm"),
        (["fedhm:table3", "--collect", "--list"], "not allowed with"),
        (["fedhm:table3", "--bogus"], "--bogus"),
        (["OWN:table1", "--set", "train.lt=1"], "no such key"),
    ],
)
def test_mistakes_are_one_line_and_code_2(
    given: list[str], told: str, own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("OWN", own) for word in given]
    code, out, err = called(capsys, *words, "--ranks", "1", "--out", str(tmp_path / "out"))
    assert code == 2 and out == "" and told in err and len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_missing_config_is_told_before_anything_runs(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_this_process: list[Sequence[str]]
) -> None:
    (tmp_path / "two.yaml").unlink()
    code, _, err = called(capsys, f"{own}:table1", "--ranks", "1", "--out", str(tmp_path / "out"))
    assert code == 2 and "two.yaml: no such file" in err and in_this_process == []


def test_the_list_names_every_table_of_every_paper(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "--list")
    names = [line.split()[0] for line in out.splitlines()]
    assert code == 0 and names == [table.name for table in every()]
    assert {name.partition(":")[0] for name in names} == set(papers.PAPERS) and {"fedhm:table3", "fdnnc:table4"} < {
        *names
    }


def test_the_runs_of_all_papers_have_configs() -> None:
    configs = {run.config for table in every() for run in table.table.runs}
    assert [config for config in sorted(configs) if not (running.CONFIGS / f"{config}.yaml").exists()] == []


# Which runs.


def test_chosen_cells_and_what_they_are_compared_with() -> None:
    """Words stand whole: `11m fedhm` is two cells, `m` none; the baseline's run is needed though it is not chosen."""
    table = named("table1").table
    assert [(cell.block, cell.row) for cell in chosen(table, ["fedhm 11m"])] == [("IID", "11M"), ("Non-IID", "11M")]
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
    run = papers.Run(config="fedhm/table8_cifar10_iid_slim", overrides=("model.width=0.5",))
    request = Request(tmp_path)
    assert (
        request.run_of(run, 3).folder.path == tmp_path / "runs" / "fedhm-table8_cifar10_iid_slim-model.width=0.5-seed3"
    )
    small = Request(tmp_path, Budget(0.05, 0.1), ("train.lr=0.2",))
    assert small.name_of(run).endswith("-model.width=0.5-train.lr=0.2-rounds_x0.05-epochs_x0.1")
    assert Request(tmp_path, data_dir=tmp_path).name_of(run) == request.name_of(run)
    long = [Request(tmp_path, changed=("x=" + "y" * 200 + end,)).name_of(run) for end in "ab"]
    assert len({*long}) == 2 and {len(name) for name in long} == {160}


def test_a_budget_scales_rounds_milestones_and_epochs_never_below_one() -> None:
    config = small_config("rounds=40", "train.schedule.milestones=[10,30]", "train.local_epochs=5")
    assert Budget.read("0.05") == Budget(0.05, 0.05) and Budget.read("epochs=0.1") == Budget(1.0, 0.1)
    assert Budget.read("rounds=0.05,epochs=0.1").overrides(config) == [
        "rounds=2", "train.schedule.milestones=[1,2]", "evaluation.every=1", "train.local_epochs=1",
    ]  # fmt: skip
    assert Budget().overrides(config) == [] and Budget(1.0, 0.5).overrides(config) == ["train.local_epochs=2"]
    assert "rounds x 0.05, local epochs x 0.1" in str(Budget(0.05, 0.1)) and "small" not in str(Budget())


# Real runs.


def test_a_table_is_made_shared_and_resumed(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_this_process: list[Sequence[str]]
) -> None:
    """Half the budget of 4 rounds; another table finds the runs; one that broke goes on; a part is printed."""
    words = ["--ranks", "1", "--seeds", "0", "--budget", "0.5", "--out", str(tmp_path / "out")]
    code, out, _ = called(capsys, f"{own}:table1", *words)
    assert code == 0 and out.count(": finished (") == 3 and "rounds x 0.5" in out
    assert all("rounds=2" in command and "train.schedule.milestones=[1]" in command for command in in_this_process)
    rows = list(csv.DictReader((tmp_path / "out" / "own-table1" / "table.csv").read_text().splitlines()))
    assert [row["rounds_done"] for row in rows] == ["2"] * 4 and all(0 <= float(row["ours"]) <= 100 for row in rows)
    assert "rounds x 0.5" in (tmp_path / "out" / "own-table1" / "table.md").read_text()

    code, out, _ = called(capsys, f"{own}:table2", *words)
    assert code == 0 and out.count(": finished before") == 2 and len(in_this_process) == 3

    [folder] = (tmp_path / "out" / "runs").glob("*one-*-seed0")
    (folder / "report" / "summary.json").unlink()
    code, out, _ = called(capsys, f"{own}:table1", *words, "--collect", "--only", "fedavg")
    assert code == 0 and "not finished" in out and "FedHM" not in out
    assert called(capsys, f"{own}:table1", *words, "--list")[1].count(" finished ") == 2
    code, out, _ = called(capsys, f"{own}:table1", *words, "--run", "1")
    assert code == 0 and "finished (resumed, " in out and "--resume" in in_this_process[-1] and "own:table1" not in out


def test_a_failed_run_ends_no_other_and_another_config_is_refused(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_this_process: list[Sequence[str]]
) -> None:
    out = tmp_path / "out"
    request = Request(out.resolve())
    blocked = request.run_of(papers.Run(config=f"{tmp_path}/one"), 0).folder.path
    blocked.parent.mkdir(parents=True)
    blocked.write_text("")
    words = ["--ranks", "1", "--seeds", "0", "--only", "IID", "--out", str(out)]
    code, printed, _ = called(capsys, f"{own}:table2", *words)
    assert code == 1 and "[1/2]" in printed and "failed with exit code 2" in printed
    assert "[2/2]" in printed and printed.count(": finished (") == 1 and "its baseline is not run" in printed
    (tmp_path / "two.yaml").write_text((tmp_path / "two.yaml").read_text().replace("lr: 0.05", "lr: 0.5"))
    code, _, err = called(capsys, f"{own}:table2", *words)
    assert code == 2 and "train.lr: run has 0.05, you ask 0.5; take another --out" in err


def test_the_data_directory_is_set_where_there_are_files(own: str, tmp_path: Path) -> None:
    """Digits and synthetic data have no root."""
    request = Request(tmp_path / "out", data_dir=Path("/some where"))
    job = request.job_of(papers.Run(config="fedhm/table3_cifar10_iid_fedhm"), 2)
    assert job.config.data.root == "/some where" and job.config.seed == 2
    assert request.job_of(papers.Run(config=f"{tmp_path}/one"), 0).config.data.name == "synthetic"


# Slurm.


def test_the_array_is_as_recorded() -> None:
    """If it should be different now: delete the file, run the test twice and look at the difference."""
    array = slurm_array.Array(
        "fedhm-table3", ["python", "jobs/reproduce.py", "fedhm:table3", "--only", "two words"], [1, 2, 3, 7],
        5, "/work/out/fedhm-table3", "/home/me/fedmpi", 2, ["partition=gpu", "time=01:00:00", "exclusive"],
    )  # fmt: skip
    golden = ROOT / "tests" / "golden" / "array.sbatch"
    if not golden.exists():
        golden.write_text(slurm_array.sbatch(array))
        pytest.fail(f"{golden} was not there; it is now what the code writes")
    assert slurm_array.sbatch(array) == golden.read_text()
    assert slurm_array.commands(array).splitlines()[3] == (
        "python jobs/reproduce.py fedhm:table3 --only 'two words' --run 7"
    )


def test_a_signal_reaches_the_run(tmp_path: Path) -> None:
    """USR1 from outside goes on to the command, whose exit code says that it is to go on later."""
    before = signal.getsignal(signal.SIGUSR1)
    script = "trap 'exit 75' USR1; kill -USR1 $PPID; while :; do sleep 0.05; done"
    assert running.launch(["bash", "-c", script], tmp_path / "log", running.environment(1)) == 75
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_run_that_stopped_is_the_last_for_now(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_this_process: list[Sequence[str]]
) -> None:
    """No time is left after each of its four rounds: exit code 75 and no other run; the same command goes on with it."""
    words = [f"{own}:table2", "--ranks", "1", "--seeds", "4", "--out", str(tmp_path / "out")]
    limit = ["--set", "mpi.time_limit_s=0.001"]
    ends = [called(capsys, *words, *limit, "--run", "1") for _ in range(4)]
    assert [code for code, _, _ in ends] == [75, 75, 75, 0] and len(in_this_process) == 4
    assert "stopped, to go on" in ends[0][1] and "finished (resumed" in ends[3][1]
    assert called(capsys, *words, *limit)[0] == 75 and len(in_this_process) == 5


def test_ranges() -> None:
    assert slurm_array.ranges([7, 1, 2, 3, 9]) == "1-3,7,9" and slurm_array.ranges([4]) == "4"


def test_the_array_has_what_is_left(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_this_process: list[Sequence[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Nothing runs; a task's command makes its run, whatever the folder it starts in; then there is one less."""
    out = tmp_path / "out"
    words = [f"{own}:table2", "--ranks", "1", "--seeds", "4", "--budget", "rounds=0.25", "--out", str(out)]
    code, printed, _ = called(capsys, *words, "--slurm", "--array-max", "3", "--sbatch-option", "account=me")
    folder = out / "own-table2"
    assert code == 0 and "2 of 2 runs are left" in printed and in_this_process == []
    script = (folder / "array.sbatch").read_text()
    assert (
        "#SBATCH --array=1-2%3\n" in script and "#SBATCH --account=me\n" in script and "#SBATCH --ntasks=1\n" in script
    )
    command = (folder / "commands.txt").read_text().splitlines()[1].split()
    monkeypatch.chdir("/")
    assert called(capsys, *command[2:])[0] == 0 and len(in_this_process) == 1 and "rounds=1" in in_this_process[0]
    assert called(capsys, *words, "--slurm")[0] == 0 and "--array=1\n" in (folder / "array.sbatch").read_text()
    monkeypatch.setattr(reproduce.shutil, "which", lambda name: None)
    code, _, err = called(capsys, *words, "--slurm", "--submit")
    assert code == 2 and "no sbatch in PATH" in err
    assert called(capsys, *words, "--run", "1")[0] == 0
    assert "all 2 runs of own:table2 are finished" in called(capsys, *words, "--slurm")[1]


def test_a_launcher_of_one_s_own() -> None:
    assert running.launcher(4, "srun --mpi=pmix -n {ranks}") == ["srun", "--mpi=pmix", "-n", "4"]
    assert running.launcher(1, None) == []
