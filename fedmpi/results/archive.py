"""The records of all runs of a study in one compressed file, small enough for a repository.

Tables and figures are made from this file alone. The same runs give the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import statistics
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmpi.config.schema import Config
from fedmpi.data.partition import saved
from fedmpi.data.reading import digest_of
from fedmpi.errors import RunDirError
from fedmpi.report.records import Record, net_scores
from fedmpi.results.grid_file import Measure
from fedmpi.results.grid_runs import Wanted
from fedmpi.results.making import Note, config_text, note_of
from fedmpi.store.files import MOST_BYTES, json_safe, read_whole, write_atomic
from fedmpi.store.manifest import BROUGHT, brought, read_starts, with_rounds
from fedmpi.store.run_dir import RunDir
from fedmpi.store.stored import digest_of as digest_of_tensors
from fedmpi.studies import measures
from fedmpi.studies.launch import Job
from fedmpi.studies.runs import History, Run, moved

FILE = "records.json.gz"
_MOST_TEXT_BYTES = 2**30
_OF_A_ROUND = ("round", "tiers", "clients", "train_loss", "protocol_down_bytes", "protocol_up_bytes", "training_macs")
_DIAGNOSTICS = "method"


@dataclass(frozen=True)
class Kept:
    """One finished run."""

    wanted: Wanted
    note: Note
    config: str
    """`config_text` of its config."""
    overrides: Sequence[str]
    """Without the folder of the data, which is that of one machine."""
    data: str
    """Digests of the examples, of who has which, of who took part in which round, and of the model's values that follow
    from the seed.
    """
    partition: str
    cohorts: str
    initial: str
    made_with: Mapping[str, Any]
    """Commit of the code, versions, platform; where the user brought code, the digests of its source by section, which
    older records do not have.
    """
    num_starts: int
    seconds: Mapping[str, float]
    """Mean over the rounds, by stage; `wall` is the whole round."""
    nets: Sequence[Mapping[str, Any]]
    """Name, parameters and MACs of each net."""
    rounds: Sequence[Record]
    """Of each round what it scored, moved and computed. The method's diagnostics are those of all rounds for the final
    runs of the study's first seed, else of the last round.
    """

    @property
    def name(self) -> str:
        return f"{self.wanted.name}-seed{self.wanted.seed}"

    def value(self, measure: Measure) -> float | None:
        """What this run measured; None where it has no such number (a target that it never reached)."""
        if measure.quantity in ("seconds", "time_share"):
            part = self.seconds.get("wall" if measure.net in ("largest", "") else measure.net)
            return part if part is None or measure.quantity == "seconds" else part / self.seconds["wall"]
        history = History(Run(self.wanted.name, self.wanted.seed, RunDir(Path(self.name))), self.rounds, True)
        nets = self.nets_of(measure.net) if measure.is_of_a_net else [""]
        values = [measures.value(history, measure.quantity, net, of=measure.of, target=measure.target) for net in nets]
        found = [value for value in values if value is not None]
        return statistics.fmean(found) if found and len(found) == len(values) else None

    def one_round_more(self, measure: Measure) -> float | None:
        """For a measure to a target: what the whole run took and a round more; None where it has no such net."""
        accuracy = measure.model_copy(update={"quantity": "accuracy", "target": None})
        if not measure.is_to_target or self.value(accuracy) is None:
            return None
        of_rounds = {
            "bytes_to_target": [moved(record) for record in self.rounds],
            "macs_to_target": [record["training_macs"] for record in self.rounds],
            "rounds_to_target": [1 for _ in self.rounds],
        }[measure.quantity]
        return sum(of_rounds) * (1 + 1 / len(self.rounds))

    def nets_of(self, asked: str) -> list[str]:
        """The names of the tested nets that a measure's `net` means; the records have the largest first."""
        tested = list(dict.fromkeys(name for record in self.rounds for name in net_scores(record)))
        if asked == "mean":
            return tested
        return {"largest": tested[:1], "smallest": tested[-1:]}.get(asked, [asked])


def keep(wanted: Wanted, job: Job, note: Note, *, all_diagnostics: bool) -> Kept:
    """What the folder of a finished run has."""
    run, records = job.run, job.run.records
    starts = read_starts(run.folder)
    partition = saved(run.folder.partition_path)[0]
    cohorts = json.dumps([record["cohort"] for record in records]).encode()
    last: Mapping[str, Any] = next(reversed(with_rounds(starts, len(records)) or starts), {})
    seconds = [record["seconds"] for record in records if "seconds" in record]
    stages = dict.fromkeys(stage for of_round in seconds for stage in of_round)
    return Kept(
        wanted=wanted,
        note=note,
        config=config_text(job.config),
        overrides=[said for said in job.overrides if not said.startswith("data.root=")],
        data=run.data_digest,
        partition=digest_of({"indices": partition.indices, "offsets": partition.offsets}),
        cohorts=hashlib.sha256(cohorts).hexdigest()[:32],
        initial=initial_digest(job.config),
        made_with={**{key: last.get(key) for key in ("git", "versions", "platform")}, **_sources(run)},
        num_starts=len(starts),
        seconds={stage: round(statistics.fmean(each.get(stage, 0.0) for each in seconds), 6) for stage in stages},
        nets=[{key: net[key] for key in ("name", "params", "macs")} for net in run.nets],
        rounds=[_trimmed(record, all_diagnostics or record is records[-1]) for record in records],
    )


def _sources(run: Run) -> dict[str, Any]:
    """Without the file's path, which is that of one machine; empty where all code is fedmpi's own."""
    found = {section: {"digest": entry.get("digest")} for section, entry in brought(run.folder).items()}
    return {BROUGHT: found} if found else {}


def _trimmed(record: Record, with_diagnostics: bool) -> Record:
    keys = (*_OF_A_ROUND, _DIAGNOSTICS) if with_diagnostics else _OF_A_ROUND
    return {key: record[key] for key in keys if key in record}


def initial_digest(config: Config) -> str:
    """The digest of the model's values that follow from the seed, where the method's state has them (all or some of
    them, as where layers are factorized); else of the state, as where a method has several nets of its own.
    """
    import torch

    from fedmpi import methods
    from fedmpi.models import create
    from fedmpi.running import start

    info = config.data.info()
    net = create.build(config.model, info, config.seed)
    model = {name: value.detach() for name, value in net.named_parameters()}
    state = methods.create(start.method_context(config, info)).initial_state()
    shared = [name for name in model if name in state]
    is_of_model = bool(shared) and all(torch.equal(model[name], state[name]) for name in shared)
    return digest_of_tensors(model if is_of_model else state)


def pack(digest: str, choices: Mapping[str, Any], runs: Sequence[Kept]) -> bytes:
    """The bytes of the file: gzip without a date, of JSON whose keys stand in the order of the records."""
    made_with = list({json.dumps(run.made_with, sort_keys=True): run.made_with for run in runs}.values())
    plain = [{**asdict(run), "made_with": made_with.index(run.made_with)} for run in runs]
    whole = {"study": digest, "choices": choices, "made_with": made_with, "runs": plain}
    text = json.dumps(json_safe(whole), separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode(), 9, mtime=0)


def write(folder: Path, digest: str, choices: Mapping[str, Any], runs: Sequence[Kept]) -> None:
    write_atomic(folder / FILE, pack(digest, choices, runs))


def read(folder: Path) -> tuple[str, Mapping[str, Any], list[Kept]]:
    """(digest of the study's file, choices, runs); nothing where there is no such file. Raises RunDirError."""
    packed = read_whole(folder / FILE, MOST_BYTES)
    if packed is None:
        return "", {}, []
    try:
        unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
        text = unpack.decompress(packed, _MOST_TEXT_BYTES)
        if not unpack.eof:
            raise ValueError("it is cut off, or too long")
        plain = json.loads(text)
        made_with = plain["made_with"]
        return plain["study"], plain["choices"], [_kept(run, made_with) for run in plain["runs"]]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, zlib.error) as error:
        why = f"holds no records of a study ({error}); restore it, or remove it if the runs are still there"
        raise RunDirError(str(folder / FILE), why) from None


def _kept(run: Mapping[str, Any], made_with: Sequence[Mapping[str, Any]]) -> Kept:
    own = {"wanted": Wanted(**run["wanted"]), "note": Note(**run["note"]), "made_with": made_with[run["made_with"]]}
    return Kept(**{**run, **own})


def noted(wanted: Wanted, job: Job, first_seed: int) -> Kept | None:
    """The run as it is kept, if it is finished and has a note."""
    note = note_of(job.run)
    if note is None or not job.run.is_finished():
        return None
    return keep(wanted, job, note, all_diagnostics=wanted.phase == "final" and wanted.seed == first_seed)
