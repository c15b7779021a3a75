"""Compares the bits of a run on several ranks, of another exchange and with an interruption with those of a plain one.

`python -m fedmpi.check.bits FOLDER WORD...` makes the interrupted run on the ranks that a launcher has started.
"""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from subprocess import PIPE, STDOUT, TimeoutExpired, run

from fedmpi.check.contract import BrokenError, require
from fedmpi.check.small import Finished, finished, run_all, small_config
from fedmpi.errors import UserError
from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.mpirun import environment, files_in, start_words
from fedmpi.mpi.serial import SerialComm
from fedmpi.mpi.starting import world

_LIMIT_S = 600.0


def difference(ours: Finished, theirs: Finished) -> str:
    """Names what differs; empty if nothing does."""
    lines = []
    if ours.server != theirs.server:
        lines.append("server state")
    if ours.memories != theirs.memories:
        lines.append("client memories")
    if len(ours.records) != len(theirs.records):
        lines.append(f"{len(ours.records)} rounds != {len(theirs.records)}")
    for here, there in zip(ours.records, theirs.records, strict=False):
        changed = [key for key in here if here[key] != there.get(key)]
        lines += [f"round {here['round']} {key}: {here[key]} != {there.get(key)}" for key in changed]
    return "; ".join(lines)


def interrupted_run(comm: Communicator, folder: Path, words: Sequence[str]) -> None:
    """Trains two rounds by gather and, resumed, a third by reduce; personal tests on."""
    for rounds, exchange in ((2, "gather"), (3, "reduce")):
        config = small_config(*words, "evaluation.personal=on", f"rounds={rounds}", f"mpi.exchange={exchange}")
        run_all(config, comm, folder, resume=rounds == 3)


def straight_run(folder: Path, words: Sequence[str]) -> Finished:
    """Trains the same three rounds in one go, alone in this process."""
    run_all(small_config(*words, "evaluation.personal=on", "rounds=3"), SerialComm(), folder)
    return finished(folder)


def bits_stay(folder: Path, words: Sequence[str], ranks: int) -> None:
    """Raises `BrokenError` where an interrupted run on so many ranks ends otherwise than a straight one alone."""
    straight, own = folder / "straight", folder / f"on-{ranks}"
    with redirect_stdout(io.StringIO()):  # each run shows a table when it ends
        expected = finished(straight) if straight.exists() else straight_run(straight, words)
        if ranks == 1:
            interrupted_run(SerialComm(), own, words)
        else:
            _launch(ranks, own, words)
    found = difference(finished(own), expected)
    where = "resumed after round 2" if ranks == 1 else f"on {ranks} ranks, resumed after round 2"
    require(not found, f"{where}, a run differs from one alone in one go: {found}")


def _launch(ranks: int, folder: Path, words: Sequence[str]) -> None:
    command = [*start_words(ranks), sys.executable, "-m", "fedmpi.check.bits", str(folder), *words]
    with_files = environment(ranks) | files_in(folder.parent)
    try:
        done = run(command, stdout=PIPE, stderr=STDOUT, text=True, env=with_files, timeout=_LIMIT_S, check=False)
    except TimeoutExpired:
        raise BrokenError(f"a run on {ranks} ranks has not ended after {_LIMIT_S:g} s") from None
    last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "no output")
    require(done.returncode == 0, f"a run on {ranks} ranks ends with exit code {done.returncode}: {last}")


def has_launcher(ranks: int) -> bool:
    """Tells whether this machine has an mpirun."""
    try:
        return bool(start_words(ranks))
    except UserError:
        return False


def _on_every_rank(folder: str, *words: str) -> None:
    comm = world(limit_s=60.0)
    try:
        interrupted_run(comm, Path(folder), words)
    except BaseException as error:
        print("".join(traceback.format_exception_only(error)).strip(), file=sys.stderr, flush=True)
        comm.abort(1)
        raise
    comm.leave(0)


if __name__ == "__main__":
    _on_every_rank(*sys.argv[1:])
