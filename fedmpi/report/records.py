"""One line of JSON per round.

`rounds.jsonl` is what reports, sweeps and people read. A resumed run takes back the rounds that
its checkpoint does not know, so the file reads as if nothing had happened. Rounds that the checkpoint
knows and the file does not are marked: `{"round": 7, "missing_from": 3}` stands for rounds 3 to 7.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedmpi.disk.plain import LinkedError, open_in_place, read_lines
from fedmpi.errors import counted
from fedmpi.store.files import MISSING, json_safe, reading, write_atomic, writing
from fedmpi.store.run_dir import RunDir

Record = Mapping[str, Any]

# A record has some 20 bytes for each client of its cohort.
_MOST_LINE_BYTES = 64 * 2**20

TIERS = "tiers"
"""The key, in the record of a round that was tested, of the scores of each net that all clients share."""

CLIENTS = "clients"
"""The key, and the closing table's row, of the clients' own nets on their own test data."""

NOT_RESULTS = frozenset({"seconds", "busy_s", "losses", "wire_bytes", "wire_messages", "exchange"})
"""Keys of a record that tell of time, ranks and what MPI moved: the same bits are alike without."""

_DROPPED = "they contributed nothing (train.on_divergence)"
_RESTORED = "their last finite nets were taken (train.on_divergence)"
_MOST_SHOWN = 8


def round_seconds(records: Sequence[Record], num_ranks: int) -> list[float]:
    """What these rounds took; without those of another number of ranks, which tell little of the next ones."""
    found = []
    for record in records:
        match record:
            case {"seconds": {"wall": float(wall_s)}, "busy_s": {**ranks}} if len(ranks) == num_ranks:
                found.append(wall_s)
    return found


def by_ranks(records: Sequence[Record]) -> dict[int, list[tuple[int, int]]]:
    """Number of ranks -> (first, last) of each stretch of rounds that so many have done, by the records that say."""
    found: dict[int, list[tuple[int, int]]] = {}
    for record in records:
        match record:
            case {"round": int(number), "busy_s": {**ranks}} if ranks:
                stretches = found.setdefault(len(ranks), [])
                first = stretches.pop()[0] if stretches and stretches[-1][1] == number - 1 else number
                stretches.append((first, number))
    return found


def ranks_in_words(records: Sequence[Record]) -> str:
    """`5 ranks`, or `5 ranks (rounds 1-10), 3 ranks (rounds 11-12)`; empty where no record says."""
    found = by_ranks(records)
    if len(found) < 2:
        return "".join(counted(count, "rank") for count in found)
    return ", ".join(f"{counted(count, 'rank')} ({_in_words(stretches)})" for count, stretches in found.items())


def _in_words(stretches: Sequence[tuple[int, int]]) -> str:
    shown = [f"{first}-{last}" if first < last else f"{first}" for first, last in stretches]
    several = len(stretches) > 1 or stretches[0][0] < stretches[0][1]
    return f"round{'s' * several} {', '.join(shown)}"


def divergences(records: Sequence[Record]) -> tuple[str, ...]:
    """Returns a line if clients diverged and contributed nothing, and one if clients were set back to their last finite
    net (`train.on_divergence`: drop, upload_last_finite): how often that was, and which clients.
    """
    lines = []
    total = sum(len(record.get("cohort") or ()) for record in records)
    for key, then in (("dropped", _DROPPED), ("restored", _RESTORED)):
        if found := [client for record in records for client in record.get(key) or ()]:
            rounds = counted(sum(1 for record in records if record.get(key)), "round")
            how_often = f"{len(found):,} of {counted(total, 'training')}, in {rounds}"
            lines.append(f"diverged: {how_often}, of {_who(found)}: {then}")
    return tuple(lines)


def _who(clients: Sequence[int]) -> str:
    """`client 3`, or `clients 3, 5, 7`, each once."""
    names = [*map(str, sorted(set(clients)))]
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    noun = "clients" if len(names) > 1 else "client"
    return f"{noun} {', '.join(names[:_MOST_SHOWN])}{more}"


def net_scores(record: Record) -> dict[str, Mapping[str, float]]:
    """Name -> `accuracy` and `loss` of each net that was tested on the whole test set; empty where none was."""
    return dict(record.get(TIERS) or {})  # older records have an empty one where nothing was tested


def scores_of(record: Record, name: str) -> Mapping[str, float]:
    """Accuracy, and loss where there is one, of a tier or of the clients' own nets; empty where it was not tested."""
    return (record.get(CLIENTS) if name == CLIENTS else net_scores(record).get(name)) or {}


def accuracies(record: Record) -> dict[str, float]:
    """The accuracy of each tested tier, and of the clients' own nets; empty where the round was not evaluated."""
    own = {CLIENTS: record[CLIENTS]} if CLIENTS in record else {}
    return {name: scores["accuracy"] for name, scores in {**net_scores(record), **own}.items()}


class Records:
    """Appends records of a run.

    `resume_after` None starts afresh; n keeps the rounds up to n that are there, marks the others as missing, and says
    so in one line to `warn`. Raises RunDirError if the file cannot be read or written.
    """

    def __init__(self, run_dir: RunDir, *, resume_after: int | None, warn: Callable[[str], None] = print) -> None:
        self._run_dir, self._path, self._warn = run_dir, run_dir.records_path, warn
        self._write_anew(self._kept(resume_after) if resume_after else [])
        self._unwritten = b""

    def _kept(self, last_round: int) -> list[Record]:
        """The records up to `last_round`, with marks where some are missing."""
        found, num_foreign = _read(self._run_dir)
        kept = [record for record in found if _round_of(record) <= last_round]
        gaps = gaps_of(kept, last_round)
        name = self._path.name
        if gaps:
            which = ", ".join(f"{first} to {last}" if first < last else f"{last}" for first, last in gaps[:5])
            more = f" and {len(gaps) - 5} other gaps" if len(gaps) > 5 else ""
            missing = f"{name} has no record of rounds {which}{more}, which are done"
            self._warn(f"{missing}: the gap is marked there, and sums over all rounds are not shown")
        if num_foreign:
            self._warn(f"{name} has {counted(num_foreign, 'line')} without a record, which fedmpi leaves out")
        return _marked(kept, gaps)

    def _write_anew(self, records: Sequence[Record]) -> None:
        content = "".join(map(_line, records)).encode()
        write_atomic(self._path, content)
        self._whole_bytes = len(content)

    def round_done(self, record: Record) -> None:
        """Write one record; `record["round"]` is its round. Numbers that JSON has no word for become null.

        Raises RunDirError if it is not on disk; it is then written with the next one.
        """
        if "round" not in record:
            raise KeyError("a record needs its round")
        self._unwritten += _line(record).encode()
        self.write_pending()

    def write_pending(self) -> None:
        """Write what earlier calls could not. Raises RunDirError."""
        with writing(self._path, len(self._unwritten)):
            self._write()
        self._whole_bytes, self._unwritten = self._whole_bytes + len(self._unwritten), b""

    def _write(self) -> None:
        """Opens the file anew: a run directory that is gone is noticed, and one that was away for a while is found."""
        try:
            handle = open_in_place(self._path, os.O_RDWR)
        except LinkedError:  # a snapshot of the folder, made with hard links, stays as it is
            found, _ = _read(self._run_dir)
            self._write_anew(_marked(found, gaps_of(found, rounds_done(found))))
            handle = open_in_place(self._path, os.O_RDWR)
        with open(handle, "r+b", buffering=0) as file:
            # What a full disk has torn last time goes, so that no line is glued to half a one.
            file.truncate(file.seek(min(self._whole_bytes, file.seek(0, os.SEEK_END))))
            left = memoryview(self._unwritten)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())


def read_records(run_dir: RunDir) -> list[dict[str, Any]]:
    """Every whole record, in the order of rounds; of several of one round the last one. Empty if there is no file.

    Left out are lines that a kill has torn, and marks of missing rounds. Raises RunDirError if it cannot be read.
    """
    return _read(run_dir)[0]


def gaps_of(records: Sequence[Record], last_round: int) -> list[tuple[int, int]]:
    """(first, last) of each stretch of rounds up to `last_round` that these records, in their order, lack."""
    rounds = [0, *map(_round_of, records), last_round + 1]
    return [(before + 1, after - 1) for before, after in itertools.pairwise(rounds) if after > before + 1]


def rounds_done(records: Sequence[Record]) -> int:
    """The last round that has a record; 0 for none."""
    return _round_of(records[-1]) if records else 0


def is_whole(records: Sequence[Record]) -> bool:
    """Whether no round before the last one is missing: only then a sum over these records is one over all rounds."""
    return rounds_done(records) == len(records)


def _marked(records: Sequence[Record], gaps: Sequence[tuple[int, int]]) -> list[Record]:
    return sorted([*records, *({"round": last, "missing_from": first} for first, last in gaps)], key=_round_of)


def _read(run_dir: RunDir) -> tuple[list[dict[str, Any]], int]:
    """The records, and how many lines are neither records, nor marks, nor torn."""
    by_round: dict[int, dict[str, Any]] = {}
    num_foreign = 0
    with contextlib.suppress(*MISSING), reading(run_dir.records_path):
        for line in read_lines(run_dir.records_path, _MOST_LINE_BYTES):
            record = _parse(line)
            if record is None:
                num_foreign += line.endswith(b"\n") and not line.isspace()
            elif "missing_from" not in record:
                by_round[_round_of(record)] = record
    return [by_round[number] for number in sorted(by_round)], num_foreign


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
        elif isinstance(value, (int, float)) and type(value) is not bool and math.isfinite(value) and tag != "round":
            yield tag, float(value)


def _line(record: Record) -> str:
    return json.dumps(json_safe(record), allow_nan=False) + "\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json_safe(json.loads(line))  # what is nested too deeply to be written again goes, too
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and type(number := record.get("round")) is int and number > 0 else None


def _round_of(record: Record) -> int:
    return int(record["round"])
