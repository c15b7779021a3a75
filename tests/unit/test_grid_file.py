"""Grid files: how they are read, and which runs they name. The repository's own make their committed reports again."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from data_fixtures import refusal
from fast import fast
from golden_file import Told
from grids import TWO, grid_of

from fedmpi.errors import ConfigError
from fedmpi.results import grid_report
from fedmpi.results.grid import GridFolder
from fedmpi.results.grid_file import Grid, GridRun, config_of, finals, read, trials
from fedmpi.results.launch import Job


def jobs_of(grid: Grid, runs: Sequence[GridRun], out: Path) -> dict[GridRun, Job]:
    return GridFolder(grid, out, out / "results").jobs(runs)


def grids(*counts: int) -> dict[str, Any]:
    names = zip(("avg", "hm"), counts, strict=True)
    return {name: {"grid": [{"train.lr": [0.1] * count}] if count else []} for name, count in names}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"methods": grids(2, 3)}, "methods avg 2 hm 3"),
        ({"methods": grids(0, 0)}, "tuning grid"),
        ({"methods": grids(1, 1), "tuning": None}, "methods tuning"),
        ({"tuning": {"seeds": [3], "measure": "largest"}}, "tuning.seeds 3"),
        ({"tuning": {"seeds": [100], "measure": "larges"}}, "tuning.measure 'larges' 'largest'"),
        ({"seeds": [1, 2, 1]}, "seeds 1 twice"),
        ({"seeds": []}, "seeds 1"),
        ({"seeds": [*range(17)]}, "seeds 16"),
        ({"questions": [{"ask": "?", "first": "avgg", "second": "hm", "measure": "largest"}]}, "first 'avgg' 'avg'"),
        ({"questions": [{"ask": "?", "first": "hm", "second": "hm", "measure": "largest"}]}, "questions[0] same"),
        ({"questions": [{"ask": "?", "first": "hm", "second": "avg", "measure": "x"}]}, "questions[0].measure 'x'"),
        ({"questions": [{"ask": "?", "undecidable": "why", "first": "hm"}]}, "questions[0] undecidable"),
        ({"methods": {}, "tuning": None}, "none questions[0].first"),
        ({"measures": {"largest": {"quantity": "bytes_to_target"}}}, "measures.largest target"),
        ({"measures": {"largest": {"quantity": "accurac"}}}, "measures.largest.quantity 'accurac' 'accuracy'"),
        ({"methods": {"a b": {}}}, "methods pattern"),
        ({"sedes": [1]}, "sedes 'seeds'"),
        ({"title": None}, "title required"),
        ({"settings": {"a": {"extends": "b"}, "b": {"extends": "a"}, "c": {}}}, "settings.a.extends 'b' c"),
    ],
)
def test_mistakes_name_the_key(tmp_path: Path, changed: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        grid_of(tmp_path, **changed)
    assert all(word in caught.value.text() for word in words.split()), caught.value.text()


def test_a_config_that_is_a_run_of_no_grid_is_one_line(tmp_path: Path) -> None:
    grid_of(tmp_path)
    (tmp_path / "other.yaml").write_text("{title: A, seeds: [0], config: rates.yaml@one/no, methods: {a: {}}}")
    grid = read(tmp_path / "other.yaml")
    assert "no 'no'. Known: avg, hm" in refusal(lambda: jobs_of(grid, finals(grid, {}), tmp_path / "out"))


def test_a_setting_that_no_config_has_names_the_method(tmp_path: Path, told: Told) -> None:
    methods = {name: {"set": {"method": {"name": name}, "train": {"lt": 1}}} for name in ("fedavg", "fedhm")}
    question = {"ask": "?", "first": "fedhm", "second": "fedavg", "measure": "largest"}
    grid = grid_of(tmp_path, methods=methods, tuning=None, questions=[question])
    told(line := refusal(lambda: jobs_of(grid, finals(grid, {}), tmp_path / "out")))
    assert "train.lt" in line


def test_trials_and_final_runs_by_hand(tmp_path: Path) -> None:
    """Two settings, two methods: 2 trials of 1 seed each, then 6 seeds. 1 x 2 combinations are 2 trials, too."""
    grid = grid_of(tmp_path, settings=TWO)
    tuning, final = trials(grid), finals(grid, {("one", "hm"): 1})
    assert (len(tuning), len(final)) == (8, 24) and len({*tuning, *final}) == 32
    chosen = GridRun("final", "one", "hm", 1, 5)
    assert chosen in final and chosen.name == "final-one-hm-seed5"
    configs = {run: job.config for run, job in jobs_of(grid, [*tuning, *final], tmp_path / "out").items()}
    assert configs[chosen].method.tau == 5 and configs[chosen].seed == 5
    assert {config.evaluation.on for one, config in configs.items() if one.phase == "final"} == {"test"}
    assert {config.evaluation.on for one, config in configs.items() if one.phase == "tuning"} == {"validation"}
    trial = configs[GridRun("tuning", "two", "avg", 1, 100)]
    assert (trial.train.lr, trial.clients.per_round, trial.seed, trial.method.name) == (0.1, 3, 100, "fedavg")


def test_later_settings_replace_earlier_ones_and_names_may_have_dots(tmp_path: Path) -> None:
    methods: dict[str, Any] = {name: {"grid": [{"train.lr": [0.5]}]} for name in ("avg", "hm")}
    methods["hm"]["set"] = {
        "model": {"name": "mlp", "hidden": [8, 4]},
        "method": {"name": "fdnnc", "layer_ranks": {"layers.4": 2}},
        "train": {"lr": 0.2, "momentum": 0.0},
    }
    grid = grid_of(tmp_path, methods=methods, set={"train": {"lr": 0.3, "batch_size": 9}})
    config = config_of(grid, GridRun("final", "one", "hm", 0, 1), ["clients.tier_blocks=[]"])
    assert (config.train.lr, config.train.momentum, config.train.batch_size) == (0.5, 0.0, 9)
    assert config.method.layer_ranks == {"layers.4": 2}


ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "configs" / "studies").glob("*.yaml"))
HAVE_RUN = [path for path in STUDIES if (ROOT / "jobs" / "studies" / path.stem).is_dir()]


@pytest.mark.parametrize("path", fast(STUDIES[0], of=STUDIES), ids=lambda path: path.stem)
def test_a_grid_of_the_repository_can_be_run_and_decided(path: Path, tmp_path: Path) -> None:
    """Every run has a valid config, seeds suffice for the tests, and all methods have one seed's partition."""
    grid = read(path)
    assert grid.num_tests * 2 / 2 ** len(grid.seeds) <= 0.05
    if grid.tuning is not None:
        rates = [[trial["train.lr"] for trial in one.trials] for one in grid.methods.values()]
        assert len({(min(of_method), max(of_method)) for of_method in rates}) == 1
    first = [one for one in [*trials(grid), *finals(grid, {})] if one.seed in (grid.seeds[0], 100)]
    partitions: dict[tuple[str, str], set[str]] = {}
    for wanted in first:
        (job,) = jobs_of(grid, [wanted], tmp_path).values()
        said = f"{job.config.partition!r} {job.config.clients.count} {job.config.data.name}"
        partitions.setdefault((wanted.phase, wanted.setting), set()).add(said)
    assert all(len(found) == 1 for found in partitions.values())


def test_the_example_of_the_documentation_can_be_run(tmp_path: Path) -> None:
    text = (ROOT / "fedmpi" / "results" / "README.md").read_text()
    block = text[text.index("    title: Is FedHM") :].partition("\n\n")[0]
    path = tmp_path / "example.yaml"
    path.write_text(textwrap.dedent(block).replace("../", f"{ROOT}/configs/"))
    grid = read(path)
    jobs = jobs_of(grid, [*trials(grid), *finals(grid, {})], tmp_path / "out")
    assert len(jobs) == 2 * 2 * 2 + 2 * 2 * 7 and grid.num_tests == 2
    assert {job.config.method.name for job in jobs.values()} == {"fedhm", "heterofl"}


@pytest.mark.parametrize("path", fast(HAVE_RUN[0], of=HAVE_RUN), ids=lambda path: path.stem)
def test_a_committed_report_is_not_stale(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are there; that the same runs draw the same bytes is another test's."""
    monkeypatch.syspath_prepend(ROOT)  # the config of one study names code of the repository
    results = ROOT / "jobs" / "studies" / path.stem
    folder = GridFolder(read(path), tmp_path, results)
    folder.refuse_changed()
    found = folder.collect()
    assert {*grid_report.figures_of(found)} == {file.name for file in results.glob("*.svg")}
    texts = grid_report.texts(found)
    assert texts.keys() == {"report.md", "table.tex", "values.csv"}
    for name, text in texts.items():
        assert text == (results / name).read_text(), f"{name} is stale: fedmpi grid {path} --report"
