"""What bits depend on beside config and data: compared between ranks, and between the starts of a run."""

from collections.abc import Sequence

import pytest

from fedmpi.mpi.communicator import SerialComm
from fedmpi.mpi.placement import Device
from fedmpi.running import made_with, start

CPU = Device("cpu", "cpu", "CPU")


def test_what_is_compared_is_known_here() -> None:
    found = made_with.computed_with("cpu", "cpu", CPU)
    assert {*made_with.COMPARED} - found.keys() <= {"gpu", "torchvision", "availability"}
    assert all(found[name] for name in found if name != "environment")
    assert made_with.changes(found, made_with.computed_with("cpu", "cpu", CPU)) == ""


@pytest.mark.parametrize("name", made_with.VARIABLES)
def test_variables_that_choose_kernels_are_said(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name, raising=False)
    before = made_with.computed_with("cpu", "cpu", CPU)
    monkeypatch.setenv(name, "SOMETHING")
    line = made_with.changes(before, made_with.computed_with("cpu", "cpu", CPU))
    assert f"{name}=SOMETHING" in line and "\n" not in line


def test_another_instruction_set_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    before = made_with.computed_with("cpu", "cpu", CPU)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "ALTIVEC")
    line = made_with.changes(before, made_with.computed_with("cpu", "cpu", CPU))
    assert "(ALTIVEC)" in line and before["cpu"] in line


def test_all_changes_are_one_line() -> None:
    then = {"torch": "2.4", "numpy": "2.0", "python": "3.11", "h5py": "1", "device": "cpu", "cpu": "\x1b[31m\n"}
    now = {"torch": "2.5", "numpy": "2.0", "python": "3.11", "h5py": "2", "device": "cuda", "cpu": "a", "gpu": "b"}
    line = made_with.changes(then, now)
    assert all(word in line for word in ("torch 2.4, now 2.5", "device cpu, now cuda"))
    assert not any(word in line for word in ("numpy", "python", "h5py", "gpu")) and line.isprintable()
    assert "torch" in made_with.changes({"torch": ["no", "text"]}, now)  # a checkpoint may hold anything


class Ranks(SerialComm):
    """Ranks of a host that have these values of `cpu`."""

    def __init__(self, values: Sequence[str | None]) -> None:
        found = [{} if value is None else {"cpu": value} for value in values]
        self.found = [(f"rank {rank} (a)", own) for rank, own in enumerate(found)]
        self.host = "a"

    def allgather_object(self, value: object) -> list[tuple[str, dict[str, str]]]:
        return self.found


def test_the_rarest_come_first() -> None:
    values = made_with.values_of_ranks(Ranks(["x", "x", "y", "x", None, "x"]), {})
    some = "rank 0 (a), rank 1 (a), rank 3 (a) and 1 more"
    assert made_with.differences(values) == {"cpu": f"y on rank 2 (a); x on {some}"}
    for ranks in ("xxyx", "yx"):  # whichever node is first
        assert start._computed_with(Ranks(ranks), ("cpu", "cpu"), CPU) == {"cpu": "x and y"}


@pytest.mark.parametrize("values", [["x"], ["x", "x"], ["x", None], [None, None]])
def test_ranks_that_are_alike(values: Sequence[str | None]) -> None:
    assert made_with.differences(made_with.values_of_ranks(Ranks(values), {})) == {}


def test_the_model_of_a_gpu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that the rank trains on, or that the server computes on; with the libraries that have its kernels."""
    monkeypatch.setattr("torch.cuda.get_device_name", lambda name: {"cuda:0": "V100", "cuda:1": "H100"}[name])
    for device, model in ((Device("cuda:1", "cpu", ""), "H100"), (Device("cpu", "cuda:0", ""), "V100")):
        assert made_with.computed_with("cuda", "cpu", device)["gpu"].startswith(f"{model} (CUDA ")
