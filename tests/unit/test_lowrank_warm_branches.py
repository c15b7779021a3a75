"""A branch of a run with `solver: auto`: its bases fit only the settings that they were made with."""

from pathlib import Path

import pytest
import torch
from small_runs import finished, run_all, small_config

from fedmpi.lowrank.warm import AUDIT, is_of_bases
from fedmpi.mpi.serial import SerialComm
from fedmpi.running.folder import Origin
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import Params

# 16 and 32 channels; at rank ratio 0.5 two of its layers have bases of 32 directions.
WORDS = ("method.name=fedhm", "model.width=0.25", "method.rank_ratio=[1,0.5]", "evaluation.every=9")
AUTO, GRAM = "method.solver=auto", "method.solver=gram"


def run(folder: Path, *words: str, origin: Path | None = None) -> Params:
    """The server's tensors at the end of such a run."""
    run_all(small_config(*words), SerialComm(), folder, origin=origin and Origin(RunDir(origin)))
    return checkpoint.load(RunDir(folder).checkpoints()[0][1]).server


def bases_of(state: Params) -> set[str]:
    return set(filter(is_of_bases, state))


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds, which ends with bases."""
    folder = tmp_path_factory.mktemp("warm") / "parent"
    assert AUDIT in run(folder, *WORDS, AUTO, "rounds=2")
    return folder


@pytest.mark.parametrize("change", ["rank_ratio=[1,0.6,0.25]", "dense_layers=0", "unroll=code"])
def test_a_branch_with_other_settings_begins_without_bases(parent: Path, tmp_path: Path, change: str) -> None:
    """So its first round has the very weights that `gram` comes to, and then it has bases of its own."""
    words = (*WORDS, f"method.{change}", "rounds=3")
    auto, gram = (run(tmp_path / solver, *words, solver, origin=parent) for solver in (AUTO, GRAM))
    assert bases_of(auto) and not bases_of(gram)
    for name in gram:
        assert torch.equal(auto[name], gram[name]), name


def test_the_bases_end_with_the_solver(parent: Path, tmp_path: Path) -> None:
    """So a branch of that one, with `auto` again, finds none that are old."""
    assert not bases_of(run(tmp_path / "gram", *WORDS, GRAM, "rounds=3", origin=parent))


def test_a_branch_with_the_same_method_keeps_them(parent: Path, tmp_path: Path) -> None:
    """Bits as if it had never ended."""
    run(tmp_path / "branch", *WORDS, AUTO, "rounds=3", origin=parent)
    run(tmp_path / "whole", *WORDS, AUTO, "rounds=3")
    assert finished(tmp_path / "branch").server == finished(tmp_path / "whole").server
