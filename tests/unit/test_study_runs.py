"""Small studies that are really made, and what a change, a failure, damage or a kill does to them."""

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asked_studies import BETTER, FILE, WORSE, Ended, final_runs, made, runs_in_this_process, study_of
from small_runs import small_config
from studied_runs import Called, calling

from fedmpi import methods
from fedmpi.config import yaml_text
from fedmpi.config.schema import Config
from fedmpi.errors import RunDirError
from fedmpi.results import archive as kept
from fedmpi.results import grid as conduct
from fedmpi.results import making
from fedmpi.results.archive import initial_digest
from fedmpi.results.grid_file import Study, read
from fedmpi.results.grid_runs import finals, jobs_of, trials
from fedmpi.rounds.state import draw_cohort
from fedmpi.running import start
from fedmpi.store import manifest


@pytest.mark.parametrize("method", ["fedhm", "heterofl", "fedprox", "scaffold", "topk", "hermes", "prism", "origdrop"])
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
    monkeypatch.setattr(making, "_PACKAGE", tmp_path / "no_checkout")


runs_here = runs_in_this_process
called = calling(conduct.main)
SHORT = {"settings": None, "questions": [{**FILE["questions"][0], "settings": []}], "seeds": [0, 1],
         "set": {"evaluation": {"every": 2}}}  # fmt: skip


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
    drawn = {f"all-{what}.svg" for what in ("curves", "differences", "energy")}
    assert {"report.md", "values.csv", "records.json.gz", *drawn} == set(first)
    assert "initial values" in first["report.md"].decode()

    assert called(*words, "--run")[0] == 0 and len(runs_here) == 8
    assert "final runs: 4 of 4" in called(*words, "--status")[1]
    before = (out / "choices.json").read_text()
    swapped = before.replace('"trial": 0', "?").replace('"trial": 1', '"trial": 0').replace("?", '"trial": 1')
    for odd in (swapped, before.replace('"trial": ', '"trial": 7'), before.replace('"trial"', '"trail"')):
        (out / "choices.json").write_text(odd)
        code, _, error = called(*words, "--report")
        assert code == 2 and "choices.json" in error
    (out / "choices.json").write_text(before)
    out.rename(tmp_path / "elsewhere")
    assert called(*words, "--report")[0] == 0
    assert {path.name: path.read_bytes() for path in results.iterdir()} == first, "from the records alone, to the byte"

    study.path.write_text(study.path.read_text().replace("Two rates", "Three rates"))
    for does in ("--run", "--report", "--status"):
        code, _, error = called(*words, does)
        assert code == 2 and str(study.path) in error and study.digest[:12] in error
        assert "(8 such runs)" in error, "known by their records alone"
    (tmp_path / "elsewhere").rename(out)
    note = next(out.glob("*.study.json"))
    note.write_text(note.read_text().replace(study.digest, read(study.path).digest))
    assert "(8 such runs)" in called(*words, "--status")[2], "each counts once, and a note hides no record"
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


def test_records_do_not_say_where_the_data_are(tmp_path: Path, runs_here: list[Sequence[str]]) -> None:
    study = study_of(tmp_path, **SHORT)
    ((wanted, job),) = jobs_of(study, trials(study)[:1], tmp_path / "out")
    list(making.make(study, [job], 1))
    elsewhere, note = replace(job, overrides=(*job.overrides, 'data.root="/home/me"')), making.note_of(job.run)
    assert note is not None
    assert tuple(kept.keep(wanted, elsewhere, note, all_diagnostics=False).overrides) == job.overrides


def test_a_config_that_changed_after_a_run_is_refused(
    tmp_path: Path, called: Called, runs_here: list[Sequence[str]]
) -> None:
    """The study's file is the same, but not what its runs begin from: known by folder, by note and by record."""
    study = study_of(tmp_path, **SHORT)
    words = [study.path, "--out", tmp_path / "out", "--results", tmp_path / "results"]
    ((_, job),) = jobs_of(study, trials(study)[:1], tmp_path / "out")
    list(making.make(study, [job], 1))
    assert called(*words, "--report")[0] == 0
    for changed in ("rounds: 2", "batch_size: "):
        base = (tmp_path / "base.yaml").read_text()
        (tmp_path / "base.yaml").write_text(base.replace(changed, f"{changed}1"))
        for gone in ("", "config.yaml", "*.study.json"):
            for path in (tmp_path / "out").rglob(gone) if gone else ():
                path.rename(tmp_path / f"{changed[:5]}-{path.name}")
            code, _, error = called(*words, "--run")
            assert code == 2 and "tuning-all-avg-trial0-seed100" in error and "another config" in error, (changed, gone)
            assert len(error.splitlines()) == 1
        (tmp_path / "base.yaml").write_text(base)
    assert len(runs_here) == 1


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


def study_of_own_code(folder: Path) -> Study:
    own = {"set": {"method": {"name": "study_code:Own"}}, "grid": FILE["methods"]["avg"]["grid"]}
    return study_of(folder, **SHORT, methods={"hm": own, "avg": FILE["methods"]["avg"]})


def test_code_that_is_not_committed_makes_no_run(
    tmp_path: Path, called: Called, runs_here: list[Sequence[str]], own_code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of fedmpi's or of the user's; other files may have changes."""
    study, package = study_of_own_code(tmp_path), tmp_path / "package"
    module, text = package / "__init__.py", package / "README.md"
    package.mkdir()
    for path in (module, text):
        path.write_text("first\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "A study and its code")
    monkeypatch.setattr(making, "_PACKAGE", package)
    words = [study.path, "--run", "--out", tmp_path / "out"]
    for changed, named in ((module, package), (own_code, own_code)):
        before = changed.read_text()
        changed.write_text(before + "# more\n")
        code, _, error = called(*words)
        assert code == 2 and str(named) in error and "not committed" in error and len(error.splitlines()) == 1
        changed.write_text(before)
    assert not runs_here
    text.write_text("second\n")
    assert called(*words)[0] == 0 and len(runs_here) == 8
    module.write_text("second\n")
    assert called(*words)[0] == 0, "no run is left"


def test_own_code_that_changed_after_a_run_is_refused(
    tmp_path: Path, called: Called, runs_here: list[Sequence[str]], own_code: Path
) -> None:
    """Known by a run's folder, also before it is finished, and by its record. What is not known is no change."""
    study = study_of_own_code(tmp_path)
    words = [study.path, "--out", tmp_path / "out", "--results", tmp_path / "results"]
    ((_, job),) = jobs_of(study, trials(study)[:1], tmp_path / "out")
    list(making.make(study, [job], 1))

    def refused(does: str) -> bool:
        code, _, error = called(*words, does)
        if code:
            assert code == 2 and len(error.splitlines()) == 1 and "method study_code:Own" in error, error
            assert job.run.folder.path.name in error and "(1 such run)" in error, error
        return code != 0

    own_code.write_text(OWN_METHOD + "# more\n")
    assert refused("--run") and refused("--report") and refused("--status") and len(runs_here) == 1
    own_code.write_text(OWN_METHOD)
    assert not refused("--report")
    (tmp_path / "out").rename(tmp_path / "gone")
    own_code.write_text(OWN_METHOD + "# more\n")
    assert refused("--run") and refused("--report") and len(runs_here) == 1
    digest, choices, (run,) = kept.read(tmp_path / "results")
    old = {key: value for key, value in run.made_with.items() if key != "brought"}
    kept.write(tmp_path / "results", digest, choices, [replace(run, made_with=old)])
    assert run.made_with != old and not refused("--report")


def test_a_file_that_is_not_committed_is_not_run(
    tmp_path: Path, called: Called, runs_here: list[Sequence[str]]
) -> None:
    study = study_of(tmp_path, **SHORT)
    words = [study.path, "--run", "--out", tmp_path / "out"]

    git(tmp_path, "init")
    assert called(*words)[0] == 2
    git(tmp_path, "add", study.path.name)
    code, _, error = called(*words)
    assert code == 2 and str(study.path) in error and "commit it" in error and not runs_here
    git(tmp_path, "commit", "-m", "A study")
    assert called(*words)[0] == 0 and len(runs_here) == 8
    commit = manifest.git(tmp_path, "rev-parse", "HEAD")
    assert f"commit {commit}" in (tmp_path / "out" / "results" / "report.md").read_text()


@pytest.mark.parametrize("count", [1, 4, 6])
def test_records_alone_continue_a_study_elsewhere(
    tmp_path: Path, called: Called, runs_here: list[Sequence[str]], count: int
) -> None:
    """After one trial, after all, and among the final runs: another clone makes the rest, and the same tables."""
    study = study_of(tmp_path, **SHORT)
    here = [study.path, "--out", tmp_path / "here", "--results", tmp_path / "results"]
    elsewhere = [study.path, "--out", tmp_path / "elsewhere", "--results", tmp_path / "results"]
    assert called(study.path, "--run", "--jobs", 1, "--out", tmp_path / "whole")[0] == 0
    place = conduct.Place(study, tmp_path / "here", tmp_path / "results")
    jobs = [job for _, job in jobs_of(study, trials(study), place.out)]
    list(making.make(study, jobs[:count], 1))
    if count > 4:
        jobs = [job for _, job in jobs_of(study, place.finals(), place.out)]
        list(making.make(study, jobs[: count - 4], 1))
    assert called(*here, "--report")[0] == 0
    (tmp_path / "here").rename(tmp_path / "gone")
    runs_here.clear()
    assert called(*elsewhere, "--run")[0] == 0 and len(runs_here) == 8 - count
    tables = [path / "values.csv" for path in (tmp_path / "results", tmp_path / "whole" / "results")]
    assert tables[0].read_text() == tables[1].read_text()


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


def test_what_runs_warn_of_is_in_the_report_once_for_each_method(tmp_path: Path, called: Called) -> None:
    """An MLP has no norm layers, so HeteroFL's scaler enlarges its layers: by 2, because the smallest tier has half the
    width. The records alone suffice.
    """
    mlp = {"model": {"name": "mlp", "hidden": [8]}}
    scaled = {"set": {"method": {"name": "heterofl", "widths": [1, 0.5]}}}
    for settings, where in (({"one": mlp, "two": mlp}, ""), ({"one": {}, "two": mlp}, "in two, ")):
        study = study_of(tmp_path, settings=settings, tuning=None, seeds=[0, 1],
                         methods={"hm": scaled, "avg": {"set": {"method": {"name": "fedavg"}}}})  # fmt: skip
        jobs = jobs_of(study, finals(study, {}), tmp_path / "out")
        runs = [made(one, 0.9, 0.8, config=making.config_text(job.config)) for one, job in jobs]
        kept.write(tmp_path, study.digest, {}, runs)
        assert called(study.path, "--report", "--out", tmp_path / "out", "--results", tmp_path)[0] == 0
        lines = [line for line in (tmp_path / "report.md").read_text().splitlines() if "enlarges" in line]
        assert len(lines) == 1 and lines[0].startswith(f"- careful: {where}hm: without norm layers"), lines
        assert "2-fold" in lines[0]


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
    text = "from fedmpi.results import grid as c; from pathlib import Path; import sys"
    text += "; c.making._PACKAGE = Path('no_checkout'); sys.exit(c.main())"
    program = [sys.executable, "-c", text, *words, "--out", str(tmp_path / "killed")]
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
