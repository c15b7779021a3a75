"""`jobs/compare.py`: small comparisons that are really run."""

import csv
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from golden_file import Told
from launched import LIMIT_S, environment, mpirun
from small_runs import small_config
from studied_runs import Called, Ran, calling, run_here, write_config

from fedmpi.data.partition import saved
from fedmpi.errors import RunDirError
from fedmpi.results.compared import differences, grouped
from fedmpi.results.run import read_runs
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir
from fedmpi.studies import compare
from fedmpi.studies import launch as running
from fedmpi.studies.runs import Run

ROOT = Path(__file__).resolve().parents[2]


def test_all_are_the_data_set_s_configs_without_their_bases() -> None:
    stems = [path.stem for path in compare._configs("all", "digits")]
    assert {"fedavg_digits", "fedhm_digits"} <= set(stems)
    assert all(stem.endswith("_digits") and not stem.startswith("base_") for stem in stems)
    assert compare._configs("fedhm,some/own.yaml", "digits")[1] == Path("some/own.yaml").resolve()


def test_scaling_multiplies_whatever_counts_rounds() -> None:
    """Rounds 40 and milestones 10, 25 by 0.1: 4 and 1, 2 (2.5 to even); every 15: 2; a switch after 3: 1, never 0."""
    schedule = SimpleNamespace(milestones=(10, 25))
    method = [("name", "x"), ("switch_round", 3), ("pretrain_rounds", 0), ("rounding", "ceil"), ("tau", 3)]
    config = SimpleNamespace(rounds=40, train=SimpleNamespace(schedule=schedule), method=method)
    config.evaluation = SimpleNamespace(every=15)
    scaled = "rounds=4 train.schedule.milestones=[1,2] evaluation.every=2 method.switch_round=1"
    assert " ".join(running.scaled(config, 0.1)) == scaled
    assert running.scaled(config, 1.0) == []
    assert "rounds=80" in running.scaled(config, 2) and not any("every" in line for line in running.scaled(config, 2))


@pytest.fixture
def configs(tmp_path: Path) -> str:
    """Paths of two methods' files: FedAvg and FedHM on tiny data."""
    more = ("rounds=2", "train.schedule.milestones=[1]")
    files = (write_config(tmp_path / f"{name}_synthetic.yaml", f"method.name={name}", *more) for name in METHODS)
    return ",".join(map(str, files))


METHODS = ("fedavg", "fedhm")
in_this_process = run_here
called = calling(compare.main, "--ranks", "1")


def test_two_methods_two_seeds(configs: str, tmp_path: Path, called: Called, in_this_process: Ran, told: Told) -> None:
    """Runs, skips what is finished, prints it again; a run that broke continues, and another config is refused."""
    out = tmp_path / "out"
    words = ["--methods", configs, "--seeds", "0,1", "--out", str(out), "--target", "0.01"]
    code, printed, _ = called(*words)
    assert code == 0 and printed.count(": finished (") == 4
    rows = list(csv.DictReader((out / "comparison.csv").read_text().splitlines()))
    assert [(row["method"], row["tier"]) for row in rows] == [("fedavg", "1"), *(("fedhm", r) for r in RATIOS)]
    _check_against_run(out / "fedavg_synthetic-seed0", out / "fedavg_synthetic-seed1", rows[0])

    (out / "fedhm_synthetic-seed1" / "report" / "summary.json").unlink()
    before = (out / "comparison.csv").read_text()
    code, printed, _ = called("--collect", "--out", str(out), "--target", "0.01")
    assert code == 0 and "unfinished after 2 of 2" in printed and "[1/" not in printed
    code, printed, _ = called(*words)
    assert code == 0 and printed.count(": finished before") == 3 and printed.count("finished (resumed, ") == 1
    assert ["--resume" in command for command in in_this_process] == [False] * 4 + [True]
    assert (out / "comparison.csv").read_text() == before
    groups = grouped(read_runs([out])[0])  # what `fedmpi show OUT --html` shows
    assert [(group.name, [run.seed for run in group.runs]) for group in groups] == [
        ("fedavg", [0, 1]),
        ("fedhm", [0, 1]),
    ]
    assert [len(found.values) for found in differences(groups) if found.net == "1"] == [2]
    code, _, err = called(*words, "--scale", "2")
    assert code == 2
    told(err)
    code, _, err = called(*words[:2], "--seeds", "7", *words[4:], "--scale", "2")
    assert code == 2 and "has runs with --scale 1" in err and not (out / "fedhm_synthetic-seed7").exists()
    (tmp_path / "fedavg_synthetic.yaml").write_text(
        (tmp_path / "fedavg_synthetic.yaml").read_text().replace("lr: 0.05", "lr: 0.5")
    )
    code, _, err = called(*words)
    assert code == 2
    told(err)


RATIOS = ("1", "0.5", "0.25", "0.125")


def test_the_table_is_of_the_whole_folder(configs: str, tmp_path: Path, called: Called, in_this_process: Ran) -> None:
    """Two commands fill it; a collection of some runs, or with another target, writes nothing, one of all what there
    was; a command without target takes the last one, and one that makes no run is none that made them."""
    fedavg, fedhm = configs.split(",")
    out = ["--out", str(tmp_path / "out")]
    table, sheet = (tmp_path / "out" / f"comparison.{kind}" for kind in ("md", "csv"))
    one = ["--methods", fedhm, "--seeds", "1", *out, "--target", "0.02"]
    assert called(*one)[0] == 0 and "of seed 1\n" in table.read_text()
    other = ["--methods", fedavg, "--seeds", "1", *out]
    for command in (other, one, [*other, "--target", "0.03"], other):
        assert called(*command)[0] == 0
    made = [line for line in table.read_text().splitlines() if line.startswith("    ")]
    made_by = [f"    {shlex.join(['python', 'jobs/compare.py', *command, '--ranks', '1'])}" for command in (one, other)]
    assert made == made_by and "row 3 % or" in table.read_text()
    methods = [row["method"] for row in csv.DictReader(sheet.read_text().splitlines())]
    assert methods == [*["fedhm"] * 4, "fedavg"]

    before = table.read_text(), sheet.read_text()
    for part, why in (
        (["--methods", fedavg], "only of the runs asked for"),
        (["--seeds", "1"], "only of the runs asked for"),
        (["--target", "0.1"], "its target is 0.03"),
    ):
        code, printed, _ = called("--collect", *part, *out)
        assert code == 0 and " ".join(printed.split()).endswith(f" {tmp_path / 'out'}: {why}")
        assert (table.read_text(), sheet.read_text()) == before
    table.unlink()
    assert "written:" in called("--collect", *out)[1] and table.read_text() == before[0]


def _check_against_run(first: Path, second: Path, row: Mapping[str, str]) -> None:
    """The row of FedAvg, from the records; a round's compute is epochs x examples of its cohort x MACs."""
    lasts = []
    for folder in (first, second):
        records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        partition = saved(folder / "partition.h5")[0]
        for line in records:
            examples = sum(partition.size(client) for client in line["cohort"])
            assert line["training_macs"] == examples * int(row["macs"])
        lasts.append(records[-1]["tiers"]["1"]["accuracy"])
    assert float(row["accuracy"]) == pytest.approx(sum(lasts) / 2)
    assert row["seeds_at_target"] == "2" and float(row["rounds_to_target"]) >= 1


def test_a_failed_run_is_a_line_and_ends_no_other(configs: str, tmp_path: Path, called: Called) -> None:
    """The folder of one run is a file, which no run can use."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "fedavg_synthetic-seed0").write_text("")
    code, printed, _ = called("--methods", configs.partition(",")[0], "--seeds", "0,1", "--out", str(out))
    assert code == 1 and "exit code 2" in printed and "seed 1: finished" in printed
    assert "failed before" in (out / "comparison.md").read_text()
    assert "not a directory" in (out / "fedavg_synthetic-seed0.log").read_text()


def test_where_all_runs_diverge(configs: str, tmp_path: Path, called: Called) -> None:
    """A collection says the same, and nothing recommends a page that cannot be made."""
    out = tmp_path / "out"
    code, printed, _ = called(
        "--methods", configs.partition(",")[0], "--seeds", "0", "--out", str(out), "train.lr=1.0e+12"
    )
    assert code == 1 and "seed 0: diverged in" in printed
    assert "fedmpi show" not in printed and "to target" not in printed
    before = (out / "comparison.md").read_text()
    code, again, _ = called("--collect", "--out", str(out))
    assert code == 0 and printed.endswith(again) and (out / "comparison.md").read_text() == before


def test_what_only_a_run_names_is_not_imported(
    tmp_path: Path, called: Called, in_this_process: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with data of the user's own is compared where the user's words name them, and is finished in any case."""
    (tmp_path / "mysets.py").write_text((ROOT / "tests" / "own_data.py").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    own = {"data": {"name": "mysets:blobs"}, "model": {"name": "mlp"}, "rounds": 1, "method": {"name": "fedavg"}}
    (tmp_path / "mine.yaml").write_text(json.dumps(own | {"clients": {"count": 4, "per_round": 2}}))
    words = ["--out", str(tmp_path / "out"), "--methods", f"{tmp_path}/mine.yaml"]
    code, out, err = called(*words, "--seeds", "0")
    assert code == 0 and "| fedavg" not in err and "finished (" in out, err

    def again(*words: str) -> tuple[int, str, str]:
        sys.modules.pop("mysets")
        return called("--out", str(tmp_path / "out"), "--collect", *words)

    code, _, err = again()
    assert code == 2 and err.endswith("data.name=mysets:blobs\n") and "mysets" not in sys.modules
    assert Run("mine", 0, RunDir(tmp_path / "out" / "mine-seed0")).is_finished()
    sys.modules["mysets"] = None
    assert again("data.name=mysets:blobs")[0] == 0 and again(*words[2:])[0] == 0


def test_sigterm_leaves_no_rank_behind(configs: str, tmp_path: Path, called: Called) -> None:
    """Under mpirun, so that ranks could be left behind, which would still hold the folder."""
    mpirun()
    out = tmp_path / "out"
    path = configs.partition(",")[0]
    words = ["--methods", path, "--seeds", "0", "--ranks", "2", "--out", str(out), "rounds=2000"]
    command = [sys.executable, str(ROOT / "jobs" / "compare.py"), *words]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    records = out / "fedavg_synthetic-seed0" / "rounds.jsonl"
    deadline = time.monotonic() + LIMIT_S
    while not (records.exists() and records.read_text().count("\n") >= 3) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130 and "same command" in err
    _wait_until_free(RunDir(records.parent))
    done = records.read_text().count("\n")
    assert 3 <= done < 2000
    code, _, _ = called("--out", str(out), "--collect")
    assert code == 0 and f"after {done} of 2000 " in (out / "comparison.md").read_text()


def _wait_until_free(folder: RunDir) -> None:
    """mpirun may be gone some moments before its ranks are; one left behind would train on for minutes."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            with RunLock(folder):
                return
        except RunDirError:
            assert time.monotonic() < deadline, "a rank still runs"
            time.sleep(0.02)


def test_a_run_under_way_says_its_log_and_its_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole lines of 80 columns: that it begins, each new number of rounds once, and its end."""
    run = Run("fedavg_digits", 0, RunDir(tmp_path / ("a folder of a long name " * 3) / "fedavg_digits-seed0"))
    run.folder.path.parent.mkdir()
    done, ended = iter([0, 1, 1, 5]), tmp_path / "ended"

    def num_done(_: Run) -> int:
        if (number := next(done, None)) is None:
            ended.touch()
        return 5 if number is None else number

    monkeypatch.setattr(running, "_num_done", num_done)
    monkeypatch.setattr(running, "_LOOKS_AFTER_S", (0.01,))
    wait = ["bash", "-c", f"while [ ! -e '{ended}' ]; do sleep 0.01; done; exit 3", "-"]
    config = small_config("method.name=fedavg", "rounds=9")
    (_,) = running.make([running.Job(run, tmp_path / "a.yaml", (), config)], wait, 1)
    printed = capsys.readouterr().out
    assert all(len(line) <= 80 or " " not in line.strip() for line in printed.splitlines())
    said = [line for line in " ".join(printed.split()).split("[1/1] fedavg_digits seed 0: ") if line]
    assert len(said) == 4 and said[0].startswith("started, ") and "-seed0.log" in said[0]
    assert said[1].startswith("1 round of 9, ") and said[2].startswith("5 rounds of 9, ") and "exit code 3" in said[3]
