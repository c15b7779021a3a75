"""What others may plant in a shared run directory: nothing is followed, nobody waits, each refusal is one line."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from golden_file import Told

from fedmpi.errors import UserError
from fedmpi.report.events import Events
from fedmpi.report.observer import Started
from fedmpi.report.records import Records, read_records
from fedmpi.results.run import Run
from fedmpi.store import files, manifest
from fedmpi.store.lock import RunLock
from fedmpi.store.manifest import add_start
from fedmpi.store.run_dir import RunDir

SHAPES: dict[str, Callable[[Path, Path], None]] = {
    "link to a file": lambda place, victim: place.symlink_to(victim),
    "link to nothing": lambda place, victim: place.symlink_to(victim.with_name("absent")),
    "named pipe": lambda place, victim: os.mkfifo(place),
    "socket": lambda place, victim: os.mknod(place, stat.S_IFSOCK | 0o600),
    "link to a device": lambda place, victim: place.symlink_to("/dev/zero"),
    "directory": lambda place, victim: place.mkdir(),
}
"""Each puts something at `place`; links lead to the file `victim`."""


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Callable[[str, Path], None]]:
    """Puts one of `SHAPES` there; in the end the file that links lead to must be as it was."""
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    yield lambda shape, place: SHAPES[shape](place, victim)
    assert victim.read_text() == "precious\n" and not (tmp_path / "absent").exists()


def refused(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    assert len(caught.value.problems) == 1 and caught.value.problems[0].isprintable()
    return caught.value.problems[0]


def _takes_the_lock(run: RunDir, plant: Callable[[Path], None]) -> None:
    plant(run.lock_path)
    RunLock(run).__enter__()


def _writes_a_record(run: RunDir, plant: Callable[[Path], None]) -> None:
    records = Records(run, resume_after=None)
    run.records_path.unlink()
    plant(run.records_path)
    records.round_done({"round": 1})


def _writes_an_event(run: RunDir, plant: Callable[[Path], None]) -> None:
    events = Events()
    events.run_started(Started({}, run.path, 0))
    (path,) = run.tensorboard_dir.iterdir()
    path.unlink()
    plant(path)
    events.round_done({"round": 1, "loss": 1.0})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("write", [_takes_the_lock, _writes_a_record, _writes_an_event])
def test_nothing_is_written_through_what_is_planted(
    run_dir: RunDir, plant: Callable[[str, Path], None], write: Callable[..., None], shape: str
) -> None:
    assert refused(lambda: write(run_dir, lambda place: plant(shape, place))).startswith("cannot be written: ")


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "directory"])
def test_what_is_replaced_as_a_whole(run_dir: RunDir, plant: Callable[[str, Path], None], shape: str) -> None:
    """The new file has the name; what was there has lost it. Names of temporary files cannot be guessed."""
    for name in ("config.yaml", ".config.yaml.tmp"):
        plant(shape, run_dir.path / name)
    files.write_text(run_dir.config_path, "seed: 1\n")
    assert stat.S_ISREG(os.lstat(run_dir.config_path).st_mode) and run_dir.config_path.read_text() == "seed: 1\n"
    assert len(list(run_dir.path.iterdir())) == 3  # with the folder of checkpoints


def test_linked_folders_stay_allowed(tmp_path: Path) -> None:
    (tmp_path / "scratch" / "checkpoints").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("scratch")
    run = RunDir.open_for(tmp_path / "runs" / "mine", resume=False)
    run.checkpoints_dir.rmdir()
    run.checkpoints_dir.symlink_to(tmp_path / "scratch" / "checkpoints")
    files.write_text(run.checkpoint_path(1), "x")
    with RunLock(run):
        assert (tmp_path / "scratch" / "mine" / ".lock").exists()
    assert (tmp_path / "scratch" / "checkpoints" / "round-000001.h5").read_text() == "x"


READERS = {
    "rounds.jsonl": read_records,
    "manifest.json": manifest.read_starts,
    ".lock": lambda run: Run(run.path).state,
}


@pytest.mark.parametrize("shape", ["named pipe", "socket", "link to a device", "directory"])
@pytest.mark.parametrize("name", READERS)
def test_nobody_waits_for_what_never_ends(
    run_dir: RunDir, plant: Callable[[str, Path], None], name: str, shape: str
) -> None:
    (run_dir.path / name).parent.mkdir(exist_ok=True)
    plant(shape, run_dir.path / name)
    assert refused(lambda: READERS[name](run_dir)).startswith("cannot be read: ")


def test_a_file_longer_than_any_of_ours_is_refused(run_dir: RunDir, told: Told) -> None:
    """One of a terabyte that takes no room on the disk."""
    with open(run_dir.manifest_path, "wb") as file:
        file.truncate(2**40)
    told(refused(lambda: manifest.read_starts(run_dir)))


def test_a_link_to_a_regular_file_is_read(run_dir: RunDir, tmp_path: Path) -> None:
    """A user may keep a file elsewhere; written anew, it is a file of the run."""
    (tmp_path / "mine").write_text('{"starts": [{"command": []}]}')
    run_dir.manifest_path.symlink_to(tmp_path / "mine")
    add_start(run_dir, command=["x"])
    assert len(manifest.read_starts(run_dir)) == 2 and not run_dir.manifest_path.is_symlink()
    assert (tmp_path / "mine").read_text() == '{"starts": [{"command": []}]}'
