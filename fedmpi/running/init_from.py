"""`--init-from RUN[@ROUND]`: a new run whose first round begins with the state that another run has saved.

The new run has rounds, records and a directory of its own, and may have other settings. Its manifest names RUN. What
the clients remember comes along where the settings that shape it are those of RUN. RUN is only read, and may run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedmpi.errors import RunDirError, RunStateError
from fedmpi.mpi.communicator import together
from fedmpi.report.terminal import warn
from fedmpi.rounds.state import Setup
from fedmpi.running.folder import Origin
from fedmpi.store import checkpoint, manifest, memory
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import specs_of

# Settings that shape what clients remember.
_SHAPING = ("method.", "model.", "clients.", "data.", "partition.", "seed:")
# RUN may delete its old checkpoints while they are being read; then the next one is tried.
_MAX_ATTEMPTS = 10


def load(origin: Origin) -> checkpoint.Snapshot:
    """Reads the newest checkpoint of `origin` that is whole, its memories included. Raises RunDirError."""
    problem = ""
    for number, path in origin.checkpoints():
        try:
            snapshot = checkpoint.load(path)
            checkpoint.check(origin.run_dir, snapshot, number, path)
            return snapshot
        except RunDirError as error:
            problem = problem or error.text()
            warn(f"skipping a checkpoint: {error.text()}")
    saved = ", ".join(str(number) for number, _ in origin.run_dir.checkpoints()) or "none"
    which = "" if origin.round is None else f" of round {origin.round}"
    why = problem or f"saved rounds: {saved}"
    raise RunStateError(str(origin.run_dir.path), f"holds no whole checkpoint{which} to begin from; {why}")


def save_first_state(setup: Setup, folder: RunDir, origin: Origin | None) -> dict[str, Any]:
    """Saves what the run begins with as its checkpoint of round 0, unless it has begun or `origin` is None.

    A resume then needs RUN no more. Returns what the manifest says of it. Raises `StartupError` on all ranks together.
    """

    def save() -> dict[str, Any]:
        if origin is None or not setup.comm.is_root or folder.checkpoints():
            return {}
        return {manifest.INIT_FROM: _save(setup, folder, origin)}

    return together(setup.comm, save)


def _save(setup: Setup, folder: RunDir, origin: Origin) -> dict[str, Any]:
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        before = origin.checkpoints()
        try:
            parent = load(origin)
            snapshot = _fitted(setup, origin, parent)
            memories = {
                client: setup.memories.put(client, 0, memory.load(origin.run_dir, client, version))
                for client, version in snapshot.clients.items()
            }
            break
        except RunDirError:
            if attempt == _MAX_ATTEMPTS or origin.checkpoints() == before:
                raise
    checkpoint.save(folder, replace(snapshot, clients=memories), keep=1)
    return {"run": str(origin.run_dir.path), "round": parent.round, "config": setup.config.diff(parent.config)}


def _fitted(setup: Setup, origin: Origin, parent: checkpoint.Snapshot) -> checkpoint.Snapshot:
    """Returns the state of `parent` as round 0 of this config. Raises RunDirError where the two do not fit."""
    config = setup.config
    where = str(origin.run_dir.path)
    state = setup.method.initial_state()
    if problem := checkpoint.unfit(parent.server, specs_of(state.items(), channels_last=False)):
        raise RunStateError(where, f"does not fit this config: its round {parent.round} {problem}")
    changes = config.diff(parent.config)
    is_alike = not any(line.startswith(_SHAPING) for line in changes)
    return replace(
        parent,
        round=0,
        server=parent.server if is_alike else {name: parent.server[name] for name in state},
        clients=parent.clients if is_alike else {},
        config=config.to_dict(),
        config_hash=config.hash(),
        seed=config.seed,
        versions=setup.computed_with,
        data_digest=setup.data_digest,
        statistics={},
    )
