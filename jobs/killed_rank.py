"""One rank of `python -m fedmpi.main` that is killed at a given moment; for `jobs/kill_ranks.py`.

    python jobs/killed_rank.py MARKERS KILLS ARGUMENTS...

KILLS is JSON: [[rank, round, stage, delay_s], ...]. The rank of that number (as the job starts) sends
itself SIGKILL so long after it first enters that stage of that round, whatever it does then. Just before,
it leaves a file in MARKERS.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmpi.clock import Clock
from fedmpi.mpi.launch import claimed

Moment = tuple[int, str]


def kill_at(moments: dict[Moment, float], marker: Path) -> None:
    """From now on, entering one of these (round, stage) kills this process so many seconds later."""
    enter = Clock.stage

    def stage(self: Clock, name: Any, round_number: int | None = None, client: int | None = None) -> Any:
        delay_s = moments.pop((round_number or 0, name), None)
        if delay_s is not None:
            threading.Thread(target=_kill, args=(marker, f"{round_number} {name}", delay_s), daemon=True).start()
        return enter(self, name, round_number, client)

    Clock.stage = stage  # type: ignore[method-assign, assignment]


def _kill(marker: Path, what: str, delay_s: float) -> None:
    time.sleep(delay_s)
    marker.write_text(f"{what} {time.time()}")
    os.kill(os.getpid(), signal.SIGKILL)


def main(words: Sequence[str]) -> int:
    rank, kills = claimed()[0], json.loads(words[1])
    moments = {(number, stage): delay_s for who, number, stage, delay_s in kills if who == rank}
    if moments:
        kill_at(moments, Path(words[0]) / str(rank))
    from fedmpi.main import main as run

    return run(words[2:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
