"""What the end of a run advises: a plain resume only where it may help, and one rank's advice only."""

from pathlib import Path

import pytest
import torch
from small_runs import small_config

from fedmpi.errors import DivergenceError, RoundError, RunDirError
from fedmpi.run import advice
from fedmpi.store.whereabouts import GoneError

CONFIG = small_config()


@pytest.fixture
def where(tmp_path: Path) -> dict[str, str]:
    """Of a run of three ranks with two checkpoints."""
    (tmp_path / "config.yaml").touch()
    (tmp_path / "checkpoints").mkdir()
    for number in (1, 2):
        (tmp_path / "checkpoints" / f"round-{number:06d}.h5").touch()
    return {"run_dir": str(tmp_path), "resume": "COMMAND", "ranks": "3"}


@pytest.mark.parametrize("error", [None, OSError("disk full"), RunDirError("x", "cannot be written")])
def test_what_the_surroundings_have_caused_is_resumed(where: dict[str, str], error: BaseException | None) -> None:
    assert advice.how_to_go_on(where, CONFIG, error) == "to go on: COMMAND"


@pytest.mark.parametrize(
    ("error", "word"),
    [(MemoryError(), "memory"), (torch.OutOfMemoryError("CUDA"), "memory"), (ValueError("a bug"), "same bits")],
)
def test_what_would_happen_again_is_to_be_changed_first(where: dict[str, str], error: Exception, word: str) -> None:
    failed = RoundError("local_training", round_number=3)
    failed.__cause__ = error
    first, last = advice.how_to_go_on(where, CONFIG, failed).splitlines()
    assert word in first and last == "to go on: COMMAND"


def test_a_divergence_begins_a_branch_or_begins_again(where: dict[str, str]) -> None:
    """At a tenth of the learning rate, which is 0.05, at most at the default; with what is saved where anything is."""
    run_dir, error = where["run_dir"], DivergenceError("diverged")
    command = "mpirun -n 3 python -m fedmpi.main"
    assert advice.how_to_go_on(where, CONFIG, error).endswith(f": {command} --resume-from {run_dir} train.lr=0.005")
    far_off = small_config("train.lr=1000")
    assert advice.how_to_go_on(where, far_off, error).endswith(f" --resume-from {run_dir} train.lr=0.1")
    for path in Path(run_dir, "checkpoints").iterdir():
        path.unlink()
    again = f": {command} --run-dir {run_dir} --resume train.lr=0.005"
    assert advice.how_to_go_on(where, CONFIG, error).endswith(again)


def test_what_is_saved_in_words(where: dict[str, str], tmp_path: Path) -> None:
    assert advice.what_is_saved(where) == "rounds 1 to 2 are saved"
    assert advice.what_is_saved({}) == advice.how_to_go_on({}, CONFIG) == "nothing was saved yet"
    gone = {**where, "run_dir": str(tmp_path / "gone")}
    assert advice.how_to_go_on(gone, CONFIG) == f"nothing is left to go on with in {tmp_path / 'gone'}"
    moved = GoneError(tmp_path / "gone", "the run directory was moved", moved_to=str(tmp_path))
    resumed = f"to go on: mpirun -n 3 python -m fedmpi.main --run-dir {tmp_path} --resume"
    assert advice.how_to_go_on(gone, CONFIG, moved) == resumed


def test_one_rank_gives_advice(where: dict[str, str]) -> None:
    assert not advice.has_failed(where)
    assert advice.note_failure(where) and advice.has_failed(where)
    assert not advice.note_failure(where)
