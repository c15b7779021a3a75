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

    A run with simulated time has a second one, whose wall clock is that of the clients' devices. Raises RunDirError
    where a file cannot be written.
    """

    def run_started(self, started: Started) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._path = RunDir(started.run_dir).tensorboard_dir / name
        _append(self._path, time.time(), step=started.done + 1, session_log=SessionLog(status=SessionLog.START))

    def round_done(self, record: Record) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record)]
        contents = {"step": record["round"], "summary": Summary(value=values)}
        _append(self._path, time.time(), **contents)
        if "simulated_total_s" in record:
            _append(self._path.parent / SIMULATED / self._path.name, record["simulated_total_s"], **contents)


def _append(path: Path, wall_time: float, **contents: Any) -> None:
    """Appends an event; a new file begins with its version."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    with writing(path):
        path.parent.mkdir(exist_ok=True)
        with open(open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
            writer = RecordWriter(file)
            if not file.tell():
                writer.write(Event(file_version="brain.Event:2").SerializeToString())
            writer.write(Event(wall_time=wall_time, **contents).SerializeToString())
