"""Small grids that are really made, and what a change, a failure, damage or a kill does to them."""

import csv
import gzip
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grids import BETTER, FILE, WORSE, Ended, final_runs, grid_of, made, runs_in_this_process
from small_runs import small_config
from studied_runs import Called, calling, write_config

from fedmpi import methods
from fedmpi.config import yaml_text
from fedmpi.config.schema import Config
from fedmpi.errors import RunDirError
from fedmpi.results import archive, launch, notes, slurm
from fedmpi.results.archive import initial_digest
from fedmpi.results.grid import GridFolder, main
from fedmpi.results.grid_file import Grid, read
from fedmpi.results.grid_runs import finals, trials
from fedmpi.results.launch import Job
from fedmpi.rounds.state import draw_cohort
from fedmpi.running import start
from fedmpi.store import manifest
from fedmpi.store.files import make_folder


@pytest.mark.parametrize("method", ["fedhm", "scaffold", "hermes", "prism"])
def test_a_seed_decides_the_same_for_all_methods(method: str) -> None:
    """The model's initial values and the cohorts; Split-Mix has several nets, each with values of its own."""
    first, own, other = (small_config(*more) for more in ((), (f"method.name={method}",), ("seed=1",)))
    assert initial_digest(own) == initial_digest(first) != initial_digest(other)
    assert cohorts(own) == cohorts(first) != cohorts(other)


def cohorts(config: Config) -> list[int]:
    """The clients of the first rounds, one round after the other."""
    method, blocks = methods.create(start.method_context(config, config.data.info())), start.blocks(config)
    drawn = (draw_cohort(config, blocks, number, phase) for number in range(1, 6) for phase in method.phases(number))
    return [client for cohort in drawn for client, _ in cohort]


def test_split_mix_begins_with_values_of_its_own() -> None:
    mixed = ("method.name=splitmix", "method.levels=[1,0.5,0.25]", "method.atom=0.25")
    assert initial_digest(small_config(*mixed)) != initial_digest(small_config("method.name=fedavg"))


@pytest.fixture(autouse=True)
def is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests see fedmpi as an installed package: the checkout that they run in may have uncommitted changes."""
    monkeypatch.setattr(notes, "_PACKAGE", tmp_path / "no_checkout")


runs_here = runs_in_this_process
called = calling(main)
SHORT = {"settings": None, "questions": [{**FILE["questions"][0], "settings": []}], "seeds": [0, 1],
         "set": {"evaluation": {"every": 2}}}  # fmt: skip


def folder_of(grid: Grid, out: Path) -> GridFolder:
    return GridFolder(grid, out, out / "results")


def make_some(grid: Grid, out: Path, count: int = 1) -> list[Job]:
    """Makes the first trials."""
    jobs = list(folder_of(grid, out).jobs(trials(grid)[:count]).values())
    launch.make(jobs, before_start=lambda job: notes.write_note(grid, job))
    return jobs


def test_a_whole_grid(tmp_path: Path, called: Called, runs_here: list[Sequence[str]]) -> None:
    """Four trials, then four final runs with what was chosen; nothing is made twice; the report needs no folders."""
    grid = grid_of(tmp_path, **SHORT)
    out = tmp_path / "out"
    results = tmp_path / "results"
    words = [grid.path, "--out", out, "--results", results]
    assert called(*words, "--report")[0] == 2, "no run is finished"
    code, printed, error = called(*words, "--jobs", 2)
    assert code == 0 and len(runs_here) == 8, error
    assert "not decidable here" in printed and "descriptive" in printed
    choice = folder_of(grid, out).choices()["all", "avg"]
    lr = yaml_text.parse((out / "final-all-avg-seed0" / "config.yaml").read_text()).value["train"]["lr"]
    assert lr == choice.values["train.lr"]
    first = {path.name: path.read_bytes() for path in results.iterdir()}
    drawn = {f"all-{what}.svg" for what in ("curves", "differences", "energy")}
    assert {"report.md", "table.tex", "values.csv", "records.json.gz", *drawn} == set(first)
    assert "initial values" in first["report.md"].decode()

    assert called(*words)[0] == 0 and len(runs_here) == 8
    assert called(*words, "--list")[1].count("finished ") == 8
    out.rename(tmp_path / "elsewhere")
    assert called(*words, "--report")[0] == 0
    assert {path.name: path.read_bytes() for path in results.iterdir()} == first, "from the records alone, to the byte"

    grid.path.write_text(grid.path.read_text().replace("Two rates", "Three rates") + "# a comment\n")
    assert called(*words, "--report")[0] == 0, "the title is not fixed before the runs"
    grid.path.write_text(grid.path.read_text().replace("Is hm better?", "Is avg better?"))
    for does in ([], ["--report"], ["--list"]):
        code, _, error = called(*words, *does)
        assert code == 2 and str(grid.path) in error and "has changed" in error and len(runs_here) == 8
        assert "(8 such runs)" in error, "known by their records alone"


def test_a_file_or_a_config_that_changed_after_a_run_is_refused(
    tmp_path: Path, called: Called, runs_here: list[Sequence[str]]
) -> None:
    """Known by the run's folder, whose note is written before it begins, and by its record."""
    grid = grid_of(tmp_path, **SHORT)
    words = [grid.path, "--out", tmp_path / "out", "--results", tmp_path / "results"]
    make_some(grid, tmp_path / "out")
    (note,) = (tmp_path / "out").glob("*.grid.json")
    assert json.loads(note.read_text())["grid"] == grid.digest
    before = grid.path.read_text()
    grid.path.write_text(before.replace("margin: 0.02", "margin: 0.5"))
    code, _, error = called(*words)
    assert code == 2 and "(1 such run)" in error
    grid.path.write_text(before)
    assert called(*words, "--report")[0] == 0
    base = tmp_path / "base.yaml"
    before = base.read_text()
    for changed in ("rounds: 2", "batch_size: "):
        base.write_text(before.replace(changed, f"{changed}1"))
        code, _, error = called(*words)
        assert code == 2 and "tuning-all-avg-trial0-seed100" in error and "another config" in error, changed
        assert len(error.splitlines()) == 1
    assert len(runs_here) == 1


def test_records_do_not_say_where_the_data_are(tmp_path: Path, runs_here: list[Sequence[str]]) -> None:
    grid = grid_of(tmp_path, **SHORT)
    (job,) = make_some(grid, tmp_path / "out")
    elsewhere = replace(job, overrides=(*job.overrides, 'data.root="/home/me"'))
    note = notes.note_of(job.folder)
    assert note is not None
    record = archive.record_run(trials(grid)[0], elsewhere, note, all_diagnostics=False)
    assert tuple(record.overrides) == job.overrides


def test_a_grid_without_questions_may_grow(
    tmp_path: Path, called: Called, runs_here: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Methods and seeds, some runs only, a changed setting and a budget; a file is made of methods' names."""
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "tiny.yaml", "method.name=fedavg", "rounds=4")
    words = ["tiny.yaml", "--methods", "fedavg,fedhm", "--out", "out", "--seeds"]
    code, printed, error = called(*words, "0,1", "--only", "fedavg", "--jobs", 1)
    assert code == 0 and len(runs_here) == 2 and "largest" in printed, error
    report = (tmp_path / "out" / "results" / "report.md").read_text()
    assert "2 final runs are missing" in report and "| fedavg | - | 2 |" in report
    assert called(*words, "0,1")[0] == 0 and len(runs_here) == 4
    assert called(*words, "2", "--methods", "fedavg")[0] == 0 and len(runs_here) == 6, "the other method's, too"
    rows = list(csv.DictReader((tmp_path / "out" / "results" / "values.csv").read_text().splitlines()))
    assert [(row["method"], row["seed"]) for row in rows] == [(name, f"{n}") for n in range(3) for name in METHODS]
    text = (tmp_path / "out" / "final-all-fedavg-seed0" / "rounds.jsonl").read_text()
    records = [json.loads(line) for line in text.splitlines()]
    assert float(rows[0]["largest"]) == records[-1]["tiers"]["1"]["accuracy"]
    moved = sum(record["protocol_down_bytes"] + record["protocol_up_bytes"] for record in records)
    assert (float(rows[0]["bytes"]), float(rows[0]["macs"])) == (moved, sum(one["training_macs"] for one in records))
    lines = (tmp_path / "out" / "results" / "report.md").read_text().splitlines()
    assert any(line.startswith("- fedhm: share of the energy") for line in lines)
    smaller = ["out/grid.yaml", "--only", "fedhm", "--seeds", "0", "--budget", "rounds=0.5", "train.lr=0.2"]
    assert called(*smaller)[0] == 0 and len(runs_here) == 7
    (folder,) = (tmp_path / "runs").iterdir()
    assert "train.lr=0.2" in folder.name and "rounds_x0.5" in folder.name
    text = (folder / "results" / "report.md").read_text()
    assert "set on all runs: train.lr=0.2, rounds x 0.5" in text
    config = yaml_text.parse((folder / "final-all-fedhm-seed0" / "config.yaml").read_text()).value
    assert (config["rounds"], config["train"]["lr"]) == (2, 0.2)


METHODS = ("fedavg", "fedhm")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "--methods nothing"),
        ("none.yaml", "none.yaml"),
        ("--methods fedhn", "'fedhn' 'fedhm'"),
        ("--methods fedavg,fedavg", "fedavg twice"),
        ("--methods fedavg --seeds 0,x", "0,1,2 '0,x'"),
        ("--methods fedavg --budget nan", "0.05 'nan'"),
        ("--methods fedavg --budget rounds=1,local=2", "epochs"),
        ("--methods fedavg --only fedhm", "--only fedhm fedavg"),
        ("--methods fedavg seed=1", "--seeds"),
        ("--methods fedavg train.lt=1", "train.lt"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, called: Called, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = called(*words.split(), "--out", "out")
    assert code == 2 and "Traceback" not in error and all(word in error for word in said.split()), error
    assert not list(tmp_path.glob("out/*-seed*"))
    code, _, error = called(grid_of(tmp_path, **SHORT).path, "--seeds", "0,7", "--out", "out")
    assert code == 2 and "--seeds" in error and "7" in error, "seeds of a grid with questions are those of its file"


def test_all_are_the_shipped_configs_without_their_bases(tmp_path: Path, called: Called) -> None:
    code, printed, error = called("--methods", "all", "--seeds", "0", "--out", tmp_path / "out", "--list")
    assert code == 0 and "final-all-fedavg seed 0" in printed and "final-all-fdnnc_switch seed 0" in printed, error
    assert "base" not in printed


def git(folder: Path, *arguments: str) -> None:
    named = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *named, *arguments], check=True, capture_output=True)


OWN_METHOD = """
from fedmpi.methods.fedavg import FedAvg, FedAvgOptions

class OwnOptions(FedAvgOptions):
    name: str = "own"

class Own(FedAvg):
    Options = OwnOptions
"""


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module of a method of the user's, which a study may name `study_code:Own`."""
    path = tmp_path / "study_code.py"
    path.write_text(OWN_METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop("study_code", None)


def grid_of_own_code(folder: Path) -> Grid:
    own = {"set": {"method": {"name": "study_code:Own"}}, "grid": FILE["methods"]["avg"]["grid"]}
    return grid_of(folder, **SHORT, methods={"hm": own, "avg": FILE["methods"]["avg"]})


def test_a_grid_or_code_that_is_not_committed_makes_no_run(
    tmp_path: Path, called: Called, runs_here: list[Sequence[str]], own_code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file, a module of fedmpi's or of the user's; other files may have changes."""
    grid = grid_of_own_code(tmp_path)
    package = tmp_path / "package"
    module, text = package / "__init__.py", package / "README.md"
    package.mkdir()
    for path in (module, text):
        path.write_text("first\n")
    words = [grid.path, "--out", tmp_path / "out"]
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    code, _, error = called(*words)
    assert code == 2 and str(grid.path) in error and "commit" in error and not runs_here
    git(tmp_path, "commit", "-m", "A grid and its code")
    commit = manifest.git(tmp_path, "rev-parse", "HEAD")
    monkeypatch.setattr(notes, "_PACKAGE", package)
    for changed, named in ((module, package), (own_code, own_code)):
        before = changed.read_text()
        changed.write_text(before + "# more\n")
        code, _, error = called(*words)
        assert code == 2 and str(named) in error and "not committed" in error and len(error.splitlines()) == 1
        changed.write_text(before)
    assert not runs_here
    text.write_text("second\n")
    assert called(*words)[0] == 0 and len(runs_here) == 8
    assert f"commit {commit}" in (tmp_path / "out" / "results" / "report.md").read_text()
    module.write_text("second\n")
    assert called(*words)[0] == 0, "no run is left"


def test_own_code_that_changed_after_a_run_is_refused(
    tmp_path: Path, called: Called, runs_here: list[Sequence[str]], own_code: Path
) -> None:
    """Known by a run's folder, also before it is finished, and by its record."""
    grid = grid_of_own_code(tmp_path)
    words = [grid.path, "--out", tmp_path / "out", "--results", tmp_path / "results"]
    make_some(grid, tmp_path / "out")
    for _ in range(2):
        own_code.write_text(OWN_METHOD + "# more\n")
        code, _, error = called(*words)
        assert code == 2 and len(error.splitlines()) == 1 and "method study_code:Own" in error, error
        assert trials(grid)[0].folder_name in error and "(1 such run)" in error and len(runs_here) == 1
        own_code.write_text(OWN_METHOD)
        assert called(*words, "--report")[0] == 0
        if (tmp_path / "out").exists():
            (tmp_path / "out").rename(tmp_path / "gone")


@pytest.mark.parametrize("count", [1, 6])
def test_records_alone_continue_a_grid_elsewhere(
    tmp_path: Path, called: Called, runs_here: list[Sequence[str]], count: int
) -> None:
    """After one trial, and among the final runs: another clone makes the rest, and the same tables."""
    grid = grid_of(tmp_path, **SHORT)
    here = [grid.path, "--out", tmp_path / "here", "--results", tmp_path / "results"]
    elsewhere = [grid.path, "--out", tmp_path / "elsewhere", "--results", tmp_path / "results"]
    assert called(grid.path, "--jobs", 1, "--out", tmp_path / "whole")[0] == 0
    make_some(grid, tmp_path / "here", min(count, 4))
    if count > 4:
        assert called(*here, "--only", "avg", "--jobs", 1)[0] == 0
    assert called(*here, "--report")[0] == 0
    (tmp_path / "here").rename(tmp_path / "gone")
    runs_here.clear()
    assert called(*elsewhere)[0] == 0 and len(runs_here) == 8 - count
    tables = [path / "values.csv" for path in (tmp_path / "results", tmp_path / "whole" / "results")]
    assert tables[0].read_text() == tables[1].read_text()


def test_a_failed_run_ends_no_other_and_is_tried_again(
    tmp_path: Path, called: Called, runs_here: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = grid_of(tmp_path, **SHORT)
    works = launch._started
    words = [grid.path, "--out", tmp_path / "out"]

    def fails(command: Sequence[str], *others: Any) -> Any:
        return Ended(1) if any("trial1" in word for word in command) else works(command, *others)

    monkeypatch.setattr(launch, "_started", lambda *others: Ended(1))
    code, printed, error = called(*words)
    assert code == 1 and printed.count("exit code 1") == 4 and not error, "nothing to report"

    monkeypatch.setattr(launch, "_started", fails)
    code, printed, _ = called(*words)
    assert code == 1 and printed.count("exit code 1") == 2 and len(runs_here) == 2
    monkeypatch.setattr(launch, "_started", works)
    assert called(*words)[0] == 0 and len(runs_here) == 8


def test_what_runs_warn_of_is_in_the_report_once_for_each_method(tmp_path: Path, called: Called) -> None:
    """An MLP has no norm layers, so HeteroFL's scaler enlarges its layers: by 2, because the smallest tier has half the
    width. The records alone suffice.
    """
    mlp = {"model": {"name": "mlp", "hidden": [8]}}
    scaled = {"set": {"method": {"name": "heterofl", "widths": [1, 0.5]}}}
    for settings, where in (({"one": mlp, "two": mlp}, ""), ({"one": {}, "two": mlp}, "in two, ")):
        grid = grid_of(tmp_path, settings=settings, tuning=None, seeds=[0, 1],
                       methods={"hm": scaled, "avg": {"set": {"method": {"name": "fedavg"}}}})  # fmt: skip
        runs = [made(run, 0.9, 0.8) for run in finals(grid, {})]
        archive.write(tmp_path, grid.digest, runs)
        assert called(grid.path, "--report", "--out", tmp_path / "out", "--results", tmp_path)[0] == 0
        lines = [line for line in (tmp_path / "report.md").read_text().splitlines() if "enlarges" in line]
        assert len(lines) == 1 and lines[0].startswith(f"- careful: {where}hm: without norm layers"), lines
        assert "2-fold" in lines[0]


PRINTED = """
title: A paper
seeds: [0, 1]
settings: {iid: {}}
methods: {one: {}, two: {}}
printed:
  table1: {title: Accuracy, quantity: accuracy, blocks: {IID: {FedAvg: {cells: {11M: [iid/one, 0, "0.95"]}}}}}
  figure1: {title: Curves, quantity: accuracy, kind: curves, axes: {x: round}, blocks: {IID: {FedAvg: [iid/one, 0]}}}
  table2: {title: Cost, quantity: bytes, blocks: {IID: {FedHM: {cells: {11M: [iid/two, 0]}}}}}
"""


def test_the_report_of_a_paper_has_its_tables_and_figures(tmp_path: Path, called: Called) -> None:
    """Only cells of table 1 and figure 1 have a run; two of four runs are made."""
    path = tmp_path / "paper.yaml"
    path.write_text(PRINTED)
    words = [path, "--out", tmp_path / "out"]
    assert called(*words, "--list", "--only", "table2")[1].count("not run") == 2
    runs = [made(run, 0.9) for run in finals(read(path), {}) if run.method == "one"]
    archive.write(make_folder(tmp_path / "out" / "results"), "", runs)
    code, shown, error = called(*words, "--report")
    assert code == 0 and "table1: Accuracy" in shown, error
    names = {file.name for file in (tmp_path / "out" / "results").iterdir()}
    assert names == {"report.md", "table.tex", "values.csv", "printed.csv", archive.FILE, "figure1.svg"}
    report = (tmp_path / "out" / "results" / "report.md").read_text()
    assert "2 final runs are missing" in report and "![figure1.svg](figure1.svg)" in report
    assert "| IID | FedAvg | 11M | 0.95 | 0.90 (0.00) | -0.05 | 0,1 | 1 |  |" in report


def test_records_are_the_same_bytes_and_damage_is_one_line(tmp_path: Path) -> None:
    runs = final_runs(BETTER, WORSE)
    archive.write(tmp_path, "digest", runs)
    first = (tmp_path / archive.FILE).read_bytes()
    assert archive.read(tmp_path) == ("digest", [replace(run, overrides=[], nets=[]) for run in runs])
    assert archive.pack(*archive.read(tmp_path)) == first and first[4:8] == bytes(4), "no date"
    for damaged in (first[:-9], b"text", gzip.compress(b"[]"), gzip.compress(b'{"runs": 1}')):
        (tmp_path / archive.FILE).write_bytes(damaged)
        with pytest.raises(RunDirError, match=archive.FILE):
            archive.read(tmp_path)


@pytest.mark.slow
def test_a_killed_grid_continues(tmp_path: Path, called: Called) -> None:
    """Killed with SIGKILL in the middle, and continued: every value is that of a grid that was left alone."""
    grid = grid_of(tmp_path, **SHORT)
    words = [str(grid.path), "--jobs", "2"]
    text = "from fedmpi.results import grid, notes; from pathlib import Path; import sys"
    text += "; notes._PACKAGE = Path('no_checkout'); sys.exit(grid.main())"
    program = [sys.executable, "-c", text, *words, "--out", str(tmp_path / "killed")]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while " finished" not in process.stdout.readline():
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    while subprocess.run(program, capture_output=True).returncode == 1:
        pass  # a run of the killed study may still be under way, and is left alone
    assert called(*words, "--out", tmp_path / "whole")[0] == 0
    tables = [(tmp_path / name / "results" / "values.csv").read_text() for name in ("killed", "whole")]
    assert tables[0] == tables[1] and len(tables[0].splitlines()) == 9


def test_slurm_makes_the_trials_then_the_final_runs(
    tmp_path: Path, called: Called, runs_here: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing runs; each run has its note; what is finished is left out."""
    monkeypatch.setattr(slurm.shutil, "which", lambda name: None)
    grid = grid_of(tmp_path, **SHORT)
    out = tmp_path / "out"
    words = [grid.path, "--out", out]
    code, said, error = called(*words, "--slurm", "time=10", "array=%2")
    text = (out / "job.sbatch").read_text()
    assert code == 0 and f"written: {out}/job.sbatch" in said and runs_here == [], error
    assert "#SBATCH --array=1,2,3,4%2\n" in text and "#SBATCH --time=10\n" in text and text.count("/tuning-") == 8
    assert len([*out.glob("*.grid.json")]) == 4
    make_some(grid, out, 4)
    assert called(*words, "--slurm")[0] == 0
    text = (out / "job.sbatch").read_text()
    assert "#SBATCH --array=1,2,3,4\n" in text and text.count("/final-") == 8 and "/tuning-" not in text
    assert len([*out.glob("*.grid.json")]) == 8
    assert called(*words, "--submit")[::2] == (2, "command line: --submit needs --slurm\n")
    assert called(*words, "--jobs", 2)[0] == 0
    assert called(*words, "--slurm")[:2] == (0, "all runs are finished; no job is written\n")
    run_dir = next(path for path in out.glob("final-*") if path.is_dir())
    code, _, error = called(grid.path, "--out", run_dir)
    assert code == 2 and "holds a run, and a grid has a folder for each of its runs" in error
