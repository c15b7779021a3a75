"""One rank of `python -m fedmpi.main` that something happens to at a given moment; for `kill_ranks.py`.

    python -m tests.torture.killed_rank MARKERS ATTACKS ARGUMENTS...

ATTACKS is JSON: [[rank, round, stage, delay_s, stop_s], ...]. The rank of that number (as the job starts) sends itself
a signal so long after it first enters that stage of that round, whatever it does then: SIGKILL where stop_s is 0, none
where it is null, else SIGSTOP, and SIGCONT after stop_s. Just before, it leaves a file in MARKERS.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from fedmpi.main import main as run
from fedmpi.mpi.launch import claimed

from .moments import at_stages


def _attack(marker: Path, delay_s: float, stop_s: float | None) -> None:
    time.sleep(delay_s)
    if stop_s:  # a stopped process cannot continue by itself
        subprocess.Popen(["sh", "-c", f"sleep {stop_s}; kill -CONT {os.getpid()}"])
    marker.touch()
    if stop_s is not None:
        os.kill(os.getpid(), signal.SIGSTOP if stop_s else signal.SIGKILL)


def main(words: Sequence[str]) -> int:
    rank, attacks = claimed()[0], json.loads(words[1])
    moments = {(stage, number): how for attacked, number, stage, *how in attacks if attacked == rank}

    def act(stage: str, number: int | None) -> None:
        if (how := moments.pop((stage, number), None)) is not None:
            threading.Thread(target=_attack, args=(Path(words[0]) / str(rank), *how), daemon=True).start()

    with at_stages(act):
        return run(words[2:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
