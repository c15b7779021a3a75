"""Links, pipes, sockets and devices under the names of files in a run directory, for `tests/torture/fuzz_files.py`.

An attacker who can write to a shared run directory plants one, then the owner resumes the run or asks how far it is.
What a link leads to must stay as it is, and nobody may wait for a pipe or read a device until memory ends.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fedmpi.results.run import Run

from . import bounded

NAMES = (
    *("config.yaml", "manifest.json", "partition.h5", "rounds.jsonl", ".lock", "submitted.json", "requeued"),
    *(".config.yaml.tmp", ".manifest.json.tmp", ".rounds.jsonl.tmp", "report/summary.json", "checkpoints/notes.h5"),
    *("checkpoints/round-000002.h5", "checkpoints/round-000009.h5", "checkpoints/.round-000002.h5.tmp", "report"),
)
MOST_S, MOST_BYTES = 60, 2**28
_CONTENT = b'{"round": 1}\n'


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
    "socket": lambda place, victim: os.mknod(place, stat.S_IFSOCK | 0o600),
    "link to a device": lambda place, victim: place.symlink_to("/dev/zero"),
    "directory": lambda place, victim: place.mkdir(),
}
"""Each puts something at `place`; links lead to the file `victim`."""


def outcomes(run: Path, seeds: range, resume: Callable[[Path], int]) -> Iterator[bounded.Outcome]:
    """Of each seed: a copy of the run at `run`, with one thing planted, is shown or resumed."""

    def draw(seed: int) -> tuple[str, bounded.Attempt]:
        chance = random.Random(seed)
        shape, name, act = chance.choice([*SHAPES]), chance.choice(NAMES), chance.choice([_show, resume])
        return shape, lambda: _tried(run, run.with_name(f"planted-{seed}"), shape, name, act)

    return bounded.outcomes(seeds, draw, most_s=MOST_S, most_bytes=MOST_BYTES)


def _tried(run: Path, folder: Path, shape: str, name: str, act: Callable[[Path], int]) -> tuple[str, str]:
    """`other` if what a link leads to has changed."""
    victim, copy = folder / "victim", folder / "run"
    shutil.copytree(run, copy)
    victim.write_bytes(_CONTENT)
    place = copy / name
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    SHAPES[shape](place, victim)
    found = bounded.answer(lambda: _said(act, copy))
    return found if victim.read_bytes() == _CONTENT and not (folder / "absent").exists() else ("other", name)


def _show(folder: Path) -> int:
    _ = Run(folder).state, Run(folder).jobs()
    return 0


def _said(act: Callable[[Path], int], folder: Path) -> str:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = act(folder)
    if "Traceback" in errors.getvalue() or code not in (0, 2):
        return "traceback"
    return "refused" if code else "unchanged"
