"""In which order ranks end, and with which code: the others with 0 once rank 0 is there, rank 0 last with the code."""

from pathlib import Path

import pytest

from fedmpi.mpi import in_turn
from fedmpi.mpi.in_turn import code_in_turn

JOB = {"PMIX_NAMESPACE": "job@1", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What rank 0 leaves for the others, in a job of three ranks on this host."""
    for name, value in {**JOB, "OMPI_COMM_WORLD_RANK": "1", "PMIX_SERVER_TMPDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(in_turn, "_PATIENCE_S", 0.05)
    return tmp_path / "fedmpi-ends"


def test_the_others_end_with_0_where_rank_0_ends_with_the_code(note: Path) -> None:
    assert code_in_turn(0, 75) == 75 and note.exists()
    assert code_in_turn(1, 75) == 0


def test_a_rank_alone_with_a_mistake_ends_the_job_itself(note: Path) -> None:
    """Rank 0 has not met it, and waits for the others in MPI's start."""
    assert code_in_turn(1, 2) == 2 and not note.exists()


@pytest.mark.parametrize(
    "other", [{"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, {"PMIX_NAMESPACE": ""}, {"PMIX_SERVER_TMPDIR": ""}]
)
def test_elsewhere_all_end_with_the_code(note: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, str]) -> None:
    """Ranks on several hosts, and other launchers."""
    for name, value in other.items():
        monkeypatch.setenv(name, value)
    assert [code_in_turn(rank, 2) for rank in (0, 1)] == [2, 2] and not note.exists()


def test_a_folder_that_takes_no_note_keeps_nobody(note: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMIX_SERVER_TMPDIR", str(note / "gone"))
    assert code_in_turn(0, 2) == 2
