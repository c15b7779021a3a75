"""Runs of one process, as of a notebook, between which files change on disk."""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_fixtures import refusal
from own_data import arrays_of, folder_of, save_npz

import fedmpi

NET = """
from torch import nn

def net(num_classes, example_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 5), nn.Linear(5, num_classes))
"""
SET = """
import numpy as np

def stored():
    return dict(np.load("mine.npz"))
"""


@pytest.fixture(autouse=True)
def modules(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a folder with the user's modules `nets` and `sets`."""
    monkeypatch.syspath_prepend(str(here))
    Path("nets.py").write_text(NET)
    Path("sets.py").write_text(SET)
    yield
    for name in ("nets", "sets"):
        sys.modules.pop(name, None)


def config(**data: Any) -> fedmpi.Config:
    return fedmpi.load_config(
        rounds=1,
        data=data,
        partition={"name": "iid"},
        model={"name": "nets:net"} if data["name"] != "image_folder" else {"name": "lenet5"},
        method="fedavg",
        clients={"count": 3, "per_round": 3},
        train={"local_epochs": 1, "lr": 0.05},
        output={"report": False, "tensorboard": False},
    )


def write(num_train: int) -> Path:
    arrays = arrays_of("vectors")
    arrays["train_x"], arrays["train_y"] = arrays["train_x"][:num_train], arrays["train_y"][:num_train]
    return save_npz(Path(), **arrays)


def trained(made: fedmpi.Config, name: str) -> fedmpi.Run:
    return fedmpi.run(made, f"runs/{name}", progress=False)


@pytest.mark.parametrize("data", [{"name": "npz", "path": "mine.npz"}, {"name": "sets:stored"}])
@pytest.mark.parametrize("loads_again", [True, False])
def test_the_second_run_trains_on_the_data_of_today(data: dict[str, Any], loads_again: bool) -> None:
    write(30)
    first = config(**data)
    assert sum(trained(first, "first").partition().sizes) == 30
    write(24)
    second = config(**data) if loads_again else first
    assert fedmpi.plan(second).tiers[0].training_examples == 8
    assert sum(trained(second, "second").partition().sizes) == 24


def test_pictures_that_came_between_two_runs_are_seen() -> None:
    data = {"name": "image_folder", "path": "pictures", "test_share": 0.5, "size": [28, 28]}
    folder_of(Path("pictures"), {".": {"a": 6, "b": 6}})
    assert fedmpi.plan(config(**data)).tiers[0].training_examples == 2
    folder_of(Path("pictures"), {".": {"c": 6}})
    assert fedmpi.plan(config(**data)).tiers[0].training_examples == 3


@pytest.mark.parametrize("change", ["rewritten", "gone"])
def test_what_is_told_of_a_finished_run_is_of_its_records(change: str) -> None:
    path = write(30)
    run = trained(config(name="npz", path="mine.npz"), "run")
    path.unlink() if change == "gone" else write(24)
    opened = fedmpi.open_run("runs/run", model={"name": "nets:net"})
    assert (opened.scores, opened.rounds(), repr(opened)) == (run.scores, run.rounds(), repr(run))
    assert opened.config.to_dict() == run.config.to_dict()
    for read in (opened.partition, opened.net):
        assert "mine.npz" in refusal(read)


def noted(run: fedmpi.Run) -> str:
    return str(json.loads((run.path / "manifest.json").read_text())["starts"][-1]["brought"]["model"]["digest"])


def digest(name: str) -> str:
    return blake2b(Path(name).read_bytes(), digest_size=16).hexdigest()


def test_the_manifest_has_the_digest_of_what_ran(capsys: pytest.CaptureFixture[str]) -> None:
    """The warning's advice, as it is written, loads what the file has now."""
    write(30)
    data = {"name": "npz", "path": "mine.npz"}
    first = trained(config(**data), "first")
    before = digest("nets.py")
    assert noted(first) == before and capsys.readouterr().err == ""
    Path("nets.py").write_text(NET.replace("5", "6"))
    os.utime("nets.py", (0, 0))  # Python takes a compiled file of the same second for the new one's
    assert noted(trained(config(**data), "second")) == before
    said = " ".join(capsys.readouterr().err.split())
    assert "source of nets" in said and "has changed since this process has loaded it" in said
    importlib.invalidate_caches()
    sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode
    exec(said.partition(", or: ")[2], {})
    sys.dont_write_bytecode = kept
    third = trained(config(**data), "third")
    assert noted(third) == digest("nets.py") != before and capsys.readouterr().err == ""
    assert third.net()[1].out_features == 6


def test_a_plan_sees_an_array_that_was_replaced() -> None:
    """By a file of the same size, too."""
    write(30)
    arrays = dict(np.load("mine.npz"))
    made = config(name="npz", path="mine.npz")
    assert len(fedmpi.plan(made).tiers) == 1
    np.savez("mine.npz", **{**arrays, "train_x": arrays["train_x"] * np.nan})
    assert "no finite numbers" in refusal(fedmpi.plan, made)
