"""Compares the bits of a run on several ranks, of another exchange and of a resumed one with those of a plain one."""

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from subprocess import PIPE, STDOUT, TimeoutExpired, run

from fedmpi.check.contract import BrokenError, require
from fedmpi.check.small import Finished, finished, run_all, small_config, small_words
from fedmpi.errors import UserError
from fedmpi.mpi.communicator import SerialComm
from fedmpi.mpi.mpirun import environment, files_in, start_words

_LIMIT_S = 600.0
_PERSONAL = "evaluation.personal=on"


def difference(ours: Finished, theirs: Finished) -> str:
    """Names what differs, of the records the first entry; empty if nothing does."""
    lines = []
    if ours.server != theirs.server:
        lines.append("server state")
    if ours.memories != theirs.memories:
        lines.append("client memories")
    if len(ours.records) != len(theirs.records):
        lines.append(f"{len(ours.records)} rounds != {len(theirs.records)}")
    entries = []
    for here, there in zip(ours.records, theirs.records, strict=False):
        changed = [key for key in here if here[key] != there.get(key)]
        entries += [f"round {here['round']} {key}: {here[key]} != {there.get(key)}" for key in changed]
    lines += entries[:1]
    if len(entries) > 1:
        lines.append(f"{len(entries) - 1} more")
    return "; ".join(lines)


def interrupted_run(folder: Path, words: Sequence[str], ranks: int) -> None:
    """Trains the same rounds in two starts, on several ranks by the command `run`: two rounds by gather, and a third by
    reduce, which only adds up means.
    """
    last = "reduce" if small_config(*words).method.aggregate == "mean" else "gather"
    for number, start in enumerate((("rounds=2", "mpi.exchange=gather"), ("rounds=3", f"mpi.exchange={last}"))):
        resume = number > 0
        if ranks == 1:
            run_all(small_config(*words, _PERSONAL, *start), SerialComm(), folder, resume=resume)
        else:
            option = ["--resume"] if resume else []
            _launch(ranks, folder, [*small_words(*words, _PERSONAL, *start), "--run-dir", str(folder), *option])


def bits_stay(folder: Path, words: Sequence[str], ranks: int) -> None:
    """Raises `BrokenError` where an interrupted run on so many ranks ends otherwise than a straight one alone."""
    straight = folder / "straight"
    own = folder / f"on-{ranks}"
    with redirect_stdout(io.StringIO()):  # each run shows a table when it ends
        if not straight.exists():
            run_all(small_config(*words, _PERSONAL, "rounds=3"), SerialComm(), straight)
        interrupted_run(own, words, ranks)
    found = difference(finished(own), finished(straight))
    where = "resumed after round 2" if ranks == 1 else f"on {ranks} ranks, resumed after round 2"
    require(not found, f"{where}, a run differs from one alone in one go: {found}")


def _launch(ranks: int, folder: Path, words: Sequence[str]) -> None:
    command = [*start_words(ranks), sys.executable, "-m", "fedmpi.main", *words]
    variables = environment(ranks) | files_in(folder.parent)
    try:
        done = run(command, stdout=PIPE, stderr=STDOUT, text=True, env=variables, timeout=_LIMIT_S, check=False)
    except TimeoutExpired:
        raise BrokenError(f"a run on {ranks} ranks has not ended after {_LIMIT_S:g} s") from None
    last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "no output")
    require(done.returncode == 0, f"a run on {ranks} ranks ends with exit code {done.returncode}: {last}")


def has_launcher(ranks: int) -> bool:
    """Returns whether this machine has an mpirun."""
    try:
        return bool(start_words(ranks))
    except UserError:
        return False
