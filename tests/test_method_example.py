"""The example in fedmpi/methods/README.md is a complete method: it loads as a config's method, runs, and is right."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from small_runs import SMALL, small_setup

from fedmpi.config.load import load
from fedmpi.experiment import run
from fedmpi.mpi.serial import SerialComm
from fedmpi.run.folder import Asked
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import Params

README = Path(__file__).resolve().parent.parent / "fedmpi" / "methods" / "README.md"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    (code,) = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    module = ModuleType("example")
    sys.modules["example"] = module  # where a config finds it
    exec(compile(code, str(README), "exec", dont_inherit=True), module.__dict__)
    return module


def state_after(example: ModuleType, folder: Path, *overrides: str) -> Params:
    config = load(None, [*SMALL, *overrides])
    run(config, SerialComm(), Asked(str(folder)))
    snapshot = checkpoint.load_newest_intact(RunDir(folder), pytest.fail)
    assert snapshot is not None
    return dict(snapshot.server)


def test_the_first_round_is_fedavg_and_the_velocity_what_it_changed(example: ModuleType, tmp_path: Path) -> None:
    """v = 0.9 * 0 + (mean - theta), theta + v = mean up to two float32 roundings."""
    ours = state_after(example, tmp_path / "ours", "method.name=example:FedAvgM", "rounds=1")
    mean = state_after(example, tmp_path / "fedavg", "method.name=fedavg", "rounds=1")
    start = small_setup(tmp_path / "start", "method.name=fedavg").method.initial_state()
    for name, value in mean.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=2**-22 * float(value.abs().max()))
        assert torch.equal(ours[f"velocity.{name}"], value - start[name])


def test_later_rounds_have_momentum(example: ModuleType, tmp_path: Path) -> None:
    states = [
        state_after(example, tmp_path / b, "method.name=example:FedAvgM", f"method.beta={b}", "rounds=2")
        for b in ("0", "0.9")
    ]
    assert not torch.equal(states[0]["fc.weight"], states[1]["fc.weight"])
