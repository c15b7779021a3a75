"""In which order ranks end, and with which code: the others with 0 once rank 0 is there, rank 0 last with the code."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedmpi.mpi import in_turn
from fedmpi.mpi.in_turn import code_in_turn

JOB = {"PMIX_NAMESPACE": "job@1", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}


# A rank of a command: prints the code that it is to end with.
RANK = "import sys; from fedmpi.mpi import in_turn; in_turn._PATIENCE_S = float(sys.argv[1]); "
RANK += "print(in_turn.code_in_turn(1, 2))"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The launcher's own, of a job of three ranks on this host."""
    for name, value in {**JOB, "OMPI_COMM_WORLD_RANK": "1", "PMIX_SERVER_TMPDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def started(patience_s: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", RANK, str(patience_s)], stdout=subprocess.PIPE, text=True)


def test_the_others_end_with_0_where_rank_0_ends_with_the_code() -> None:
    """In each of the commands that a script runs one after the other in one mpirun."""
    for _ in range(2):
        others = [started(60.0), started(60.0)]
        assert code_in_turn(0, 75) == 75
        assert [rank.communicate()[0] for rank in others] == ["0\n", "0\n"]


def test_a_rank_alone_with_a_mistake_ends_the_job_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has not met it, and waits for the others in MPI's start; that it ended an earlier command is no answer."""
    monkeypatch.setattr(in_turn, "_PATIENCE_S", 0.05)
    assert code_in_turn(0, 75) == 75
    assert started(0.05).communicate()[0] == "2\n"


@pytest.mark.parametrize(
    "other", [{"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, {"PMIX_NAMESPACE": ""}, {"PMIX_SERVER_TMPDIR": ""}]
)
def test_elsewhere_all_end_with_the_code(folder: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, str]) -> None:
    """Ranks on several hosts, and other launchers."""
    for name, value in other.items():
        monkeypatch.setenv(name, value)
    assert [code_in_turn(rank, 2) for rank in (0, 1)] == [2, 2] and not [*folder.iterdir()]


def test_a_folder_that_takes_no_note_keeps_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_turn, "_PATIENCE_S", 0.05)
    monkeypatch.setenv("PMIX_SERVER_TMPDIR", str(folder / "gone"))
    assert [code_in_turn(rank, 2) for rank in (0, 1)] == [2, 2]
