"""A user's method that does not keep to the protocol: a failure that names the place, or one line before the run."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_runs import one_round, small_config, small_setup

from fedmpi.check import __main__ as check
from fedmpi.errors import ConfigError, RoundError, StartupError
from fedmpi.rounds.state import ServerState

RunMain = Callable[..., tuple[int, str, str]]

IN_A_ROUND = {
    "SendsLess": ("local_training", "fc.bias as float32 [1], expected float32 [4]"),
    "SendsMore": ("local_training", "fc.more as float32 [4], expected nothing"),
    "SendsDoubles": ("local_training", "float64"),
    "SendsOtherShapes": ("local_training", "fc.bias as float32 [4], expected float32 [3]"),
    "LiftsLess": ("aggregation", "fc.bias as [1], expected [4]"),
    "LiftsMore": ("aggregation", "fc.more"),
}


@pytest.mark.parametrize("exchange", ["gather", "reduce"])
@pytest.mark.parametrize("name", IN_A_ROUND)
def test_what_does_not_fit_is_a_failure_with_its_place(name: str, exchange: str, tmp_path: Path) -> None:
    place, (stage, odd) = f"broken_methods:{name}", IN_A_ROUND[name]
    setup = small_setup(tmp_path, f"method.name={place}", f"mpi.exchange={exchange}")
    with pytest.raises(RoundError) as caught:
        one_round(setup, 1, ServerState(setup.method.initial_state()))
    assert (caught.value.stage, caught.value.round_number) == (stage, 1) and caught.value.client is not None
    cause = caught.value.__cause__
    assert isinstance(cause, ConfigError) and cause.where == "method.name" and len(cause.problems) == 1
    assert place in cause.problems[0] and odd in cause.problems[0]


@pytest.mark.parametrize("name", ["HasNoOptions", "HasOtherOptions", "HasNoCapacity", "Misspelled"])
def test_a_class_that_is_no_method_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=f"(?s)method.name.*{name}") as caught:
        small_config(f"method.name=broken_methods:{name}")
    assert len(caught.value.text().splitlines()) == 1
    assert check.main([f"broken_methods:{name}", "--kind", "method"]) == 2
    assert name in (told := capsys.readouterr().err) and "Traceback" not in told


def test_a_method_that_cannot_be_made_is_one_line_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = r"\(.*broken_methods.py:\d+\)"
    with pytest.raises(StartupError, match=rf"method.name.*CannotBeMade.*not today {place}") as caught:
        small_setup(tmp_path, "method.name=broken_methods:CannotBeMade")
    assert len(caught.value.problems) == 1
    assert check.main(["broken_methods:CannotBeMade"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_layers_that_are_no_mapping_are_one_line_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"method.name.*ListsItsLayers.*`layers`.*tuple") as caught:
        small_setup(tmp_path, "method.name=broken_methods:ListsItsLayers")
    assert len(caught.value.problems) == 1


def test_a_module_that_exits_when_it_loads_is_a_mistake(tmp_path: Path) -> None:
    """In a process of its own, whose exit code would else be the module's."""
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    words = [sys.executable, "-m", "fedmpi.main", "method.name=leaving:Mine"]
    done = subprocess.run(words, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2 and "SystemExit: 0" in done.stderr and len(done.stderr.splitlines()) == 1
