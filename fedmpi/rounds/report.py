"""What a worker reports of one client beside its upload."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np

from fedmpi.tensors import ALIGN_BYTES, Params

CONTRIBUTED = 1
DROPPED = 2
LOST = 3
"""What became of a client in this phase: its upload counts, its training diverged, or its upload never arrived (or it
was too late for the deadline)."""


@dataclass(frozen=True)
class ClientReport:
    """A client's part in one phase; 128 bytes on the wire."""

    client: int
    status: int
    steps: int = 0
    loss: float = 0.0
    down_bytes: int = 0
    up_bytes: int = 0
    """Protocol bytes: what this client would have moved."""
    restored: int = 0
    """1 if its training diverged and it sent its last finite parameters."""
    left_out: int = 0
    """How many of its steps fp16 left out."""
    simulated_ns: int = 0
    simulated_uj: int = 0
    """Time and energy on the client's own device (`devices`)."""
    memory_digest: str = ""
    """Hexadecimal digest of the client's new memory; '' if it stored none."""

    def to_row(self) -> np.ndarray:
        *numbers, digest = astuple(self)
        return np.array((*numbers, bytes.fromhex(digest)), REPORT)

    @classmethod
    def from_row(cls, row: np.void) -> ClientReport:
        values: list[Any] = [*row.tolist()]
        values[-1] = values[-1].hex() if any(values[-1]) else ""
        return cls(*values)


ClientResult = tuple[ClientReport, Params | None]
"""A client's report and its upload, None if the client is dropped."""

_FORMATS = {"int": "i8", "float": "f8", "str": "V16"}
# The length is a multiple of ALIGN_BYTES, so that what follows in a message stays aligned.
REPORT = np.dtype(
    {
        "names": [one.name for one in fields(ClientReport)],
        "formats": [_FORMATS[str(one.type)] for one in fields(ClientReport)],
        "itemsize": 2 * ALIGN_BYTES,
    }
)
"""A report as it travels."""
