"""Small grids that are really made, and what a change, a failure, damage or a kill does to them."""

import csv
import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from data_fixtures import refusal
from grids import BETTER, FILE, WORSE, Ended, final_runs, grid_of, made, runs_in_this_process, write_config
from small_runs import small_config

from fedmpi import methods
from fedmpi.config import yaml_text
from fedmpi.config.schema import Config
from fedmpi.federation.participation import Participation
from fedmpi.models import create
from fedmpi.results import archive, launch
from fedmpi.results.grid import GridFolder, main
from fedmpi.results.grid_file import Grid, finals, read, trials
from fedmpi.running import start
from fedmpi.store.files import make_folder
from fedmpi.store.hdf5 import digest_of

runs_here = runs_in_this_process
Called = Callable[..., tuple[int, str, str]]
"""`fedmpi grid` with these words: exit code, stdout, stderr."""
SHORT = {"settings": None, "seeds": [0, 1]}


@pytest.fixture
def called(capsys: pytest.CaptureFixture[str]) -> Called:
    def answer(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()  # what was printed before is no answer
        return main([*map(str, words)]), *capsys.readouterr()

    return answer


@pytest.mark.parametrize("method", ["fedhm", "scaffold", "hermes", "prism"])
def test_a_seed_decides_the_same_for_all_methods(method: str) -> None:
    """The model's initial values and the cohorts; Split-Mix has several nets, each with values of its own."""
    first, own, other = (small_config(*more) for more in ((), (f"method.name={method}",), ("seed=1",)))
    assert initial_digest(own) == initial_digest(first) != initial_digest(other)
    assert cohorts(own) == cohorts(first) != cohorts(other)
    mixed = ("method.name=splitmix", "method.levels=[1,0.5,0.25]", "method.atom=0.25")
    assert initial_digest(small_config(*mixed)) != initial_digest(first)


def initial_digest(config: Config) -> str:
    """Of the model's values that the method's state has; where it has none, of the state."""
    info = config.data.info()
    net = create.build(config.model, info, config.seed)
    state = methods.create(start.method_context(config, info)).initial_state()
    model = {name: value.detach() for name, value in net.named_parameters()}
    shared = {name: state[name] for name in model if name in state}
    is_of_model = bool(shared) and digest_of(shared) == digest_of({name: model[name] for name in shared})
    return digest_of(model if is_of_model else state)


def cohorts(config: Config) -> list[int]:
    """The clients of the first rounds, one round after the other."""
    method = methods.create(start.method_context(config, config.data.info()))
    drawn = (
        Participation(config).cohort(number, phase.name, phase.num_clients, phase.tiers)
        for number in range(1, 6)
        for phase in method.phases(number)
    )
    return [client for cohort in drawn for client, _ in cohort]


@dataclass(frozen=True)
class Short:
    """`fedmpi grid` on a small grid: four trials and four final runs; `runs` are the commands so far."""

    grid: Grid
    out: Path
    results: Path
    called: Called
    runs: list[Sequence[str]]

    def __call__(self, *words: object) -> tuple[int, str, str]:
        return self.called(self.grid.path, "--out", self.out, "--results", self.results, *words)

    def make_some(self, count: int = 1) -> None:
        """Makes the first trials."""
        folder = GridFolder(self.grid, self.out, self.results)
        jobs = folder.jobs(trials(self.grid)[:count])
        folder.fix(jobs)
        launch.make([*jobs.values()])

    def refused(self, *words: object) -> str:
        """The one line that this command ends with, without a run."""
        num_runs = len(self.runs)
        code, _, error = self(*words)
        assert code == 2 and len(error.splitlines()) == 1 and len(self.runs) == num_runs, error
        return error

    def text(self, name: str) -> str:
        return (self.results / name).read_text()


@pytest.fixture
def short(tmp_path: Path, called: Called, runs_here: list[Sequence[str]]) -> Short:
    return Short(grid_of(tmp_path, **SHORT), tmp_path / "out", tmp_path / "results", called, runs_here)


def test_a_whole_grid(tmp_path: Path, short: Short) -> None:
    """Four trials, then four final runs with what was chosen; nothing is made twice; the report needs no folders."""
    assert "no run is finished" in short.refused("--report")
    code, printed, error = short("--jobs", 2)
    assert code == 0 and len(short.runs) == 8, error
    assert "not decidable here" in printed and "descriptive" in printed
    choice = GridFolder(short.grid, short.out, short.results).choices()["all", "avg"]
    lr = yaml_text.parse((short.out / "final-all-avg-seed0" / "config.yaml").read_text()).value["train"]["lr"]
    assert lr == short.grid.methods["avg"].trials[choice.trial]["train.lr"]
    first = {path.name: path.read_bytes() for path in short.results.iterdir()}
    drawn = {f"all-{what}.svg" for what in ("curves", "energy")}
    assert {"report.md", "table.tex", "values.csv", "records.json.gz", *drawn} == set(first)

    assert short()[0] == 0 and len(short.runs) == 8
    assert sorted(short("--list")[1].split()) == sorted(path.name for path in short.out.iterdir() if path.is_dir())
    short.out.rename(tmp_path / "elsewhere")
    assert short("--report")[0] == 0
    again = {path.name: path.read_bytes() for path in short.results.iterdir()}
    assert again == first, "from the records alone, to the byte"

    path = short.grid.path
    path.write_text(path.read_text().replace("Two rates", "Three rates") + "# a comment\n")
    assert short("--report")[0] == 0, "the title is not fixed before the runs"
    path.write_text(path.read_text().replace("Is hm better?", "Is avg better?"))
    for does in ([], ["--report"], ["--list"]):
        error = short.refused(*does)
        assert str(path) in error and "has changed" in error, "known by records alone"


@pytest.mark.slow
def test_a_grid_without_questions_may_grow(here: Path, called: Called, runs_here: list[Sequence[str]]) -> None:
    """Methods and seeds, some runs only, changed settings; a file is made of methods' names."""
    write_config(here / "tiny.yaml", "method.name=fedavg", "rounds=4")
    words = ["tiny.yaml", "--methods", "fedavg,fedhm", "--out", "out", "--seeds"]
    code, printed, error = called(*words, "0,1", "--only", "fedavg", "--jobs", 1)
    assert code == 0 and len(runs_here) == 2 and "largest" in printed, error
    report = Path("out/results/report.md")
    assert "2 final runs missing" in report.read_text() and "| fedavg | - | 2 |" in report.read_text()
    assert called(*words, "0,1")[0] == 0 and len(runs_here) == 4
    assert called(*words, "0,1,2")[0] == 0 and len(runs_here) == 6
    rows = list(csv.DictReader(Path("out/results/values.csv").read_text().splitlines()))
    both = ("fedavg", "fedhm")
    assert [(row["method"], row["seed"]) for row in rows] == [(name, f"{n}") for n in range(3) for name in both]
    records = [json.loads(line) for line in Path("out/final-all-fedavg-seed0/rounds.jsonl").read_text().splitlines()]
    assert float(rows[0]["largest"]) == records[-1]["tiers"]["1"]["accuracy"]
    moved = sum(record["protocol_down_bytes"] + record["protocol_up_bytes"] for record in records)
    assert (float(rows[0]["bytes"]), float(rows[0]["macs"])) == (moved, sum(one["training_macs"] for one in records))
    code, _, error = called(*words, "0,1", "train.lr=0.2")
    assert code == 2 and "was run with another config: train.lr" in error and len(runs_here) == 6
    assert called(*words, "0,1,2")[0] == 0 and len(runs_here) == 6
    assert called("out/grid.yaml", "--only", "fedhm", "--seeds", "0", "rounds=2", "train.lr=0.2")[0] == 0
    assert len(runs_here) == 7
    folder = here / "runs" / "grid-grid"
    assert "set on all runs: rounds=2, train.lr=0.2" in (folder / "results" / "report.md").read_text()
    config = yaml_text.parse((folder / "final-all-fedhm-seed0" / "config.yaml").read_text()).value
    assert (config["rounds"], config["train"]["lr"]) == (2, 0.2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "--methods nothing"),
        ("none.yaml", "none.yaml"),
        ("rates.yaml --seeds 0,7", "--seeds 7"),  # it has questions
        ("--methods fedhn", "'fedhn' 'fedhm'"),
        ("--methods fedavg,fedavg", "fedavg twice"),
        ("--methods fedavg --seeds 0,x", "0,1,2 '0,x'"),
        ("--methods fedavg --jobs 0", "--jobs above got 0"),
        ("--methods fedavg --only fedhm", "--only fedhm fedavg"),
        ("--methods fedavg seed=1", "--seeds"),
        ("--methods fedavg train.lt=1", "train.lt"),
        ("--methods ./mine.py:Mine", "mine.py:Mine"),
    ],
)
def test_mistakes_are_one_line(here: Path, called: Called, words: str, said: str) -> None:
    grid_of(here, **SHORT)
    code, _, error = called(*words.split(), "--out", "out")
    assert code == 2 and "Traceback" not in error and all(word in error for word in said.split()), error
    assert not list(here.glob("out/*-seed*"))


def test_a_mistake_leaves_the_file_of_an_earlier_grid(here: Path, called: Called) -> None:
    words = ["--seeds", "0", "--out", "out", "--list"]
    assert called("--methods", "fedhn:Net", "fedhm_digits", *words)[0] == 2 and not Path("out").exists()
    assert called("--methods", "fedavg", *words)[0] == 0
    earlier = Path("out/grid.yaml").read_text()
    assert called("--methods", "hermess", "fedhm_digits", *words)[0] == 2
    assert Path("out/grid.yaml").read_text() == earlier


def test_all_are_the_shipped_configs_without_their_bases(tmp_path: Path, called: Called) -> None:
    code, printed, error = called("--methods", "all", "--seeds", "0", "--out", tmp_path / "out", "--list")
    assert code == 0 and "final-all-fedavg-seed0" in printed and "final-all-fdnnc_switch-seed0" in printed, error
    assert "base" not in printed


def test_words_reach_all_runs_and_jobs_are_written_without_slurm(
    here: Path, called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "examples")
    write_config(here / "tiny.yaml", "method.name=fedavg", "rounds=4")
    words = ["train.lr=0.2", "method.aggregate=median", "--seeds", "0", "--out", "out", "--slurm"]
    code, _, error = called("tiny.yaml", "--methods", "fedavg,fedavgm:FedAvgM", *words)
    assert code == 0 and Path("out/job.sbatch").is_file(), error
    written = yaml_text.parse(Path("out/grid.yaml").read_text()).value
    assert written["methods"]["fedavgm-FedAvgM"]["set"] == {"method": {"name": "fedavgm:FedAvgM"}}
    (config,) = Path("out/final-all-fedavgm-FedAvgM-seed0").iterdir()
    made = yaml_text.parse(config.read_text()).value
    assert (made["train"]["lr"], made["method"]["aggregate"]["name"], made["rounds"]) == (0.2, "median", 4)


def test_methods_whose_configs_are_unlike_are_named(here: Path, called: Called) -> None:
    for name, lr in (("one", 0.1), ("two", 0.1), ("three", 0.2)):
        write_config(here / f"{name}.yaml", "method.name=fedavg", f"train.lr={lr}")
    words = ["--seeds", "0", "--out", "out", "--slurm"]
    code, _, error = called("--methods", "one.yaml,two.yaml,three.yaml", *words)
    assert code == 0 and "warning: not alike: train.lr is 0.1; three 0.2" in error
    code, _, error = called("--methods", "one.yaml,two.yaml", *words[:-2], "same", "--slurm")
    assert code == 0 and "not alike" not in error


OWN_METHOD = """
from fedmpi.methods.fedavg import FedAvg, FedAvgOptions

class OwnOptions(FedAvgOptions):
    name: str = "own"

class Own(FedAvg):
    Options = OwnOptions
"""


@pytest.fixture
def own(tmp_path: Path, short: Short, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Short, Path]]:
    """A grid with a method of the user's, and its module."""
    path = tmp_path / "study_code.py"
    path.write_text(OWN_METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"set": {"method": {"name": "study_code:Own"}}, "grid": FILE["methods"]["avg"]["grid"]}
    yield replace(short, grid=grid_of(tmp_path, **SHORT, methods={"hm": own, "avg": FILE["methods"]["avg"]})), path
    sys.modules.pop("study_code", None)


def test_what_changed_after_a_run_is_refused(tmp_path: Path, own: tuple[Short, Path]) -> None:
    """The file, a config or the user's code: known by the run's folder, before it is finished, and by its record."""
    grid, own_code = own
    grid.make_some()
    assert json.loads((grid.out / "grid.json").read_text()) == {"digest": grid.grid.digest}
    changes = [
        (grid.grid.path, "margin: 0.02", "margin: 0.5", "the file has changed"),
        (tmp_path / "base.yaml", "rounds: 2", "rounds: 12", "config"),
        (tmp_path / "base.yaml", "batch_size: ", "batch_size: 1", "config"),
        (own_code, "class Own(", "\nclass Own(", "code that it names"),
    ]
    for has_folder in (True, False):
        for path, old, new, what in changes:
            before = path.read_text()
            path.write_text(before.replace(old, new))
            error = grid.refused()
            assert what in error and (path == grid.grid.path or trials(grid.grid)[0].name in error)
            path.write_text(before)
        assert grid("--report")[0] == 0
        if has_folder:
            grid.out.rename(tmp_path / "gone")


@pytest.mark.slow
def test_records_alone_continue_a_grid_elsewhere(tmp_path: Path, short: Short) -> None:
    """Among the final runs: another clone makes the other two, and the same tables."""
    whole = replace(short, out=tmp_path / "whole", results=tmp_path / "all")
    assert whole("--jobs", 1)[0] == 0
    short.make_some(4)
    assert short("--only", "avg", "--jobs", 1)[0] == 0 and short("--report")[0] == 0
    short.runs.clear()
    assert replace(short, out=tmp_path / "elsewhere")()[0] == 0 and len(short.runs) == 2
    assert short.text("values.csv") == whole.text("values.csv")


def test_where_trials_fail_no_final_run_starts(short: Short, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all fail there is nothing to report; each is tried again."""
    works = launch._started
    for num_left in (4, 2):
        monkeypatch.setattr(launch, "_started", lambda *_: Ended(1))
        code, printed, error = short()
        assert code == 1 and printed.count("exit code 1") == num_left and not error, error
        monkeypatch.setattr(launch, "_started", works)
        short.make_some(2)


PRINTED = """
title: A paper
seeds: [0, 1]
settings: {iid: {}}
methods: {one: {}, two: {}}
printed:
  table1: {title: Accuracy, quantity: accuracy, blocks: {IID: {FedAvg: {cells: {11M: [iid/one, 0, "0.95"]}}}}}
  figure1: {title: Curves, quantity: accuracy, x: rounds, blocks: {IID: {A: [iid/one, 0]}}}
  table2: {title: Cost, quantity: bytes, blocks: {IID: {FedHM: {cells: {11M: [iid/two, 0]}}}}}
"""


def test_the_report_of_a_paper_has_its_tables_and_figures(tmp_path: Path, called: Called) -> None:
    """Only the cells of table 1 and figure 1 have a run; two of four runs are made."""
    path = tmp_path / "paper.yaml"
    path.write_text(PRINTED)
    words = [path, "--out", tmp_path / "out"]
    assert called(*words, "--list", "--only", "table2")[1].split() == ["final-iid-two-seed0", "final-iid-two-seed1"]
    results = tmp_path / "out" / "results"
    archive.write(make_folder(results), "", [made(run, 0.9) for run in finals(read(path), {}) if run.method == "one"])
    code, shown, error = called(*words, "--report")
    assert code == 0 and "table1: Accuracy" in shown, error
    names = {"report.md", "table.tex", "values.csv", archive.FILE, "figure1.svg"}
    assert {file.name for file in results.iterdir()} == names
    report = (results / "report.md").read_text()
    assert "2 final runs missing" in report and "table2" not in report and "![figure1.svg](figure1.svg)" in report
    assert "| IID | FedAvg | 11M | 0.95 | 0.90 (0.00) | -0.05 | 0,1 | 1 |  |" in report


def test_records_are_the_same_bytes_and_damage_is_one_line(tmp_path: Path) -> None:
    runs = final_runs(BETTER, WORSE)
    archive.write(tmp_path, "digest", runs)
    first = (tmp_path / archive.FILE).read_bytes()
    assert archive.read(tmp_path) == ("digest", [replace(run, nets=[]) for run in runs])
    archive.write(tmp_path, *archive.read(tmp_path))
    assert (tmp_path / archive.FILE).read_bytes() == first and first[4:8] == bytes(4), "no date"
    for damaged in (first[:-9], b"text", gzip.compress(b"[]"), gzip.compress(b'{"runs": 1}')):
        (tmp_path / archive.FILE).write_bytes(damaged)
        assert archive.FILE in refusal(archive.read, tmp_path)


@pytest.mark.slow
def test_a_killed_grid_continues(tmp_path: Path, short: Short) -> None:
    """Killed with SIGKILL in the middle, and continued: every value is that of a grid that was left alone."""
    words = [short.grid.path, "--jobs", "2", "--out", short.out, "--results", short.results]
    program = [sys.executable, "-m", "fedmpi", "grid", *map(str, words)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    while " finished" not in process.stdout.readline():
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    while subprocess.run(program, capture_output=True).returncode == 1:
        pass  # a run of the killed study may still be under way, and is left alone
    whole = replace(short, out=tmp_path / "whole", results=tmp_path / "all")
    assert whole("--jobs", "2")[0] == 0
    assert short.text("values.csv") == whole.text("values.csv") and len(short.text("values.csv").splitlines()) == 9


@pytest.mark.slow
def test_slurm_makes_the_trials_then_the_final_runs(short: Short) -> None:
    """Nothing runs; what is finished is left out."""
    job = short.out / "job.sbatch"
    code, said, error = short("--slurm", "time=10", "array=%2")
    assert code == 0 and f"written: {job}" in said and short.runs == [], error
    text = job.read_text()
    assert "#SBATCH --array=1,2,3,4%2\n" in text and "#SBATCH --time=10\n" in text and text.count("/tuning-") == 8
    short.make_some(4)
    assert short("--slurm")[0] == 0
    text = job.read_text()
    assert "#SBATCH --array=1,2,3,4\n" in text and text.count("/final-") == 8 and "/tuning-" not in text
    assert short("--jobs", 2)[0] == 0
    assert short("--slurm")[:2] == (0, "all runs are finished; no job is written\n")
    run_dir = next(path for path in short.out.glob("final-*") if path.is_dir())
    assert "holds a run, and a grid has a folder for each of its runs" in replace(short, out=run_dir).refused()
