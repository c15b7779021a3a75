"""Nets that users bring: what clients can train one after another, and what is refused, by the module's name."""

import random
import re
from pathlib import Path

import brought_nets
import numpy as np
import pytest
import torch
from small_runs import run_alone, small_config, small_setup, undisturbed

from fedmpi.check.contract import BrokenError
from fedmpi.check.things import takes_the_data
from fedmpi.errors import StartupError
from fedmpi.models import create
from fedmpi.running.forecast import forecast
from fedmpi.running.remarks import equal_tiers, remarks
from fedmpi.running.start import check_nets


def brought(part: str) -> tuple[str, str]:
    return "model.name=brought_nets:BroughtOptions", f"model.part={part}"


@pytest.mark.parametrize("part", ["counter", "gradients"])
def test_a_net_that_keeps_something_is_refused(tmp_path: Path, part: str) -> None:
    """In one line, by `fedmpi check` and by a run before it has a folder; by a plan with all others of its kind, in
    test_users_nets.py. `mpi/test_drawn_nets.py` has the three agree."""
    with pytest.raises(StartupError) as caught:
        run_alone(tmp_path / "run", "rounds=1", "method.name=fedavg", *brought(part))
    text = caught.value.text()
    assert brought_nets.REFUSED[part][1] in text and "\n" not in text and text.startswith("model.name")
    assert caught.value.exit_code == 2 and not (tmp_path / "run").exists()
    with pytest.raises(BrokenError, match=re.escape(brought_nets.REFUSED[part][1])):
        takes_the_data(small_config("method.name=fedavg", *brought(part)))


METHODS = ("fedhm", "heterofl", "fjord", "splitmix", "prism")
FACTORIZE = ("fedhm", "prism", "fdnnc")


@pytest.mark.parametrize(
    ("part", "method"),
    [
        *((part, "fedavg") for part in brought_nets.ALLOWED),
        *(("positions", method) for method in METHODS),
        *(("weight-norm", method) for method in FACTORIZE),
    ],
)
def test_a_net_that_keeps_nothing_trains(tmp_path: Path, part: str, method: str) -> None:
    """Constant buffers go with every method; FjORD computes with nets of several widths within one; what torch's old
    weight norm computes cannot be copied."""
    assert undisturbed(tmp_path, "rounds=1", f"method.name={method}", *brought(part)).records


@pytest.mark.parametrize("method", ["heterofl", "fedhm"])
def test_the_check_leaves_nothing_behind(tmp_path: Path, method: str) -> None:
    """Generators, buffers, modules and client memories are as before; a second check gives the same digest."""
    setup = small_setup(tmp_path, f"method.name={method}")

    def state() -> list[object]:
        numpy = np.random.get_state()
        flat = [trainer.net.copy_of_parameters().sum().item() for trainer in setup.trainers]
        modules = [part for trainer in setup.trainers for part in trainer.net.module.modules()]
        modes = [(part.training, len(part._forward_hooks)) for part in modules]
        return [torch.get_rng_state().tolist(), random.getstate(), numpy[1].tolist(), numpy[2], flat, modes]

    before, files = state(), sorted(tmp_path.rglob("*"))
    assert check_nets(setup) == () and state() == before and sorted(tmp_path.rglob("*")) == files


def test_converted_layers_are_said() -> None:
    """Of torchvision's nets as of any; fedmpi's own have nothing to convert."""
    resnet = "model.name=torchvision:resnet18", "data.shape=[3,32,32]"
    for words, expected in ((resnet, "20 BatchNorm2d"), (brought("instance-norm"), "1 InstanceNorm2d"), ((), "")):
        config = small_config("method.name=fedavg", *words)
        said = create.conversions(config.model, config.data.info())
        assert [expected in line for line in said] == [True] * bool(expected)
        assert not list(create.skeleton(config.model, config.data.info()).buffers())


@pytest.mark.parametrize("method", ["heterofl", "fjord"])
def test_a_net_that_ignores_its_width_is_told(tmp_path: Path, method: str) -> None:
    """In the plan and at the start; the same net that follows its width is fine."""
    words = f"method.name={method}", *brought("dropout")
    setup = small_setup(tmp_path, *words, "model.follows_width=false")
    said = remarks(setup.config, setup.data.info, setup.method, 1, None, None)
    assert {*said} <= {*forecast(setup.config, 1).warnings}
    assert any("no smaller at these capacities" in line for line in said) and sum("tier" in line for line in said) <= 1
    assert not [line for line in equal_tiers(small_setup(tmp_path, *words).method) if "whole" in line]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("heterofl model.follows_width=false", "tiers 1, 0.5, 0.25, 0.125 have the whole net of"),
        ("heterofl method.widths=[0.5] model.follows_width=false", "tier 0.5 has the whole net of"),
        ("heterofl method.widths=[1,0.52,0.5]", "tiers 0.52, 0.5 have one and the same net of"),
        ("splitmix method.levels=[1,0.9] method.atom=0.25", "tiers 1, 0.9 have one and the same"),
        ("fedhm", "tiers 1, 0.5, 0.25, 0.125 have the whole net of"),
        ("fdnnc method.rank_ratio=0.9", "tiers big, small have the whole net of"),
        ("heterofl", ""),
        ("fedavg", ""),
        ("fedhm method.rank_ratio=[1]", ""),
    ],
)
def test_equal_tiers_are_told(tmp_path: Path, words: str, expected: str) -> None:
    """One line for each net that tiers share."""
    said = equal_tiers(small_setup(tmp_path, *brought("dropout"), *f"method.name={words}".split()).method)
    assert [line[: len(expected)] for line in said] == ([expected] if expected else [])
