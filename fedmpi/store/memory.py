"""What clients keep between rounds, one file per client and version.

The rank that trains a client reads it. A version (round, digest) is written once and never changed, so a checkpoint
names it only, and a lost client trains again from the version before. Nothing is cached in memory.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from fedmpi.errors import RunDirError
from fedmpi.store import hdf5
from fedmpi.store.files import write_atomic
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import Params, to_device

KIND = "memory"

Version = tuple[int, str]
"""(round, digest of the parameters)."""


class MemoryStore:
    """The memories of all clients of one run."""

    def __init__(self, run_dir: RunDir) -> None:
        self.run_dir = run_dir

    def put(self, client: int, round_number: int, params: Params) -> Version:
        """Writes one version; it is on disk when this returns. Raises RunDirError."""
        params = to_device(params, "cpu")
        digest = hdf5.digest_of(params)
        path = self.run_dir.memory_path(client, round_number, digest)
        self.run_dir.make(path.parent)
        attributes = {"client": client, "round": round_number}
        write_atomic(path, hdf5.pack_tensors(KIND, attributes, {"params": params}))
        return round_number, digest

    def get(self, client: int, version: Version | None) -> Params | None:
        """Returns the parameters of that version, None for None. Raises RunDirError."""
        if version is None:
            return None
        _wait_until_visible(self.run_dir.memory_path(client, *version))
        return load(self.run_dir, client, version)


def _wait_until_visible(path: Path, patience_s: float = 10.0) -> None:
    """Waits for a file of another node: a network file system may answer from its cache that it is missing, and asks
    anew where its folder is listed."""
    until_s = time.monotonic() + patience_s
    while not path.exists() and time.monotonic() < until_s:
        for folder in (path.parent.parent, path.parent):
            with suppress(OSError):
                os.listdir(folder)
        time.sleep(0.1)


def load(run_dir: RunDir, client: int, version: Version) -> Params:
    """Reads the parameters of that version. Raises RunDirError if it is missing, damaged, or another one."""
    path = run_dir.memory_path(client, *version)
    attributes, groups = hdf5.read_tensors(path, KIND)
    found = attributes.get("client"), attributes.get("round"), attributes.get("params_digest")
    if found != (client, *version):
        raise RunDirError(str(path), f"holds client {found[0]}, round {found[1]}, not what its name says")
    return groups.get("params", {})
