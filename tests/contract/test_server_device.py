"""A run's server computes where it began, on the CPU or on the pretend accelerator, however a resume puts it."""

from pathlib import Path

import pytest
from by_hand import newest
from fast import fast
from pretend import device
from pretend.runs import with_accelerators
from small_runs import finished, run_alone, undisturbed

from fedmpi.check.bits import difference
from fedmpi.errors import StartupError
from fedmpi.store.run_dir import RunDir

pytestmark = pytest.mark.skipif(not device.IS_POSSIBLE, reason="this torch registers devices in C++ only")

WORDS = ("method.name=fedavg", "mpi.device=cuda")


def run(folder: Path, rounds: int, server_device: str) -> bool:
    """Makes the run's rounds up to this one, and says whether its uploads went up to the accelerator."""
    words = (*WORDS, f"rounds={rounds}", f"mpi.server_device={server_device}")
    with with_accelerators(), device.log.kept() as events:
        run_alone(folder, *words, resume=rounds > 1)
    return bool(device.of(events, "up", within="rounds.exchange._receive"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"), fast(("auto", "cuda"), of=[("auto", "cuda"), ("cuda", "auto"), ("cpu", "auto")])
)
def test_a_resume_keeps_it(tmp_path: Path, first: str, then: str) -> None:
    """`auto` is the accelerator here. The checkpoints are those of one run, in the words that it began with."""
    on_it = first != "cpu"
    assert run(tmp_path / "run", 1, first) == on_it and run(tmp_path / "run", 2, then) == on_it
    found = newest(tmp_path / "run")
    assert found.round == 2 and found.versions["server_device"] == ("cuda" if on_it else "cpu")
    assert found.config["mpi"]["server_device"] == first
    folder = RunDir(tmp_path / "run")
    assert [number for number, _ in folder.checkpoints()] == [2, 1]
    expected = undisturbed(tmp_path, *WORDS[:1], "rounds=2", "mpi.device=cpu")
    assert difference(finished(tmp_path / "run"), expected) == ""


@pytest.mark.slow
def test_another_kind_is_refused(tmp_path: Path) -> None:
    for first, then, where, others in (
        ("auto", "cpu", "on a GPU", "cuda or auto"),
        ("cpu", "cuda", "on the CPU", "cpu or auto"),
    ):
        run(tmp_path / first, 1, first)
        with pytest.raises(StartupError, match=f"the server's part {where}.*{others} continues it"):
            run(tmp_path / first, 2, then)
        assert newest(tmp_path / first).round == 1


@pytest.mark.slow
def test_a_gpu_that_is_gone_is_named(tmp_path: Path) -> None:
    """A run whose clients train on the CPU, where there is no accelerator any more."""
    words = (*WORDS[:1], "mpi.device=cpu")
    with with_accelerators():
        run_alone(tmp_path / "run", *words, "rounds=1", "mpi.server_device=cuda")
    with pytest.raises(StartupError, match="^mpi.server_device: .*rank 0 sees none"):
        run_alone(tmp_path / "run", *words, "rounds=2", resume=True)
