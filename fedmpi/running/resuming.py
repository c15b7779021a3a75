"""Where a run begins: at round 1, after its newest checkpoint, or with a state that another run has saved.

The latter (`--init-from RUN[@ROUND]`) is a new run with rounds, records and a directory of its own; it may have other
settings. Its manifest names RUN. What the clients remember comes along where the settings that shape it are those of
RUN. RUN is only read, and may run.
"""

import shlex
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from fedmpi import methods
from fedmpi.config.fields import DATA_PLACES
from fedmpi.config.schema import Config
from fedmpi.data import partition
from fedmpi.data.dataset import DataInfo, place_of, short_digest
from fedmpi.devices.profiles import PATH
from fedmpi.errors import RunDirError
from fedmpi.mpi.communicator import Communicator
from fedmpi.report.records import Best, read_records
from fedmpi.report.terminal import warn, wrapped
from fedmpi.rounds.state import ServerState, Setup
from fedmpi.running import made_with
from fedmpi.running.folder import Origin, RunRequest
from fedmpi.running.start import method_context
from fedmpi.store import checkpoint, manifest, memory
from fedmpi.store.checkpoint import Snapshot
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import specs_of

# Settings that shape what clients remember.
_SHAPING = ("method.", "model.", "clients.", "data.", "partition.", "seed:")
_FILES = {made_with.FROZEN: "model.weights", made_with.DEVICES: PATH}
"""Files beside the data that a run is computed with: the key of the digest, and the option."""


def newest(config: Config, info: DataInfo, run_dir: RunDir) -> Snapshot | None:
    """Reads the newest whole checkpoint of a run that continues with `config`; None where no round is saved.

    Raises RunDirError where the run had another config.
    """
    snapshot = checkpoint.load_newest_intact(run_dir, warn, problem_of=lambda found: _problem(config, info, found))
    if snapshot is None:
        return None
    if differences := config.diff(snapshot.config):
        where = str(run_dir.path)
        by = f"by its checkpoint of round {snapshot.round}"
        problem = f"was run with another config, {by}: {'; '.join(differences)}; --resume needs the same"
        new_run = f"--init-from={shlex.quote(where)} begins a new run from that state with these settings"
        raise RunDirError(where, f"{problem}; {new_run}")
    return snapshot


def _problem(config: Config, info: DataInfo, snapshot: Snapshot) -> str:
    """Says why this run cannot continue from a checkpoint that is whole; '' for another config, which is refused."""
    if config.diff(snapshot.config):
        return "" if snapshot.config.keys() & {"seed", "method"} else "holds a config that is none"
    if (snapshot.seed, snapshot.config_hash) != (config.seed, config.hash()):
        return "holds a seed or a hash that is not its config's"
    return checkpoint.unfit(snapshot.server, methods.create(method_context(config, info)).state_specs())


def share(config: Config, comm: Communicator, run_dir: RunDir, saved: Snapshot | None) -> tuple[int, bool]:
    """Returns, on all ranks, how many rounds are done, and whether their tests end the run (`stop`); rank 0 has read
    them."""
    is_over = False
    if saved:
        best = Best.of(record for record in read_records(run_dir) if record["round"] <= saved.round)
        is_over = bool(best.why_over(config.stop))
    return comm.bcast_object((saved.round if saved else 0, is_over))


def begin(
    setup: Setup, run_dir: RunDir, saved: Snapshot | None, request: RunRequest, *, resumes: bool
) -> tuple[Snapshot | None, dict[str, Any]]:
    """Returns the state that this start continues, None to begin at round 1, and what the manifest says of a state of
    another run. Rank 0 only. Raises RunDirError for other data, or another method than that of the other run.
    """
    if saved is not None:
        check_data(setup, run_dir, saved)
        differs = made_with.changes(saved.versions, setup.computed_with)
        for line in filter(None, (differs, made_with.changed_sources(run_dir, setup.config))):
            warn(line)
        return saved, {}
    if request.origin is not None:
        return _begin_from(setup, run_dir, request.origin)
    if resumes:
        begins = "no round is saved yet, so it begins again" if manifest.read_starts(run_dir) else "a new run begins"
        line = f"nothing to continue in {run_dir.path}: {begins} at round 1, with {setup.config.where}"
        print(*wrapped(line), sep="\n", flush=True)
    return None, {}


def check_data(setup: Setup, run_dir: RunDir, snapshot: Snapshot) -> None:
    """Raises `RunDirError` if a run was computed with other data, another partition of them, or other files than
    `setup` has."""
    found = [("data", place_of(setup.config.data), snapshot.data_digest, setup.data_digest)]
    data = snapshot.config["data"]
    for what, where in _FILES.items():
        found.append((what, where, snapshot.versions.get(what, ""), setup.computed_with.get(what, "")))
    for what, where, before, now in found:
        if before != now:
            has = f"holds other {what} (digest {short_digest(now) or 'of none'})"
            place = "".join(f", data.{key}={data[key]}" for key in DATA_PLACES if key in data and what == "data")
            was = f"the run in {run_dir.path} was computed with (digest {short_digest(before) or 'of none'}{place})"
            todo = "give it those of the run, or begin another run with another --run-dir"
            raise RunDirError(where, f"{has} than {was}; {todo}")
    if run_dir.partition_path.exists():
        saved, digest = partition.saved(run_dir.partition_path)
        parts = [np.array_equal(getattr(saved, name), getattr(setup.partition, name)) for name in vars(saved)]
        if digest != setup.data_digest or not all(parts):
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
        for client, version in (parent.clients if is_alike else {}).items():
            remembered = setup.method.rebase(memory.load(origin.run_dir, client, version), parent.round)
            memories[client] = setup.memories.put(client, 0, remembered)
    except RunDirError:
        # A run that is running deletes what its newer checkpoints need no more.
        is_outdated = origin.run_dir.last_saved() > parent.round
        if origin.round is None and is_outdated and attempts > 1:
            return _begin_from(setup, run_dir, origin, attempts - 1)
        raise
    snapshot = replace(
        parent,
        round=0,
        server=setup.method.rebase(server, parent.round),
        clients=memories,
        config=config.to_dict(),
        config_hash=config.hash(),
        seed=config.seed,
        versions=setup.computed_with,
        data_digest=setup.data_digest,
        statistics={},
        simulated={},
    )
    checkpoint.save(run_dir, snapshot, keep=1)
    return snapshot, {"init_from": {"run": where, "round": parent.round, "config": changes}}


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
