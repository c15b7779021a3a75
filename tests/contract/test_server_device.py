"""A run that began where ranks have accelerators and continues where they have none."""

from pathlib import Path

import pytest
from by_hand import newest
from launched import unfolded
from pretend import device
from pretend.runs import with_accelerators
from small_runs import finished, run_alone, undisturbed

from fedmpi.check.bits import difference

pytestmark = pytest.mark.skipif(not device.IS_POSSIBLE, reason="this torch registers devices in C++ only")


@pytest.mark.slow
def test_a_resume_on_another_kind_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The pretend accelerator has the CPU's bits, so the run is that of the CPU all the same."""
    words = ("method.name=fedavg", "mpi.device=auto")
    with with_accelerators(), device.log.kept() as events:
        run_alone(tmp_path / "run", *words, "rounds=1")
    assert device.of(events, "up", within="rounds.exchange._receive_all_but")
    assert newest(tmp_path / "run").versions["server_device"] == "cuda"
    capfd.readouterr()
    run_alone(tmp_path / "run", *words, "rounds=2", resume=True)
    said = unfolded(capfd.readouterr().err)
    assert "begun with device cuda, now cpu; server_device cuda, now cpu: bits may differ from now on" in said
    assert difference(finished(tmp_path / "run"), undisturbed(tmp_path, *words, "rounds=2")) == ""
