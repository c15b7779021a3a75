"""Links, pipes, sockets and devices under the names of files in a run directory, for `tests/torture/fuzz_files.py`.

Somebody who can write to a shared run directory plants one, then the owner resumes the run or asks how far it is.
What a link leads to must stay as it is, and nobody may wait for a pipe or read a device until memory ends.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fedmpi.errors import UserError
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.slurm import status as run_status

NAMES = (
    *("config.yaml", "manifest.json", "partition.h5", "rounds.jsonl", ".lock", "submitted.json", "requeued"),
    *(".config.yaml.tmp", ".manifest.json.tmp", ".rounds.jsonl.tmp", "report/summary.json", "checkpoints/notes.h5"),
    *("checkpoints/round-000002.h5", "checkpoints/round-000009.h5", "checkpoints/.round-000002.h5.tmp", "report"),
)
LIMIT_S, LIMIT_KB = 60, 2**18
_CONTENT = b'{"round": 1}\n'


def _socket(place: Path, victim: Path) -> None:
    folder = os.open(place.parent, os.O_RDONLY)  # a socket's path may have 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{folder}/{place.name}")
    finally:
        os.close(folder)


def _link_to_a_pipe(place: Path, victim: Path) -> None:
    pipe = victim.with_name(f"pipe-{time.monotonic_ns()}")
    os.mkfifo(pipe)
    place.symlink_to(pipe)


SHAPES: dict[str, Callable[[Path, Path], None]] = {
    "link to a file": lambda place, victim: place.symlink_to(victim),
    "link to nothing": lambda place, victim: place.symlink_to(victim.with_name("absent")),
    "hard link": lambda place, victim: os.link(victim, place),
    "named pipe": lambda place, victim: os.mkfifo(place),
    "link to a pipe": _link_to_a_pipe,
    "socket": _socket,
    "link to a device": lambda place, victim: place.symlink_to("/dev/zero"),
    "directory": lambda place, victim: place.mkdir(),
}
"""Each puts something at `place`; links lead to the file `victim`."""


def outcomes(run: Path, seeds: range, resume: Callable[[Path], int]) -> Iterator[tuple[int, str, str]]:
    """(seed, shape, outcome) of each seed: a copy of the run at `run`, with one thing planted, is shown or resumed."""
    for seed in seeds:
        draw = random.Random(seed)
        shape, name = draw.choice([*SHAPES]), draw.choice(NAMES)
        act = draw.choice([_show, resume])
        folder = run.with_name(f"planted-{seed}")
        folder.mkdir()
        victim, copy = folder / "victim", folder / "run"
        victim.write_bytes(_CONTENT)
        shutil.copytree(run, copy)
        place = copy / name
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        SHAPES[shape](place, victim)
        outcome = _outcome(act, copy)
        if victim.read_bytes() != _CONTENT or (folder / "absent").exists():
            outcome = "other"
        yield seed, shape, outcome
        shutil.rmtree(folder)


def _show(folder: Path) -> int:
    run_status.status_of(RunDir(folder))
    run_status.jobs_of(RunDir(folder))
    return 0


def _outcome(act: Callable[[Path], int], folder: Path) -> str:
    """Of a process of its own."""
    words = "unchanged", "refused", "traceback", "memory"
    child = os.fork()
    if child == 0:
        os._exit(words.index(_act(act, folder)))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "hang" if os.WTERMSIG(status) == signal.SIGALRM else "crash"
    return words[os.WEXITSTATUS(status)]


def _act(act: Callable[[Path], int], folder: Path) -> str:
    signal.alarm(LIMIT_S)
    before_kb, errors = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, io.StringIO()

    def answered() -> str:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            code = act(folder)
        if "Traceback" in errors.getvalue() or code not in (0, 2):
            return "traceback"
        return "refused" if code else "unchanged"

    found = answer(answered)
    return "memory" if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb > LIMIT_KB else found


def answer(read: Callable[[], str]) -> str:
    """What reading gives; `refused` where it raises an error of one line, `traceback` where it raises any other."""
    found = "traceback"
    with contextlib.suppress(BaseException):  # what this is here to find
        try:
            found = read()
        except UserError as error:
            found = "refused" if all(map(str.isprintable, error.problems)) else found
    return found
