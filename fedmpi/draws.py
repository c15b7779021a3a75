"""What a run has drawn at random, round by round: recomputed from its run directory, without data files or training.

    python -m fedmpi.draws RUN [section.key=value ...] [--round N] [--json]

lists the clients of each phase with their tiers, and what the method drew for each: Split-Mix's base nets, the factors
whose gradients FD-NNC's half does not send, PriSM's kernels, FjORD's widths. All of it follows from (config, seed,
round, client), PriSM's also from singular values that the round before has recorded, so neither ranks nor their losses
matter. A run of your own code needs its names again, as `method.name=mymethods:Mine`.
From Python: `Draws(run_dir).of_round(3)`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmpi import methods
from fedmpi.command.manners import Parser, run_command
from fedmpi.data.partition import saved
from fedmpi.errors import RunDirError
from fedmpi.methods.protocol import all_nets
from fedmpi.methods.values import Client
from fedmpi.report.lineage import lineage
from fedmpi.report.records import DRAWS_ON, read_records
from fedmpi.rounds.state import draw_tasks
from fedmpi.running import start
from fedmpi.running.folder import config_of
from fedmpi.store.run_dir import RunDir
from fedmpi.store.stored import from_text
from fedmpi.tensors import Params

_MOST_SHOWN = 16


@dataclass(frozen=True)
class DrawnClient:
    """One client's part in a phase of a round."""

    phase: str
    client: int
    tier: str
    """The name of the tier, as in the records."""
    drawn: Mapping[str, object]
    """What the method drew for this client (`Method.drawn`)."""


class Draws:
    """The draws of the run in `run_dir`; `overrides` name its own code again. Raises `UserError` where that holds no
    run.
    """

    def __init__(self, run_dir: str | Path, overrides: Sequence[str] = ()) -> None:
        folder = RunDir.of_run(run_dir)
        self._path = str(run_dir)
        self._config = config_of(folder, overrides)
        if not folder.partition_path.exists():
            raise RunDirError(
                str(folder.partition_path), "is missing; start the run with --resume, which makes it again"
            )
        self._partition = saved(folder.partition_path)[0]
        self._method = methods.create(start.method_context(self._config, self._config.data.used()))
        self._blocks = start.blocks(self._config)
        records = read_records(folder)
        self._records, self._lineage = {record["round"]: record for record in records}, lineage(records)

    @property
    def rounds(self) -> list[int]:
        """The rounds on record that the run has made itself."""
        return [record["round"] for record in self._lineage.own]

    def of_round(self, number: int) -> list[DrawnClient]:
        """Every client of the round, phase by phase, in the order of the record's `cohort`.

        The round may be one to come, unless the method draws on the state before it. Raises `RunDirError` where the
        draws of this round cannot be known.
        """
        if (parent := self._lineage.parent) is not None and number <= parent.round:
            raise RunDirError(self._path, f"{parent.whose}; ask {parent.run}")
        published, found = self._published(number), []
        for phase in self._method.phases(number):
            for task in draw_tasks(self._config, self._blocks, self._partition, number, phase):
                client = Client(task, published, self._partition.client(task.client), self._config.seed)
                tier = self._method.tiers[task.tier].name
                found.append(DrawnClient(phase.name, task.client, tier, self._method.drawn(client)))
        self._check(number, [client.client for client in found])
        return found

    def phases(self, number: int, found: Iterable[DrawnClient]) -> dict[str, dict[str, int]]:
        """Clients of each tier in each phase of the round, zeros included."""
        counts = Counter((client.phase, client.tier) for client in found)
        names = [tier.name for tier in self._method.tiers]
        return {phase.name: {name: counts[phase.name, name] for name in names} for phase in self._method.phases(number)}

    def _published(self, number: int) -> Params:
        """The tensors that the method draws on, as they were before the round."""
        names = self._method.traits.draws_on
        if not names:
            return {}
        if number == 1:
            state = self._method.initial_state()
            return {name: state[name] for name in names}
        specs = self._method.published_specs(all_nets(self._method))
        try:
            kept = self._records[number - 1][DRAWS_ON]
            return {name: from_text(kept[name], specs[name].dtype, specs[name].shape) for name in names}
        except (KeyError, TypeError, ValueError, RuntimeError):
            missing = f"round {number - 1} has no record of {', '.join(names)}"
            raise RunDirError(
                self._path, f"round {number} cannot be drawn again: {missing}, which it drew on"
            ) from None

    def _check(self, number: int, clients: Sequence[int]) -> None:
        """Raises RunDirError where the record of the round has other clients."""
        record = self._records.get(number)
        if record is None or record.get("cohort") == list(clients):
            return
        raise RunDirError(self._path, f"round {number} had other clients than its config.yaml gives; was that changed?")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 2 for a user's mistake."""
    parser = Parser("python -m fedmpi.draws", (__doc__ or "").partition("\n")[0])
    parser.add_argument("run", metavar="RUN", help="a run directory")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value", help="its own code, again")
    parser.add_argument("--round", type=int, metavar="N", help="this round only; all rounds on record by default")
    parser.add_argument("--json", action="store_true", help="one JSON object a round, with everything that was drawn")
    return run_command(lambda: _show(parser.parse_intermixed_args(argv)))


def _show(asked: argparse.Namespace) -> None:
    draws = Draws(asked.run, asked.overrides)
    for number in draws.rounds if asked.round is None else [asked.round]:
        if number < 1:
            raise RunDirError("--round", f"{number}, but the first round is 1")
        found = draws.of_round(number)
        text = json.dumps({"round": number, "clients": [asdict(client) for client in found]})
        print(text if asked.json else _text(number, found, draws.phases(number, found)), flush=True)


def _text(number: int, found: Sequence[DrawnClient], phases: Mapping[str, Mapping[str, int]]) -> str:
    lines = []
    for phase, tiers in phases.items():
        counts = ", ".join(f"{count} of tier {tier}" for tier, count in tiers.items())
        lines.append(f"round {number}, phase {phase}: {counts}")
        lines += [
            f"  client {client.client}, tier {client.tier}{_shown(client.drawn)}"
            for client in found
            if client.phase == phase
        ]
    return "\n".join(lines)


def _shown(drawn: Mapping[str, Any], depth: int = 0) -> str:
    """`; bases 3 0`; of long lists the beginning and the length."""
    text = ""
    for name, value in drawn.items():
        if isinstance(value, Mapping):
            text += f"\n    {name}:{_shown(value, depth + 1)}"
        else:
            items = [str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value)]
            more = f" ... ({len(items)} in all)" if len(items) > _MOST_SHOWN else ""
            before = "\n      " if depth else "; "
            text += f"{before}{name} {' '.join(items[:_MOST_SHOWN])}{more}"
    return text


if __name__ == "__main__":
    sys.exit(main())
