"""A run that begins where another one is, with other settings if they fit: `--resume-from RUN`.

Rank 0 puts into the new run directory the parent's checkpoint (under the new config), the client memories that it
refers to, and the records up to its round. From there on the branch is a run like any other that is resumed. The parent
is only read, and may be running.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmpi.errors import RunDirError
from fedmpi.mpi.together import together
from fedmpi.report.records import BRANCHED_FROM, read_records
from fedmpi.rounds.state import Setup
from fedmpi.run import resuming
from fedmpi.run.origin import Origin
from fedmpi.store import checkpoint, memory
from fedmpi.store.checkpoint import Snapshot
from fedmpi.store.files import json_safe, write_text
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import specs_of

# Sections whose settings shape what clients remember.
_SHAPING = ("method.", "model.", "clients.")
# A parent that is running deletes its old checkpoints, perhaps while one is being copied; then the next one is tried.
_MAX_ATTEMPTS = 10


def begin(setup: Setup, folder: RunDir, origin: Origin) -> None:
    """Makes `folder` a run that has come as far as `origin`; does nothing where it holds a checkpoint already.

    Raises `StartupError` on all ranks together.
    """

    def begin_it() -> None:
        if setup.comm.is_root and not folder.checkpoints():
            _copy(setup, folder, origin)

    together(setup.comm, begin_it)


def noted(folder: RunDir, done: int) -> dict[str, Any]:
    """For the manifest's entry of a start after round `done`: which run a branch begins from there; else nothing."""
    last: dict[str, Any] = next((one for one in reversed(read_records(folder)) if one["round"] == done), {})
    return {BRANCHED_FROM: last[BRANCHED_FROM]} if BRANCHED_FROM in last else {}


def _copy(setup: Setup, folder: RunDir, origin: Origin) -> None:
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        found = origin.checkpoints()
        try:
            snapshot = _newest_whole(origin, found)
            resuming.check_data(setup, origin.run_dir, snapshot)
            branch = _fitted(setup, origin, snapshot)
            for client, version in branch.clients.items():
                setup.memories.put(client, version[0], memory.load(origin.run_dir, client, version))
            break
        except RunDirError:
            if attempt == _MAX_ATTEMPTS or origin.checkpoints() == found:
                raise
    note = {"run": str(origin.run_dir.path), "round": snapshot.round, "config": setup.config.diff(snapshot.config)}
    records = [record for record in read_records(origin.run_dir) if record["round"] <= snapshot.round]
    records[-1:] = [{**record, BRANCHED_FROM: note} for record in records[-1:]]
    # As always the records first: no checkpoint is of a round that has none.
    write_text(folder.records_path, "".join(f"{json.dumps(json_safe(record))}\n" for record in records))
    checkpoint.save(folder, branch, keep=1)


def _newest_whole(origin: Origin, found: list[tuple[int, Path]]) -> Snapshot:
    """The newest of these checkpoints that is whole, its memories included. Raises RunDirError."""
    run, problems = origin.run_dir, []
    for number, path in found:
        try:
            snapshot = checkpoint.load(path)
            checkpoint.check(run, snapshot, number, path)
        except RunDirError as error:
            problems.append(error.text())
            continue
        for problem in problems:
            print(f"warning: skipping a checkpoint: {problem}", file=sys.stderr, flush=True)
        return snapshot
    asked = "" if origin.round is None else f" of round {origin.round}"
    others = [str(number) for number, _ in run.checkpoints() if number != origin.round]
    there = f"; it has those of rounds {', '.join(others)}" if others and asked else ""
    why = f": {problems[0]}" if problems else there
    raise RunDirError(str(run.path), f"holds no whole checkpoint{asked} to begin a branch from{why}")


def _fitted(setup: Setup, origin: Origin, snapshot: Snapshot) -> Snapshot:
    """The parent's snapshot as one of this config. Raises RunDirError where the two do not fit."""
    config, method = setup.config, setup.method
    wanted = method.initial_state()
    if problem := checkpoint.unfit(snapshot.server, specs_of(wanted.items(), channels_last=False)):
        raise RunDirError(str(origin.run_dir.path), f"does not fit this config: its round {snapshot.round} {problem}")
    server, clients = snapshot.server, snapshot.clients
    if _method_of(snapshot) != config.method.name:  # what this method does not begin with means nothing
        server = {name: server[name] for name in wanted}
        clients = {}
    elif clients:
        _refuse_other_shapes(setup, origin, snapshot)
    ours = replace(snapshot, config=config.to_dict(), config_hash=config.hash(), seed=config.seed)
    return replace(ours, server=server, clients=clients)


def _method_of(snapshot: Snapshot) -> object:
    options = snapshot.config.get("method")
    return options.get("name") if isinstance(options, Mapping) else None


def _refuse_other_shapes(setup: Setup, origin: Origin, snapshot: Snapshot) -> None:
    """What clients remember fits only the settings that it was made with. Raises RunDirError."""
    for line in setup.config.diff(snapshot.config):
        if line.startswith(_SHAPING):
            why = "its clients remember what this setting has shaped, so a branch must keep it"
            raise RunDirError(str(origin.run_dir.path), f"{line}; {why}")
