"""Reads and writes the records of all runs of a grid in one compressed file, from which the report is made.

The same runs give the same bytes. What was fixed before the runs is there, too: the digest of the grid file, and the
`fingerprint` of each config.
"""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmpi.config.schema import Config, Stop
from fedmpi.errors import RunDirError
from fedmpi.report.records import Record
from fedmpi.results.grid_file import GridRun
from fedmpi.results.launch import Job
from fedmpi.store import manifest
from fedmpi.store.files import json_safe, read_whole, write_atomic

FILE = "records.json.gz"
COSTS = ("protocol_down_bytes", "protocol_up_bytes", "training_macs", "simulated_s", "simulated_j")
_SAME = ("config", "data", "seconds", "nets")  # fields that have the same name in the file
_KEYS_OF_A_ROUND = ("round", "tiers", "clients", "train_loss", *COSTS)


@dataclass(frozen=True)
class RunRecord:
    """One finished run."""

    run: GridRun
    config: str
    """The `fingerprint` of its config."""
    data: str
    """The digest of the examples."""
    made_with: Mapping[str, Any]
    """Commit of the code, versions, platform; where the user brought code, the digests of its source by section."""
    seconds: Mapping[str, float]
    """Mean over the rounds, by stage; `wall` is the whole round."""
    nets: Sequence[Mapping[str, Any]]
    """Name, parameters and MACs of each net."""
    records: Sequence[Record]
    """Of each round what it scored, moved and computed. The method's diagnostics are those of all rounds for the final
    runs of the grid's first seed, else of the last round.
    """

    @property
    def rounds(self) -> int:
        return len(self.records)

    @property
    def computed_by(self) -> Mapping[str, Any]:
        """Returns what must be the same in both runs of a pair: commit, versions, platform and the examples."""
        commit, versions, platform = (self.made_with.get(key) for key in ("git", "versions", "platform"))
        return {"commit": commit, **(versions or {}), "platform": platform, "data": self.data}


def record_run(run: GridRun, job: Job, *, all_diagnostics: bool) -> RunRecord:
    """Reads the folder of a finished run."""
    import pandas as pd  # takes a second to load

    folder = job.run()
    records = folder.records
    kept = []
    for record in records:
        with_diagnostics = all_diagnostics or record is records[-1]
        keys = (*_KEYS_OF_A_ROUND, "method") if with_diagnostics else _KEYS_OF_A_ROUND
        kept.append({key: record[key] for key in keys if key in record})
    seconds = pd.DataFrame([record["seconds"] for record in records if "seconds" in record])
    return RunRecord(
        run=run,
        config=fingerprint(job.config, manifest.user_code(job.folder)),
        data=str(folder.noted("data_digest", "")),
        made_with=folder.made_with,
        seconds=seconds.fillna(0.0).mean().round(6).to_dict(),
        nets=[{"name": net.get("name"), "params": net.get("params"), "macs": net.get("macs")} for net in folder.nets],
        records=kept,
    )


def fingerprint(config: Config, code: Mapping[str, Any]) -> str:
    """Returns the hash of all that decides a run's results, the rounds and `stop`, which `Config.hash` may leave out,
    and the digests of the user's code.
    """
    digests = "".join(f", code {entry['digest']}" for entry in code.values() if "digest" in entry)
    stop = f", stop {config.stop.accuracy} {config.stop.patience}" if config.stop != Stop() else ""
    return f"{config.hash()}, {config.rounds} rounds{stop}{digests}"


def write(folder: Path, digest: str, runs: Sequence[RunRecord]) -> None:
    """Writes the runs of the grid with this digest: gzip without a date, of JSON."""
    made_with: list[Mapping[str, Any]] = []
    rows = []
    for run in runs:
        if run.made_with not in made_with:
            made_with.append(run.made_with)
        row = {key: getattr(run, key) for key in _SAME} | {"made_with": made_with.index(run.made_with)}
        rows.append({"wanted": asdict(run.run), "rounds": run.records, **row})
    whole = {"grid": digest, "made_with": made_with, "runs": rows}
    text = json.dumps(json_safe(whole), separators=(",", ":"), allow_nan=False)
    # The strategy is for data that hardly repeat, as digits: a tenth smaller. 31 is gzip, which zlib writes undated.
    packer = zlib.compressobj(9, wbits=31, strategy=zlib.Z_FILTERED)
    write_atomic(folder / FILE, packer.compress(text.encode()) + packer.flush())


def read(folder: Path) -> tuple[str, list[RunRecord]]:
    """Reads the digest of the grid and all runs; '' and [] where there is no such file. Raises RunDirError."""
    packed = read_whole(folder / FILE)
    if packed is None:
        return "", []
    try:
        whole = json.loads(gzip.decompress(packed))
        runs = []
        for row in whole["runs"]:
            row |= row.pop("note", {})  # as the first archives have it
            values = {key: row[key] for key in _SAME} | {"made_with": whole["made_with"][row["made_with"]]}
            runs.append(RunRecord(GridRun(**row["wanted"]), records=row["rounds"], **values))
        return str(whole["grid"]), runs
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, zlib.error) as error:
        why = f"holds no records of a grid ({error}); restore it, or remove it if the runs are still there"
        raise RunDirError(str(folder / FILE), why) from None
