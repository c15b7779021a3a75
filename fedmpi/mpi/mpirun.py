"""Starts ranks on this machine: the number of cores, the words of mpirun and the environment that it needs.

python -m fedmpi.mpi.mpirun 5      prints that environment for 5 ranks, for a shell to read (jobs/setup.sh)
"""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from fedmpi.errors import UserError, counted

# Open MPI gives each rank a physical core, and refuses to start more ranks than it counts.
_OVERSUBSCRIBE = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
}
# Without this every mpirun binds its ranks to the machine's first cores, also where another one runs there.
_UNBOUND = {"PRTE_MCA_hwloc_default_binding_policy": "none"}
# As root it does not start without being told so twice.
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def cores() -> int:
    """Returns the number of physical cores that this process may use."""
    return min(physical_cores(), len(usable_cpus()))


def usable_cpus() -> list[int]:
    """Returns the numbers of the CPUs (hardware threads) that this process may use."""
    # macOS has no sched_getaffinity.
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]


def loads(views: Sequence[tuple[str, Sequence[int], int]]) -> dict[str, tuple[int, int]]:
    """Returns ranks and cores of each host; a rank's view is its host, the CPUs that it may use and physical cores."""
    found = {}
    for host in dict.fromkeys(view[0] for view in views):
        here = [view for view in views if view[0] == host]
        cpus = {cpu for _, own, _ in here for cpu in own}
        found[host] = len(here), min(len(cpus), here[0][2])
    return found


def ranks_of_threads(ranks: int, threads: int) -> str:
    """Returns `3 ranks`, or `3 ranks of 8 threads`."""
    return counted(ranks, "rank") + (f" of {threads} threads" if threads > 1 else "")


def physical_cores() -> int:
    """Returns the number of this machine's cores. One core may run several hardware threads."""
    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def start_words(ranks: int, launcher: str | None = None) -> list[str]:
    """Returns the words that start that many ranks: of `launcher`, as `srun -n {ranks}`, or of mpirun.

    One rank needs none. Raises `UserError` where the program is missing or `launcher` cannot be read.
    """
    if launcher is not None:
        words = launcher_words(ranks, launcher)
        if shutil.which(words[0]) is None:
            raise UserError("--launcher", f"no program {words[0]!r} in PATH")
        return words
    if ranks == 1:
        return []
    mpirun = mpirun_beside_python() or shutil.which("mpirun")
    if mpirun is None:
        raise UserError("--ranks", f"no mpirun beside {sys.executable}, and none in PATH; --ranks 1 needs none")
    return [mpirun, "-n", str(ranks)]


def mpirun_beside_python() -> str | None:
    """Returns the path of the mpirun in this interpreter's environment, if there is one."""
    path = Path(sys.executable).with_name("mpirun")
    return str(path) if path.exists() else None


def launcher_words(ranks: int, launcher: str) -> list[str]:
    """Splits a launcher as a shell does, with the number of ranks in place of `{ranks}`. Raises `UserError`."""
    try:
        words = shlex.split(launcher.replace("{ranks}", str(ranks)))
    except ValueError as error:
        raise UserError("--launcher", f"cannot be read: {error}, in {launcher!r}") from None
    if "{ranks}" not in launcher or "$" in launcher:
        expected = "expected words without variables and {ranks} for the number, as 'srun -n {ranks}'"
        raise UserError("--launcher", f"{expected}, got {launcher!r}")
    return words


def environment(ranks: int, at_once: int = 1) -> dict[str, str]:
    """Returns our environment with what Open MPI needs for `at_once` jobs of so many ranks. More ranks than cores, or
    several jobs, must share cores; what the user has set for that stays.
    """
    shared = {}
    if ranks * at_once > cores():
        shared = _OVERSUBSCRIBE | _UNBOUND
    elif at_once > 1:
        shared = _UNBOUND
    as_root = _AS_ROOT if os.geteuid() == 0 else {}
    return shared | dict(os.environ) | as_root


def files_in(folder: Path) -> dict[str, str]:
    """Returns variables with which an mpirun has its temporary files and its ranks' shared memory in `folder`: a job
    that is killed leaves both behind, and the files would end a later mpirun of the same process number.
    """
    return {"TMPDIR": str(folder), "OMPI_MCA_btl_sm_backing_directory": str(folder)}


if __name__ == "__main__":
    for name, value in environment(int(sys.argv[1])).items():
        if os.environ.get(name) != value:
            print(f"export {name}={shlex.quote(value)}")
