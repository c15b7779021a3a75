"""Whether two runs of the same settings computed the same: every byte of what they left that is no time or place.

Nothing else may differ than what the constants here name: `CONFIG_MAY_DIFFER` and `PROGRESS_MAY_DIFFER` in checkpoints,
and `NOT_RESULTS` in records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmpi.disk import hdf5
from fedmpi.errors import RunDirError
from fedmpi.report.records import NOT_RESULTS, read_records
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir

CONFIG_MAY_DIFFER = (
    *("mpi.exchange", "mpi.server_trains", "mpi.round_timeout_s"),
    *("output.checkpoint_every", "output.keep_checkpoints"),
)
"""Keys of the config that a checkpoint holds: those that the two runs were given with other values."""
PROGRESS_MAY_DIFFER = ("seconds",)
"""What a checkpoint's progress holds of time."""


def differences(reference: Path, other: Path, *, is_finished: bool = True) -> list[str]:
    """A line for each difference; none if the runs are the same.

    `reference` must have kept the checkpoints of all its rounds; of the other's, each must be one of these, and
    where the run `is_finished` the last one must be there. Client memories: every file of the other must be there, and
    each that its newest checkpoint names must be whole.
    """
    ours, theirs = RunDir(reference), RunDir(other)
    lines = [*_checkpoints(ours, theirs, is_finished), *_records(ours, theirs), *_memories(ours, theirs)]
    lines += _same_bytes("partition.h5", ours.partition_path, theirs.partition_path)
    if is_finished:
        lines += _report(ours, theirs)
    return lines


def leftovers(run: Path) -> list[str]:
    """A line for each temporary file that a run which came to its end has left."""
    return [f"a temporary file is left: {path.relative_to(run)}" for path in sorted(run.rglob("*.tmp"))]


def _checkpoints(ours: RunDir, theirs: RunDir, is_finished: bool) -> Iterator[str]:
    expected, found = dict(ours.checkpoints()), dict(theirs.checkpoints())
    if is_finished and max(expected, default=0) not in found:
        yield f"there is no checkpoint of the last round; those there are of rounds {sorted(found)}"
    for number, path in sorted(found.items()):
        if number not in expected:
            yield f"{path.name}: the reference has no such round"
        else:
            yield from (f"{path.name}: {line}" for line in _stored(expected[number], path))
    warnings: list[str] = []
    try:
        checkpoint.load_newest_intact(theirs, warnings.append)
    except RunDirError as error:
        warnings.append(error.text())
    yield from warnings


def _stored(ours: Path, theirs: Path) -> Iterator[str]:
    """Attributes, tensors in their order, and that a file has no byte beside these."""
    attributes, arrays = _contents(ours)
    found_attributes, found = _contents(theirs)
    for name in sorted(attributes.keys() | found_attributes.keys()):
        ours_value, theirs_value = (_comparable(name, side.get(name)) for side in (attributes, found_attributes))
        if ours_value != theirs_value:
            yield f"attribute {name}: {_short(theirs_value)}, not {_short(ours_value)}"
    if list(arrays) != list(found):
        yield f"tensors {_short(list(found))}, not {_short(list(arrays))}"
    for name in filter(found.__contains__, arrays):
        here, there = arrays[name], found[name]
        if (here.dtype, here.shape) != (there.dtype, there.shape):
            yield f"{name}: {there.dtype} {there.shape}, not {here.dtype} {here.shape}"
        elif here.tobytes() != there.tobytes():
            (where,) = np.nonzero((_octets(here) != _octets(there)).any(axis=1))
            values = f"{there.ravel()[where[0]]!r}, not {here.ravel()[where[0]]!r}"
            yield f"{name}: {len(where)} of {here.size} numbers, the first at {where[0]}: {values}"
    if bytes(hdf5.pack(checkpoint.KIND, found_attributes, found)) != theirs.read_bytes():
        yield "the file has other bytes than its contents make"


def _octets(array: np.ndarray) -> np.ndarray:
    """(numbers, bytes of each)."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1)


def _contents(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    with hdf5.opened(path, checkpoint.KIND) as file:
        return dict(file.attributes), {name: file.array(name) for name in file.entries}


def _comparable(name: str, value: Any) -> Any:
    """An attribute without what may differ."""
    if value is None or name not in ("config", "progress", "content_digest"):
        return value
    if name == "content_digest":  # of all attributes, those that may differ included
        return "a digest"
    plain = json.loads(value)
    for key in CONFIG_MAY_DIFFER if name == "config" else PROGRESS_MAY_DIFFER:
        section, _, inner = key.rpartition(".")
        (plain[section] if section else plain).pop(inner, None)
    return plain


def _records(ours: RunDir, theirs: RunDir) -> Iterator[str]:
    """Every round once, and in each record the same text beside what tells of time and ranks."""
    expected, found = (_results(run) for run in (ours, theirs))
    rounds = [record["round"] for record in found]
    if rounds != list(range(1, len(rounds) + 1)) or len(found) > len(expected):
        yield f"rounds.jsonl has rounds {rounds}, the reference {[record['round'] for record in expected]}"
    for here, there in zip(expected, found, strict=False):
        for key in sorted(here.keys() | there.keys()):
            if json.dumps(here.get(key)) != json.dumps(there.get(key)):
                told = f"{_short(there.get(key))}, not {_short(here.get(key))}"
                yield f"rounds.jsonl, round {here['round']}, {key}: {told}"
        if list(here) != list(there):
            yield f"rounds.jsonl, round {here['round']}: keys {list(there)}, not {list(here)}"


def _results(run: RunDir) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key not in NOT_RESULTS} for record in read_records(run)]


def _memories(ours: RunDir, theirs: RunDir) -> Iterator[str]:
    for path in sorted(theirs.memory_dir.rglob("*.h5")):
        name = path.relative_to(theirs.path)
        yield from _same_bytes(str(name), ours.path / name, path)


def _report(ours: RunDir, theirs: RunDir) -> Iterator[str]:
    summaries = [run.report_dir / "summary.json" for run in (ours, theirs)]
    if not all(path.is_file() for path in summaries):
        yield f"report/summary.json is {'there' if summaries[1].is_file() else 'missing'}, unlike in the reference"
        return
    here, there = (json.loads(path.read_text())["tiers"] for path in summaries)
    if here != there:
        yield f"report/summary.json: {_short(there)}, not {_short(here)}"
    tests = [run.report_dir / "clients.csv" for run in (ours, theirs)]
    if any(path.exists() for path in tests):
        yield from _same_bytes("report/clients.csv", *tests)


def _same_bytes(name: str, ours: Path, theirs: Path) -> Iterator[str]:
    there = [path.read_bytes() if path.is_file() else None for path in (ours, theirs)]
    if there[0] != there[1]:
        what = "other bytes" if None not in there else "missing" if there[1] is None else "not in the reference"
        yield f"{name}: {what}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:120]}...{text[-60:]}"
