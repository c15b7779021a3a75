"""Client memories: one file a version, read back whole or refused."""

import pytest
import torch
from golden_file import Told

from fedmpi.errors import RunDirError
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir


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
    assert list(run_dir.memory_versions(1)) == [version]
    assert run_dir.memory_path(1, *version).read_bytes() == before
    assert store.put(1, 2, params(2.0)) != version


def test_damage_and_mix_ups_are_refused(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    monkeypatch.setattr("fedmpi.store.memory.wait_until_visible", lambda path: None)
    store = MemoryStore(run_dir)
    mine, other = store.put(1, 2, params(1.0)), store.put(2, 2, params(1.0))
    path = run_dir.memory_path(1, *mine)
    whole = path.read_bytes()
    path.write_bytes(run_dir.memory_path(2, *other).read_bytes())
    with told.by(RunDirError, r"[0-9a-f]{32}"):
        store.get(1, mine)
    path.write_bytes(whole[:-1])
    with pytest.raises(RunDirError, match="is truncated"):
        store.get(1, mine)
    path.unlink()
    with pytest.raises(RunDirError, match="no such file"):
        store.get(1, mine)


def test_prune_spares_what_is_live_and_clients_it_was_not_asked_about(run_dir: RunDir) -> None:
    store = MemoryStore(run_dir)
    versions = {(client, *store.put(client, number, params(number))) for client in (1, 2, 3000) for number in (1, 2)}
    live = {version for version in versions if version[1] == 2}
    assert store.prune(live, clients=[1]) == 1
    assert {(client, *v) for client in run_dir.clients_with_memory() for v in run_dir.memory_versions(client)} == {
        version for version in versions if version in live or version[0] != 1
    }
    assert store.prune(live) == 2
    assert store.prune(live) == 0
    assert {(client, *v) for client in run_dir.clients_with_memory() for v in run_dir.memory_versions(client)} == live
