"""fedmpi from Python: configs, plans, runs, runs that are opened again, and what mistakes are answered with."""

import ast
import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from data_fixtures import refusal
from golden_file import Told
from pydantic import ValidationError
from small_runs import SMALL, finished, undisturbed
from torch import nn

import fedmpi
from fedmpi.check.bits import difference
from fedmpi.command.plan import main as plan
from fedmpi.config.load import load
from fedmpi.data.dataset import load_data
from fedmpi.results.frame import name_of
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir

ROOT = Path(__file__).resolve().parents[2]
FEDHM = {"name": "fedhm", "rank_ratio": [1, 0.5]}
FEDHM_WORDS = ("method.name=fedhm", "method.rank_ratio=[1,0.5]")


def small(**sections: Any) -> fedmpi.Config:
    """The small federation of the other tests, by the library."""
    given = dict(word.split("=", 1) for word in SMALL) | {"output.progress": "plain"}
    renamed = tuple(f"{key}." for key, value in sections.items() if isinstance(value, dict) and "name" in value)
    plain = {key: yaml.safe_load(text) for key, text in given.items() if not key.startswith(renamed)}
    return fedmpi.load_config(None, plain, **sections)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> fedmpi.Run:
    """A finished run of three rounds."""
    return fedmpi.run(small(method=FEDHM), tmp_path_factory.mktemp("library") / "run", progress=False)


def test_importing_fedmpi_loads_nothing_heavy() -> None:
    script = "import sys, fedmpi; dir(fedmpi); print({'torch', 'numpy', 'pydantic', 'mpi4py'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_what_type_checkers_see_is_what_is_loaded() -> None:
    """The table of `__getattr__`, the imports under TYPE_CHECKING, `__all__` and `dir` have the same names."""
    tree = ast.parse((ROOT / "fedmpi/__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    seen = {name.name: node.module for node in imports for name in node.names if node.module != "typing"}
    assert seen == fedmpi._PLACES
    assert sorted(seen) == fedmpi.__all__ and {*seen} <= {*dir(fedmpi)}
    assert all(getattr(fedmpi, name).__module__ == place for name, place in seen.items())
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = fedmpi.no_such_name


def test_values_are_given_by_key_or_by_section(here: Path) -> None:
    """In any folder, by the name of a config that comes with fedmpi; as the words of a command would."""
    words = "rounds=3 train.lr=0.05 train.schedule.milestones=[1,2] method.rank_ratio=[1,0.5] seed=7".split()
    expected = load(ROOT / "configs/fedhm_digits.yaml", words)
    train = {"lr": 0.05, "schedule": {"milestones": (1, 2)}}
    method = {"rank_ratio": np.array([1.0, 0.5])}
    by_section = fedmpi.load_config("fedhm_digits", rounds=3, train=train, method=method, seed=np.int64(7))
    keys = {"train.lr": 0.05, "train.schedule": {"milestones": [1, 2]}, "method.rank_ratio": [1, 0.5]}
    by_key = fedmpi.load_config(Path("fedhm_digits.yaml"), keys, rounds=3, seed=7)
    assert by_section == by_key == expected
    assert fedmpi.load_config() == load(None, [])
    assert fedmpi.load_config("fedavg_digits", method="fedprox").method.name == "fedprox"
    assert fedmpi.load_config("papers/fedhm@cifar10_iid/fedhm").data.name == "cifar10"


def some_net(num_classes: int, example_shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(example_shape), num_classes))


def test_a_plan_has_the_numbers_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in SMALL if not word.startswith("output")]
    found = fedmpi.plan(small(method=FEDHM))
    assert plan([*words, *FEDHM_WORDS, "--json"]) == 0
    assert json.loads(json.dumps(dataclasses.asdict(found))) == json.loads(capsys.readouterr().out)
    assert "per round:" in repr(found) == str(found)
    assert fedmpi.plan(small(method=FEDHM), ranks=3).clients_per_worker == (2, 2)  # 4 clients a round, 2 workers


def test_a_run_has_the_bits_of_the_command(
    made: fedmpi.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And so has a second one in this process, and one in two parts."""
    expected = undisturbed(tmp_path, *FEDHM_WORDS)
    capsys.readouterr()
    assert difference(finished(made.path), expected) == ""
    part = fedmpi.run(small(method=FEDHM, rounds=2), tmp_path / "parts")
    assert (part.state, len(part.records)) == ("finished", 2) and "round 2/2" in capsys.readouterr().out
    again = fedmpi.run(run_dir=tmp_path / "parts", resume=True, progress=False)
    assert (again.config.rounds, again.is_finished) == (2, True)
    whole = fedmpi.run(small(method=FEDHM), tmp_path / "parts", resume=True, progress=False)
    assert difference(finished(whole.path), expected) == "" and capsys.readouterr() == ("", "")
    new = fedmpi.run(small(method=FEDHM, rounds=1), tmp_path / "new", init_from=f"{part.path}@2", progress=False)
    assert new.init_from == "parts@2"


def test_a_net_of_this_program_is_trained_and_read(tmp_path: Path) -> None:
    config = small(model={"name": some_net}, method={"name": "fedavg"}, rounds=1)
    run = fedmpi.run(config, tmp_path / "run", progress=False)
    assert isinstance(run.net(), nn.Sequential)
    assert run.config.model.name == f"{__name__}:some_net"
    with pytest.raises(fedmpi.ConfigError, match="imports? nothing"):
        _ = fedmpi.open_run(run.path).config
    assert fedmpi.open_run(run.path, model={"name": some_net}).scores == run.scores


MISTAKEN_CALLS: list[Callable[[fedmpi.Run, Path], Any]] = [
    lambda run, here: fedmpi.load_config(None, {"train..lr": 1}),
    lambda run, here: fedmpi.load_config(train={"lr": object()}),
    lambda run, here: run.net(),
    lambda run, here: run.net(1, round=9),
    lambda run, here: run.net(client=3),
    lambda run, here: run.rounds("tier"),
    lambda run, here: run.export(here / "no" / "net.pt2", tier=1),
    lambda run, here: run.export(tier=1, client=3),
    lambda run, here: run.figure(tiers=[0.3]),
    lambda run, here: fedmpi.run(small(), run.path),
    lambda run, here: fedmpi.run(small(), run.path, resume=True),
    lambda run, here: fedmpi.run(resume=True),
    lambda run, here: fedmpi.run(small(mpi={"min_ranks": 2}), here / "few"),
    lambda run, here: fedmpi.run(run_dir=here / "new", init_from=here / "none"),
    lambda run, here: fedmpi.open_run(run.path.parent),
    lambda run, here: fedmpi.open_run("x" * 5000),  # no file system has such a name
]


def test_a_mistake_is_one_line(made: fedmpi.Run, tmp_path: Path, told: Told) -> None:
    for call in MISTAKEN_CALLS:
        told(refusal(call, made, tmp_path))
    for argument, call in (("Config", lambda: fedmpi.plan("fedhm_digits")), ("tier", lambda: made.figure(tier="1"))):
        with pytest.raises(ValidationError, match=argument):
            call()


def test_scores_and_rounds_are_those_of_the_records(made: fedmpi.Run) -> None:
    run = fedmpi.open_run(made.path)
    assert run.config.to_dict() == small(method=FEDHM).to_dict() and run.is_finished
    assert {*run.scores} == {"1", "0.5"}
    for name, scores in run.scores.items():
        course = [record["tiers"][name]["accuracy"] for record in run.records]
        assert (scores.last.round, scores.last.accuracy) == (3, course[-1]) and scores.best.accuracy == max(course)
        assert scores.best.round == course.index(max(course)) + 1
    clients, labels = run.partition(), load_data(run.config.data).train_y
    assert clients.classes.shape == (8, 4) and clients.classes.sum() == 120
    assert clients.classes[3].tolist() == np.bincount(labels[clients.client(3)], minlength=4).tolist()
    rows = run.rounds()
    assert [row["round"] for row in rows] == [1, 2, 3] and type(rows[0]["training_macs"]) is int
    for value in (run.config, clients, run.scores["1"].last):
        assert len(repr(value)) < 100 and "\n" not in repr(value)
    assert [row["tiers/0.5/loss"] for row in rows] == [record["tiers"]["0.5"]["loss"] for record in run.records]
    group = ["round", *(f"tiers/{name}/{score}" for name in ("1", "0.5") for score in ("accuracy", "loss"))]
    assert [*run.rounds("tiers")[0]] == group


def test_nets_have_the_accuracy_of_the_scores(made: fedmpi.Run, tmp_path: Path) -> None:
    """Counted in plain torch on the test images, pixel values / 255."""
    dataset, info = load_data(made.config.data), made.config.data.info()
    images = torch.from_numpy(dataset.test_x).permute(0, 3, 1, 2) / 255
    for name, scores in made.scores.items():
        for score, which in ((scores.last, "last"), (scores.last, 3)):
            net = made.net(name, round=which)
            with torch.no_grad():
                found = net((images - torch.tensor(info.mean or 0.0)) / torch.tensor(info.std or 1.0)).argmax(1)
            assert int((found == torch.from_numpy(dataset.test_y)).sum()) == round(48 * score.accuracy)
    assert isinstance(made.net(np.float32(0.5), np.int64(3)), nn.Module)  # numbers of numpy are numbers
    path = made.export(tmp_path / "net.safetensors", tier=0.5, check=True)
    assert int.from_bytes(path.read_bytes()[:8], "little") < path.stat().st_size  # its header's length, not a zip file


def test_clients_nets(tmp_path: Path) -> None:
    run = fedmpi.run(small(method={"name": "lgfedavg"}, rounds=1), tmp_path / "own", progress=False)
    assert isinstance(run.net(client=3), nn.Module)
    score = run.scores["clients"].last
    assert score.accuracy == run.records[-1]["clients"]["accuracy"] and score.loss is None


def test_a_run_is_shown(made: fedmpi.Run) -> None:
    assert "synthetic, 3 of 3 rounds, finished" in repr(made)
    figure = made.figure(tiers=["1", 0.5], x="bytes")
    assert [axes.get_title() for axes in figure.axes if axes.get_visible()] == [name_of("1"), name_of("0.5")]
    assert [len(axes.lines) for axes in made.figure(made).axes if axes.get_visible()] == [1]  # one setting


def test_a_run_that_cannot_be_opened_is_one_line(made: fedmpi.Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("\udcff", errors="surrogateescape")
    assert "config.yaml: " in refusal(fedmpi.open_run, tmp_path)
    (tmp_path / "config.yaml").write_bytes((made.path / "config.yaml").read_bytes())
    with RunLock(RunDir(tmp_path)):
        assert "is running" in refusal(fedmpi.open_run, tmp_path)
        assert fedmpi.open_run(tmp_path, running=True).rounds() == []
    assert fedmpi.open_run(tmp_path).state == "interrupted" and fedmpi.open_run(tmp_path).scores == {}
