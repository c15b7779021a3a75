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
from typing import Any
from unittest import mock

from fedmpi.clock import Clock
from fedmpi.mpi.launch import claimed

Moment = tuple[int, str]


def attack_at(moments: dict[Moment, tuple[float, float | None]], marker: Path) -> None:
    """From now on, entering one of these (round, stage) is followed by its attack: (delay_s, stop_s)."""
    enter = Clock.stage

    def stage(self: Clock, name: Any, round_number: int | None = None, client: int | None = None) -> Any:
        found = moments.pop((round_number or 0, name), None)
        if found is not None:
            words = marker, f"{round_number} {name}", *found
            threading.Thread(target=_attack, args=words, daemon=True).start()
        return enter(self, name, round_number, client)

    mock.patch.object(Clock, "stage", stage).start()


def _attack(marker: Path, what: str, delay_s: float, stop_s: float | None) -> None:
    time.sleep(delay_s)
    if stop_s:  # whoever is stopped cannot go on by itself
        subprocess.Popen(["sh", "-c", f"sleep {stop_s}; kill -CONT {os.getpid()}"])
    marker.write_text(f"{what} {time.time()}")
    if stop_s is not None:
        os.kill(os.getpid(), signal.SIGSTOP if stop_s else signal.SIGKILL)


def main(words: Sequence[str]) -> int:
    rank, attacks = claimed()[0], json.loads(words[1])
    moments = {(number, stage): tuple(how) for who, number, stage, *how in attacks if who == rank}
    if moments:
        attack_at(moments, Path(words[0]) / str(rank))
    from fedmpi.main import main as run

    return run(words[2:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
