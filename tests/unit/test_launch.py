"""Which rank a process is, out of what launchers leave behind; numbers of the environment, whatever it holds."""

import os
import subprocess
from pathlib import Path

import pytest
from data_fixtures import refusal
from golden_file import Told

from fedmpi.mpi.communicator import SerialComm
from fedmpi.mpi.launch import check_launch, check_size, claimed, launched_as, whole_number
from fedmpi.mpi.starting import world

LAUNCHERS = {
    "Open MPI": ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "5", "PMIX_RANK": "2"}, (2, 5)),
    "MPICH": ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}, (3, 4)),
    "srun --mpi=pmi2": ({"PMI_RANK": "1", "PMI_SIZE": "8", "SLURM_PROCID": "1", "SLURM_NTASKS": "8"}, (1, 8)),
    "srun --mpi=pmix": ({"PMIX_RANK": "7", "SLURM_PROCID": "7", "SLURM_STEP_NUM_TASKS": "8"}, (7, 8)),
    "MVAPICH": ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, (1, 2)),
    "Cray PALS": ({"PALS_RANKID": "1", "PALS_SIZE": "2"}, (1, 2)),
    "PMIx alone": ({"PMIX_RANK": "1"}, (1, 1)),
    # On an allocation mpirun starts daemons by srun: what Open MPI says counts, not what Slurm says of a daemon.
    "mpirun within a step": (
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "PMI_RANK": "0", "PMI_SIZE": "2"},
        (3, 4),
    ),
    # Left-overs that are no numbers are passed over.
    "no rank": ({"OMPI_COMM_WORLD_RANK": "x", "PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
    "no size": ({"PMI_RANK": "1", "PMI_SIZE": "x"}, (1, 1)),
    # Within an interactive step of Slurm, which has one task: a size of another launcher is passed over.
    "PMIx within a step": ({"PMIX_RANK": "3", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, (3, 1)),
}
# Slurm's own counts: those of a job's only shell, and of a task of `srun -n 3`.
SHELL = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "3", "SLURM_PROCID": "0"}
TASK = {**SHELL, "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3"}


@pytest.mark.parametrize(("environment", "expected"), LAUNCHERS.values(), ids=LAUNCHERS)
def test_launchers(environment: dict[str, str], expected: tuple[int, int]) -> None:
    assert launched_as(environment) == claimed(environment) == expected
    check_launch(environment)


@pytest.mark.parametrize("environment", [{}, SHELL, {"OMPI_MCA_btl": "self"}, {"OMPI_COMM_WORLD_SIZE": "5"}])
def test_no_launcher(environment: dict[str, str]) -> None:
    """A batch script's shell looks like rank 0 of 3 to who reads SLURM_PROCID; `python` there is one process."""
    assert launched_as(environment) is None and claimed(environment) == (0, 1)
    check_launch(environment)


def test_without_a_launcher_the_process_is_its_own_world(monkeypatch: pytest.MonkeyPatch) -> None:
    for environment, _ in LAUNCHERS.values():
        for name in environment:
            monkeypatch.delenv(name, raising=False)
    comm = world()
    assert isinstance(comm, SerialComm) and (comm.rank, comm.size, comm.is_root) == (0, 1, True)


def test_tasks_without_mpi_are_refused(told: Told) -> None:
    """An `srun` without --mpi still numbers its tasks: one of them prints for all."""
    assert claimed(TASK) == (2, 3)
    told(refusal(check_launch, TASK))
    check_launch({**TASK, "SLURM_STEP_NUM_TASKS": "1"})


@pytest.mark.parametrize("launcher", ["Open MPI", "srun --mpi=pmix"])
def test_ranks_that_do_not_find_each_other_are_refused(launcher: str) -> None:
    """The launcher of one MPI, the library of another: it says 5 (8), MPI says 1."""
    environment, (_, size) = LAUNCHERS[launcher]
    assert refusal(check_size, 1, environment).startswith(f"MPI: {size} processes were started")
    check_size(size, environment)


def test_whole_numbers() -> None:
    for text, number in (("0", 0), ("007", 7), ("9" * 18, 10**18 - 1)):
        assert whole_number({"A": text}, "A") == number
    for text in ("", " 1", "1 ", "+1", "-1", "1_0", "1.0", "\u00b2", "\u0661", "9" * 19, "9" * 5_000):
        assert whole_number({"A": text}, "A") is None, text
    assert whole_number({}, "A") is None


@pytest.mark.parametrize(
    ("value", "code"), [("3", 0), ("", 0), ("x", 2), ("0", 2), ("-1", 2), ("9" * 99, 2), ("1 2", 2)]
)
def test_numbers_that_the_scripts_read(value: str, code: int) -> None:
    function = "source <(sed -n '/^mistake()/,/^}/p' jobs/setup.sh)"
    script = f"{function}; set -e; ranks=$(whole_number FEDMPI_RANKS 5); echo $ranks"
    environment = {**os.environ, "FEDMPI_RANKS": value}
    top = Path(__file__).parents[2]
    done = subprocess.run(["bash", "-c", script], env=environment, cwd=top, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "" if code else f"{value or 5}\n")
    assert done.stderr.count("\n") == (code == 2)
