"""tests/examples/fedavgm.py, the example of fedmpi/methods/README.md, is a complete method: it runs, and is right."""

from pathlib import Path

import pytest
import torch
from by_hand import after
from small_runs import small_setup

from fedmpi.methods.protocol import Method

NAME = "method.name=fedavgm:FedAvgM"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "examples")


def test_the_first_round_is_fedavg_and_the_velocity_what_it_changed(tmp_path: Path) -> None:
    """v = 0.9 * 0 + (mean - theta), theta + v = mean up to two float32 roundings."""
    ours = after(tmp_path / "ours", NAME, "rounds=1").server
    mean = after(tmp_path / "fedavg", "method.name=fedavg", "rounds=1").server
    start = small_setup(tmp_path / "start", "method.name=fedavg").method.initial_state()
    for name, value in mean.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=2**-22 * float(value.abs().max()))
        assert torch.equal(ours[f"velocity.{name}"], value - start[name])


def test_later_rounds_have_momentum(tmp_path: Path) -> None:
    states = [after(tmp_path / beta, NAME, f"method.beta={beta}", "rounds=2").server for beta in ("0", "0.9")]
    assert not torch.equal(states[0]["fc.weight"], states[1]["fc.weight"])


def test_a_method_has_32_hooks_at_most() -> None:
    """What it may override of the protocol and of its options; not counted is what an instance is given or derives."""
    derived = {"Options", "options", "layers", "keeps_memory", "late_nets", "model_specs", "tier_specs"}
    members = {name for name in {*dir(Method), *Method.__annotations__} if not name.startswith("_")} - derived
    hooks = [*members, "options.capacity", "options.tier_blocks"]
    assert len(hooks) <= 32, sorted(hooks)
