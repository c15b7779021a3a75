"""`jobs/compare.py`: sums and means by hand, what it refuses, and small comparisons that are really run."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from launched import environment, mpirun
from small_runs import small_config

from fedmpi.config import yaml_text
from fedmpi.data import Partition
from fedmpi.errors import RunDirError
from fedmpi.main import main
from fedmpi.output import RunDir
from fedmpi.output.lock import RunLock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "jobs"))  # scripts, and no package

import compare  # noqa: E402
import comparison_text  # noqa: E402
from comparison import Budget, Row, Run, accuracy_of, budget_of, mean_std, rows_of, to_target  # noqa: E402

FAST = ("data.num_train=48", "data.num_test=16", "clients.count=4", "clients.per_round=2", "clients.tier_blocks=[]")


def record(number: int, tiers: Mapping[str, float], *, clients: float | None = None) -> dict[str, object]:
    """A round that moves 10 bytes down and 5 up, and takes 100 MACs, all times its number."""
    own = {} if clients is None else {"clients": {"accuracy": clients, "std": 0.1, "worst_decile": clients - 0.3}}
    scores = {tier: {"accuracy": accuracy, "loss": 1.0} for tier, accuracy in tiers.items()}
    costs = {"protocol_down_bytes": 10 * number, "protocol_up_bytes": 5 * number, "training_macs": 100.0 * number}
    return {"round": number, "tiers": scores, **costs, **own}


def finished_run(folder: Path, seed: int, records: list[dict[str, object]], *, rounds: int = 3) -> Run:
    """A run's folder as the command would leave it, with a tier `1` that is tested and `0.5` that is not."""
    run = Run("fedavg_synthetic", seed, RunDir(folder / f"fedavg_synthetic-seed{seed}"))
    run.folder.report_dir.mkdir(parents=True)
    run.folder.config_path.write_text(yaml_text.dump(small_config("method.name=fedavg", f"rounds={rounds}").to_dict()))
    run.folder.records_path.write_text("".join(json.dumps(line) + "\n" for line in records))
    names = ["1", "0.5", *(["clients"] if "clients" in records[-1] else [])]
    tiers = [{"name": name, "params": 7, "macs": 9} for name in names]
    if len(records) == rounds:
        (run.folder.report_dir / "summary.json").write_text(json.dumps({"tiers": tiers}))
    return run


# Sums and means.


def test_to_target_sums_up_to_and_with_the_first_round_that_reaches_it() -> None:
    """Round 2 is not evaluated but costs: rounds 1 to 3 move 15 (1 + 2 + 3) = 90 bytes and take 100 x 6 MACs; round 4
    falls below the target again, which changes nothing."""
    records = [record(1, {"1": 0.4}), record(2, {}), record(3, {"1": 0.5}), record(4, {"1": 0.3})]
    assert to_target(records, "1", 0.5) == (90, 600.0, 3)
    assert to_target(records, "1", 0.4) == (15, 100.0, 1)
    assert to_target(records, "1", 0.51) is None
    assert to_target(records, "0.5", 0.1) is None


def test_the_clients_accuracy_is_a_row_of_its_own() -> None:
    records = [record(1, {"1": 0.9}, clients=0.2), record(2, {}, clients=0.6)]
    assert accuracy_of(records[1], "1") is None and accuracy_of(records[1], "clients") == 0.6
    assert to_target(records, "clients", 0.6) == (45, 300.0, 2)
    assert accuracy_of(record(1, {"1": 0.9}), "clients") is None


def test_mean_and_sample_deviation() -> None:
    """1, 2, 6: mean 3; squares 4 + 1 + 9 = 14 over n - 1 = 2 give sqrt(7)."""
    mean, std = mean_std([1, 2, 6])
    assert mean == 3 and std == pytest.approx(7**0.5)
    assert mean_std([4]) == (4, None) and mean_std([]) == (None, None)


def test_rows_of_two_finished_runs_and_a_failed_one(tmp_path: Path) -> None:
    """Last 0.6 and 0.8: mean 0.7, deviation sqrt(2 x 0.01) = 0.1414. Best 0.7 and 0.8. Only the second run reaches 0.8,
    in round 3. The tier that nobody tests has its costs."""
    runs = [
        finished_run(tmp_path, 0, [record(1, {"1": 0.1}), record(2, {"1": 0.7}), record(3, {"1": 0.6})]),
        finished_run(tmp_path, 1, [record(1, {"1": 0.2}), record(2, {}), record(3, {"1": 0.8})]),
        finished_run(tmp_path, 2, [record(1, {"1": 0.9})]),
        Run("fedavg_synthetic", 3, RunDir(tmp_path / "gone")),
    ]
    tested, untested, failed, gone = rows_of(runs, 0.8, Budget(1, 1, 1, 1), failed="failed")
    assert (tested.method, tested.tier, tested.status, tested.seeds) == ("fedavg", "1", "", 2)
    assert tested.accuracy == pytest.approx(0.7) and tested.accuracy_std == pytest.approx(0.02**0.5)
    assert tested.best_accuracy == pytest.approx(0.75) and (tested.params, tested.macs) == (7, 9)
    assert (tested.seeds_at_target, tested.bytes_to_target, tested.macs_to_target) == (1, 90, 600.0)
    assert tested.rounds_to_target == 3 and tested.clients_std is None
    assert (untested.tier, untested.status, untested.params, untested.accuracy) == ("0.5", "untested", 7, None)
    assert (failed.tier, failed.status) == ("seed 2", "failed after 1 of 3 rounds")
    assert (gone.method, gone.tier, gone.status) == ("fedavg", "seed 3", "failed before it began")


def test_rows_where_clients_have_nets_of_their_own(tmp_path: Path) -> None:
    """Instead of the untested tier: means over the clients' tiers, and what is told of the clients."""
    runs = [finished_run(tmp_path, 0, [record(number, {"1": 0.1}, clients=number / 5) for number in (1, 2, 3)])]
    tier, clients = rows_of(runs, 0.4, Budget(1, 1, 11.5, 12.5), failed="failed")
    assert (tier.tier, tier.seeds_at_target, clients.tier) == ("1", 0, "clients")
    assert (clients.params, clients.macs, clients.accuracy, clients.accuracy_std) == (11.5, 12.5, 0.6, None)
    assert clients.clients_std == 0.1 and clients.clients_worst_decile == pytest.approx(0.3)
    assert clients.rounds_to_target == 2 and clients.bytes_to_target == 45


def test_cells() -> None:
    row = Row("fedhm", "1", "", 3, 0.93214, 0.0045, 1.0, 0.0, None, None, 308538, 993536, 2, 14.8e6, 423e6, 12.5)
    of = "(2 of 3)"
    assert row.cells() == (
        "fedhm", "1", "93.21 ± 0.45 %", "308.54 k", "993.54 k", f"14.80 MB {of}", f"423.00 M {of}", f"12.5 {of}",
    )  # fmt: skip
    assert Row("fedhm", "seed 1", "failed before it began").cells()[2:] == ("failed before it began", *"-----")
    assert Row("fedhm", "1", seeds=1, accuracy=0.5, seeds_at_target=1, rounds_to_target=7).cells()[-1] == "7"


def test_csv_is_exact_and_markdown_whole() -> None:
    rows = [Row("a|b", "1", "", 3, 1 / 3, 0.1, params=308538)]
    (read,) = csv.DictReader(comparison_text.comma_separated(rows).splitlines())
    assert float(read["accuracy"]) == 1 / 3 and read["params"] == "308538" and read["rounds_to_target"] == ""
    text = comparison_text.markdown(rows, ["clients: all"], "python jobs/compare.py")
    assert "| a\\|b | 1 | 33.33 ± 10.00 % | 308.54 k | - | - | - | - |" in text.splitlines()
    assert "    python jobs/compare.py" in text and text.endswith("- Clients: all\n")


# Equal budgets.


def test_the_budget_is_what_the_plan_counts() -> None:
    """3 rounds x 4 clients x 120 / 8 examples x 2 epochs = 360; FedHM's clients have nets of four sizes."""
    plain = budget_of(small_config("method.name=fedavg", "train.local_epochs=2"))
    assert plain.examples == 360 and plain.training_macs == 360 * plain.mean_macs
    low = budget_of(small_config("method.name=fedhm", "train.local_epochs=2", "clients.tier_blocks=[2,2,2,2]"))
    assert low.examples == pytest.approx(360) and low.mean_macs < plain.mean_macs


def test_a_budget_far_from_the_median_is_warned_of() -> None:
    """Median 100: 110 is within a tenth, 111 and 50 are not."""
    budgets = {name: Budget(number, 2 * number, 1, 1) for name, number in dict(a=100, b=100, c=110, d=50).items()}
    said, compute, *warnings = comparison_text.budget_lines(budgets)
    assert said.endswith(": 100; c 110; d 50") and "c 220" in compute
    assert len(warnings) == 1 and "warning: d trains on 0.50 times the examples" in warnings[0]
    assert len(comparison_text.budget_lines(budgets | {"c": Budget(111, 1, 1, 1)})) == 4
    assert comparison_text.budget_lines({}) == []


def test_settings_that_are_not_alike_are_told() -> None:
    base = small_config("method.name=fedavg")
    configs = {"a": base, "b": base, "c": small_config("method.name=fedhm", "train.lr=0.2", "seed=3", "output.dir=x")}
    assert comparison_text.difference_lines(configs) == ["rounds: 3", "not alike: train.lr is 0.05; c 0.2"]


# The command line.


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--methods", "fedhn"], "Did you mean 'fedhm'? Known: "),
        (["--methods", "fedavg,fedavg"], "twice"),
        (["--methods", "none/such.yaml"], "no such file"),
        (["--data", "dogits"], "configs/*_dogits.yaml"),
        (["--seeds", "0,x"], "--seeds"),
        (["--seeds", "1,01"], "different whole numbers"),
        (["--ranks", "0"], "a whole number >= 1"),
        (["--target", "1.5"], "> 0 and <= 1"),
        (["--scale", "nan"], "a number > 0"),
        (["--bogus"], "--bogus"),
        (["--methods", "fedavg", "--set", "train.lt=1"], "no such key"),
        (["--collect"], "holds no such runs"),
    ],
)
def test_mistakes_are_one_line_and_code_2(
    given: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main([*given, "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and told in printed.err and len(printed.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_without_mpirun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(compare.shutil, "which", lambda name: None)
    monkeypatch.setattr(compare.sys, "executable", str(tmp_path / "python"))
    assert compare.main(["--methods", "fedavg", "--out", str(tmp_path / "out")]) == 2
    assert "no mpirun" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert compare._launcher(1) == []


def test_all_are_the_data_set_s_configs_without_their_bases() -> None:
    stems = [path.stem for path in compare._configs("all", "digits")]
    assert {"fedavg_digits", "fedhm_digits"} <= set(stems)
    assert all(stem.endswith("_digits") and not stem.startswith("base_") for stem in stems)
    assert compare._configs("fedhm,some/own.yaml", "digits")[1] == Path("some/own.yaml").resolve()


def test_scaling_multiplies_whatever_counts_rounds() -> None:
    """Rounds 40 and milestones 10, 25 by 0.1: 4 and 1, 2 (2.5 to even); every 15: 2; a switch after 3: 1, never 0."""
    schedule = SimpleNamespace(milestones=(10, 25))
    config = SimpleNamespace(
        rounds=40, train=SimpleNamespace(schedule=schedule), evaluation=SimpleNamespace(every=15),
        method=[("name", "x"), ("switch_round", 3), ("pretrain_rounds", 0), ("rounding", "ceil"), ("tau", 3)],
    )  # fmt: skip
    assert compare.scaled(config, 0.1) == [
        "rounds=4", "train.schedule.milestones=[1,2]", "evaluation.every=2", "method.switch_round=1",
    ]  # fmt: skip
    assert compare.scaled(config, 1.0) == []
    assert "rounds=80" in compare.scaled(config, 2) and not any("every" in line for line in compare.scaled(config, 2))


# Real runs.


@pytest.fixture
def configs(tmp_path: Path) -> str:
    """Paths of two methods' files: FedAvg and FedHM on tiny data."""
    for method in ("fedavg", "fedhm"):
        config = small_config(*FAST, f"method.name={method}", "rounds=2", "train.schedule.milestones=[1]")
        (tmp_path / f"{method}_synthetic.yaml").write_text(yaml_text.dump(config.to_dict()))
    return ",".join(str(tmp_path / f"{method}_synthetic.yaml") for method in ("fedavg", "fedhm"))


def called(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[int, str, str]:
    code = compare.main([*given, "--ranks", "1"])
    return (code, *capsys.readouterr())


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sequence[str]]]:
    """Runs the command here, which is a tenth of the time; a list of what was run."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    commands: list[Sequence[str]] = []

    def launch(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
        assert command[:3] == [sys.executable, "-m", "fedmpi.main"]
        commands.append(command)
        return main(command[3:])

    monkeypatch.setattr(compare, "_launch", launch)
    yield commands
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_two_methods_two_seeds(
    configs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_this_process: list[Sequence[str]]
) -> None:
    """Runs, skips what is finished, prints it again; a run that broke goes on, and another config is refused."""
    out = tmp_path / "out"
    words = ["--methods", configs, "--seeds", "0,1", "--out", str(out), "--target", "0.01"]
    code, printed, _ = called(capsys, *words)
    assert code == 0 and printed.count(": finished (") == 4
    rows = list(csv.DictReader((out / "comparison.csv").read_text().splitlines()))
    assert [(row["method"], row["tier"]) for row in rows] == [("fedavg", "1"), *(("fedhm", r) for r in RATIOS)]
    _check_against_run(out / "fedavg_synthetic-seed0", out / "fedavg_synthetic-seed1", rows[0])

    (out / "fedhm_synthetic-seed1" / "report" / "summary.json").unlink()
    before = (out / "comparison.csv").read_text()
    code, printed, _ = called(capsys, "--collect", "--out", str(out), "--target", "0.01")
    assert code == 0 and "unfinished after 2 of 2 rounds" in printed and "[1/" not in printed
    code, printed, _ = called(capsys, *words)
    assert code == 0 and printed.count(": finished before") == 3 and printed.count("finished (resumed, ") == 1
    assert ["--resume" in command for command in in_this_process] == [False] * 4 + [True]
    assert (out / "comparison.csv").read_text() == before
    code, _, err = called(capsys, *words, "--scale", "2")
    assert code == 2 and "rounds: run has 2, you ask 4" in err
    code, _, err = called(capsys, *words[:2], "--seeds", "7", *words[4:], "--scale", "2")
    assert code == 2 and "has runs with --scale 1" in err and not (out / "fedhm_synthetic-seed7").exists()
    (tmp_path / "fedavg_synthetic.yaml").write_text(
        (tmp_path / "fedavg_synthetic.yaml").read_text().replace("lr: 0.05", "lr: 0.5")
    )
    code, _, err = called(capsys, *words)
    assert code == 2 and "train.lr: run has 0.05, you ask 0.5" in err


RATIOS = ("1", "0.5", "0.25", "0.125")


def _check_against_run(first: Path, second: Path, row: Mapping[str, str]) -> None:
    """The row of FedAvg, from the records; a round's compute is epochs x examples of its cohort x MACs."""
    lasts = []
    for folder in (first, second):
        records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        partition = Partition.load(folder / "partition.h5")
        for line in records:
            examples = sum(partition.size(client) for client in line["cohort"])
            assert line["training_macs"] == examples * int(row["macs"])
        lasts.append(records[-1]["tiers"]["1"]["accuracy"])
    assert float(row["accuracy"]) == pytest.approx(sum(lasts) / 2)
    assert row["seeds_at_target"] == "2" and float(row["rounds_to_target"]) >= 1


def test_a_failed_run_is_a_line_and_ends_no_other(
    configs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of one run is a file, which no run can use."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "fedavg_synthetic-seed0").write_text("")
    code, printed, _ = called(capsys, "--methods", configs.partition(",")[0], "--seeds", "0,1", "--out", str(out))
    assert code == 1 and "seed 0: failed with exit code 2" in printed and "seed 1: finished" in printed
    assert "failed before it began" in (out / "comparison.md").read_text()
    assert "is not a directory" in (out / "fedavg_synthetic-seed0.log").read_text()


def test_sigterm_leaves_no_rank_behind(configs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under mpirun, so that ranks could be left behind, which would still hold the folder."""
    mpirun()
    out = tmp_path / "out"
    path = configs.partition(",")[0]
    words = ["--methods", path, "--seeds", "0", "--ranks", "2", "--out", str(out), "--set", "rounds=2000"]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "jobs" / "compare.py"), *words],
        env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    records = out / "fedavg_synthetic-seed0" / "rounds.jsonl"
    deadline = time.monotonic() + 60
    while not (records.exists() and records.read_text().count("\n") >= 3) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command goes on" in err
    _wait_until_free(RunDir(records.parent))
    done = records.read_text().count("\n")
    assert 3 <= done < 2000
    code, _, _ = called(capsys, *words[:4], "--out", str(out), "--set", "rounds=2000", "--collect")
    assert code == 0 and f"unfinished after {done} of 2000 rounds" in (out / "comparison.md").read_text()


def _wait_until_free(folder: RunDir) -> None:
    """mpirun may be gone some moments before its ranks are; one left behind would train on for minutes."""
    deadline = time.monotonic() + 10
    while True:
        try:
            with RunLock(folder):
                return
        except RunDirError:
            assert time.monotonic() < deadline, "a rank still runs"
            time.sleep(0.02)
