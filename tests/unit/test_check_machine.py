"""`fedmpi check` of a machine: each finding on inputs made by hand, and the whole page alone and on 2 ranks."""

import errno
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from golden_file import Told
from launched import command, environment

from fedmpi.check import __main__ as command_of_check
from fedmpi.check import machine
from fedmpi.check.machine import Finding, Seen
from fedmpi.check.small import Finished
from fedmpi.mpi.communicator import SerialComm
from fedmpi.mpi.placement import Gpu

OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution"
MPICH = "MPICH Version: 5.0.2"
ONE = Seen("node1", (0, 1), 8, 0, "CPU", "", {"torch": "2.9", "numpy": "2.1"}, OPEN_MPI)
OTHER = replace(ONE, host="node2")


def states(found: Sequence[Finding]) -> list[str]:
    return [each.state for each in found]


def test_versions_that_differ() -> None:
    assert machine.software([ONE, OTHER]).state == "ok"
    found = machine.software([ONE, replace(OTHER, versions={"torch": "2.7", "numpy": "2.1"})])
    assert found.state == "warning" and "torch 2.9 and 2.7" in found.found and "node2" in found.found


def test_libraries() -> None:
    found = [machine.mpi(seen) for seen in ([ONE], [replace(ONE, library="")], [ONE, replace(ONE, library=MPICH)])]
    assert states(found) == ["ok", "warning", "problem"] and found[0].found == f"1 rank by {OPEN_MPI}"


def test_more_ranks_than_cores() -> None:
    """Cores are counted once, however many ranks may use them."""
    assert machine.cores([ONE, ONE, OTHER]).state == "ok"
    found = machine.cores([ONE, ONE, ONE, OTHER])
    assert found.state == "warning" and "node1: 3 ranks on 2 cores; node2: 1 rank on 2 cores" in found.found
    bound = [replace(ONE, cpus=(0,)), replace(ONE, cpus=(1,)), replace(ONE, cpus=(5,))]
    assert machine.cores(bound).state == "ok"
    assert machine.cores([ONE], threads=2).state == "ok"
    assert "node1: 1 rank of 3 threads on 2 cores" in machine.cores([ONE], threads=3).found
    one_core = replace(ONE, physical_cores=1)  # of two hardware threads
    assert machine.cores([one_core, one_core]).state == "warning"


def test_gpus(told: Told) -> None:
    with_gpu = replace(ONE, num_gpus=1, device="cuda:0 (V100)")
    assert states([machine.gpus([ONE], has_driver=False), machine.gpus([ONE], has_driver=True)]) == ["ok", "warning"]
    assert machine.gpus([ONE, with_gpu], has_driver=True).state == "ok"  # the server needs none
    found = machine.gpus([with_gpu, with_gpu, OTHER], has_driver=True)
    assert found.state == "warning"
    told(found.found)


def test_a_torch_without_the_gpus_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.placement, "visible_gpus", lambda: (Gpu("V100", 70),))
    monkeypatch.setattr(machine.torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90", "compute_90"])
    found = machine.gpus(machine.see(SerialComm()), has_driver=True)
    assert found.state == "problem" and "sm_70" in found.found
    monkeypatch.setattr(machine.torch.cuda, "get_arch_list", lambda: ["sm_70"])
    assert machine.gpus(machine.see(SerialComm()), has_driver=True).state == "ok"


class TwoHosts(SerialComm):
    """Rank 0's view of a job whose other rank answers for itself."""

    def __init__(self, answers: list[str]) -> None:
        super().__init__()
        self._answers = answers

    def allgather_object(self, text: str) -> list[str]:
        return [text, self._answers.pop(0)]


@pytest.mark.parametrize(
    ("other", "state", "said"), [("", "ok", "2.15 GB free"), ("node2", "warning", "seen on node2")]
)
def test_run_folders(other: str, state: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left there, and a folder that does not exist yet is not made."""
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**31))
    found = machine.run_folder(tmp_path / "runs" / "new", TwoHosts([other]))
    assert found.state == state and said in found.found
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write into every folder, so the refusal is made by hand."""

    def refuse(**options: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(machine.tempfile, "TemporaryDirectory", refuse)
    found = machine.run_folder(tmp_path, SerialComm())
    assert found.state == "problem" and f"{tmp_path} cannot be written: Permission denied" in found.found


def test_bits_that_differ() -> None:
    one, other = Finished("a", {}, []), Finished("b", {}, [])
    found = [machine.compared(one, one, 3, 0.1), machine.compared(one, other, 3, 0.1)]
    assert states(found) == ["ok", "problem"] and "server state" in found[1].found


def test_a_line_of_the_page(told: Told) -> None:
    """80 columns; what others have written does not reach the terminal as it is."""
    found = Finding("warning", "many words " * 20 + "\x1b[2J", "ask for more " * 10).line("cores")
    assert all(len(line) <= 80 for line in found.splitlines()) and "\x1b" not in found
    told(found)
    assert "-> ask for more" in found


def test_the_end_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    mild = [("a", Finding("ok", "x")), ("b", Finding("warning", "x", "y"))]
    assert machine.show_page(mild, is_silent=False) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ready: 0 problems, 1 warning"
    assert machine.show_page([*mild, ("c", Finding("problem", "x", "y"))], is_silent=True) == 1
    assert capsys.readouterr().out == ""


def test_ranks_that_do_not_find_each_other(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """srun without what MPI needs: rank 0 prints a page with one problem."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):  # pytest may be part of an MPI job
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert command_of_check.main([]) == 1
    assert "problem  mpi" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_page(ranks: int, tmp_path: Path) -> None:
    """The exit code is 0 unless something is wrong with this machine."""
    words = command(ranks, f"output.dir={tmp_path}", program=("-m", "fedmpi.check"))
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=600, check=False)
    found = re.findall(r"^(ok|warning|problem) +(\w+(?: \w+)?)(?:  |$)", done.stdout, re.MULTILINE)
    assert [name for _, name in found] == ["software", "mpi", "cores", "gpus", "run folder", "same bits"], done.stderr
    assert {state for state, name in found if name in ("mpi", "run folder", "same bits")} == {"ok"}
    assert done.returncode == any(state == "problem" for state, _ in found)
