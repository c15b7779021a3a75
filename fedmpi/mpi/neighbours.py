"""The ranks of this job that one launcher has started on this host, as /proc shows them.

Each of the launcher's children carries the job's name and its rank in its environment.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedmpi.mpi.launch import stat_of, whole_number

_JOB, _RANK = "PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK"


@dataclass(frozen=True)
class Neighbours:
    """The ranks that one launcher has started on this host for this job."""

    launcher: int
    """Its process number."""
    job: str
    rank: int
    """This process's own rank."""
    here: int
    """How many ranks were started on this host."""
    size: int
    """How many ranks the job has."""

    @classmethod
    def of_this_process(cls, environment: Mapping[str, str] = os.environ) -> Neighbours | None:
        """None where the job's processes cannot be seen: ranks that a daemon of Slurm has started, or each in a
        container that shows no process outside.
        """
        names = (_RANK, "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE")
        rank, here, size = (whole_number(environment, name) for name in names)
        job = environment.get(_JOB, "")
        if not job or rank is None or here is None or size is None:
            return None
        launcher = _ancestor_outside(job)
        return None if launcher is None else cls(launcher, job, rank, here, size)

    def alive(self) -> Mapping[int, int] | None:
        """The ranks of the job that are alive on this host, this one among them, with their process numbers; None if
        that cannot be seen (now)."""
        try:
            lists = [path.read_text() for path in Path(f"/proc/{self.launcher}/task").glob("*/children")]
            found = {int(pid): _environment(int(pid)) for text in lists for pid in text.split()}
        except OSError:
            return None
        pids = {whole_number(words, _RANK): pid for pid, words in found.items() if words.get(_JOB) == self.job}
        ranks = {rank: pid for rank, pid in pids.items() if rank is not None}
        return ranks if self.rank in ranks else None

    def lost(self, alive: Collection[int]) -> frozenset[int]:
        """The ranks of the job that are gone, if all of them were started here; else nobody here can know."""
        return frozenset(range(self.size)).difference(alive) if self.here == self.size else frozenset()


def _ancestor_outside(job: str) -> int | None:
    """The nearest ancestor that is not of the job: there may be scripts between the launcher and its ranks."""
    pid = os.getppid()
    try:
        while pid > 1 and _environment(pid).get(_JOB) == job:
            pid = int(stat_of(pid)[1])
    except (OSError, IndexError, ValueError):
        return None
    return pid if pid > 1 else None


def _environment(pid: int) -> dict[str, str]:
    """The environment of another process, as it began; empty if it has ended. Raises `OSError` where it may not be
    read.
    """
    try:
        words = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)
