"""Checkpoints: what is saved is found again, what is damaged is skipped, and a kill harms nothing."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
import torch
from golden_file import Told

from fedmpi.errors import RunDirError
from fedmpi.store import checkpoint, files
from fedmpi.store.checkpoint import Snapshot
from fedmpi.store.hdf5 import digest_of
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir

DIGEST = "0123456789abcdef0123456789abcdef"


def snapshot(round_number: int, **changes: object) -> Snapshot:
    server = {"conv.weight": torch.full((2, 3), float(round_number)), "queue": torch.tensor(round_number)}
    plain = Snapshot(
        round=round_number,
        server=server,
        clients={},
        config={"seed": 1, "train": {"lr": 0.1}},
        config_hash="c" * 64,
        seed=1,
        versions={"torch": "2.4"},
    )
    return dataclasses.replace(plain, **changes)


def newest(run_dir: RunDir) -> tuple[int | None, list[str]]:
    lines: list[str] = []
    found = checkpoint.load_newest_intact(run_dir, lines.append)
    return (found.round if found else None), lines


def test_a_snapshot_comes_back_whole(run_dir: RunDir) -> None:
    clients = {70000: MemoryStore(run_dir).put(70000, 2, {"mask": torch.tensor([True, False])})}
    saved = snapshot(3, clients=clients)
    path = checkpoint.save(run_dir, saved)
    assert path == run_dir.path / "checkpoints" / "round-000003.h5"
    found = checkpoint.load_newest_intact(run_dir, pytest.fail)
    assert found is not None and digest_of(found.server) == digest_of(saved.server)
    assert list(found.server) == ["conv.weight", "queue"]
    assert dataclasses.replace(found, server=saved.server) == saved


def test_the_file_says_what_it_is(run_dir: RunDir) -> None:
    with h5py.File(checkpoint.save(run_dir, snapshot(3)), "r") as file:
        assert (file.attrs["round"], file.attrs["seed"]) == (3, 1)
        assert json.loads(file.attrs["config"]) == {"seed": 1, "train": {"lr": 0.1}}
        assert json.loads(file.attrs["versions"]) == {"torch": "2.4"}
        assert file.attrs["config_hash"].decode() == "c" * 64
        assert file.attrs["server_digest"].decode() == digest_of(snapshot(3).server)
        assert sorted(file) == ["clients", "server"]
        assert sorted(file["clients"]) == ["client", "digest", "round"]


def test_the_newest_k_stay(run_dir: RunDir) -> None:
    for round_number in range(1, 6):
        checkpoint.save(run_dir, snapshot(round_number), keep=2)
        expected = [number for number in (round_number, round_number - 1) if number > 0]
        assert [number for number, _ in run_dir.checkpoints()] == expected
    checkpoint.save(run_dir, snapshot(6), keep=1)
    assert [path.name for path in run_dir.checkpoints_dir.iterdir()] == ["round-000006.h5"]


def test_files_of_a_future_that_was_given_up_do_not_push_out_good_ones(run_dir: RunDir) -> None:
    """Rounds 8 and 9 are damaged, the run resumes after 7: saving 8 must leave 7 and 8, not 8 and 9."""
    for round_number in (7, 8, 9):
        checkpoint.save(run_dir, snapshot(round_number), keep=3)
    for round_number in (8, 9):
        path = run_dir.checkpoint_path(round_number)
        path.write_bytes(path.read_bytes()[:-1])
    assert newest(run_dir)[0] == 7
    checkpoint.save(run_dir, snapshot(8), keep=2)
    assert [number for number, _ in run_dir.checkpoints()] == [8, 7]
    assert newest(run_dir) == (8, [])


def test_files_of_other_names_and_kinds_stay(run_dir: RunDir) -> None:
    folder = run_dir.checkpoints_dir
    names = ("figure-3.h5", "round-000002-backup.h5", "round-2.h5", ".notes.tmp", ".round-000001.h5.tmp")
    for name in names:
        (folder / name).write_text("mine")
    (folder / "round-000096.h5").symlink_to(folder / "figure-3.h5")
    (folder / "round-000095.h5").mkdir()
    for number in range(3, 6):
        checkpoint.save(run_dir, snapshot(number), keep=2)
        run_dir.clear_temporaries()
    saved = ["round-000004.h5", "round-000005.h5"]
    others = ["round-000095.h5", "round-000096.h5", *names]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*saved, *others])


def test_damaged_ones_are_skipped_with_a_line_that_names_them(run_dir: RunDir) -> None:
    for round_number in range(1, 6):
        checkpoint.save(run_dir, snapshot(round_number), keep=9)
    cut = run_dir.checkpoint_path(5).read_bytes()[:-9]
    run_dir.checkpoint_path(5).write_bytes(cut)
    with h5py.File(run_dir.checkpoint_path(4), "w") as foreign:
        foreign["server/x"] = [1.0]
    run_dir.checkpoint_path(3).write_bytes(run_dir.checkpoint_path(2).read_bytes())
    found, lines = newest(run_dir)
    assert found == 2
    expected = ["is damaged", "was not written by fedmpi", "holds round 2, not the round"]
    for number, line, reason in zip((5, 4, 3), lines, expected, strict=True):
        assert f"round-00000{number}.h5: " in line and reason in line and "\n" not in line


@pytest.mark.parametrize("harm", ["missing", "of another version"])
def test_a_checkpoint_whose_memory_is_lost_is_skipped(harm: str, run_dir: RunDir) -> None:
    store = MemoryStore(run_dir)
    for round_number in (1, 2):
        version = store.put(5, round_number, {"residual": torch.full((3,), float(round_number))})
        checkpoint.save(run_dir, snapshot(round_number, clients={5: version}))
    path = run_dir.memory_path(5, *version)
    (first,) = path.parent.glob("1-*.h5")
    content = {"missing": None, "of another version": first.read_bytes()}[harm]
    path.unlink() if content is None else path.write_bytes(content)
    found, lines = newest(run_dir)
    assert found == 1 and len(lines) == 1 and path.name in lines[0]


def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_again(run_dir: RunDir, told: Told) -> None:
    for number in (1, 2):
        run_dir.checkpoint_path(number).write_bytes(b"")
    lines: list[str] = []
    with told.by(RunDirError):
        checkpoint.load_newest_intact(run_dir, lines.append)
    assert len(lines) == 2 and all("was not written by fedmpi" in line for line in lines)


def test_what_checkpoints_refer_to(run_dir: RunDir) -> None:
    """A checkpoint that is written anew is read anew; of one that cannot be read nothing is known."""
    checkpoint.save(run_dir, snapshot(1, clients={1: (1, DIGEST)}))
    checkpoint.save(run_dir, snapshot(2, clients={1: (1, DIGEST), 3: (2, DIGEST)}))
    assert checkpoint.referenced(run_dir) == {(1, 1, DIGEST), (3, 2, DIGEST)}
    checkpoint.save(run_dir, snapshot(2, clients={1: (1, DIGEST)}))
    assert checkpoint.referenced(run_dir) == {(1, 1, DIGEST)}
    run_dir.checkpoint_path(1).write_bytes(b"")
    assert checkpoint.referenced(run_dir) is None


@pytest.mark.parametrize("stage", ["fsync", "replace"])
def test_a_failed_save_harms_nothing(stage: str, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    checkpoint.save(run_dir, snapshot(1), keep=1)

    def disk_is_full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, stage, disk_is_full)
    with told.by(RunDirError, "(?<=device; ).*(?= free;)"):
        checkpoint.save(run_dir, snapshot(2), keep=1)
    assert newest(run_dir) == (1, [])
    assert len(list(run_dir.checkpoints_dir.iterdir())) == 1


KILLER = """
import os, random, signal, sys, time
import torch
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir
from fedmpi.store.checkpoint import Snapshot
from fedmpi.store import checkpoint
from fedmpi.store.files import remove

torch.set_num_threads(1)
run_dir = RunDir.open_for(sys.argv[1], resume=True)
store, draw = MemoryStore(run_dir), random.Random(int(sys.argv[2]))

def save_for_ever(round_number, clients, announce):
    while True:
        round_number += 1
        server = {f"w{i}": torch.full((200, 100), float(round_number)) for i in range(10)}
        memory = {"m": torch.full((9,), float(round_number))}
        clients = {**clients, round_number % 3: store.put(round_number % 3, round_number, memory)}
        checkpoint.save(run_dir, Snapshot(round_number, server, clients, {}, "", 0, {}))
        for stale in set(run_dir.memories()) - checkpoint.referenced(run_dir):
            remove(run_dir.memory_path(*stale))
        os.write(announce, b"x")

def killed_after(last_round, clients):
    heard, announce = os.pipe()
    child = os.fork()
    if child == 0:
        save_for_ever(last_round, clients, announce)
    os.close(announce)
    os.read(heard, 1)
    time.sleep(draw.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    saved = 1
    while rest := os.read(heard, 4096):
        saved += len(rest)
    os.close(heard)
    return last_round + saved

def complain(line):
    raise AssertionError(line)

last_round, clients, ahead, torn = 0, {}, 0, 0
for _ in range(15):
    announced = killed_after(last_round, clients)
    torn += any(path.name.endswith(".tmp") for path in run_dir.checkpoints_dir.iterdir())
    found = checkpoint.load_newest_intact(run_dir, complain)
    assert found.round in (announced, announced + 1), (found.round, announced)
    ahead += found.round > announced
    last_round, clients = found.round, dict(found.clients)
    assert len(found.server) == 10
    assert all(bool((tensor == last_round).all()) for tensor in found.server.values())
    assert sorted(version[0] for version in clients.values()) == list(range(max(1, last_round - 2), last_round + 1))
    for client, version in clients.items():
        assert bool((store.get(client, version)["m"] == version[0]).all())
print("ok", last_round, "rounds", torn, "kills while writing", ahead, "between rename and announcement")
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """15 SIGKILLs of a process that saves in a loop, each up to 50 ms (some saves) after its first save.

    The newest that loads is the last one announced, or the one that was renamed just before the
    kill; it is complete, its memories included, nothing is skipped. One interpreter starts and
    forks the children, as starting torch takes longer than the whole test.
    """
    command = [sys.executable, "-c", KILLER, str(tmp_path / "run"), "7"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok "), done.stdout


# Client memories: one file a version, read back whole or refused.


def params(value: float) -> dict[str, torch.Tensor]:
    return {"head.weight": torch.full((3,), value), "mask": torch.tensor([True, False])}


def test_a_version_comes_back_on_any_rank(run_dir: RunDir) -> None:
    version = MemoryStore(run_dir).put(12_345, 7, params(1.5))
    assert version[0] == 7
    path = run_dir.path / "memory" / "12" / "12345" / f"7-{version[1]}.h5"
    assert path.is_file() and path.stat().st_size < 4096
    assert MemoryStore(run_dir).get(12_345, None) is None
    found = MemoryStore(RunDir(run_dir.path)).get(12_345, version)
    assert found is not None and list(found) == ["head.weight", "mask"]
    assert torch.equal(found["head.weight"], torch.full((3,), 1.5)) and found["mask"].dtype == torch.bool


def test_the_same_parameters_are_the_same_version(run_dir: RunDir) -> None:
    store = MemoryStore(run_dir)
    version = store.put(1, 2, params(1.0))
    before = run_dir.memory_path(1, *version).read_bytes()
    assert store.put(1, 2, params(1.0)) == version
    assert list(run_dir.memories()) == [(1, *version)]
    assert run_dir.memory_path(1, *version).read_bytes() == before
    assert store.put(1, 2, params(2.0)) != version


def test_damage_and_mix_ups_are_refused(run_dir: RunDir, told: Told) -> None:
    store = MemoryStore(run_dir)
    mine, other = store.put(1, 2, params(1.0)), store.put(2, 2, params(1.0))
    path = run_dir.memory_path(1, *mine)
    path.write_bytes(run_dir.memory_path(2, *other).read_bytes())
    with told.by(RunDirError, r"[0-9a-f]{32}"):
        store.get(1, mine)
    path.unlink()
    with pytest.raises(RunDirError, match="No such file"):
        store.get(1, mine)


def test_memories_are_listed_and_deleted(run_dir: RunDir) -> None:
    store = MemoryStore(run_dir)
    versions = {(client, *store.put(client, number, params(number))) for client in (1, 2, 3000) for number in (1, 2)}
    assert set(run_dir.memories()) == versions
    stale = {version for version in versions if version[1] == 1}
    for version in stale:
        files.remove(run_dir.memory_path(*version))
    assert set(run_dir.memories()) == versions - stale
