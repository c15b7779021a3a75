"""What is said of an MPI and the memory of GPUs."""

from types import SimpleNamespace

import pytest
from golden_file import Told

from fedmpi.mpi import gpu_aware

ASKED = {
    "yes": (SimpleNamespace(MPIX_Query_cuda_support=lambda: 1), {}),
    "no": (SimpleNamespace(MPIX_Query_cuda_support=lambda: 0), {"MV2_USE_CUDA": "1"}),
    "told to be": (SimpleNamespace(), {"MPICH_GPU_SUPPORT_ENABLED": "1"}),
    "silent": (SimpleNamespace(), {}),
}


def test_what_is_said(told: Told) -> None:
    for library, environment in ASKED.values():
        told(gpu_aware.answer(library, environment))


def test_nothing_is_said_without_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_aware, "loaded_library", lambda: "")
    assert gpu_aware.notes() == ()
