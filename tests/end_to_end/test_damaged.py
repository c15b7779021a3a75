"""A run whose files are damaged: it goes on from the checkpoint before, to the same bits, or says that it cannot."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import crafted_hdf5
import pytest
import torch
from small_runs import SMALL, finished, run_all, small_config
from torture import damage

from fedmpi.command.manners import described
from fedmpi.errors import RoundError, RunDirError
from fedmpi.mpi.serial import SerialComm
from fedmpi.store import checkpoint, container
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir

RunMain = Callable[..., tuple[int, str, str]]
METHODS = ("fedhm", "topk")  # without and with client memories


def words(method: str, folder: Path) -> list[str]:
    return [*SMALL, f"method.name={method}", "rounds=3", "output.progress=plain", "--run-dir", str(folder)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three rounds for each method, and one of another config."""
    folder = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        for name, seed in ((method, 0), (f"{method} of another seed", 1)):
            run_all(small_config(f"method.name={method}", f"seed={seed}"), SerialComm(), folder / name)
    return folder


@pytest.fixture(params=METHODS)
def run(request: pytest.FixtureRequest, runs: Path, tmp_path: Path) -> Path:
    """A copy of one of them, to be damaged; its name is the method's."""
    return Path(shutil.copytree(runs / request.param, tmp_path / request.param))


def _flipped(whole: bytes, at: float) -> bytes:
    place = int(at * (len(whole) - 1))
    return whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :]


def _forged(whole: bytes, folder: Path) -> bytes:
    return crafted_hdf5.disguised(folder / "crafted.h5", crafted_hdf5.CRAFTED["huge without storage"], whole)


DAMAGE: dict[str, tuple[Callable[[bytes, Path], bytes], str]] = {
    **{
        f"cut off at {tenth} tenths": (lambda whole, _, tenth=tenth: whole[: len(whole) * tenth // 10], "is truncated")
        for tenth in range(1, 10)
    },
    "empty": (lambda whole, _: b"", "is empty"),
    "a bit of the header": (lambda whole, _: _flipped(whole, 0), "its first bytes are damaged"),
    "a bit of the structure": (lambda whole, _: _flipped(whole, 0.05), "its checksum does not match"),
    "a bit of the values": (lambda whole, _: _flipped(whole, 0.5), "its checksum does not match"),
    "the last bit": (lambda whole, _: _flipped(whole, 1), "its checksum does not match"),
    "another format": (lambda whole, _: whole.replace(b"format 2", b"format 3", 1), "has format 3"),
    "another kind": (lambda whole, folder: (folder / "partition.h5").read_bytes(), "is a partition file"),
    "the one before": (lambda whole, folder: RunDir(folder).checkpoint_path(2).read_bytes(), "holds round 2, not"),
    "another program": (
        lambda whole, folder: crafted_hdf5.write(folder / "crafted.h5", crafted_hdf5.CRAFTED["netCDF"]),
        "was not written by fedmpi",
    ),
    "forged": (_forged, ""),
    "a forged table": (lambda whole, _: damage.forged_contents(whole, random.Random(1)), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_newest_checkpoint_is_skipped(run_main: RunMain, run: Path, case: str) -> None:
    """With one line that names it; the round is trained again, to the same bits."""
    expected, newest = finished(run), RunDir(run).checkpoint_path(3)
    harm, problem = DAMAGE[case]
    newest.write_bytes(harm(newest.read_bytes(), run))
    code, out, errors = run_main(*words(run.name, run), "--resume")
    assert code == 0, errors
    lines = [line for line in errors.splitlines() if "skipping a checkpoint" in line]
    assert len(lines) == 1 and f"{newest}: " in lines[0] and problem in lines[0], errors
    assert "resuming after round 2" in out and "Traceback" not in errors
    assert finished(run) == expected


def _resealed(path: Path, change: Callable[[dict[str, str | int], dict[str, torch.Tensor]], object]) -> None:
    """The file with its attributes and server tensors changed, and the checksum of what it is then."""
    found = container.unpack(path, checkpoint.KIND, checkpoint._ATTRIBUTES, checkpoint._GROUPS)
    attributes, server = dict(found.attributes), dict(found.groups["server"])
    change(attributes, server)
    path.write_bytes(container.pack(checkpoint.KIND, container.Content(attributes, {**found.groups, "server": server})))


def _with(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., object]:
    return lambda _, server: server.update({KERNEL: change(server[KERNEL])})


def _attribute(name: str, value: str | int) -> Callable[..., object]:
    return lambda attributes, _: attributes.update({name: value})


KERNEL = "conv1.weight"
UNFIT: dict[str, tuple[Callable[..., object], str]] = {
    "shape": (_with(lambda kernel: kernel[:1].clone()), "holds conv1.weight as torch.float32 [1, 1, 3, 3], not as"),
    "type": (_with(torch.Tensor.double), "holds conv1.weight as torch.float64"),
    "nan": (_with(lambda kernel: kernel * float("nan")), "holds values in conv1.weight that are not finite"),
    "missing": (lambda _, server: server.pop(KERNEL), "lacks the server's tensor conv1.weight"),
    "nothing": (lambda _, server: server.clear(), "lacks the server's tensor conv1.weight"),
    "seed": (_attribute("seed", 99), "holds a seed or a hash that is not its config's"),
    "hash": (_attribute("config_hash", "c" * 64), "holds a seed or a hash that is not its config's"),
    "round": (_attribute("round", -3), "holds round -3"),
    "progress": (_attribute("progress", '{"best": "x"}'), "its progress has no numbers under 'best'"),
    "text in progress": (_attribute("progress", '{"best": {"1": "x"}}'), "its progress has no numbers under 'best'"),
    "large progress": (_attribute("progress", f'{{"seconds": {{"wall": {10**400}}}}}'), "is not a fedmpi checkpoint"),
    "other progress": (_attribute("progress", '{"foo": {}}'), "holds progress of another kind: 'foo'"),
    "deep": (_attribute("config", '{"a":' * 900 + "1" + "}" * 900), "holds a config that is none"),
    "deeper": (_attribute("versions", '{"a":' * 99999 + "1" + "}" * 99999), "is not a fedmpi checkpoint"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_whole_checkpoint_that_does_not_fit_is_skipped(run_main: RunMain, run: Path, case: str) -> None:
    """As a damaged one is: its checksum says nothing about who wrote it."""
    expected, newest = finished(run), RunDir(run).checkpoint_path(3)
    harm, problem = UNFIT[case]
    _resealed(newest, harm)
    code, out, errors = run_main(*words(run.name, run), "--resume")
    lines = [line for line in errors.splitlines() if "skipping a checkpoint" in line]
    assert code == 0 and len(lines) == 1 and f"{newest}: " in lines[0] and problem in lines[0], errors
    assert "resuming after round 2" in out and "Traceback" not in errors
    assert finished(run) == expected


def test_one_of_another_config_is_refused(run_main: RunMain, run: Path, runs: Path) -> None:
    """Whose it is, is not ours to guess: the run does not go on, and nothing of it is touched."""
    other, ours = RunDir(runs / f"{run.name} of another seed"), RunDir(run)
    shutil.copytree(other.checkpoints_dir, ours.checkpoints_dir, dirs_exist_ok=True)
    if other.memory_dir.exists():
        shutil.copytree(other.memory_dir, ours.memory_dir, dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path != ours.lock_path}
    code, _, errors = run_main(*words(run.name, run), "--resume")
    assert code == 2 and "seed: run has 1, you ask 0" in errors and errors.count("\n") == 1, errors
    assert {path: path.read_bytes() for path in before} == before


def test_if_all_are_damaged_the_run_is_left_alone(run_main: RunMain, run: Path) -> None:
    """Begun again it would lose its records; told to, by moving the checkpoints away, it gets to the same bits."""
    expected, folder = finished(run), RunDir(run)
    for _, path in folder.checkpoints():
        path.write_bytes(path.read_bytes()[:-1])
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path != folder.lock_path}
    code, _, errors = run_main(*words(run.name, run), "--resume")
    assert code == 2 and "Traceback" not in errors, errors
    assert errors.count("skipping a checkpoint") == 2
    advice = "none of its 2 checkpoints can be used; put one back, or move them away to begin at round 1"
    assert errors.splitlines()[-1] == f"{folder.checkpoints_dir}: {advice}"
    assert {path: path.read_bytes() for path in before} == before
    folder.checkpoints_dir.rename(run / "moved away")
    assert run_main(*words(run.name, run), "--resume")[0] == 0
    assert finished(run) == expected


def _newer_memory(folder: RunDir) -> Path:
    """One that only the newest checkpoint needs."""
    newest, before = (set(checkpoint.load(path).clients.items()) for _, path in folder.checkpoints())
    client, version = sorted(newest - before)[0]
    return folder.memory_path(client, *version)


@pytest.mark.parametrize("case", ["cut off at 5 tenths", "empty", "a bit of the values", "another format", "missing"])
def test_a_damaged_memory_skips_the_checkpoint_that_needs_it(
    run_main: RunMain, runs: Path, tmp_path: Path, case: str
) -> None:
    run = Path(shutil.copytree(runs / "topk", tmp_path / "topk"))
    expected, path = finished(run), _newer_memory(RunDir(run))
    if case == "missing":
        path.unlink()
    else:
        path.write_bytes(DAMAGE[case][0](path.read_bytes(), run))
    code, out, errors = run_main(*words("topk", run), "--resume")
    assert code == 0, errors
    lines = [line for line in errors.splitlines() if "skipping a checkpoint" in line]
    assert len(lines) == 1 and path.name in lines[0], errors
    assert "resuming after round 2" in out and finished(run) == expected


def test_a_memory_damaged_inside_a_round_is_named(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_main: RunMain
) -> None:
    """With rank, round, client and stage; the command that it says goes on from the checkpoint before."""
    run, harmed = tmp_path / "run", []
    read = MemoryStore.get

    def damaged_in_round_3(store: MemoryStore, client: int, version: tuple[int, str] | None) -> object:
        if version is not None and version[0] == 2 and not harmed:
            harmed.append(RunDir(run).memory_path(client, *version))
            harmed[0].write_bytes(_flipped(harmed[0].read_bytes(), 0.5))
        return read(store, client, version)

    monkeypatch.setattr(MemoryStore, "get", damaged_in_round_3)
    with pytest.raises(RoundError) as caught:
        run_all(small_config("method.name=topk"), SerialComm(), run)
    assert isinstance(caught.value.__cause__, RunDirError)
    told = described(caught.value, SerialComm())
    assert re.match(r"fedmpi: failed on rank 0 on \S+, round 3, client \d, stage \w+\n", told), told
    problem = "is damaged: its checksum does not match its bytes; --resume goes on from a checkpoint before it"
    assert told.endswith(f"cause: RunDirError: {harmed[0]}: {problem}")
    code, out, errors = run_main(*words("topk", run), "--resume")
    assert code == 0 and "resuming after round 1" in out, errors
    assert f"skipping a checkpoint: {harmed[0]}: is damaged" in errors
    assert finished(run) == finished(runs / "topk")
