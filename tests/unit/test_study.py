"""The file of a study, and the runs that it asks for; those that the repository has."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from asked_studies import study_of
from golden_file import Told

from fedmpi.config.load import load
from fedmpi.errors import ConfigError
from fedmpi.results.grid_file import read
from fedmpi.results.grid_runs import Wanted, finals, jobs_of, overrides, trials

# The file.


def grids(*counts: int) -> dict[str, Any]:
    names = zip(("avg", "hm"), counts, strict=True)
    return {name: {"grid": [{"train.lr": [0.1] * count}] if count else []} for name, count in names}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"methods": grids(2, 3)}, "methods avg 2 hm 3"),
        ({"methods": grids(0, 0)}, "tuning grid"),
        ({"methods": grids(1, 1), "tuning": None}, "methods.avg.grid tuning"),
        ({"tuning": {"seeds": [3], "measure": "largest"}}, "tuning.seeds 3"),
        ({"tuning": {"seeds": [100], "measure": "larges"}}, "tuning.measure 'larges' 'largest'"),
        ({"seeds": [1, 2, 1]}, "seeds 1 twice"),
        ({"seeds": []}, "seeds 1"),
        ({"seeds": [*range(17)]}, "seeds 16"),
        ({"questions": [{"ask": "?", "first": "avgg", "second": "hm", "measure": "largest"}]}, "first 'avgg' 'avg'"),
        (
            {"questions": [{"ask": "?", "first": "hm", "second": "hm", "measure": "largest"}]},
            "questions[0].second same",
        ),
        ({"questions": [{"ask": "?", "first": "hm", "second": "avg", "measure": "x"}]}, "questions[0].measure 'x'"),
        ({"questions": [{"ask": "?", "undecidable": "why", "first": "hm"}]}, "questions[0] undecidable"),
        ({"questions": []}, "questions 1"),
        ({"measures": {"largest": {"quantity": "bytes_to_target"}}}, "measures.largest target"),
        ({"measures": {"largest": {"quantity": "accurac"}}}, "measures.largest.quantity 'accurac' 'accuracy'"),
        ({"methods": {"a b": {}}}, "methods letters"),
        ({"sedes": [1]}, "sedes 'seeds'"),
        ({"title": None}, "title missing"),
    ],
)
def test_mistakes_name_the_key(tmp_path: Path, changed: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study_of(tmp_path, **changed)
    assert all(word in caught.value.text() for word in words.split()), caught.value.text()


def test_a_setting_that_no_config_has_names_the_method(tmp_path: Path, told: Told) -> None:
    methods = {name: {"set": {"method": {"name": name}, "train": {"lt": 1}}} for name in ("fedavg", "fedhm")}
    question = {"ask": "?", "first": "fedhm", "second": "fedavg", "measure": "largest"}
    study = study_of(tmp_path, methods=methods, tuning=None, questions=[question])
    with told.by(ConfigError) as caught:
        list(jobs_of(study, finals(study, {}), tmp_path / "out"))
    assert "train.lt" in caught.value.text()


# What is run.


def test_trials_and_final_runs_by_hand(tmp_path: Path) -> None:
    """Two settings, two methods: 2 trials of 1 seed each, then 6 seeds. 1 x 2 combinations are 2 trials, too."""
    study = study_of(tmp_path)
    tuning, final = trials(study), finals(study, {("one", "hm"): 1})
    assert (len(tuning), len(final)) == (8, 24) and len({*tuning, *final}) == 32
    chosen = Wanted("final", "one", "hm", 1, 5)
    assert chosen in final and chosen.name == "final-one-hm"
    configs = {wanted: job.config for wanted, job in jobs_of(study, [*tuning, *final], tmp_path / "out")}
    assert configs[chosen].method.tau == 5 and configs[chosen].seed == 5
    assert {config.evaluation.on for one, config in configs.items() if one.phase == "final"} == {"test"}
    assert {config.evaluation.on for one, config in configs.items() if one.phase == "tuning"} == {"validation"}
    trial = configs[Wanted("tuning", "two", "avg", 1, 100)]
    assert (trial.train.lr, trial.clients.per_round, trial.seed, trial.method.name) == (0.1, 3, 100, "fedavg")


def test_later_settings_replace_earlier_ones_and_names_may_have_dots(tmp_path: Path) -> None:
    methods: dict[str, Any] = {name: {"grid": [{"train.lr": [0.5]}]} for name in ("avg", "hm")}
    methods["hm"]["set"] = {
        "model": {"name": "mlp", "hidden": [8, 4]},
        "method": {"name": "fdnnc", "layer_ranks": {"layers.4": 2}},
        "train": {"lr": 0.2, "momentum": 0.0},
    }
    study = study_of(tmp_path, methods=methods, set={"train": {"lr": 0.3, "batch_size": 9}})
    said = overrides(study, Wanted("final", "one", "hm", 0, 1))
    config = load(tmp_path / "base.yaml", [*said, "clients.tier_blocks=[]"])
    assert (config.train.lr, config.train.momentum, config.train.batch_size) == (0.5, 0.0, 9)
    assert config.method.layer_ranks == {"layers.4": 2}


# The studies that the repository has.


STUDIES = sorted((Path(__file__).parents[2] / "configs" / "studies").glob("*.yaml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_of_the_repository_can_be_run_and_decided(path: Path, tmp_path: Path) -> None:
    """Every run has a valid config, seeds suffice for the tests, and all methods have one seed's partition."""
    study = read(path)
    assert study.asked.num_tests * 2 / 2 ** len(study.asked.seeds) <= study.asked.alpha
    if study.asked.tuning is not None:
        rates = [[trial["train.lr"] for trial in one.trials] for one in study.asked.methods.values()]
        assert len({(min(of_method), max(of_method)) for of_method in rates}) == 1
    first = [one for one in [*trials(study), *finals(study, {})] if one.seed in (study.asked.seeds[0], 100)]
    partitions: dict[tuple[str, str], set[str]] = {}
    for wanted in first:
        ((_, job),) = jobs_of(study, [wanted], tmp_path)
        said = f"{job.config.partition!r} {job.config.clients.count} {job.config.data.name}"
        partitions.setdefault((wanted.phase, wanted.setting), set()).add(said)
    assert all(len(found) == 1 for found in partitions.values())


def test_the_example_of_the_documentation_can_be_run(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    text = (root / "fedmpi" / "studies" / "README.md").read_text()
    block = text[text.index("    title: Is FedHM") :].partition("\n\n")[0]
    path = tmp_path / "example.yaml"
    path.write_text(textwrap.dedent(block).replace("../", f"{root}/configs/"))
    study = read(path)
    jobs = dict(jobs_of(study, [*trials(study), *finals(study, {})], tmp_path / "out"))
    assert len(jobs) == 2 * 2 * 2 + 2 * 2 * 7 and study.asked.num_tests == 2
    assert {job.config.method.name for job in jobs.values()} == {"fedhm", "heterofl"}
