"""Whole runs on a real GPU: the same bits whatever the exchange, and after a resume."""

from pathlib import Path

import pytest
from fast import fast
from method_cases import CASES
from small_runs import run_alone, undisturbed

from fedmpi.check.bits import difference

pytestmark = pytest.mark.gpu("runs on it")

ON_IT = ("mpi.device=cuda", "mpi.server_device=cuda")
# Batches of 4 of some 15 examples: whole ones, and a smaller one.
WORDS = ("rounds=2", "train.batch_size=4", *ON_IT)


@pytest.fixture(autouse=True)
def deterministic_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command sets before CUDA starts."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.mark.parametrize("case", fast("fedavg", "fedhm", "hermes", "prism", "scaffold", "topk", of=CASES))
def test_every_method_keeps_its_bits(tmp_path: Path, case: str) -> None:
    """Two rounds by gather and, resumed, a third by reduce."""
    words = (*CASES[case], *WORDS, "evaluation.personal=on")
    expected = undisturbed(tmp_path, *words, "rounds=3", "mpi.exchange=gather")
    run_alone(tmp_path / "run", *words, "mpi.exchange=gather")
    resumed = run_alone(tmp_path / "run", *words, "rounds=3", "mpi.exchange=reduce", resume=True)
    assert difference(resumed, expected) == ""
