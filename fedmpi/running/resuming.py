"""Where a run begins: at round 1, after its newest checkpoint, or (`--init-from RUN[@ROUND]`) with a state that another
run has saved, which is only read, and may run.
"""

import shlex
from contextlib import suppress
from typing import Any

import numpy as np

from fedmpi.data import partition
from fedmpi.data.dataset import place_of
from fedmpi.devices.profiles import PATH
from fedmpi.errors import RunDirError
from fedmpi.methods.protocol import renumbered
from fedmpi.report.terminal import warn, wrapped
from fedmpi.rounds.state import ServerState, Setup
from fedmpi.running import made_with
from fedmpi.running.folder import Origin, RunRequest
from fedmpi.store import checkpoint, manifest, memory
from fedmpi.store.checkpoint import Snapshot
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import specs_of

# Settings that shape what clients remember: where all of them are RUN's, that comes along.
_SHAPING = ("method.", "model.", "clients.", "data.", "partition.", "seed:")
_FILES = {made_with.FROZEN: "model.weights", made_with.DEVICES: PATH}
"""Files beside the data that a run is computed with: the key of the digest, and the option."""


def _newest(setup: Setup, run_dir: RunDir) -> Snapshot | None:
    """Reads the newest whole checkpoint of a run that continues; None where no round is saved. Raises RunDirError
    where the run had another config or other data."""
    snapshot = checkpoint.load_newest_intact(run_dir, warn, problem_of=lambda found: _problem(setup, found))
    if snapshot is None:
        return None
    if differences := setup.config.diff(snapshot.config):
        where = str(run_dir.path)
        by = f"by its checkpoint of round {snapshot.round}"
        problem = f"was run with another config, {by}: {'; '.join(differences)}; --resume needs the same"
        new_run = f"--init-from={shlex.quote(where)} begins a new run from that state with these settings"
        raise RunDirError(where, f"{problem}; {new_run}")
    check_data(setup, run_dir, snapshot)
    if other_bits := made_with.changes(snapshot.versions, setup.computed_with):
        warn(other_bits)
    return snapshot


def _problem(setup: Setup, snapshot: Snapshot) -> str:
    """Says why this run cannot continue from a checkpoint that is whole; '' for another config, which is refused."""
    config = setup.config
    if config.diff(snapshot.config):
        return "" if snapshot.config.keys() & {"seed", "method"} else "holds a config that is none"
    if (snapshot.seed, snapshot.config_hash) != (config.seed, config.hash()):
        return "holds a seed or a hash that is not its config's"
    return checkpoint.unfit(snapshot.server, setup.method.state_specs())


def begin(
    setup: Setup, run_dir: RunDir, request: RunRequest, *, resumes: bool
) -> tuple[Snapshot | None, dict[str, Any]]:
    """Returns the state that this start continues, None to begin at round 1, and what the manifest says of a state of
    another run. Raises RunDirError for other data, or another method than that of the other run."""
    if saved := _newest(setup, run_dir):
        return saved, {}
    if request.origin is not None:
        return _begin_from(setup, run_dir, request.origin)
    if resumes:
        begins = "no round is saved yet, so it begins again" if manifest.read_starts(run_dir) else "a new run begins"
        line = f"nothing to continue in {run_dir.path}: {begins} at round 1, with {setup.config.where}"
        print(*wrapped(line), sep="\n", flush=True)
    return None, {}


def check_data(setup: Setup, run_dir: RunDir, snapshot: Snapshot) -> None:
    """Raises `RunDirError` if a run was computed with other data, partition or files than `setup` has."""
    then = {"data": snapshot.data_digest, **snapshot.versions}
    now = {"data": setup.dataset.digest, **setup.computed_with}
    for what, where in {"data": place_of(setup.config.data), **_FILES}.items():
        if then.get(what, "") != now.get(what, ""):
            before = then.get(what, "")[:12] or "of none"
            has = f"holds other {what} (digest {now.get(what, '')[:12] or 'of none'})"
            was = f"the run in {run_dir.path} was computed with (digest {before})"
            todo = "give it those of the run, or begin another run with another --run-dir"
            raise RunDirError(where, f"{has} than {was}; {todo}")
    if run_dir.partition_path.exists():
        saved, digest = partition.saved(run_dir.partition_path)
        parts = [np.array_equal(getattr(saved, name), getattr(setup.partition, name)) for name in vars(saved)]
        if digest != setup.dataset.digest or not all(parts):
            problem = "is not the partition that this config gives with this numpy and these data; use those of the run"
            raise RunDirError(str(run_dir.partition_path), problem)


def _begin_from(setup: Setup, run_dir: RunDir, origin: Origin, attempts: int = 10) -> tuple[Snapshot, dict[str, Any]]:
    """Saves a state of another run as the checkpoint of round 0, so that a resume needs the other run no more."""
    parent = _load(origin)
    config = setup.config
    state = setup.method.initial_state()
    where = str(origin.run_dir.path)
    if problem := checkpoint.unfit(parent.server, specs_of(state.items(), channels_last=False)):
        raise RunDirError(where, f"does not fit this config: its round {parent.round} {problem}")
    changes = config.diff(parent.config)
    is_alike = not any(line.startswith(_SHAPING) for line in changes)
    server = dict(parent.server) if is_alike else {name: parent.server[name] for name in state}
    memories = {}
    try:
        for client, version in parent.clients.items() if is_alike else ():
            remembered = renumbered(memory.load(origin.run_dir, client, version), parent.round)
            memories[client] = setup.memories.put(client, 0, remembered)
    except RunDirError:
        # A run that is running deletes what its newer checkpoints need no more.
        if attempts > 1 and origin.round is None and origin.run_dir.last_saved() > parent.round:
            return _begin_from(setup, run_dir, origin, attempts - 1)
        raise
    snapshot = snapshot_of(setup, 0, ServerState(renumbered(server, parent.round), memories))
    checkpoint.save(run_dir, snapshot, keep=1)
    return snapshot, {"init_from": {"run": where, "round": parent.round, "config": changes}}


def snapshot_of(setup: Setup, round_number: int, state: ServerState, **more: Any) -> Snapshot:
    """Returns what the checkpoint of a round holds, with `more` of its fields."""
    config = setup.config
    made_of = {"versions": setup.computed_with, "data_digest": setup.dataset.digest, **more}
    return Snapshot(round_number, state.params, state.memories, config.to_dict(), config.hash(), config.seed, **made_of)


def _load(origin: Origin) -> Snapshot:
    """Reads the newest whole checkpoint of `origin`, its memories included. Raises RunDirError."""
    with suppress(RunDirError):  # of which there was a warning for each checkpoint
        if snapshot := checkpoint.load_newest_intact(origin.run_dir, warn, only=origin.round):
            return snapshot
    which = "" if origin.round is None else f" of round {origin.round}"
    saved = ", ".join(str(number) for number, _ in origin.run_dir.checkpoints()) or "none"
    problem = f"holds no whole checkpoint{which} to begin from; saved rounds: {saved}"
    raise RunDirError(str(origin.run_dir.path), problem)


def initial_state(setup: Setup, snapshot: Snapshot | None) -> ServerState:
    """Returns the state before the next round; only rank 0 has one."""
    if not setup.comm.is_root:
        return ServerState()
    params = setup.method.initial_state() if snapshot is None else snapshot.server
    memories = {} if snapshot is None else dict(snapshot.clients)
    return ServerState({name: value.to(setup.device.server) for name, value in params.items()}, memories)
