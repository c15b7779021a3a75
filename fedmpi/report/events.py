"""The records of a run for TensorBoard.

Written as the record comes, by tensorboard's own coding of events: its `SummaryWriter` has a thread that dies with a
traceback of its own where the disk is full, and then waits for ever for its queue.
"""

import os
import socket
import time
from pathlib import Path
from typing import Any

from fedmpi.report.observer import Started
from fedmpi.report.records import Record, scalars
from fedmpi.store.files import open_file, writing
from fedmpi.store.run_dir import RunDir

SIMULATED = "simulated"
"""The folder of the second run of events."""


class Events:
    """Writes an events file for each start; TensorBoard forgets what older files have of rounds that are made again.

    Raises RunDirError where the file cannot be written.
    """

    def run_started(self, started: Started) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        folder = RunDir(started.run_dir).tensorboard_dir
        self._path = folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        with writing(self._path):
            folder.mkdir(exist_ok=True)
        self._append(file_version="brain.Event:2")
        self._append(step=started.done + 1, session_log=SessionLog(status=SessionLog.START))

    def round_done(self, record: Record) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record)]
        self._append(step=record["round"], summary=Summary(value=values))
        if "simulated_total_s" in record:
            self._append_simulated(record["simulated_total_s"], step=record["round"], summary=Summary(value=values))

    def _append_simulated(self, total_s: float, **contents: Any) -> None:
        """Writes the same into a run of its own, whose wall clock is that of the clients' devices."""
        folder = self._path.parent / SIMULATED
        path = folder / self._path.name
        if not path.exists():
            with writing(path):
                folder.mkdir(exist_ok=True)
            _write(path, 0.0, file_version="brain.Event:2")
        _write(path, total_s, **contents)

    def _append(self, **contents: Any) -> None:
        _write(self._path, time.time(), **contents)


def _write(path: Path, wall_time: float, **contents: Any) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    event = Event(wall_time=wall_time, **contents)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with writing(path), open(open_file(path, flags), "ab") as file:
        RecordWriter(file).write(event.SerializeToString())
