"""What the end of a run advises: no plain resume of a run that diverged, and one rank's advice only."""

from pathlib import Path

import pytest
from golden_file import Told
from launched import unfolded
from small_runs import small_config

from fedmpi.config.load import load
from fedmpi.errors import DivergenceError, RunDirError
from fedmpi.running.folder import Advice, launch_command
from fedmpi.store.run_dir import RunDir


@pytest.fixture
def ours(tmp_path: Path) -> Advice:
    """Of a run of three ranks with two checkpoints."""
    (tmp_path / "config.yaml").touch()
    (tmp_path / "checkpoints").mkdir()
    for number in (1, 2):
        (tmp_path / "checkpoints" / f"round-{number:06d}.h5").touch()
    return advice_for(tmp_path)


def advice_for(run_dir: Path, *overrides: str) -> Advice:
    advice = Advice(small_config(*overrides))
    advice.run_is_in(RunDir(run_dir), 3)
    return advice


@pytest.mark.parametrize("error", [None, OSError("disk full"), RunDirError("x", "cannot be written")])
def test_what_has_not_diverged_is_resumed(ours: Advice, error: BaseException | None) -> None:
    assert unfolded(ours.how_to_continue(error)) == f"to continue: {ours.resume_command()}"


def test_a_divergence_begins_from_what_is_saved_or_again(ours: Advice, tmp_path: Path) -> None:
    """At a tenth of the learning rate, which is 0.05, at most at the default; with what is saved where anything is."""
    run_dir, error = tmp_path, DivergenceError("diverged")
    command = "mpirun -n 3 python -m fedmpi.main"
    assert unfolded(ours.how_to_continue(error)).endswith(f" {command} --init-from {run_dir} train.lr=0.005")
    too_high = advice_for(tmp_path, "train.lr=1000")
    assert unfolded(too_high.how_to_continue(error)).endswith(f" --init-from {run_dir} train.lr=0.1")
    for path in (run_dir / "checkpoints").iterdir():
        path.unlink()
    again = f" {command} --run-dir {run_dir} --resume train.lr=0.005"
    assert unfolded(ours.how_to_continue(error)).endswith(again)


def test_what_is_saved_in_words(ours: Advice, tmp_path: Path, told: Told) -> None:
    told(ours.what_is_saved())
    unborn = Advice(small_config())
    told(unborn.what_is_saved())
    gone = advice_for(tmp_path / "gone")
    told(gone.how_to_continue())


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (("data.name=cifar10", "data.root=data"), ""),
        (("output.observers=[watch_it:Notes,watch_it:More]",), " 'output.observers=[watch_it:Notes,watch_it:More]'"),
        (("method.name=broken_methods:Raises",), " method.name=broken_methods:Raises"),
    ],
)
def test_what_is_found_only_from_here_is_resumed_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], own: str
) -> None:
    """Data under a relative path, a module of the user's; `~` and absolute paths are found from everywhere."""
    (tmp_path / "my work").mkdir()
    monkeypatch.chdir(tmp_path / "my work")
    launch = "mpirun -n 3 python -m fedmpi.main"
    config = load(None, [*words, "clients.count=4", "clients.per_round=4"])
    assert launch_command(config, 3) == f"cd '{tmp_path}/my work' && {launch}{own}"
    assert advice_for(tmp_path, "data.name=cifar10").resume_command() == f"{launch} --run-dir {tmp_path} --resume"


def test_a_job_that_outlives_its_ranks_is_resumed_as_one() -> None:
    launch = launch_command(load(None, []), 3, outlives_ranks=True)
    assert launch == "mpirun --with-ft ulfm -n 3 python -m fedmpi.main"


def test_one_rank_gives_advice(ours: Advice) -> None:
    assert not ours.has_failed()
    assert ours.note_failure() and ours.has_failed()
    assert not ours.note_failure()
