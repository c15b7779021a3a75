"""Everything a run leaves behind: checkpoints, client memories, records, progress, report."""

from __future__ import annotations

from fedmpi.lazy import exports

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
