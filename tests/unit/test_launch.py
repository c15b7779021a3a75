"""Which rank a process is, out of what launchers leave behind."""

import pytest
from golden_file import Told

from fedmpi.errors import LaunchError
from fedmpi.mpi.communicator import SerialComm
from fedmpi.mpi.launch import check_launch, check_size, claimed, launched_as
from fedmpi.mpi.starting import world

LAUNCHERS = {
    "Open MPI 5": ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "5", "PMIX_RANK": "2"}, (2, 5)),
    "Open MPI 4": ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "5"}, (0, 5)),
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
    # Within an interactive step of Slurm, which has one task: a size of another launcher is passed over.
    "PMIx within a step": ({"PMIX_RANK": "3", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, (3, 1)),
}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This process's environment without what a launcher may have left in it."""
    for environment, _ in LAUNCHERS.values():
        for name in environment:
            monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(("environment", "expected"), LAUNCHERS.values(), ids=LAUNCHERS.keys())
def test_launchers(environment: dict[str, str], expected: tuple[int, int]) -> None:
    assert launched_as(environment) == expected


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "12", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"},
        {"OMPI_MCA_btl": "self", "PMIX_VERSION": "5.0", "PMI_FD": "9"},
        {"OMPI_COMM_WORLD_SIZE": "5"},
    ],
    ids=["nothing", "the shell of an sbatch script", "settings", "a size without a rank"],
)
def test_no_launcher(environment: dict[str, str]) -> None:
    """A batch script's shell looks like rank 0 of 8 to who reads SLURM_PROCID; `python` there is one process."""
    assert launched_as(environment) is None


@pytest.mark.parametrize("garbage", ["", "x", "-1", "1.5", "\u0661", "9" * 5_000])
def test_what_is_no_number_is_passed_over(garbage: str) -> None:
    """Left-overs in an environment end neither `fedmpi plan` nor a run with a traceback."""
    assert launched_as({"OMPI_COMM_WORLD_RANK": garbage}) is None
    assert launched_as({"OMPI_COMM_WORLD_RANK": garbage, "PMI_RANK": "1", "PMI_SIZE": "2"}) == (1, 2)
    assert launched_as({"PMI_RANK": "1", "PMI_SIZE": garbage}) == (1, 1)


def test_the_process_s_own_environment_is_the_default(bare: pytest.MonkeyPatch) -> None:
    """Without a launcher the process is its own world."""
    comm = world()
    assert isinstance(comm, SerialComm) and (comm.rank, comm.size, comm.is_root) == (0, 1, True)
    assert launched_as() is None
    bare.setenv("PMI_RANK", "1")
    bare.setenv("PMI_SIZE", "3")
    assert launched_as() == (1, 3)


# Slurm's own counts: those of a job's only shell, and of each task of `srun -n 3`.
SHELL = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "3", "SLURM_PROCID": "0"}
TASK = {**SHELL, "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        (SHELL, (0, 1)),
        (TASK, (2, 3)),
        ({**TASK, "PMIX_RANK": "1"}, (1, 3)),
        ({**TASK, "OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "5"}, (4, 5)),
    ],
)
def test_who_a_process_is(environment: dict[str, str], expected: tuple[int, int]) -> None:
    """An `srun` without --mpi still numbers its tasks: one of them speaks for all."""
    assert claimed(environment) == expected


def test_tasks_without_mpi_are_refused(told: Told) -> None:
    with told.by(LaunchError) as caught:
        check_launch(TASK)
    assert caught.value.exit_code == 2 and "\n" not in caught.value.text()
    assert "mpirun" in caught.value.text() and "srun --mpi=pmix" in caught.value.text()


@pytest.mark.parametrize(
    "environment", [{}, SHELL, {**TASK, "SLURM_STEP_NUM_TASKS": "1"}, *(start for start, _ in LAUNCHERS.values())]
)
def test_other_launches_are_not(environment: dict[str, str]) -> None:
    """Also within a step: mpirun starts its daemons by srun."""
    check_launch(environment)
    check_launch({**environment, "OMPI_COMM_WORLD_RANK": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"})


@pytest.mark.parametrize("launcher", ["Open MPI 5", "MPICH", "srun --mpi=pmi2", "srun --mpi=pmix", "MVAPICH"])
def test_ranks_that_do_not_find_each_other_are_refused(launcher: str, told: Told) -> None:
    """The launcher of one MPI, the library of another: it says 5 (8, 4, 2), MPI says 1."""
    environment, (_, size) = LAUNCHERS[launcher]
    with told.by(LaunchError):
        check_size(1, environment)
    check_size(size, environment)


def test_one_rank_alone_is_a_job() -> None:
    check_size(1, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"})
    check_size(1, SHELL)
