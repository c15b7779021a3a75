"""The state of a run between two rounds, saved and found again.

The next round needs (config, seed, round, server state, client memories) and nothing else: that
is what a checkpoint holds. Layout of `checkpoints/round-000012.h5`:

    /server    one dataset per tensor of the server state (attribute torch_dtype)
    /clients   client, round, digest: the version of each client's memory that is valid (a file of its own)
    /statistics  by name of the tested net, the BatchNorm statistics that this round was tested with (float32), if any
    attributes round, seed, config (JSON), config_hash, progress (JSON), versions (JSON), data_digest,
               server_digest, clients_digest, statistics_digest, content_digest

`server_digest` is `digest_of(server)`: equal for runs that computed the same, whatever ranks,
exchange or output they were asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedmpi.disk.plain import DIGEST_BYTES, remove
from fedmpi.errors import RunDirError, counted
from fedmpi.store import container, memory
from fedmpi.store.files import write_atomic
from fedmpi.store.run_dir import RunDir
from fedmpi.store.stored import Params

if TYPE_CHECKING:
    from fedmpi.tensors import Spec

KIND = "checkpoint"
BestOf = Callable[[Collection[int]], int | None]
"""Of these rounds the best one; None where none of them was tested."""
_JSON = ("config", "progress", "versions")
_ATTRIBUTES: dict[str, type] = {"round": int, "seed": int, "config_hash": str, **dict.fromkeys(_JSON, str)}
_GROUPS = ("server", "clients", "statistics")


@dataclass(frozen=True)
class Snapshot:
    """Everything that the next round needs."""

    round: int
    """Finished rounds."""
    server: Params
    clients: Mapping[int, tuple[int, str]]
    """Client -> (round, digest) of the version of its memory that is valid now."""
    progress: Mapping[str, Any]
    """What the report carries from round to round (best accuracies, ...): JSON, so keys are strings."""
    config: Mapping[str, Any]
    config_hash: str
    seed: int
    versions: Mapping[str, str]
    """What the run was computed with: versions of packages, kinds of CPU and GPU."""
    data_digest: str = ""
    """`digest` of the Dataset that the run was computed with; empty in a checkpoint of an older version."""
    statistics: Params = field(default_factory=dict)
    """Tested net -> the BatchNorm statistics that its accuracy was measured with (`TierScore.statistics`). Empty where
    those were the batch's own, where the round was not tested, and in a checkpoint of an older version."""


def save(run_dir: RunDir, snapshot: Snapshot, keep: int = 2, best: BestOf = lambda saved: None) -> Path:
    """Write the checkpoint of `snapshot.round`; once it is in place, delete all of this run but the newest `keep` and
    the `best` saved one.

    Checkpoints of later rounds go too: they are left over from before a resume that had to skip them. Only files that
    are `of_run` are ever deleted. Raises RunDirError; the checkpoints that stood are then untouched.
    """
    path = run_dir.checkpoint_path(snapshot.round)
    run_dir.make(run_dir.checkpoints_dir)
    write_atomic(path, container.pack(KIND, _content(snapshot)))
    own = of_run(run_dir, snapshot.config_hash)
    saved = [number for number, _ in own if number <= snapshot.round]
    kept = [*saved[:keep], best(saved)]
    for number, found in own:
        if number not in kept:
            remove(found)
    return path


def of_run(run_dir: RunDir, config_hash: str) -> list[tuple[int, Path]]:
    """(round, path) of the checkpoints on disk that say that they are of this round and config, newest first.

    Reads only their tables of contents. A damaged file that no longer says so, and any file that another user has put
    there, is not among them.
    """
    return [(number, path) for number, path in run_dir.checkpoints() if _says(path) == (number, config_hash)]


def _says(path: Path) -> tuple[int, str] | None:
    try:
        found = container.unpack_attributes(path, KIND)
        return int(found["round"]), str(found["config_hash"])
    except (RunDirError, KeyError, ValueError):
        return None


def load(path: Path) -> Snapshot:
    """The snapshot in one file. Raises RunDirError with one line if it is not whole."""
    content = container.unpack(path, KIND, _ATTRIBUTES, _GROUPS, optional=("statistics",))
    found = content.attributes
    try:
        plain: dict[str, Any] = {name: found[name] for name in _ATTRIBUTES}
        plain |= {name: _object(found[name]) for name in _JSON}
        _check_numbers(plain["progress"])
        digest, clients = str(found.get("data_digest", "")), _index(content.groups["clients"])
        server, statistics = content.groups["server"], content.groups.get("statistics", {})
        return Snapshot(server=server, statistics=statistics, clients=clients, data_digest=digest, **plain)
    except (ValueError, OverflowError, RecursionError) as error:
        raise RunDirError(str(path), f"is not a fedmpi checkpoint: {error}") from None


def unfit(server: Params, specs: Mapping[str, Spec]) -> str:
    """Why rounds could not continue from these tensors, of which some are as `specs` say; empty if they could."""
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
    config_hash: str | None = None,
    problem_of: Callable[[Snapshot], str] = lambda snapshot: "",
) -> Snapshot | None:
    """The newest checkpoint that is whole, its client memories included; None if no round was saved yet.

    `warn` gets one line for each file that is skipped. With `config_hash`, checkpoints of another config are skipped
    too, and those of which `problem_of` has something to say. Raises RunDirError if all are: no kill leaves a run like
    that (files are written whole or not at all), so whether to begin again and lose its records is not ours to decide.
    """
    found = run_dir.checkpoints()
    for round_number, path in found:
        try:
            snapshot = load(path)
            check(run_dir, snapshot, round_number, path, config_hash)
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


def referenced(run_dir: RunDir) -> set[tuple[int, int, str]] | None:
    """(client, round, digest) of every memory that a checkpoint on disk refers to: `MemoryStore.prune` must spare them.

    None if a checkpoint cannot be read: then it is not known, and nothing should be deleted. One that is damaged refers
    to nothing, since no run can continue from it. Reads the index only, not the server state.
    """
    versions: set[tuple[int, int, str]] = set()
    for _, path in run_dir.checkpoints():
        try:
            versions.update((client, *version) for client, version in index_of(path).items())
        except container.DamagedFileError:
            continue
        except RunDirError:
            return None
    return versions


def index_of(path: Path) -> dict[int, tuple[int, str]]:
    """Client -> (round, digest) of the memories that a checkpoint refers to. Raises RunDirError."""
    try:
        return _index(container.unpack_group(path, KIND, "clients"))
    except ValueError as error:
        raise container.DamagedFileError(str(path), str(error)) from None


def noted(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config of a checkpoint and its `versions`, from its table of contents alone. Raises RunDirError."""
    found = container.unpack_attributes(path, KIND)
    try:
        return _object(found["config"]), _object(found["versions"])
    except (KeyError, ValueError, RecursionError) as error:
        raise container.DamagedFileError(str(path), f"is not a fedmpi checkpoint: {error}") from None


def check(run_dir: RunDir, snapshot: Snapshot, round_number: int, path: Path, config_hash: str | None = None) -> None:
    """Raises RunDirError where a snapshot is not of the round of its file's name, or lacks a client's memory."""
    if snapshot.round != round_number:
        raise RunDirError(str(path), f"holds round {snapshot.round}, not the round of its name")
    if config_hash is not None and snapshot.config_hash != config_hash:
        raise RunDirError(str(path), f"is of another config (hash {snapshot.config_hash[:12]}, not {config_hash[:12]})")
    for client, version in snapshot.clients.items():
        memory.load(run_dir, client, version)


def _content(snapshot: Snapshot) -> container.Content:
    attributes = {name: getattr(snapshot, name) for name in _ATTRIBUTES}
    attributes |= {name: json.dumps(dict(attributes[name]), sort_keys=True) for name in _JSON}
    if snapshot.data_digest:
        attributes["data_digest"] = snapshot.data_digest
    clients = sorted(snapshot.clients)
    rounds = [snapshot.clients[client][0] for client in clients]
    digests = b"".join(bytes.fromhex(snapshot.clients[client][1]) for client in clients)
    index = {
        "client": torch.tensor(clients, dtype=torch.int64),
        "round": torch.tensor(rounds, dtype=torch.int64),
        "digest": torch.tensor(list(digests), dtype=torch.uint8).view(len(clients), DIGEST_BYTES),
    }
    groups: dict[str, Params] = {"server": snapshot.server, "clients": index}
    if snapshot.statistics:
        groups["statistics"] = snapshot.statistics
    return container.Content(attributes, groups)


def _index(stored: Params) -> dict[int, tuple[int, str]]:
    """Client -> (round, digest). Raises ValueError if the datasets do not fit together."""
    count = stored["client"].numel() if "client" in stored else 0
    numbers, digests = ((count,), torch.int64), ((count, DIGEST_BYTES), torch.uint8)
    found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in stored.items()}
    if found != {"client": numbers, "round": numbers, "digest": digests}:
        raise ValueError("its index of client memories does not fit together")
    versions = zip(stored["round"].tolist(), (bytes(row).hex() for row in stored["digest"].tolist()), strict=True)
    return dict(zip(stored["client"].tolist(), versions, strict=True))


def _object(text: str | int) -> dict[str, Any]:
    value = json.loads(str(text))
    if not isinstance(value, dict):
        raise ValueError("an attribute is not a JSON object")
    return value


def _check_numbers(progress: Mapping[str, Any]) -> None:
    """Raises ValueError or OverflowError unless the report carries on numbers by tier or stage."""
    for name, by_key in progress.items():
        if not isinstance(by_key, dict) or not all(type(value) in (int, float) for value in by_key.values()):
            raise ValueError(f"its progress has no numbers under {name[:40]!r}")
        for value in by_key.values():
            float(value)  # an OverflowError where sums of floats would have one
