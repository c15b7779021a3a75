"""`fedmpi check` of a machine: each finding on inputs made by hand, and the whole page alone and on 2 ranks."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from golden_file import Told
from launched import command, environment

from fedmpi.check import __main__ as command_of_check
from fedmpi.check import findings, machine
from fedmpi.check.findings import Seen
from fedmpi.check.small import Finished
from fedmpi.mpi.communicator import SerialComm
from fedmpi.mpi.placement import Gpu

OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution"
MPICH = "MPICH Version: 5.0.2"
ONE = Seen("node1", (0, 1), 8, 0, "CPU", "", {"torch": "2.9", "numpy": "2.1"}, OPEN_MPI)
OTHER = replace(ONE, host="node2")
NAMES = (
    "software, mpi, launcher, cores, gpus, run folder, locks, atomic rename, free space, time limit, same bits"
).split(", ")


def states(found: Sequence[findings.Finding]) -> list[str]:
    return [each.state for each in found]


# The ranks.


def test_versions_that_differ() -> None:
    assert findings.software([ONE, OTHER]).state == "ok"
    found = findings.software([ONE, replace(OTHER, versions={"torch": "2.7", "numpy": "2.1"})])
    assert found.state == "warning" and "torch 2.9 and 2.7" in found.found and "node2" in found.found


def test_libraries() -> None:
    found = [
        findings.mpi_library(seen) for seen in ([ONE], [replace(ONE, library="")], [ONE, replace(ONE, library=MPICH)])
    ]
    assert states(found) == ["ok", "warning", "problem"]


@pytest.mark.parametrize(
    ("library", "is_launched", "mpirun", "state"),
    [
        (OPEN_MPI, True, "", "ok"),
        (OPEN_MPI, False, "mpirun (Open MPI) 5.0.11", "ok"),
        (MPICH, False, "mpirun (Open MPI) 5.0.11", "problem"),
        ("", False, "mpirun (Open MPI) 5.0.11", "ok"),  # `mpi_library` says that there is none
        (OPEN_MPI, False, "", "warning"),
        (OPEN_MPI, False, "an mpirun of which nothing is known", "ok"),
    ],
)
def test_launchers(library: str, is_launched: bool, mpirun: str, state: str) -> None:
    assert findings.launcher([replace(ONE, library=library)], is_launched, mpirun).state == state


def test_more_ranks_than_cores() -> None:
    """Cores are counted once, however many ranks may use them."""
    assert findings.cores([ONE, ONE, OTHER]).state == "ok"
    found = findings.cores([ONE, ONE, ONE, OTHER])
    assert found.state == "warning" and "node1: 3 ranks on 2 cores; node2: 1 rank on 2 cores" in found.found
    bound = [replace(ONE, cpus=(0,)), replace(ONE, cpus=(1,)), replace(ONE, cpus=(5,))]
    assert findings.cores(bound).state == "ok"
    assert findings.cores([ONE], threads=2).state == "ok"
    assert "node1: 1 rank of 3 threads on 2 cores" in findings.cores([ONE], threads=3).found
    one_core = replace(ONE, physical_cores=1)  # of two hardware threads
    assert findings.cores([one_core, one_core]).state == "warning"


def test_gpus(told: Told) -> None:
    with_gpu = replace(ONE, num_gpus=1, device="cuda:0 (V100)")
    assert states([findings.gpus([ONE], has_driver=False), findings.gpus([ONE], has_driver=True)]) == ["ok", "warning"]
    assert findings.gpus([ONE, with_gpu], has_driver=True).state == "ok"  # the server needs none
    found = findings.gpus([with_gpu, with_gpu, OTHER], has_driver=True)
    assert found.state == "warning"
    told(found.found)


def test_a_torch_without_the_gpus_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings.placement, "visible_gpus", lambda: (Gpu("V100", 70),))
    monkeypatch.setattr(findings.torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90", "compute_90"])
    found = findings.gpus(findings.see(SerialComm()), has_driver=True)
    assert found.state == "problem" and "sm_70" in found.found
    monkeypatch.setattr(findings.torch.cuda, "get_arch_list", lambda: ["sm_70"])
    assert findings.gpus(findings.see(SerialComm()), has_driver=True).state == "ok"


# The run folder.


@pytest.mark.parametrize(("kind", "state"), [("nfs4", "ok"), ("tmpfs", "warning"), ("overlay", "warning")])
def test_kinds_of_file_systems(kind: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deepest mount counts, and of two on one folder the last."""
    mounts = [("/", "ext4"), (str(tmp_path), "autofs"), (str(tmp_path), kind), (f"{tmp_path}/other", "lustre")]
    parts = [SimpleNamespace(mountpoint=place, fstype=name) for place, name in mounts]
    monkeypatch.setattr(findings.psutil, "disk_partitions", lambda **_: parts)
    found = findings.file_system(tmp_path / "new")
    assert found.state == state and f"on {kind}" in found.found
    monkeypatch.setattr(findings.psutil, "disk_partitions", lambda **_: [])
    assert findings.file_system(tmp_path).state == "ok"


@pytest.mark.parametrize(
    ("module", "name", "code", "states_then"),
    [
        (fcntl, "lockf", errno.ENOSYS, ["ok", "warning", "ok", "ok"]),
        (os, "replace", errno.EXDEV, ["ok", "ok", "problem", "ok"]),
        (findings.tempfile, "TemporaryDirectory", errno.EACCES, ["problem"]),
    ],
)
def test_a_file_system_that_refuses(
    module: object, name: str, code: int, states_then: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write into every folder, so the refusal is made by hand."""

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(findings.psutil, "disk_partitions", lambda **_: [])
    monkeypatch.setattr(findings.psutil, "disk_usage", lambda _: SimpleNamespace(free=2**40))
    monkeypatch.setattr(module, name, refuse)
    assert states([*findings.run_folder(tmp_path)]) == states_then
    assert findings.shared(tmp_path, SerialComm()) is None


@pytest.mark.parametrize(("free_bytes", "state"), [(2**31, "ok"), (2**29, "warning"), (2**20, "problem")])
def test_space(free_bytes: int, state: str, tmp_path: Path) -> None:
    assert findings.space(tmp_path, free_bytes).state == state


def test_nothing_is_left_in_the_folder(tmp_path: Path) -> None:
    """Nor is a folder made that does not exist yet."""
    found = [*findings.run_folder(tmp_path / "runs" / "new"), findings.shared(tmp_path, SerialComm())]
    assert [each.name for each in found if each] == NAMES[5:9]
    assert not list(tmp_path.iterdir())


# Time and bits.


@pytest.mark.parametrize(
    ("end", "state"), [(None, "ok"), ("10000", "ok"), ("1601", "ok"), ("1599", "warning"), ("999", "problem")]
)
def test_time_limits(end: str | None, state: str) -> None:
    variables = {"SLURM_JOB_ID": "7"} | ({"SLURM_JOB_END_TIME": end} if end else {})
    assert findings.time_limit(variables, 1000.0).state == state


def test_bits_that_differ() -> None:
    one, other = Finished("a", {}, []), Finished("b", {}, [])
    found = [machine.compared(one, one, 3, 0.1), machine.compared(one, other, 3, 0.1)]
    assert states(found) == ["ok", "problem"] and "server state" in found[1].found


# The page.


def test_a_line_of_the_page(told: Told) -> None:
    """80 columns; what others have written does not reach the terminal as it is."""
    found = findings.Finding("cores", "warning", "many words " * 20 + "\x1b[2J", "ask for more " * 10).line()
    assert all(len(line) <= 80 for line in found.splitlines()) and "\x1b" not in found
    told(found)
    assert "-> ask for more" in found


def test_the_end_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    mild = [findings.Finding("a", "ok", "x"), findings.Finding("b", "warning", "x", "y")]
    assert machine.show_page(mild, 3, as_json=False) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ready: 0 problems, 1 warning"
    assert machine.show_page([*mild, findings.Finding("c", "problem", "x", "y")], 3, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["findings"]["b"] == {"state": "warning", "found": "x", "advice": "y"}


@pytest.mark.parametrize("as_json", [False, True])
def test_ranks_that_do_not_find_each_other(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """srun without what MPI needs: rank 0 prints a page with one problem."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):  # pytest may be part of an MPI job
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert command_of_check.main(["--json"] * as_json) == 1
    said = capsys.readouterr().out
    assert json.loads(said)["findings"]["launcher"]["state"] == "problem" if as_json else "problem  launcher" in said


def page(count: int, *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    words = tuple(command(count, "--json", *words, program=("-m", "fedmpi.check")))
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=600, check=False)
    found = json.loads(done.stdout)
    assert (found["format"], found["ranks"]) == (1, count), done.stderr
    return done.returncode, found["findings"]


@pytest.mark.slow
def test_the_page_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = command_of_check.main(["--run-dir", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert list(found["findings"]) == NAMES and found["ready"] == (done == 0)
    assert found["findings"]["same bits"]["state"] == "ok"


@pytest.mark.slow
def test_the_page_on_two_ranks(tmp_path: Path) -> None:
    """The exit code is 0 unless something is wrong with this machine; a folder that is a file is."""
    (tmp_path / "file").write_text("")
    code, found = page(2, "--run-dir", str(tmp_path))
    assert sorted(found) == sorted([*NAMES, "shared folder"]), sys.executable
    assert {found[name]["state"] for name in ("mpi", "launcher", "shared folder", "same bits")} == {"ok"}
    assert code == any(each["state"] == "problem" for each in found.values())
