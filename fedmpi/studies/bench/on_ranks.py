"""The program that a benchmark starts on some ranks: it measures, and prints what it has found as JSON.

    mpirun -n 3 python -m fedmpi.studies.bench.on_ranks overhead '[["method.name=fedavg"], {"pairs": 5}]'

Not for users, who call `jobs/bench.py`. The module of the benchmark has a function `on_ranks(comm, folder, words, ...)`
that all ranks call; rank 0's result is printed.
"""

from __future__ import annotations

import importlib
import json
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmpi.command.manners import complain
from fedmpi.config.load import load
from fedmpi.errors import UserError
from fedmpi.mpi.mpirun import environment, start_words
from fedmpi.mpi.starting import world
from fedmpi.rounds.recovering import OpenRound
from fedmpi.rounds.state import Setup
from fedmpi.running.resuming import initial_state
from fedmpi.running.start import prepare
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.launch import refuse_failure
from fedmpi.train_round import train_round


def launched(module: str, words: Sequence[str], ranks: int = 1, **more: object) -> dict[str, Any]:
    """What `on_ranks` of a module of this folder finds on so many ranks. Raises as `refuse_failure` does."""
    program = ["-m", "fedmpi.studies.bench.on_ranks", module, json.dumps([list(words), more])]
    command = [*start_words(ranks), sys.executable, *program]
    done = subprocess.run(command, env=environment(ranks), stdout=subprocess.PIPE, text=True)
    refuse_failure(done.returncode, command)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main(module: str, given: str) -> int:
    """The exit code of one rank."""
    comm: Any = world()
    words, more = json.loads(given)
    try:
        with tempfile.TemporaryDirectory() as folder:
            measured = importlib.import_module(f"fedmpi.studies.bench.{module}").on_ranks
            result = measured(comm, Path(folder), words, **more)
    except UserError as error:  # all ranks have met it
        complain(error, comm.rank)
        code: int = comm.leave(error.exit_code)
        return code
    except BaseException:
        traceback.print_exc()
        comm.abort(1)
        raise
    if comm.is_root:
        print(json.dumps(result), flush=True)
    return 0


def prepared(comm: Any, folder: Path, words: Sequence[str]) -> Setup:
    """The setup of a run with these overrides of the main job."""
    return prepare(load(None, words), comm, RunDir(folder))


def rounds_of(setup: Setup) -> Iterator[None]:
    """Each step of this iterator is one federated round."""
    opened = OpenRound(1, initial_state(setup, None))
    while True:
        train_round(setup, opened)
        opened = OpenRound(opened.number + 1, opened.state, opened.published)
        yield


def timed(comm: Any, action: Callable[[], object]) -> float:
    """Seconds from the moment all ranks are there until the last of them is done."""
    comm.wait_for_all()
    started = time.perf_counter()
    action()
    comm.wait_for_all()
    return time.perf_counter() - started


def of_all(comm: Any, values: Sequence[float]) -> np.ndarray:
    """(ranks, values) on rank 0; its own values elsewhere, where nobody reads them."""
    own = np.array(values, dtype=float)
    rows = comm.gather_rows(own)
    return own[None] if rows is None else np.asarray(rows)


def peak_bytes() -> int:
    """The most resident memory that this process ever had (Linux counts in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
