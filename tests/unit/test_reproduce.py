"""`jobs/reproduce.py`: how runs are made and resumed, its Slurm array."""

import csv
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from golden_file import Told
from shipped_configs import EXPERIMENTS
from studied_runs import Called, Ran, calling, own_paper, run_here

from fedmpi import papers
from fedmpi.results.compared import grouped
from fedmpi.results.run import read_runs
from fedmpi.store.lock import Holder, _in_use
from fedmpi.studies import launch as running
from fedmpi.studies import reproduce
from fedmpi.studies.reproduction import Request, every

pytestmark = pytest.mark.usefixtures("here")
in_this_process = run_here
called = calling(reproduce.main, "--ranks", "1", "--out", "out")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts in a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def own(tmp_path: Path) -> str:
    return Path(own_paper(tmp_path)).name


def test_a_missing_config_is_told_before_anything_runs(
    own: str, tmp_path: Path, called: Called, in_this_process: Ran
) -> None:
    (tmp_path / "two.yaml").unlink()
    code, _, err = called(f"{own}:table1")
    assert code == 2 and "two.yaml: no such" in err and in_this_process == []


def test_the_list_names_every_table_of_every_paper(called: Called) -> None:
    code, out, _ = called("--list")
    names = [line.split()[0] for line in out.splitlines()]
    assert code == 0 and names == [table.name for table in every()]
    assert {name.partition(":")[0] for name in names} == set(papers.PAPERS) and "fedhm:table3" in names


def test_the_runs_of_all_papers_have_configs() -> None:
    configs = {run.config for table in every() for run in table.table.runs}
    assert configs <= {*EXPERIMENTS}


def test_a_table_is_made_shared_and_resumed(own: str, tmp_path: Path, called: Called, in_this_process: Ran) -> None:
    """Half the budget of 4 rounds; another table finds the runs; one that broke continues; a part is printed."""
    words = ["--seeds", "0", "--budget", "0.5"]
    code, out, _ = called(f"{own}:table1", *words)
    assert code == 0 and out.count(": finished (") == 3 and "rounds x 0.5" in out
    assert all("rounds=2" in command and "train.schedule.milestones=[1]" in command for command in in_this_process)
    table_dir = tmp_path / "out" / "own.yaml-table1-rounds_x0.5-epochs_x0.5"
    rows = list(csv.DictReader((table_dir / "table.csv").read_text().splitlines()))
    assert all("epochs x 0.5" in row["made_with"] for row in rows)
    assert [row["rounds_done"] for row in rows] == ["2"] * 4 and all(0 <= float(row["ours"]) <= 100 for row in rows)
    assert "rounds x 0.5" in (table_dir / "table.md").read_text()

    groups = grouped(read_runs([tmp_path / "out"])[0])  # as `fedmpi show`: two methods, one also on IID
    assert [len(group.runs) for group in groups] == [1] * 3 and len({group.name for group in groups}) == 3
    assert sorted("iid" in group.name for group in groups) == [False, False, True]

    code, out, _ = called(f"{own}:table2", *words)
    assert code == 0 and out.count(": finished before") == 2 and len(in_this_process) == 3

    [folder] = (tmp_path / "out" / "runs").glob("*one-*-seed0")
    (folder / "report" / "summary.json").unlink()
    code, out, _ = called(f"{own}:table1", *words, "--collect", "--only", "fedavg")
    assert code == 0 and "not finished" in out and "FedHM" not in out and "no run of" not in out
    code, out, _ = called(f"{own}:table1", "--collect")
    assert code == 0 and "own.yaml:table1 with these options" in out
    assert not (tmp_path / "out" / "own.yaml-table1" / "table.csv").read_text().count("rounds x")
    assert called(f"{own}:table1", *words, "--list")[1].count(" finished ") == 2
    code, out, _ = called(f"{own}:table1", *words, "--run", "1")
    assert code == 0 and "finished (resumed, " in out and "own.yaml:table1" not in out
    assert "--resume" in in_this_process[-1]


def test_missing_data_are_told_before_anything_runs(tmp_path: Path, called: Called, in_this_process: Ran) -> None:
    words = ["--only", "cifar10_iid fedavg", "--data-dir", str(tmp_path)]
    code, out, err = called("fedhm:table3", *words)
    assert code == 2 and out == "" and err.count("\n") == 1 and in_this_process == []
    assert "fedmpi data fetch cifar10" in err and not (tmp_path / "out").exists()


def test_a_failed_run_ends_no_other_and_another_config_is_refused(
    own: str, tmp_path: Path, called: Called, in_this_process: Ran, told: Told
) -> None:
    out = tmp_path / "out"
    request = Request(out.resolve())
    blocked = request.run_of(papers.Run(config=f"{tmp_path}/one"), 0).folder.path
    blocked.parent.mkdir(parents=True)
    blocked.write_text("")
    words = ["--seeds", "0", "--only", "IID"]
    code, printed, _ = called(f"{own}:table2", *words)
    assert code == 1 and "[1/2]" in printed and "exit code 2" in printed
    assert "[2/2]" in printed and printed.count(" finished (") == 1 and "baseline is not" in printed
    (tmp_path / "two.yaml").write_text((tmp_path / "two.yaml").read_text().replace("lr: 0.05", "lr: 0.5"))
    code, _, err = called(f"{own}:table2", *words)
    assert code == 2
    told(err, r"(?<=out/runs/)\S+(?=-two-)")


def test_a_run_that_another_process_makes_is_left_alone(
    own: str, tmp_path: Path, called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the lock words it; what an earlier try left in the log tells nothing of this one."""

    def launch(command: Sequence[str], log: Path, environment: Mapping[str, str], look: object) -> int:
        refusal = _in_use(log, Holder("node1", 12, 0.0)).text()
        log.write_text(log.read_text() + (f"{refusal}\n" if "one" in log.name else "no data\n"))
        return 2

    monkeypatch.setattr(running, "launch", launch)
    words = [f"{own}:table2", "--seeds", "0"]
    (tmp_path / "out" / "runs").mkdir(parents=True)
    request = Request((tmp_path / "out").resolve())
    for name in ("one", "two"):
        folder = request.run_of(papers.Run(config=f"{tmp_path}/{name}"), 0).folder.path
        folder.with_name(f"{folder.name}.log").write_text("x: is in use by pid 3 on node9; wait for it\n")
    code, printed, _ = called(*words)
    one, two = " ".join(printed.split()).split(" [2/2] ", 1)
    assert code == 1 and one.endswith("by pid 12 on node1")
    assert "exit code 2" in two


def test_a_launcher_that_cannot_be_started_is_one_line(own: str, tmp_path: Path, called: Called, told: Told) -> None:
    (tmp_path / "start").write_bytes(b"\x00\x01")
    (tmp_path / "start").chmod(0o755)
    code, _, err = called(f"{own}:table2", "--launcher", f"{tmp_path}/start {{ranks}}", "--seeds", "0")
    assert code == 2
    told(err)


def test_the_head_tells_of_steps_without_a_round(own: str, called: Called, in_this_process: Ran) -> None:
    """A quarter of 4 rounds is one round, and the step after round 2 has none to follow it."""
    words = ["--seeds", "0", "--only", "fedavg"]
    code, out, _ = called(f"{own}:table1", *words, "--budget", "rounds=0.25")
    assert code == 0 and " 1 of 1 steps " in out
    code, out, _ = called(f"{own}:table1", *words, "--budget", "rounds=0.5")
    assert code == 0 and "too few" not in out


def test_the_data_directory_is_set_where_there_are_files(own: str, tmp_path: Path) -> None:
    """Digits and synthetic data have no root."""
    request = Request(tmp_path / "out", data_dir=Path("/some where"))
    job = request.job_of(papers.Run(config="fedhm/table3.yaml@cifar10_iid_fedhm"), 2)
    assert job.config.data.root == "/some where" and job.config.seed == 2
    assert request.job_of(papers.Run(config=f"{tmp_path}/one.yaml"), 0).config.data.name == "synthetic"


def test_a_signal_reaches_the_run(tmp_path: Path) -> None:
    """USR1 from outside is passed on to the command, whose exit code says that it is to continue later."""
    before = signal.getsignal(signal.SIGUSR1)
    script = "trap 'exit 75' USR1; kill -USR1 $PPID; while :; do sleep 0.05; done"
    assert running.launch(["bash", "-c", script], tmp_path / "log", {}) == 75
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_run_that_stopped_is_the_last_for_now(own: str, called: Called, in_this_process: Ran) -> None:
    """No time is left after each of its four rounds: exit code 75, no other run; the same command continues it."""
    words = [f"{own}:table2", "--seeds", "4"]
    limit = ["mpi.time_limit_s=0.001"]
    ends = [called(*words, *limit, "--run", "1") for _ in range(4)]
    assert [code for code, _, _ in ends] == [75, 75, 75, 0] and len(in_this_process) == 4
    assert "stopped, to continue" in ends[0][1] and "finished (resumed" in ends[3][1]
    assert called(*words, *limit)[0] == 75 and len(in_this_process) == 5
