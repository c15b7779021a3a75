"""A Slurm of two nodes on this machine, in a folder of its own: munged, slurmctld and two slurmd, all ended with it.

Needs root (slurmd starts jobs) and Debian's slurm-wlm and munge; whatever is missing is a reason to skip. A node
says that it has 8 cores and 4 GPUs, whatever it has. The first has this machine's name: `srun --mpi=pmix` works
on that one only.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launched import environment

from fedmpi.mpi.mpirun import files_in

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 300.0
"""No job here takes more than seconds of computing; this only ends a hang."""

_CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={controller_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
KillWait=5
GresTypes=gpu
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={port_1} CPUs=8 Gres=gpu:4 State=UNKNOWN
NodeName={host}2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_2} CPUs=8 Gres=gpu:4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why no Slurm can be started here; empty if it can."""
    missing = [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if _path(name) is None]
    if missing:
        return f"no {', '.join(missing)} here (apt-get install slurm-wlm munge libpmix-dev)"
    return "" if os.geteuid() == 0 else "slurmd starts jobs as root only"


def _path(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}


class Cluster:
    """Running while the block does.

    >>> with Cluster() as cluster:
    ...     job = cluster.submit("slurm/job.sbatch", "rounds=2")
    ...     cluster.wait_until_left(job)
    """

    def __enter__(self) -> Cluster:
        # Not in pytest's folder: munge's socket must lie where everybody may look.
        self.folder = Path(tempfile.mkdtemp(prefix="fedmpi-slurm-", dir="/tmp"))
        self.folder.chmod(0o711)
        self.host = socket.gethostname().split(".")[0]
        for name in ("state", "tmp", f"spool-{self.host}", f"spool-{self.host}2"):
            (self.folder / name).mkdir()
        (self.folder / "munge.key").touch(0o600)
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        ports = dict(zip(("controller_port", "port_1", "port_2"), free_ports(3), strict=True))
        config = _CONFIG.format(host=self.host, folder=self.folder, **ports)
        (self.folder / "slurm.conf").write_text(config)
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-3]\n")
        for number in range(4):
            (self.folder / f"gpu{number}").touch()
        own = {"SLURM_CONF": f"{self.folder}/slurm.conf", "PYTHONPATH": str(ROOT)}
        self.environment = environment() | files_in(self.folder / "tmp") | own
        self.project = self._project()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for name in (f"slurmd-{self.host}", f"slurmd-{self.host}2", "slurmctld", "munged"):
            _end(self.folder / f"{name}.pid")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _project(self) -> Path:
        """What the sbatch files expect to be started in, with this interpreter in the place of .venv."""
        project = self.folder / "project"
        (project / ".venv" / "bin").mkdir(parents=True)
        (project / ".venv" / "bin" / "activate").write_text(f'PATH="{Path(sys.executable).parent}:$PATH"\n')
        for name in ("slurm", "configs", "jobs"):
            (project / name).symlink_to(ROOT / name)
        return project

    def _start(self) -> None:
        files = {"key-file": "key", "socket": "socket", "seed-file": "seed", "log-file": "log"}
        munged = [f"--{option}={self.folder}/munge.{suffix}" for option, suffix in files.items()]
        self.control(str(_path("munged")), *munged, f"--pid-file={self.folder}/munged.pid", "--num-threads=10")
        self.control(str(_path("slurmctld")))
        for node in (self.host, f"{self.host}2"):
            self.control(str(_path("slurmd")), "-N", node)
        nodes = ("sinfo", "--noheader", "--format=%t %D")
        self.wait_until(lambda: self.control(*nodes, check=False).split() == ["idle", "2"])

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Looks every 10 ms; an assertion with all logs if it takes too long."""
        deadline = time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)

    def control(self, *command: str, check: bool = True) -> str:
        """What a command of Slurm prints; it must succeed if `check`."""
        where = {"env": self.environment, "cwd": self.project, "stdin": subprocess.DEVNULL}
        done = subprocess.run(command, **where, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0 or not check, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def submit(
        self, file: str, *words: str, edits: Mapping[str, str] | None = None, options: Sequence[str] = ()
    ) -> str:
        """`sbatch OPTIONS FILE WORDS` in the project, the file edited first (pattern -> text); the job's number."""
        text = (self.project / file).read_text()
        for pattern, replacement in (edits or {}).items():
            text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
            assert count, f"nothing like {pattern} in {file}"
        (self.folder / "edited.sbatch").write_text(text)
        return self.control("sbatch", "--parsable", *options, str(self.folder / "edited.sbatch"), *words).strip()

    def jobs(self, job: str) -> list[Mapping[str, str]]:
        """What `scontrol show job` says of it, one mapping for each task of an array; none once it is forgotten."""
        lines = self.control("scontrol", "--oneliner", "show", "job", job, check=False).splitlines()
        return [dict(word.partition("=")[::2] for word in line.split()) for line in lines]

    def wait_until_left(self, job: str) -> list[Mapping[str, str]]:
        """Until no task of the job is in the queue."""

        def has_left() -> bool:
            """For a moment a job may be CONFIGURING, or in no list at all."""
            states = {state["JobState"] for state in self.jobs(job)}
            return bool(states) and states <= ENDED

        self.wait_until(has_left)
        return self.jobs(job)

    def end_jobs(self) -> None:
        """All that are in the queue. A slurmd that ends leaves their processes behind."""
        self.control("scancel", "--user=root")
        self.wait_until(lambda: not self.control("squeue", "--noheader"))

    def start_again(self, job: str) -> None:
        """A requeued job, without the two minutes that Slurm lets it wait.

        slurmd refuses what was signed up to the second in which the job's last start ended ("Job credential
        revoked"), so not at once.
        """
        self.control("scontrol", "update", f"JobId={job}", "StartTime=now+2")

    def log(self) -> str:
        """Of all jobs, then of Slurm itself."""
        jobs = [path.read_text(errors="replace") for path in sorted(self.project.glob("*.log"))]
        return "\n".join([*jobs, *(path.read_text(errors="replace")[-4000:] for path in self.folder.glob("*.log"))])


def free_ports(count: int) -> list[int]:
    """Different ones that nobody has, below those that Linux gives away by itself (32768 and more)."""
    with contextlib.ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            port = random.randrange(20_000, 32_768)
            with contextlib.suppress(OSError):
                held.enter_context(socket.socket()).bind(("", port))
                found.append(port)
        return found


def _end(pid_file: Path) -> None:
    try:
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        return
    deadline = time.monotonic() + LIMIT_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
