"""The records of a run for TensorBoard.

Written as the record comes, by tensorboard's own coding of events: its `SummaryWriter` has a thread
that dies with a traceback of its own where the disk is full, and forgets what was in its queue.
"""

from __future__ import annotations

import io
import os
import socket
import time
from typing import TYPE_CHECKING

from fedmpi.disk.plain import open_in_place
from fedmpi.errors import UserError
from fedmpi.report.observer import Started
from fedmpi.report.records import Record, scalars
from fedmpi.store.files import writing
from fedmpi.store.run_dir import RunDir

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event


class Events:
    """An events file for each start; TensorBoard forgets what older files have of rounds that are made again.

    Raises UserError where tensorboard is not installed, RunDirError where the file cannot be written.
    """

    def __init__(self) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise UserError("output.tensorboard", f"{error}; install tensorboard or set it to false") from error
        self._event, self._summary, self._coding = event_pb2.Event, summary_pb2.Summary, RecordWriter
        self._session = event_pb2.SessionLog

    def run_started(self, started: Started) -> None:
        now_s, folder = time.time(), RunDir(started.run_dir).tensorboard_dir
        self._path = folder / f"events.out.tfevents.{now_s:.6f}.{socket.gethostname()}.{os.getpid()}"
        version = self._event(wall_time=now_s, file_version="brain.Event:2")
        begin = self._session(status=self._session.START)
        with writing(self._path):
            folder.mkdir(exist_ok=True)
            os.close(open_in_place(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            self._append(version, self._event(wall_time=now_s, step=started.done + 1, session_log=begin))

    def round_done(self, record: Record) -> None:
        shown = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record)]
        event = self._event(wall_time=time.time(), step=record["round"], summary=self._summary(value=shown))
        with writing(self._path):
            self._append(event)

    def _append(self, *events: Event) -> None:
        coded = io.BytesIO()
        for event in events:
            self._coding(coded).write(event.SerializeToString())
        with open(open_in_place(self._path, os.O_WRONLY | os.O_APPEND), "ab") as file:
            file.write(coded.getvalue())
