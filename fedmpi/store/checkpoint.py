"""The state of a run between two rounds, saved and found again.

The next round needs (config, seed, round, server state, client memories) and nothing else: that is what a checkpoint
holds. `README.md` has its layout. The attribute `server_digest` is `digest_of(server)`: equal for runs that computed
the same, whatever their ranks, exchange or output.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fedmpi.errors import RunDirError, counted, reason
from fedmpi.store import hdf5, memory
from fedmpi.store.files import DIGEST_BYTES, remove, write_atomic
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import Params, Spec

KIND = "checkpoint"
_PLAIN = ("round", "seed", "config_hash", "data_digest")
_JSON = ("config", "versions", "simulated")


@dataclass(frozen=True)
class Snapshot:
    """Everything that the next round needs."""

    round: int
    """Finished rounds."""
    server: Params
    clients: Mapping[int, tuple[int, str]]
    """Client -> (round, digest) of the version of its memory that is valid now."""
    config: Mapping[str, Any]
    config_hash: str
    seed: int
    versions: Mapping[str, str]
    """What the run was computed with: versions of packages, kinds of CPU and GPU."""
    data_digest: str = ""
    """`digest` of the Dataset that the run was computed with."""
    statistics: Params = field(default_factory=dict)
    """Tested net -> the BatchNorm statistics that its accuracy was measured with (`TierScore.statistics`). Empty where
    those were the batch's own, and where the round was not tested.
    """
    simulated: Mapping[str, int] = field(default_factory=dict)
    """`ns` and `uj` since round 1 on the clients' devices, where they have a clock (`devices`)."""


def save(
    run_dir: RunDir,
    snapshot: Snapshot,
    keep: int = 2,
    best: Callable[[Collection[int]], int | None] = lambda saved: None,
) -> Path:
    """Writes the checkpoint of `snapshot.round`; once it is in place, deletes all but the newest `keep` and the `best`.

    Those of later rounds go too: a resume had to skip them. Raises RunDirError, before any is deleted.
    """
    path = run_dir.checkpoint_path(snapshot.round)
    run_dir.make(run_dir.checkpoints_dir)
    attributes = {name: getattr(snapshot, name) for name in _PLAIN}
    attributes |= {name: json.dumps(dict(getattr(snapshot, name)), sort_keys=True) for name in _JSON}
    clients = sorted(snapshot.clients)
    rounds = [snapshot.clients[client][0] for client in clients]
    digests = [list(bytes.fromhex(snapshot.clients[client][1])) for client in clients]
    index = {
        "client": torch.tensor(clients, dtype=torch.int64),
        "round": torch.tensor(rounds, dtype=torch.int64),
        "digest": torch.tensor(digests, dtype=torch.uint8).view(len(clients), DIGEST_BYTES),
    }
    groups: dict[str, Params] = {"server": snapshot.server, "clients": index}
    if snapshot.statistics:
        groups["statistics"] = snapshot.statistics
    write_atomic(path, hdf5.pack_tensors(KIND, attributes, groups))
    on_disk = run_dir.checkpoints()
    saved = [number for number, _ in on_disk if number <= snapshot.round]
    stay = {*saved[:keep], best(saved)}
    for number, old in on_disk:
        if number not in stay:
            remove(old)
    return path


def load(path: Path) -> Snapshot:
    """Reads a snapshot from its file in a run. Raises RunDirError if that, or a memory that it names, is damaged."""
    attributes, groups = hdf5.read_tensors(path, KIND)
    try:
        known: dict[str, Any] = {name: attributes[name] for name in _PLAIN}
        known |= {name: json.loads(str(attributes[name])) for name in _JSON}
        snapshot = Snapshot(
            server=groups.get("server", {}),
            clients=_index(groups["clients"]),
            statistics=groups.get("statistics", {}),
            **known,
        )
    except (KeyError, ValueError) as error:
        raise RunDirError(str(path), f"is not a checkpoint of this fedmpi: {reason(error)}") from None
    run_dir = RunDir(path.parents[1])
    if path.name != run_dir.checkpoint_path(snapshot.round).name:
        raise RunDirError(str(path), f"holds round {snapshot.round}, not the round of its name")
    for client, version in snapshot.clients.items():
        memory.load(run_dir, client, version)
    return snapshot


def _index(stored: Mapping[str, Any]) -> dict[int, tuple[int, str]]:
    """Returns client -> (round, digest), of tensors or arrays."""
    digests = [bytes(row).hex() for row in stored["digest"].tolist()]
    versions = zip(stored["round"].tolist(), digests, strict=True)
    return dict(zip(stored["client"].tolist(), versions, strict=True))


def unfit(server: Params, specs: Mapping[str, Spec]) -> str:
    """Returns why rounds could not continue from these tensors, of which some are as `specs` say; '' if they could."""
    for name, spec in specs.items():
        if name not in server:
            return f"lacks the server's tensor {name}"
        found = server[name]
        if (tuple(found.shape), found.dtype) != (spec.shape, spec.dtype):
            return f"holds {name} as {found.dtype} {list(found.shape)}, not as {spec.dtype} {list(spec.shape)}"
    for name, found in server.items():
        if not torch.isfinite(found.float() if found.dtype.itemsize == 1 else found).all():
            return f"holds values in {name} that are not finite"
    return ""


def load_newest_intact(
    run_dir: RunDir,
    warn: Callable[[str], None],
    problem_of: Callable[[Snapshot], str] = lambda snapshot: "",
    only: int | None = None,
) -> Snapshot | None:
    """Loads the newest checkpoint that is whole, of round `only` if given; None if no round was saved yet.

    `warn` gets one line for each file that is skipped: damaged ones, and those of which `problem_of` has something to
    say. Raises RunDirError if all are: no kill leaves a run like that, so the user decides whether to lose its records.
    """
    found = [path for number, path in run_dir.checkpoints() if only in (None, number)]
    for path in found:
        try:
            snapshot = load(path)
            if problem := problem_of(snapshot):
                raise RunDirError(str(path), problem)
            return snapshot
        except RunDirError as error:
            warn(f"skipping a checkpoint: {error.text()}")
    if found:
        advice = "put one back, or move them away to begin at round 1"
        unusable = f"none of its {counted(len(found), 'checkpoint')} can be used; {advice}"
        raise RunDirError(str(run_dir.checkpoints_dir), unusable)
    return None


def state_digest(path: Path) -> str:
    """Returns one digest of the server's state and of all clients' memories, 128 bits in hex. Raises RunDirError."""
    attributes, _ = hdf5.read(path, KIND, None)
    both = f"{attributes['server_digest']} {attributes['clients_digest']}"
    return hashlib.blake2b(both.encode(), digest_size=DIGEST_BYTES).hexdigest()


def referenced(run_dir: RunDir) -> set[tuple[int, int, str]] | None:
    """Returns (client, round, digest) of every memory that a checkpoint refers to; None if one cannot be read."""
    versions: set[tuple[int, int, str]] = set()
    for _, path in run_dir.checkpoints():
        try:
            versions |= _memories_of(path, path.stat().st_mtime_ns)
        except (OSError, RunDirError):
            return None
    return versions


@lru_cache(maxsize=16)
def _memories_of(path: Path, mtime_ns: int) -> set[tuple[int, int, str]]:
    """Reads the index of a checkpoint, once for each time that it was written: the digest is of the whole file."""
    _, arrays = hdf5.read(path, KIND, "clients")
    return {(client, *version) for client, version in _index(arrays).items()}
