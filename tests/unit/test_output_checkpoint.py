"""Checkpoints: what is saved is found again, what is damaged is skipped, and a kill harms nothing."""

import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import h5py
import pytest
import torch
from data_fixtures import refusal
from golden_file import Told

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
        assert (file.attrs["round"], file.attrs["seed"], file.attrs["config_hash"].decode()) == (3, 1, "c" * 64)
        assert json.loads(file.attrs["config"]) == {"seed": 1, "train": {"lr": 0.1}}
        assert file.attrs["server_digest"].decode() == digest_of(snapshot(3).server)
        assert sorted(file) == ["clients", "server"] and sorted(file["clients"]) == ["client", "digest", "round"]


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
    (folder / "round-2000096.h5").symlink_to(folder / "figure-3.h5")
    (folder / "round-2000095.h5").mkdir()
    for number in (3, 5, 1_000_000):
        checkpoint.save(run_dir, snapshot(number), keep=2)
        run_dir.clear_temporaries()
    assert [number for number, _ in run_dir.checkpoints()] == [2_000_096, 2_000_095, 1_000_000, 5]
    saved = ["round-000005.h5", "round-1000000.h5"]
    others = ["round-2000095.h5", "round-2000096.h5", *names]
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
    path.unlink() if harm == "missing" else path.write_bytes(first.read_bytes())
    found, lines = newest(run_dir)
    assert found == 1 and len(lines) == 1 and path.name in lines[0]


def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_again(run_dir: RunDir, told: Told) -> None:
    for number in (1, 2):
        run_dir.checkpoint_path(number).write_bytes(b"")
    lines: list[str] = []
    told(refusal(checkpoint.load_newest_intact, run_dir, lines.append))
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


def test_a_failed_save_harms_nothing(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    checkpoint.save(run_dir, snapshot(1), keep=1)
    monkeypatch.setattr(files.os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    told(refusal(lambda: checkpoint.save(run_dir, snapshot(2), keep=1)), "(?<=device; ).*(?= free;)")
    assert newest(run_dir) == (1, []) and len(list(run_dir.checkpoints_dir.iterdir())) == 1


SAVES_FOR_EVER = """
import sys
import torch
from fedmpi.store import checkpoint
from fedmpi.store.files import remove
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir

run_dir = RunDir.open_for(sys.argv[1], resume=True)
found = checkpoint.load_newest_intact(run_dir, sys.exit)
number, clients = (found.round, dict(found.clients)) if found else (0, {})
while True:
    number += 1
    server = {f"w{i}": torch.full((200, 100), float(number)) for i in range(10)}
    memory = {"m": torch.full((9,), float(number))}
    clients[number % 3] = MemoryStore(run_dir).put(number % 3, number, memory)
    checkpoint.save(run_dir, checkpoint.Snapshot(number, server, clients, {}, "", 0, {}))
    for stale in set(run_dir.memories()) - checkpoint.referenced(run_dir):
        remove(run_dir.memory_path(*stale))
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(run_dir: RunDir) -> None:
    """The newest that loads, memories included, is the last one announced, or the one that was renamed just before the
    kill; nothing is skipped.
    """
    draw = random.Random(7)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for _ in range(5):
        command = [sys.executable, "-c", SAVES_FOR_EVER, str(run_dir.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as saving:
            announced = [saving.stdout.readline()]
            time.sleep(draw.uniform(0, 0.05))
            saving.kill()
            announced += saving.stdout.readlines()
        found = checkpoint.load_newest_intact(run_dir, pytest.fail)
        assert found is not None and found.round - int(announced[-1]) in (0, 1)
        assert len(found.server) == 10 and all(bool((value == found.round).all()) for value in found.server.values())
        versions = sorted(number for number, _ in found.clients.values())
        assert versions == list(range(max(1, found.round - 2), found.round + 1))


# Client memories: one file a version, read back whole or refused.


def params(value: float) -> dict[str, torch.Tensor]:
    return {"head.weight": torch.full((3,), value), "mask": torch.tensor([True, False])}


def test_a_version_comes_back_on_any_rank(run_dir: RunDir) -> None:
    """The same parameters are the same version, in the same bytes."""
    store = MemoryStore(run_dir)
    version = store.put(12_345, 7, params(1.5))
    path = run_dir.path / "memory" / "12" / "12345" / f"7-{version[1]}.h5"
    before = path.read_bytes()
    assert version[0] == 7 and len(before) < 4096
    assert store.put(12_345, 7, params(1.5)) == version and path.read_bytes() == before
    assert list(run_dir.memories()) == [(12_345, *version)]
    assert store.put(12_345, 7, params(2.0)) != version and store.get(12_345, None) is None
    found = MemoryStore(RunDir(run_dir.path)).get(12_345, version)
    assert found is not None and list(found) == ["head.weight", "mask"]
    assert torch.equal(found["head.weight"], torch.full((3,), 1.5)) and found["mask"].dtype == torch.bool


def test_damage_and_mix_ups_are_refused(run_dir: RunDir, told: Told) -> None:
    store = MemoryStore(run_dir)
    mine, other = store.put(1, 2, params(1.0)), store.put(2, 2, params(1.0))
    path = run_dir.memory_path(1, *mine)
    path.write_bytes(run_dir.memory_path(2, *other).read_bytes())
    told(refusal(store.get, 1, mine), r"[0-9a-f]{32}")
    path.unlink()
    assert "No such file" in refusal(store.get, 1, mine)
