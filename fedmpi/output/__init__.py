"""Everything a run leaves behind: checkpoints, client memories, records, progress, report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmpi.lazy import exports

if TYPE_CHECKING:
    from fedmpi.output.checkpoint import Snapshot
    from fedmpi.output.lock import RunLock
    from fedmpi.output.manifest import add_start, start_entry
    from fedmpi.output.memory import MemoryStore
    from fedmpi.output.progress import Progress
    from fedmpi.output.records import Records, read_records
    from fedmpi.output.report import TierRow, closing_table
    from fedmpi.output.run_dir import RunDir
    from fedmpi.output.stored import digest_of

__all__ = [
    "MemoryStore",
    "Progress",
    "Records",
    "RunDir",
    "RunLock",
    "Snapshot",
    "TierRow",
    "add_start",
    "closing_table",
    "digest_of",
    "read_records",
    "start_entry",
]

__getattr__ = exports(
    __name__,
    {
        "RunDir": "run_dir",
        "RunLock": "lock",
        "Snapshot": "checkpoint",
        "digest_of": "stored",
        "MemoryStore": "memory",
        "Records": "records",
        "read_records": "records",
        "Progress": "progress",
        "TierRow": "report",
        "closing_table": "report",
        "start_entry": "manifest",
        "add_start": "manifest",
    },
)
