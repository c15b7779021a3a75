"""Where a run begins: at round 1, or after its newest checkpoint."""

from __future__ import annotations

import contextlib
import json
import shlex

import numpy as np

from fedmpi.config.fields import DATA_PLACES
from fedmpi.config.schema import Config
from fedmpi.data import partition
from fedmpi.data.dataset import place_of, short_digest
from fedmpi.errors import RunDirError, RunStateError
from fedmpi.mpi.communicator import Communicator, together
from fedmpi.report.terminal import warn, wrapped
from fedmpi.rounds.state import ServerState, Setup
from fedmpi.running import made_with
from fedmpi.store import checkpoint, manifest
from fedmpi.store.run_dir import RunDir


def with_server_device(config: Config, comm: Communicator, folder: RunDir) -> tuple[Config, str]:
    """Returns the config in the words of the run in `folder`, and the kind of device that its server has computed on so
    far; of a new run the config as it is, and ''. Raises `StartupError` on all ranks where another is asked for.
    """

    def find() -> tuple[str, str]:
        asked = config.mpi.server_device
        if not comm.is_root or not (newest := _of_newest(folder)):
            return asked, ""
        number, said, had = newest
        if asked not in ("auto", had):
            kind = "a GPU" if had == "cuda" else "the CPU"
            raise RunStateError(
                str(folder.path),
                f"the run has computed the server's part on {kind}, by its checkpoint of round {number}, "
                f"and you ask mpi.server_device={asked}; {had} or auto continues it; "
                f"--init-from={shlex.quote(str(folder.path))} begins a new run from that state, with {asked}",
            )
        return said, had

    said, had = json.loads(comm.allgather_text(json.dumps(together(comm, find)))[0])
    mpi = config.mpi.model_copy(update={"server_device": said})
    return config.model_copy(update={"mpi": mpi}), had


def _of_newest(folder: RunDir) -> tuple[int, str, str] | None:
    """Returns the round of the newest checkpoint that is whole, what its config says of the server's device, and the
    kind that was taken; None if there is none.
    """
    for number, path in folder.checkpoints():
        with contextlib.suppress(RunDirError, KeyError):
            snapshot = checkpoint.load(path)
            return number, snapshot.config["mpi"]["server_device"], snapshot.versions["server_device"]
    return None


def restore(setup: Setup, run_dir: RunDir, *, resume: bool) -> checkpoint.Snapshot | None:
    """Returns the newest whole checkpoint (rank 0 only), or None to begin at round 1. Raises `StartupError` for another
    config or other data.
    """

    def find() -> checkpoint.Snapshot | None:
        if not (resume and setup.comm.is_root):
            return None
        snapshot = checkpoint.load_newest_intact(run_dir, warn, problem_of=lambda found: _problem(setup, found))
        if snapshot is None:
            print(*wrapped(_begins(run_dir, setup.config)), sep="\n", flush=True)
            return None
        differences = setup.config.diff(snapshot.config)
        if differences:
            raise RunStateError(
                str(run_dir.path),
                f"was run with another config, by its checkpoint of round {snapshot.round}: {'; '.join(differences)}; "
                f"--resume needs the same; --init-from={shlex.quote(str(run_dir.path))} begins a new run from that "
                "state with these settings",
            )
        check_data(setup, run_dir, snapshot)
        if other_bits := made_with.changes(snapshot.versions, setup.computed_with):
            warn(other_bits)
        if changed := made_with.changed_sources(run_dir, setup.config):
            warn(changed)
        return snapshot

    return together(setup.comm, find)


def _begins(run_dir: RunDir, config: Config) -> str:
    """Says why a run that may continue begins at round 1."""
    begins = "no round is saved yet, so it begins again" if manifest.read_starts(run_dir) else "a new run begins"
    return f"nothing to continue in {run_dir.path}: {begins} at round 1, with {config.where}"


def _problem(setup: Setup, snapshot: checkpoint.Snapshot) -> str:
    """Says why this run cannot continue from a checkpoint that is whole; '' for another config, which is refused."""
    if setup.config.diff(snapshot.config):
        return "" if snapshot.config.keys() & {"seed", "method"} else "holds a config that is none"
    if (snapshot.seed, snapshot.config_hash) != (setup.config.seed, setup.config.hash()):
        return "holds a seed or a hash that is not its config's"
    return checkpoint.unfit(snapshot.server, setup.method.state_specs())


def check_data(setup: Setup, run_dir: RunDir, snapshot: checkpoint.Snapshot) -> None:
    """Raises `RunDirError` if a run was computed with other data, or another partition of them, than `setup` has."""
    if snapshot.data_digest != setup.data_digest:
        raise _other_data(setup, run_dir, snapshot)
    if run_dir.partition_path.exists():
        saved, digest = partition.saved(run_dir.partition_path)
        if digest != setup.data_digest:
            raise _other_data(setup, run_dir, snapshot)
        if not all(np.array_equal(getattr(saved, name), getattr(setup.partition, name)) for name in vars(saved)):
            raise RunDirError(
                str(run_dir.partition_path),
                "is not the partition that this config gives with this numpy and these data; use those of the run",
            )


def _other_data(setup: Setup, run_dir: RunDir, snapshot: checkpoint.Snapshot) -> RunDirError:
    data = snapshot.config["data"]
    key = next((key for key in DATA_PLACES if key in data), "")
    has = short_digest(setup.data_digest)
    had = short_digest(snapshot.data_digest)
    was = f"digest {had}, data.{key}={data[key]}" if key else f"digest {had}"
    advice = f"set data.{key} to the run's data" if key else "install the packages that the run had"
    problem = f"holds other data (digest {has}) than the run in {run_dir.path} was computed with ({was})"
    return RunDirError(place_of(setup.config.data), f"{problem}; {advice}, or begin another run with another --run-dir")


def initial_state(setup: Setup, snapshot: checkpoint.Snapshot | None) -> ServerState:
    """Returns the state before the next round; only rank 0 has one."""
    if not setup.comm.is_root:
        return ServerState()
    params = setup.method.initial_state() if snapshot is None else snapshot.server
    memories = {} if snapshot is None else dict(snapshot.clients)
    return ServerState({name: value.to(setup.device.server) for name, value in params.items()}, memories)
