"""The records of a run for TensorBoard.

Written as the record comes, by tensorboard's own coding of events: its `SummaryWriter` has a thread that dies with a
traceback of its own where the disk is full, and then waits for ever for its queue.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from fedmpi.report.observer import Started
from fedmpi.report.records import Record, scalars
from fedmpi.store.files import open_file, writing
from fedmpi.store.run_dir import RunDir


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

    def _append(self, **contents: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        event = Event(wall_time=time.time(), **contents)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with writing(self._path), open(open_file(self._path, flags), "ab") as file:
            RecordWriter(file).write(event.SerializeToString())
