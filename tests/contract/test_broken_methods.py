"""A user's method that does not keep to the protocol: a failure that names the place, or one line before the run."""

import re
from pathlib import Path

import pytest
from small_runs import finished, one_round, run_alone, small_setup, undisturbed

from fedmpi.check import __main__ as check
from fedmpi.check.bits import difference
from fedmpi.errors import ConfigError, RoundError, StartupError
from fedmpi.main import main
from fedmpi.rounds.state import ServerState


@pytest.mark.parametrize(
    ("name", "stage", "odd"),
    [
        ("SendsLess", "local_training", "fc.bias as float32 [1], expected float32 [4]"),
        ("SendsOtherShapes", "local_training", "fc.bias as float32 [4], expected float32 [3]"),
        ("LiftsLess", "aggregation", "fc.bias as [1], expected [4]"),
        ("LiftsMore", "aggregation", "fc.more"),
    ],
)
@pytest.mark.parametrize("exchange", ["gather", "reduce"])
def test_what_does_not_fit_is_a_failure_with_its_place(
    name: str, stage: str, odd: str, exchange: str, tmp_path: Path
) -> None:
    setup = small_setup(tmp_path, f"method.name=broken_methods:{name}", f"mpi.exchange={exchange}")
    with pytest.raises(RoundError) as caught:
        one_round(setup, 1, ServerState(setup.method.initial_state()))
    assert re.fullmatch(rf"round 1, client \d+, stage {stage}", caught.value.where)
    cause = caught.value.__cause__
    assert isinstance(cause, ConfigError) and cause.where == "method.name"
    (line,) = cause.problems
    assert f"broken_methods:{name}" in line and odd in line


@pytest.mark.parametrize("exchange", ["gather", "reduce"])
def test_numbers_of_numpy_and_torch_are_reported_as_python_s(exchange: str, tmp_path: Path) -> None:
    run_alone(tmp_path, "method.name=brought_things:OtherNumbers", f"mpi.exchange={exchange}", "rounds=2")
    assert difference(finished(tmp_path), undisturbed(tmp_path, "method.name=fedavg", "rounds=2")) == ""


def test_a_report_that_does_not_fit_names_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmpi.rounds.exchange._REPORT_BYTES", 8)
    setup = small_setup(tmp_path, "method.name=fedavg", "mpi.exchange=gather")
    with pytest.raises(RoundError) as caught:
        one_round(setup, 1, ServerState(setup.method.initial_state()))
    assert re.match(r"client \d+: a report takes at most 8 bytes", str(caught.value.__cause__))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("HasNoOptions", "HasNoOptions"),
        ("HasOtherOptions", "HasOtherOptions"),
        ("HasNoCapacity", "HasNoCapacity"),
        ("Misspelled", "Misspelled"),
        ("CannotBeMade", r"CannotBeMade.*not today \(.*broken_methods.py:\d+\)"),
        ("ListsItsLayers", "ListsItsLayers.*`layers`.*tuple"),
    ],
)
def test_a_class_that_is_no_method_is_one_line(
    tmp_path: Path, name: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the first round."""
    with pytest.raises((ConfigError, StartupError), match=f"(?s)method.name.*{expected}") as caught:
        small_setup(tmp_path, f"method.name=broken_methods:{name}")
    assert len(caught.value.text().splitlines()) == 1
    assert check.main([f"broken_methods:{name}", "--kind", "method"]) == 2
    told = capsys.readouterr().err
    assert name in told and "Traceback" not in told


def test_a_module_that_exits_when_it_loads_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command's exit code would else be the module's."""
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["method.name=leaving:Mine"]) == 2
    said = capsys.readouterr().err
    assert "SystemExit: 0" in said and len(said.splitlines()) == 1
