"""Whether two runs of the same settings computed the same: every byte of what they left that is no time or place.

Nothing else may differ than what the constants here name: `CONFIG_MAY_DIFFER`, `PROGRESS_MAY_DIFFER` and
`VERSIONS_MAY_DIFFER` in checkpoints, and `NOT_RESULTS` in records.
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
    *("output.checkpoint_every", "output.keep_checkpoints", "rounds"),
)
"""Keys of the config that a checkpoint holds: the two runs may have other values there."""
VERSIONS_MAY_DIFFER = ("torchvision",)
"""A version that is noted where the process has imported the package, as tests of other nets in it may have."""
PROGRESS_MAY_DIFFER = ("seconds",)
"""What a checkpoint's progress holds of time."""

Part = Mapping[str, Any]
"""A file, or a record, of a run: what it holds, by name."""


def differences(reference: Path, other: Path, *, is_finished: bool = True) -> list[str]:
    """A line for each difference; none if the runs are the same.

    `reference` must have kept the checkpoints of all its rounds; of the other's, each must be one of these, and
    where the run `is_finished` the last one must be there, and all records. Client memories: every file of the other
    must be there, and each that its newest checkpoint names must be whole.
    """
    ours, theirs = (_parts(RunDir(run), is_finished) for run in (reference, other))
    newest = max((part for part in ours if part.startswith("checkpoints/")), default="")
    may_lack = ("checkpoints/", "memory/", *(["rounds.jsonl"] if not is_finished else []))
    lines = [
        f"{part}: missing"
        for part in ours.keys() - theirs.keys()
        if not part.startswith(may_lack) or (is_finished and part == newest)
    ]
    for part, found in theirs.items():
        if part not in ours:
            lines.append(f"{part}: not in the reference")
        else:
            lines += [f"{part}, {line}" for line in _unlike(ours[part], found)]
    return [*lines, *_not_intact(RunDir(other))]


def leftovers(run: Path) -> list[str]:
    """A line for each temporary file that a run which came to its end has left."""
    return [f"a temporary file is left: {path.relative_to(run)}" for path in sorted(run.rglob("*.tmp"))]


def _parts(run: RunDir, is_finished: bool) -> dict[str, Part]:
    """What must be the same, by file; of `rounds.jsonl` by place, so that each round must be there once."""
    files = [run.partition_path, *run.memory_dir.rglob("*.h5")]
    parts = {f"checkpoints/{path.name}": _stored(path) for _, path in run.checkpoints()}
    for place, record in enumerate(read_records(run), 1):
        results = {key: json.dumps(value) for key, value in record.items() if key not in NOT_RESULTS}
        parts[f"rounds.jsonl, record {place}"] = {"keys": list(results), **results}
    if is_finished:
        files.append(run.report_dir / "clients.csv")
        summary = run.report_dir / "summary.json"
        if summary.is_file():
            parts["report/summary.json"] = {"tiers": json.dumps(json.loads(summary.read_text())["tiers"])}
    whole = {str(path.relative_to(run.path)): {"bytes": path.read_bytes()} for path in files if path.is_file()}
    return parts | whole


def _stored(path: Path) -> Part:
    """Attributes, tensors in their order, and whether the file has a byte beside these."""
    with hdf5.opened(path, checkpoint.KIND) as file:
        attributes, arrays = dict(file.attributes), {name: file.array(name) for name in file.entries}
    has_more = hdf5.pack(checkpoint.KIND, attributes, arrays) != path.read_bytes()
    told = {f"attribute {name}": _comparable(name, value) for name, value in attributes.items()}
    return {**told, "tensors": list(arrays), **arrays, "has other bytes than its contents make": has_more}


def _comparable(name: str, value: Any) -> Any:
    """An attribute without what may differ."""
    may_differ = {"config": CONFIG_MAY_DIFFER, "progress": PROGRESS_MAY_DIFFER, "versions": VERSIONS_MAY_DIFFER}
    if name not in (*may_differ, "content_digest"):
        return value
    if name == "content_digest":  # of all attributes, also of what may differ
        return "a digest"
    plain = json.loads(value)
    for key in may_differ[name]:
        section, _, inner = key.rpartition(".")
        (plain[section] if section else plain).pop(inner, None)
    return plain


def _unlike(ours: Part, theirs: Part) -> Iterator[str]:
    for name in sorted(ours.keys() | theirs.keys()):
        here, there = ours.get(name), theirs.get(name)
        if isinstance(here, np.ndarray) and isinstance(there, np.ndarray):
            if (here.dtype, here.shape) != (there.dtype, there.shape):
                yield f"{name}: {there.dtype} {there.shape}, not {here.dtype} {here.shape}"
            elif here.tobytes() != there.tobytes():
                (where,) = np.nonzero((_octets(here) != _octets(there)).any(axis=1))
                values = f"{there.ravel()[where[0]]!r}, not {here.ravel()[where[0]]!r}"
                yield f"{name}: {len(where)} of {here.size} numbers, the first at {where[0]}: {values}"
        elif type(here) is not type(there) or here != there:
            yield f"{name}: {_short(there)}, not {_short(here)}"


def _octets(array: np.ndarray) -> np.ndarray:
    """(numbers, bytes of each)."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1)


def _short(value: Any) -> str:
    text = f"{len(value)} bytes" if isinstance(value, bytes) else str(value)
    return text if len(text) <= 200 else f"{text[:120]}...{text[-60:]}"


def _not_intact(run: RunDir) -> list[str]:
    warnings: list[str] = []
    try:
        checkpoint.load_newest_intact(run, warnings.append)
    except RunDirError as error:
        warnings.append(error.text())
    return warnings
