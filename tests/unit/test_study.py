"""`fedmpi study`: what a file may say, what is run and chosen, and small studies that are really made."""

import gzip
import json
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_config
from studied_runs import Called, calling, write_config

from fedmpi import registry
from fedmpi.config import yaml_text
from fedmpi.config.load import load
from fedmpi.errors import ConfigError, RunDirError
from fedmpi.main import main
from fedmpi.studies.study import conduct, kept, making
from fedmpi.studies.study.answers import answers
from fedmpi.studies.study.asked import Measure, Study, read
from fedmpi.studies.study.choice import choose, numbers
from fedmpi.studies.study.findings import report, sentence, unlike
from fedmpi.studies.study.kept import Kept, initial_digest
from fedmpi.studies.study.making import Note
from fedmpi.studies.study.wanted import Wanted, finals, jobs_of, overrides, trials

FILE: dict[str, Any] = {
    "title": "Two rates",
    "config": "base.yaml",
    "settings": {"one": {}, "two": {"clients": {"per_round": 3}}},
    "methods": {
        "avg": {"set": {"method": {"name": "fedavg"}}, "grid": [{"train.lr": [0.01, 0.1]}]},
        "hm": {"set": {"method": {"name": "fedhm"}}, "grid": [{"train.lr": [0.1], "method.tau": [2, 5]}]},
    },
    "seeds": [0, 1, 2, 3, 4, 5],
    "tuning": {"seeds": [100], "measure": "largest"},
    "measures": {
        "largest": {"quantity": "accuracy"},
        "smallest": {"quantity": "accuracy", "net": "smallest"},
        "bytes": {"quantity": "bytes"},
    },
    "questions": [
        {
            "ask": "Is hm better?",
            "first": "hm",
            "second": "avg",
            "measure": "largest",
            "provided": [{"measure": "smallest", "margin": 0.02}],
            "settings": ["one"],
        }
    ],
}


def study_of(folder: Path, **changed: Any) -> Study:
    write_config(folder / "base.yaml", "rounds=2", "method.name=fedavg")
    path = folder / "rates.yaml"
    plain = {key: value for key, value in {**FILE, **changed}.items() if value is not None}
    path.write_text(yaml_text.dump(json.loads(json.dumps(plain))))  # a value that stands twice would be an alias
    return read(path)


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


def test_a_setting_that_no_config_has_names_the_method(tmp_path: Path) -> None:
    methods = {name: {"set": {"method": {"name": name}, "train": {"lt": 1}}} for name in ("fedavg", "fedhm")}
    question = {"ask": "?", "first": "fedhm", "second": "fedavg", "measure": "largest"}
    study = study_of(tmp_path, methods=methods, tuning=None, questions=[question])
    with pytest.raises(ConfigError, match="method fedavg in setting one") as caught:
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


# Answers, from records written by hand.


def made(wanted: Wanted, *accuracies: float, **changed: Any) -> Kept:
    """A run whose nets end with these accuracies, the largest first."""
    record = {
        "round": 1,
        "tiers": {str(place): {"accuracy": accuracy, "loss": 1.0} for place, accuracy in enumerate(accuracies)},
        "train_loss": 0.5, "protocol_down_bytes": 30, "protocol_up_bytes": 20, "training_macs": 7.0,
    }  # fmt: skip
    given = {
        "wanted": wanted, "note": Note("x", None, ""), "config": "", "overrides": (), "data": "d", "partition": "p",
        "cohorts": "c", "initial": "i", "made_with": {}, "num_starts": 1, "seconds": {"wall": 4.0, "svd": 1.0},
        "nets": (), "rounds": [record],
    }  # fmt: skip
    return Kept(**{**given, **changed})


def final_runs(first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]) -> list[Kept]:
    """Of hm and avg in setting one: largest and smallest net of each seed."""
    pairs = (("hm", first), ("avg", second))
    return [
        made(Wanted("final", "one", method, 0, seed), *both)
        for method, scores in pairs
        for seed, both in enumerate(scores)
    ]


BETTER = [(0.9 + seed / 100, 0.8) for seed in range(6)]
WORSE = [(0.85, 0.81)] * 6


def test_confirmed_where_all_parts_hold(tmp_path: Path) -> None:
    """Largest: +5 to +10 points in all six seeds, p 2/64. Smallest: -1 point, allowed -2: +1 in all seeds, p 2/64."""
    (answer,) = answers(study_of(tmp_path), final_runs(BETTER, WORSE))
    assert (answer.verdict, answer.p) == ("confirmed", 0.03125)
    assert [round(part.mean, 6) for part in answer.parts] == [0.075, -0.01]
    assert [part.p for part in answer.parts] == [0.03125, 0.03125]
    assert answer.parts[0].interval(0.05) == pytest.approx((0.05, 0.1, 0.96875))
    said = sentence(study_of(tmp_path), answer)
    assert "**confirmed**" in said and "+7.50" in said and "-1.00" in said and "+5.00" in said and "-2.00" in said


@pytest.mark.parametrize(
    ("first", "second", "verdict", "p"),
    [
        ([*BETTER[:5], (0.849, 0.8)], WORSE, "not confirmed", 0.0625),  # one seed the other way round, 4 of 64 as far
        ([(top, 0.78) for top, _ in BETTER], WORSE, "not confirmed", 1.0),  # the smallest loses 3 points
        (WORSE, BETTER, "not confirmed", 1.0),
        (BETTER[:5], WORSE, "not decidable here", 1.0),
        ([], [], "not decidable here", 1.0),
    ],
)
def test_not_confirmed(tmp_path: Path, first: Any, second: Any, verdict: str, p: float) -> None:
    (answer,) = answers(study_of(tmp_path), final_runs(first, second))
    assert (answer.verdict, answer.p) == (verdict, p)


def test_holm_counts_all_questions_in_all_settings(tmp_path: Path) -> None:
    """In two settings 2 x 2/64 is above 0.05, whatever the runs say; eight seeds would do. So with five seeds."""
    question = {**FILE["questions"][0], "settings": []}
    for changed in ({"questions": [question]}, {"seeds": [0, 1, 2, 3, 4]}):
        found = answers(study_of(tmp_path, **changed), final_runs(BETTER, WORSE))
        assert found[0].verdict == "not decidable here" and "0.062" in found[0].why
    eight = [*BETTER, *BETTER[:2]], [*WORSE, *WORSE[:2]]
    found = answers(study_of(tmp_path, questions=[question], seeds=[*range(8)]), final_runs(*eight))
    assert [(one.verdict, one.p) for one in found] == [("confirmed", 2 * 2 / 256), ("not decidable here", 1.0)]


def test_secondary_questions_are_described_and_do_not_count(tmp_path: Path) -> None:
    questions = [FILE["questions"][0], {**FILE["questions"][0], "primary": False}]
    found = answers(study_of(tmp_path, questions=questions), final_runs(BETTER, WORSE))
    assert [(one.verdict, one.p) for one in found] == [("confirmed", 0.03125), ("descriptive", 1.0)]
    assert "+7.50" in sentence(study_of(tmp_path, questions=questions), found[1])


def test_what_cannot_be_decided_has_no_runs(tmp_path: Path) -> None:
    study = study_of(tmp_path, methods=None, settings=None, tuning=None, measures=None, questions=[
        {"ask": "Is it?", "undecidable": "differences below noise"}])  # fmt: skip
    assert finals(study, {}) == []
    (answer,) = answers(study, [])
    assert answer.verdict == "not decidable here" and "differences below noise" in sentence(study, answer)


@pytest.mark.parametrize(
    ("measure", "value"),
    [
        ({"quantity": "accuracy"}, 0.9),
        ({"quantity": "accuracy", "net": "smallest"}, 0.6),
        ({"quantity": "accuracy", "net": "mean"}, 0.75),
        ({"quantity": "accuracy", "net": "1"}, 0.6),
        ({"quantity": "accuracy", "net": "none"}, None),
        ({"quantity": "bytes"}, 50),
        ({"quantity": "bytes_to_target", "target": 0.9}, 50),
        ({"quantity": "rounds_to_target", "target": 0.95}, None),
        ({"quantity": "train_loss"}, 0.5),
        ({"quantity": "seconds"}, 4.0),
        ({"quantity": "time_share", "net": "svd"}, 0.25),
    ],
)
def test_measures(measure: dict[str, Any], value: float | None) -> None:
    assert made(Wanted("final", "one", "hm", 0, 0), 0.9, 0.6).value(Measure(**measure)) == value


def test_the_best_trial_is_chosen_of_equal_ones_the_first(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    scores = {("one", "avg"): (0.5, 0.6), ("one", "hm"): (0.7, 0.7), ("two", "avg"): (0.2, 0.1), ("two", "hm"): (0, 1)}
    runs = [made(one, scores[one.setting, one.method][one.trial or 0]) for one in trials(study)]
    assert numbers(choose(study, runs)) == {("one", "avg"): 1, ("one", "hm"): 0, ("two", "avg"): 0, ("two", "hm"): 1}
    assert choose(study, runs)["one"]["avg"] == {"trial": 1, "values": {"train.lr": 0.1}, "scores": [0.5, 0.6]}
    with pytest.raises(RunDirError, match="tuning-two-hm-trial1"):
        choose(study, runs[:-1])


def test_what_runs_do_not_share_is_said(tmp_path: Path) -> None:
    runs, study = final_runs(BETTER, WORSE), study_of(tmp_path)
    assert unlike(study, runs) == unlike(study, []) and len(unlike(study, runs)) == 1
    odd = [replace(run, cohorts="other") if run.wanted.method == "avg" else run for run in runs]
    (line,) = unlike(study, odd)
    assert "one" in line and "avg" in line and "cohorts" in line
    assert line in report(study, {}, odd, answers(study, odd), [])


# Runs that are made.


@pytest.mark.parametrize("method", ["fedhm", "heterofl", "fedprox", "scaffold", "topk", "hermes", "prism", "origdrop"])
def test_methods_begin_with_the_same_values(method: str) -> None:
    """A seed decides the model's initial values whatever the method; Split-Mix has several nets, each with its own."""
    first = initial_digest(small_config("method.name=fedavg"))
    assert initial_digest(small_config(f"method.name={method}")) == first
    assert initial_digest(small_config(f"method.name={method}", "seed=1")) != first


def test_split_mix_begins_with_values_of_its_own() -> None:
    mixed = ("method.name=splitmix", "method.levels=[1,0.5,0.25]", "method.atom=0.25")
    assert initial_digest(small_config(*mixed)) != initial_digest(small_config("method.name=fedavg"))


class Ended:
    """A process that has ended with this exit code."""

    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> int:
        return self.code

    def terminate(self) -> None: ...


@pytest.fixture
def runs_here(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Makes runs in this process, which is a tenth of the time; the commands so far."""
    commands: list[Sequence[str]] = []

    def start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Ended:
        commands.append(command)
        return Ended(main(command[command.index("fedmpi.main") + 1 :]))

    monkeypatch.setattr(making, "start", start)
    return commands


called = calling(conduct.main)
SHORT = {"settings": None, "questions": [{**FILE["questions"][0], "settings": []}], "seeds": [0, 1]}


def test_a_whole_study(tmp_path: Path, called: Called, runs_here: list[Sequence[str]]) -> None:
    """Four trials, then four final runs with what was chosen; nothing is made twice; the report needs no folders."""
    study = study_of(tmp_path, **SHORT)
    out, results = tmp_path / "out", tmp_path / "results"
    words = [study.path, "--out", out, "--results", results]
    assert called(*words, "--report")[0] == 2, "no run is finished"
    code, printed, error = called(*words, "--run", "--jobs", 2)
    assert code == 0 and len(runs_here) == 8, error
    assert "not decidable here" in printed and "descriptive" in printed
    choices = json.loads((out / "choices.json").read_text())["all"]
    lr = yaml_text.parse((out / "final-all-avg-seed0" / "config.yaml").read_text()).value["train"]["lr"]
    assert lr == choices["avg"]["values"]["train.lr"]
    first = {path.name: path.read_bytes() for path in results.iterdir()}
    assert {"report.md", "values.csv", "records.json.gz", "all-curves.svg", "all-differences.svg"} == set(first)
    assert "same examples, partition, cohorts and initial values" in first["report.md"].decode()

    assert called(*words, "--run")[0] == 0 and len(runs_here) == 8
    assert "final runs: 4 of 4" in called(*words, "--status")[1]
    out.rename(tmp_path / "elsewhere")
    assert called(*words, "--report")[0] == 0
    assert {path.name: path.read_bytes() for path in results.iterdir()} == first, "from the records alone, to the byte"

    study.path.write_text(study.path.read_text().replace("Two rates", "Three rates"))
    for does in ("--run", "--report", "--status"):
        code, _, error = called(*words, does)
        assert code == 2 and str(study.path) in error and study.digest[:12] in error
    assert len(runs_here) == 8


def test_a_file_that_changed_after_the_first_run_is_refused(
    tmp_path: Path, called: Called, runs_here: list[Sequence[str]]
) -> None:
    """Also where no run is finished: the note is written before a run begins."""
    study = study_of(tmp_path, **SHORT)
    ((_, job),) = jobs_of(study, trials(study)[:1], tmp_path / "out")
    list(making.make(study, [job], 1))
    (note,) = (tmp_path / "out").glob("*.study.json")
    assert json.loads(note.read_text())["study"] == study.digest
    study.path.write_text(study.path.read_text() + "alpha: 0.5\n")
    code, _, error = called(study.path, "--run", "--out", tmp_path / "out")
    assert code == 2 and study.digest[:12] in error and len(runs_here) == 1


def test_a_failed_run_ends_no_other_and_is_tried_again(
    tmp_path: Path, called: Called, runs_here: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of(tmp_path, **SHORT)
    works, words = making.start, [study.path, "--out", tmp_path / "out", "--run"]

    def fails(command: Sequence[str], *others: Any) -> Any:
        return Ended(1) if any("trial1" in word for word in command) else works(command, *others)

    monkeypatch.setattr(making, "start", fails)
    code, printed, error = called(*words)
    assert code == 1 and printed.count("exit code 1") == 2 and "2 runs" in error and len(runs_here) == 2
    assert not (tmp_path / "out" / "choices.json").exists()
    monkeypatch.setattr(making, "start", works)
    assert called(*words)[0] == 0 and len(runs_here) == 8


def test_records_are_the_same_bytes_and_damage_is_one_line(tmp_path: Path) -> None:
    runs = final_runs(BETTER, WORSE)
    kept.write(tmp_path, "digest", {"one": {}}, runs)
    first = (tmp_path / kept.FILE).read_bytes()
    assert kept.read(tmp_path) == ("digest", {"one": {}}, [replace(run, overrides=[], nets=[]) for run in runs])
    assert kept.pack(*kept.read(tmp_path)) == first and first[4:8] == bytes(4), "no date"
    for damaged in (first[:-9], b"text", gzip.compress(b"[]"), gzip.compress(b'{"study": 1}')):
        (tmp_path / kept.FILE).write_bytes(damaged)
        with pytest.raises(RunDirError, match=kept.FILE):
            kept.read(tmp_path)


@pytest.mark.slow
def test_a_killed_study_continues(tmp_path: Path, called: Called) -> None:
    """Killed with SIGKILL in the middle, and continued: every value is that of a study that was left alone."""
    study = study_of(tmp_path, **SHORT)
    words = [str(study.path), "--run", "--jobs", "2"]
    program = [sys.executable, "-m", "fedmpi", "study", *words, "--out", str(tmp_path / "killed")]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "finished" in process.stdout.readline()
    process.kill()
    process.wait()
    process.stdout.close()
    while subprocess.run(program, capture_output=True).returncode == 1:
        pass  # a run of the killed study may still be under way, and is left alone
    assert called(*words, "--out", tmp_path / "whole")[0] == 0
    tables = [(tmp_path / name / "results" / "values.csv").read_text() for name in ("killed", "whole")]
    assert tables[0] == tables[1] and len(tables[0].splitlines()) == 9


# The studies that the repository has.


def is_built(study: Study, wanted: Wanted) -> bool:
    """Whether the method and its options are there."""
    said = str(study.asked.methods[wanted.method].set)
    can_correct = "aggregation" in registry.options("method", "fedhm").model_fields
    return ("fedrolex" not in said or registry.is_known("method", "fedrolex")) and ("delta" not in said or can_correct)


STUDIES = sorted((Path(__file__).parents[2] / "configs" / "studies").glob("*.yaml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_of_the_repository_can_be_run_and_decided(path: Path, tmp_path: Path) -> None:
    """Every run has a valid config, seeds suffice for the tests, and all methods have one seed's partition."""
    study = read(path)
    assert study.asked.num_tests * 2 / 2 ** len(study.asked.seeds) <= study.asked.alpha
    first = [one for one in [*trials(study), *finals(study, {})] if one.seed in (study.asked.seeds[0], 100)]
    partitions: dict[tuple[str, str], set[str]] = {}
    for wanted in filter(lambda one: is_built(study, one), first):
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
