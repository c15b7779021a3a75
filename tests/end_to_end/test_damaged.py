"""A run whose files are damaged: it continues from the checkpoint before, to the same bits, or says that it cannot."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from fast import fast
from golden_file import Told
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from launched import Made, RunMain, failed_on, rejoined
from small_runs import SMALL, finished, run_alone, undisturbed

from fedmpi.command.manners import describe_failure
from fedmpi.errors import RoundError, RunDirError
from fedmpi.mpi.communicator import SerialComm
from fedmpi.store import checkpoint, hdf5
from fedmpi.store.hdf5 import digest_of
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir

METHODS = ("fedhm", "topk")  # without and with client memories
KERNEL = "conv1.weight"
Harm = Callable[[bytes, Path], bytes]
"""Of the newest checkpoint's bytes and the run directory: the bytes of a damaged one."""


def words(method: str, folder: Path) -> list[str]:
    return [*SMALL, f"method.name={method}", "rounds=3", "output.progress=plain", "--run-dir", str(folder)]


@pytest.fixture(params=fast("fedhm", of=METHODS))
def run(request: pytest.FixtureRequest, made: Made, tmp_path: Path) -> Path:
    """A finished run of three rounds, to be damaged; its name is the method's."""
    return made(tmp_path / request.param, f"method.name={request.param}")


def _flipped(whole: bytes, at: float) -> bytes:
    place = int(at * (len(whole) - 1))
    return whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :]


def _rewritten(change: Callable[[dict[str, str | int], dict[str, torch.Tensor]], object]) -> Harm:
    """Writes the newest checkpoint with other attributes or server tensors, and the digest of what it is then."""

    def harm(_: bytes, folder: Path) -> bytes:
        attributes, groups = hdf5.read_tensors(RunDir(folder).checkpoint_path(3), checkpoint.KIND)
        change(attributes, groups["server"])
        return bytes(hdf5.pack_tensors(checkpoint.KIND, attributes, groups))

    return harm


def _with(change: Callable[[torch.Tensor], torch.Tensor]) -> Harm:
    return _rewritten(lambda _, server: server.update({KERNEL: change(server[KERNEL])}))


DAMAGE: dict[str, tuple[Harm, str]] = {
    "a bit of the values": (lambda whole, _: _flipped(whole, 0.5), "its digest does not match"),
    # Whole, but of no use here.
    "shape": (_with(lambda kernel: kernel[:1].clone()), "holds conv1.weight as torch.float32 [1, 1, 3, 3], not as"),
    "nan": (_with(lambda kernel: kernel * float("nan")), "holds values in conv1.weight that are not finite"),
    "missing": (_rewritten(lambda _, server: server.pop(KERNEL)), "lacks the server's tensor conv1.weight"),
    "seed": (_rewritten(lambda attributes, _: attributes.update(seed=99)), "holds a seed or a hash that is not its"),
    "no round": (_rewritten(lambda attributes, _: attributes.pop("round")), "is not a checkpoint of this fedmpi"),
}
FAST = ("a bit of the values", "seed")


@pytest.mark.parametrize("case", fast(*FAST, of=DAMAGE, slow=()))
def test_a_damaged_newest_checkpoint_is_skipped(run_main: RunMain, run: Path, case: str) -> None:
    """With one line that says which file is damaged, and how; the round is trained again, to the same bits."""
    expected, newest = finished(run), RunDir(run).checkpoint_path(3)
    harm, problem = DAMAGE[case]
    newest.write_bytes(harm(newest.read_bytes(), run))
    code, out, errors = run_main(*words(run.name, run), "--resume")
    (line,) = (line for line in errors.splitlines() if "skipping a checkpoint" in line)
    assert code == 0 and f"{newest}: " in line and problem in line, errors
    assert "resuming after round 2" in out and "Traceback" not in errors
    assert finished(run) == expected


@pytest.mark.slow
@given(
    which=st.integers(0, 1000),
    kind=st.sampled_from(["cut off", "bit flipped", "replaced", "gone"]),
    place=st.floats(0, 1),
    other=st.sampled_from([b"", b"{}\n", b"[[[", b"\0" * 600, b"\xff"]),
)
@settings(max_examples=int(os.environ.get("FEDMPI_TEST_EXAMPLES", "12")), phases=[Phase.generate])
def test_any_file_of_the_run_may_be_damaged(
    run_main: RunMain, run: Path, which: int, kind: str, place: float, other: bytes
) -> None:
    """The run comes to the same bits, though records may be lost, or one line says why not."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(run, Path(folder) / run.name))
        files = [path for path in sorted(copy.rglob("*")) if path.is_file() and path.stat().st_size]
        path = files[which % len(files)]
        whole = path.read_bytes()
        at = int(place * max(len(whole) - 1, 0))
        path.write_bytes({"cut off": whole[:at], "bit flipped": _flipped(whole, place)}.get(kind, other))
        if kind == "gone":
            path.unlink()
        code, _, errors = run_main(*words(run.name, copy), "rounds=4", "--resume")
        assert code in (0, 2) and "Traceback" not in errors, (path, errors)
        if code == 0:
            newest = checkpoint.load(RunDir(copy).checkpoint_path(4))
            assert digest_of(newest.server) == undisturbed_server(run.name), path
        else:
            assert errors.strip(), path


@cache
def undisturbed_server(method: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return undisturbed(Path(folder), f"method.name={method}", "rounds=4").server


def content(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path != RunDir(run).lock_path}


def test_one_of_another_config_is_refused(run_main: RunMain, made: Made, run: Path, tmp_path: Path, told: Told) -> None:
    """Whose it is, is not ours to guess: the run does not continue, and nothing of it is touched."""
    other, ours = RunDir(made(tmp_path / "other", f"method.name={run.name}", "seed=1")), RunDir(run)
    shutil.copytree(other.checkpoints_dir, ours.checkpoints_dir, dirs_exist_ok=True)
    if other.memory_dir.exists():
        shutil.copytree(other.memory_dir, ours.memory_dir, dirs_exist_ok=True)
    before = content(run)
    code, _, errors = run_main(*words(run.name, run), "--resume")
    assert code == 2
    told(rejoined(errors))
    assert content(run) == before


def test_if_all_are_damaged_the_run_is_left_alone(run_main: RunMain, run: Path) -> None:
    """Begun again it would lose its records; told to, by moving the checkpoints away, it gets to the same bits."""
    expected, folder = finished(run), RunDir(run)
    count = len(folder.checkpoints())
    for _, path in folder.checkpoints():
        path.write_bytes(path.read_bytes()[:-1])
    before = content(run)
    code, _, errors = run_main(*words(run.name, run), "--resume")
    assert code == 2 and "Traceback" not in errors, errors
    assert errors.count("skipping a checkpoint") == count
    advice = f"none of its {count} checkpoints can be used; put one back, or move them away to begin at round 1"
    assert errors.splitlines()[-1] == f"{folder.checkpoints_dir}: {advice}"
    assert content(run) == before
    folder.checkpoints_dir.rename(run / "moved away")
    code, out, errors = run_main(*words(run.name, run), "--resume")
    assert code == 0 and f" {run}: no round is saved yet, so it begins again at round 1" in rejoined(out), errors
    assert finished(run) == expected


@pytest.mark.slow
def test_a_memory_damaged_inside_a_round_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_main: RunMain
) -> None:
    """With rank, round, client and stage; the command that it says continues from the checkpoint before."""
    run, harmed = tmp_path / "run", []
    read = MemoryStore.get

    def damaged_in_round_3(store: MemoryStore, client: int, version: tuple[int, str] | None) -> object:
        if version is not None and version[0] == 2 and not harmed:
            harmed.append(RunDir(run).memory_path(client, *version))
            harmed[0].write_bytes(_flipped(harmed[0].read_bytes(), 0.5))
        return read(store, client, version)

    monkeypatch.setattr(MemoryStore, "get", damaged_in_round_3)
    with pytest.raises(RoundError) as caught:
        run_alone(run, "method.name=topk")
    assert isinstance(caught.value.__cause__, RunDirError)
    said = describe_failure(caught.value, SerialComm())
    assert re.match(failed_on(0, r"round 3, client \d, stage \w+\n"), said), said
    assert rejoined(said).endswith(f"cause: RunDirError: {harmed[0]}: is damaged: its digest does not match its bytes")
    code, out, errors = run_main(*words("topk", run), "--resume")
    assert code == 0 and "resuming after round 1" in out, errors
    assert f" {harmed[0]}: is damaged" in errors
    assert finished(run) == undisturbed(tmp_path, "method.name=topk")
