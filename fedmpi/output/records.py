"""One line of JSON per round, and the same numbers for TensorBoard.

`rounds.jsonl` is what reports, sweeps and people read. A resumed run takes back the rounds that
its checkpoint does not know, so the file reads as if nothing had happened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fedmpi.errors import UserError
from fedmpi.output.files import write_text, writing
from fedmpi.output.run_dir import RunDir

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Record = Mapping[str, Any]


class Records:
    """Appends records of a run.

    `resume_after` None starts afresh; n keeps the rounds up to n that are there. Raises
    RunDirError if the file cannot be written.
    """

    def __init__(self, run_dir: RunDir, *, resume_after: int | None, tensorboard: bool) -> None:
        self._path = run_dir.records_path
        last_round = resume_after or 0
        kept = [record for record in read_records(run_dir) if _round_of(record) <= last_round]
        write_text(self._path, "".join(_line(record) for record in kept))
        with writing(self._path):
            self._file = open(self._path, "a", encoding="utf-8")
        self._events = _event_writer(run_dir, purge_step=last_round + 1) if tensorboard else None

    def append(self, record: Record) -> None:
        """Write one record; `record["round"]` is its round. Numbers that JSON has no word for become null."""
        if "round" not in record:
            raise KeyError("a record needs its round")
        with writing(self._path):
            self._file.write(_line(record))
            self._file.flush()
            if self._events is not None:
                for tag, value in scalars(record):
                    self._events.add_scalar(tag, value, global_step=record["round"])
                self._events.flush()

    def close(self) -> None:
        with writing(self._path):
            self._file.close()
            if self._events is not None:
                self._events.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_records(run_dir: RunDir) -> list[dict[str, Any]]:
    """Every whole record; a line that a kill has torn is left out. Empty if there is no file."""
    try:
        text = run_dir.records_path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    parsed = (_parse(line) for line in text.splitlines())
    return [record for record in parsed if record is not None]


def json_safe(value: Any) -> Any:
    """`value` with NaN and infinities as null, tuples as lists, keys as strings and 0-dim arrays as numbers."""
    if isinstance(value, Mapping):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(item) for item in value]
    if hasattr(value, "item"):
        return json_safe(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def scalars(record: Record, prefix: str = "") -> Iterator[tuple[str, float]]:
    """(tag, value) of every finite number in a record, `tiers/half/accuracy` for nested ones.

    Items of lists take part if they are mappings with a `name`; `round` itself is the step.
    """
    for key, value in record.items():
        tag = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from scalars(value, f"{tag}/")
        elif isinstance(value, (list, tuple)):
            for item in value:
                if isinstance(item, Mapping) and "name" in item:
                    yield from scalars(item, f"{tag}/{item['name']}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            if tag != "round":
                yield tag, float(value)


def _line(record: Record) -> str:
    return json.dumps(json_safe(record), allow_nan=False) + "\n"


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("round"), int) else None


def _round_of(record: Record) -> int:
    return int(record["round"])


def _event_writer(run_dir: RunDir, purge_step: int) -> SummaryWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("output.tensorboard", f"{error}; install tensorboard or set it to false") from error
    with writing(run_dir.tensorboard_dir):
        return SummaryWriter(str(run_dir.tensorboard_dir), purge_step=purge_step)
