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
from fedmpi.check import finding, machine, ranks, run_folder
from fedmpi.check.ranks import Seen
from fedmpi.check.small import Finished
from fedmpi.errors import LaunchError
from fedmpi.mpi import version
from fedmpi.mpi.placement import Gpu
from fedmpi.mpi.serial import SerialComm

OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution"
MPICH = "MPICH Version: 5.0.2"
ONE = Seen("node1", (0, 1), 8, 0, "CPU", "", {"torch": "2.9", "numpy": "2.1"}, OPEN_MPI)
OTHER = replace(ONE, host="node2")
NAMES = (
    "software, mpi, launcher, cores, gpus, run folder, locks, atomic rename, free space, time limit, same bits"
).split(", ")
MOUNTS = [
    SimpleNamespace(mountpoint="/", fstype="ext4", opts="rw", device="/dev/sda1"),
    SimpleNamespace(mountpoint="/scratch", fstype="autofs", opts="rw", device="systemd-1"),
    SimpleNamespace(mountpoint="/scratch", fstype="lustre", opts="rw,localflock", device="10.0.0.1@o2ib:/work"),
    SimpleNamespace(mountpoint="/scratch/my runs", fstype="nfs4", opts="rw,local_lock=none", device="server:/x"),
    SimpleNamespace(mountpoint="/dev/shm", fstype="tmpfs", opts="rw", device="tmpfs"),
]


def states(found: Sequence[finding.Finding]) -> list[str]:
    return [each.state for each in found]


# The ranks.


def test_versions_that_differ() -> None:
    assert ranks.software([ONE, OTHER]).state == "ok"
    found = ranks.software([ONE, replace(OTHER, versions={"torch": "2.7", "numpy": "2.1"})])
    assert found.state == "warning" and "torch 2.9 and 2.7" in found.found and "node2" in found.found


def test_libraries() -> None:
    found = [
        ranks.mpi_library(seen) for seen in ([ONE], [replace(ONE, library="")], [ONE, replace(ONE, library=MPICH)])
    ]
    assert states(found) == ["ok", "warning", "problem"]


@pytest.mark.parametrize(
    ("library", "variables", "mpirun", "state"),
    [
        (OPEN_MPI, {"OMPI_COMM_WORLD_RANK": "0"}, "", "ok"),
        (MPICH, {"I_MPI_HYDRA_UUID": "1", "PMI_RANK": "0"}, "", "ok"),  # both speak PMI
        (OPEN_MPI, {"PMIX_RANK": "0", "SLURM_PROCID": "0"}, "", "ok"),
        (OPEN_MPI, {"SLURM_PROCID": "0"}, "mpirun (Open MPI) 5.0.11", "ok"),  # a batch script's own shell
        (MPICH, {}, "mpirun (Open MPI) 5.0.11", "problem"),
        (OPEN_MPI, {}, "HYDRA build details:", "problem"),
        ("", {}, "mpirun (Open MPI) 5.0.11", "ok"),  # `mpi_library` says that there is none
        (OPEN_MPI, {}, "", "warning"),
        (OPEN_MPI, {}, "an mpirun of which nothing is known", "ok"),
    ],
)
def test_launchers(library: str, variables: dict[str, str], mpirun: str, state: str) -> None:
    assert ranks.launcher([replace(ONE, library=library)], variables, mpirun).state == state


@pytest.mark.parametrize(
    ("family", "mpirun", "library"),
    [
        ("Open MPI", "mpirun (Open MPI) 5.0.11", OPEN_MPI),
        ("MPICH", "HYDRA build details:", MPICH),
        ("MPICH", "Intel(R) MPI Library for Linux* OS, Version 2021.18.1", "Intel(R) MPI Library 2021.18.1"),
        ("", "", "another MPI"),
    ],
)
def test_the_families_of_mpi(family: str, mpirun: str, library: str) -> None:
    """As the three that were tried print it."""
    assert ranks.family_of(mpirun) == ranks.family_of(library) == family


def test_a_launcher_of_another_mpi_is_found_before_mpi_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPICH's library aborts under Open MPI's mpirun; with an unknown launcher nobody asks for the library."""
    monkeypatch.setattr(ranks, "first_line", lambda words: MPICH)
    with pytest.raises(LaunchError, match="MPICH"):
        ranks.check_launcher({"OMPI_COMM_WORLD_RANK": "0"})
    ranks.check_launcher({"I_MPI_HYDRA_UUID": "x", "PMI_RANK": "0"})  # both speak PMI
    monkeypatch.setattr(ranks, "first_line", lambda words: OPEN_MPI)
    with pytest.raises(LaunchError, match="Intel MPI's mpirun .* Open MPI"):
        ranks.check_launcher({"I_MPI_HYDRA_UUID": "x", "PMI_RANK": "0"})
    monkeypatch.setattr(ranks, "first_line", lambda words: pytest.fail("asked"))
    ranks.check_launcher({"PMI_RANK": "0"})
    ranks.check_launcher({})


def test_the_first_line_names_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As MPICH prints it; a process that has loaded none has no name to note."""
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    assert not version.loaded_library()
    text = "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25\n"
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(Get_library_version=lambda: text))
    assert version.loaded_library() == version.library_version() == MPICH


def test_more_ranks_than_cores() -> None:
    """Cores are counted once, however many ranks may use them; a container's limit counts where it is lower."""
    assert ranks.cores([ONE, ONE, OTHER], None).state == "ok"
    found = ranks.cores([ONE, ONE, ONE, OTHER], None)
    assert found.state == "warning" and "node1: 3 ranks on 2 cores; node2: 1 rank on 2 cores" in found.found
    bound = [replace(ONE, cpus=(0,)), replace(ONE, cpus=(1,)), replace(ONE, cpus=(5,))]
    assert ranks.cores(bound, None).state == "ok"
    assert ranks.cores([ONE, ONE], 1.5).state == "warning"
    one_core = replace(ONE, physical_cores=1)  # of two hardware threads
    assert ranks.cores([one_core, one_core], None).state == "warning"


def test_a_containers_limit(tmp_path: Path) -> None:
    path = tmp_path / "cpu.max"
    for text, quota in (("150000 100000\n", 1.5), ("max 100000\n", None), ("", None)):
        path.write_text(text)
        assert ranks.container_quota(path) == quota
    assert ranks.container_quota(tmp_path / "none") is None


def test_gpus(told: Told) -> None:
    with_gpu = replace(ONE, num_gpus=1, device="cuda:0 (V100)")
    assert states([ranks.gpus([ONE], has_driver=False), ranks.gpus([ONE], has_driver=True)]) == ["ok", "warning"]
    assert ranks.gpus([ONE, with_gpu], has_driver=True).state == "ok"  # the server needs none
    found = ranks.gpus([with_gpu, with_gpu, OTHER], has_driver=True)
    assert found.state == "warning"
    told(found.found)


def test_a_torch_without_the_gpus_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks.placement, "visible_gpus", lambda: (Gpu("V100", 70),))
    monkeypatch.setattr(ranks.torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90", "compute_90"])
    found = ranks.gpus(ranks.see(SerialComm()), has_driver=True)
    assert found.state == "problem" and "sm_70" in found.found
    monkeypatch.setattr(ranks.torch.cuda, "get_arch_list", lambda: ["sm_70"])
    assert ranks.gpus(ranks.see(SerialComm()), has_driver=True).state == "ok"


def test_the_server_takes_the_last_gpu_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks.torch.cuda, "get_arch_list", lambda: ["sm_70"])
    server = SimpleNamespace(local_rank=0, server_here=True, size=3, is_root=True)
    first, second = (SimpleNamespace(**{**vars(server), "local_rank": n, "is_root": False}) for n in (1, 2))
    placed = [ranks._placed(comm, [Gpu("V100", 70)] * 2)[0] for comm in (server, first, second)]
    assert placed == ["cuda:1 (V100)", "cuda:0 (V100)", "cuda:1 (V100)"]


# The run folder.


def test_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deepest one counts, and of two on one folder the last."""
    monkeypatch.setattr(run_folder.psutil, "disk_partitions", lambda **_: MOUNTS)
    types = {"/home/x": "ext4", "/scratch/a": "lustre", "/scratchy": "ext4", "/scratch/my runs/b": "nfs4"}
    assert {place: run_folder.mount_of(Path(place)).fstype for place in types} == types
    monkeypatch.setattr(run_folder.psutil, "disk_partitions", lambda **_: [])
    assert run_folder.mount_of(Path("/x")) is None


def mount(fstype: str, opts: str = "rw") -> SimpleNamespace:
    return SimpleNamespace(fstype=fstype, opts=opts, device="server:/x")


def test_kinds_of_file_systems(tmp_path: Path) -> None:
    kinds = {"ext4": "ok", "lustre": "ok", "tmpfs": "warning", "overlay": "warning"}
    found = {kind: run_folder.file_system(tmp_path, mount(kind)) for kind in kinds}
    assert {kind: each.state for kind, each in found.items()} == kinds
    assert "server:/x" in found["lustre"].found and "server:/x" not in found["ext4"].found
    assert run_folder.file_system(tmp_path, None).state == "ok"


@pytest.mark.parametrize("option", ["localflock", "nolock", "local_lock=all", "local_lock=posix"])
def test_locks_that_other_nodes_do_not_see(option: str, tmp_path: Path) -> None:
    assert run_folder.locks(tmp_path, mount("x", f"rw,{option},hard")).state == "warning"
    assert run_folder.locks(tmp_path, mount("x", f"rw,flock,x{option}")).state == "ok"


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    assert run_folder.locks(tmp_path, None).state == "warning"


def test_renames_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_folder.renames(tmp_path).state == "ok"

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "replace", refuse)
    assert run_folder.renames(tmp_path).state == "problem"


@pytest.mark.parametrize(
    ("free_bytes", "files", "free_files", "state"),
    [
        (2**31, 100_000, 50_000, "ok"),
        (2**31, 0, 0, "ok"),
        (2**31, 100_000, 9, "warning"),
        (2**29, 0, 0, "warning"),
        (2**20, 0, 0, "problem"),
    ],
)
def test_space(free_bytes: int, files: int, free_files: int, state: str, tmp_path: Path) -> None:
    disk = os.statvfs_result((4096, 4096, 10**9, 10**9, free_bytes // 4096, files, files, free_files, 0, 255))
    assert run_folder.space(tmp_path, disk).state == state


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write into every folder, so the refusal is made by hand."""

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(run_folder.tempfile, "TemporaryDirectory", refuse)
    found = list(run_folder.findings(tmp_path / "new"))
    assert states(found) == ["problem"] and str(tmp_path) in found[0].found
    assert run_folder.shared(tmp_path, SerialComm()) is None


def test_nothing_is_left_in_the_folder(tmp_path: Path) -> None:
    """Nor is a folder made that does not exist yet."""
    found = [*run_folder.findings(tmp_path / "runs" / "new"), run_folder.shared(tmp_path, SerialComm())]
    assert [each.name for each in found if each] == NAMES[5:9]
    assert not list(tmp_path.iterdir())


# Time and bits.


@pytest.mark.parametrize(
    ("end", "state"), [(None, "ok"), ("10000", "ok"), ("1601", "ok"), ("1599", "warning"), ("999", "problem")]
)
def test_time_limits(end: str | None, state: str) -> None:
    variables = {"SLURM_JOB_ID": "7"} | ({"SLURM_JOB_END_TIME": end} if end else {})
    assert machine.time_limit(variables, 1000.0).state == state


def test_bits_that_differ() -> None:
    one, other = Finished("a", {}, []), Finished("b", {}, [])
    found = [machine.compared(one, one, 3, 0.1), machine.compared(one, other, 3, 0.1)]
    assert states(found) == ["ok", "problem"] and "server state" in found[1].found


# The page.


def test_a_line_of_the_page(told: Told) -> None:
    """80 columns; what others have written does not reach the terminal as it is."""
    found = finding.warning("cores", "many words " * 20 + "\x1b[2J", "ask for more " * 10).line()
    assert all(len(line) <= 80 for line in found.splitlines()) and "\x1b" not in found
    told(found)
    assert "-> ask for more" in found


def test_the_end_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    mild = [finding.ok("a", "x"), finding.warning("b", "x", "y")]
    assert machine.show_page(mild, 3, as_json=False) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ready: 0 problems, 1 warning"
    assert machine.show_page([*mild, finding.problem("c", "x", "y")], 3, as_json=True) == 1
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


def test_words_that_are_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_of_check.main(["--rundir", "x"]) == 2
    assert "--rundir" in capsys.readouterr().err


def page(count: int, *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    words = tuple(command(count, "--json", *words, program=("-m", "fedmpi.check")))
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=600, check=False)
    found = json.loads(done.stdout)
    assert (found["format"], found["ranks"]) == (1, count), done.stderr
    return done.returncode, found["findings"]


def test_the_page_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = command_of_check.main(["--run-dir", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert list(found["findings"]) == NAMES and found["ready"] == (done == 0)
    assert found["findings"]["same bits"]["state"] == "ok"


def test_the_page_on_two_ranks(tmp_path: Path) -> None:
    """The exit code is 0 unless something is wrong with this machine; a folder that is a file is."""
    (tmp_path / "file").write_text("")
    code, found = page(2, "--run-dir", str(tmp_path))
    assert sorted(found) == sorted([*NAMES, "shared folder"]), sys.executable
    assert {found[name]["state"] for name in ("mpi", "launcher", "shared folder", "same bits")} == {"ok"}
    assert code == any(each["state"] == "problem" for each in found.values())
