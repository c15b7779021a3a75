"""What a local training step of each tier takes beside one of the dense tier, and beside a bare PyTorch loop's.

    python jobs/bench.py steps [section.key=value ...] [--pairs 5] [--case resnet18-fedhm,resnet18-heterofl,...]
        [--precision fp32,bf16]

In one process, on one thread, it takes in turn, `--pairs` times, one step of every tier by the trainer that fedmpi
trains clients with, and one of a bare loop: the dense net (the first tier's) as an ordinary module, `torch.optim.SGD`,
images already normalized in memory. All are of whole batches, and without what a method adds to gradients. With
several precisions every tier is measured in each of them, in the same turns. The table has the median time of a step,
lowest and highest, and the median ratios, lowest and highest over the turns: the dense tier's time to this one's (how
many times faster this one is), the bare loop's to this one's, and, for comparison, the dense tier's MACs to this one's.
The dense tier and the bare loop that are compared with are those of the first precision. The first turn warms up and is
not counted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedmpi.command.manners import run_command
from fedmpi.config.load import load
from fedmpi.learning.twice import initial_values
from fedmpi.report.table_text import print_lines
from fedmpi.rounds.state import Setup
from fedmpi.studies.bench.cases import CASES, asked, overrides_of
from fedmpi.studies.bench.gpu_steps import ByHand, train
from fedmpi.studies.bench.on_ranks import launched, prepared

BARE = "bare loop"
_PRECISIONS = ("fp32", "bf16")
_CASES = tuple(name for name in CASES if "fedhm" in name or "heterofl" in name)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for a user's mistake."""
    return run_command(lambda: _bench(_arguments(argv)))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    def more(parser: argparse.ArgumentParser) -> None:
        help_precision = "of fp32,bf16; default what train.precision says"
        parser.add_argument("--precision", type=_precisions, help=help_precision)

    default, pairs = ("resnet18-fedhm", "resnet18-heterofl"), "steps of each, in turn"
    arguments = asked(argv, "steps", __doc__, default=default, allowed=_CASES, pairs=pairs, more=more)
    if arguments.precision:
        overrides_of(arguments.words, ["train.precision="])
    return arguments


def _precisions(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in _PRECISIONS:
            raise argparse.ArgumentTypeError(f"no precision {name!r}; there are {', '.join(_PRECISIONS)}")
    return list(dict.fromkeys(names))


def _bench(arguments: argparse.Namespace) -> None:
    spread = "lowest - highest"
    head = ["tier", "precision", "a step", spread, "dense / it", spread, "bare / it", spread, "dense MACs / its"]
    for name, words in arguments.runs.items():
        precisions = arguments.precision or [load(None, words).train.precision]
        found = launched("steps", words, pairs=arguments.pairs, precisions=precisions)
        print(f"{CASES[name][0]}:")
        print_lines(head, lines(found), 2, sys.stdout)


def lines(found: dict[str, Any]) -> list[list[str]]:
    """The table, from what `on_ranks` has found."""
    rows, shown = found["steps"], []
    dense, bare = rows[0], next(row for row in rows if row["tier"] == BARE)
    for row in rows:
        step_ms = [1e3 * seconds for seconds in row["seconds"]]
        cells = [f"{statistics.median(step_ms):.4g} ms", f"{min(step_ms):.4g} - {max(step_ms):.4g} ms"]
        for other in (dense, bare):
            ratios = [one / own for one, own in zip(other["seconds"], row["seconds"], strict=True)]
            cells += [f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} - {max(ratios):.2f}"]
        shown.append([row["tier"], row["precision"], *cells, f"{dense['macs'] / row['macs']:.2f}"])
    return shown


def on_ranks(comm: Any, folder: Path, words: Sequence[str], pairs: int, precisions: Sequence[str]) -> dict[str, Any]:
    """The seconds of each step of each tier and of the bare loop, by precision; the dense tier of the first precision
    comes first.
    """
    ways: list[tuple[dict[str, Any], Callable[[], None]]] = []
    for precision in precisions:
        setup = prepared(comm, folder, [*words, f"train.precision={precision}"])
        ways += [({**row, "precision": precision, "seconds": []}, step) for row, step in steps_of(setup)]
    for turn in range(pairs + 1):
        for row, step in ways:
            started = time.perf_counter()
            step()
            if turn:  # the first warms up
                row["seconds"].append(time.perf_counter() - started)
    return {"steps": [row for row, _ in ways]}


def steps_of(setup: Setup) -> list[tuple[dict[str, Any], Callable[[], None]]]:
    """For each tier and the bare loop its name, its MACs per example, and what makes one step."""
    found: list[tuple[dict[str, Any], Callable[[], None]]] = []
    for number, tier in enumerate(setup.method.tiers):
        trainer = setup.trainers[number]
        initial_values(trainer.net, 0)  # factors come as zeros, which would train unlike others
        found.append(({"tier": tier.name, "macs": setup.macs[number]}, partial(train, trainer, 1)))
    return [*found, ({"tier": BARE, "macs": setup.macs[0]}, partial(ByHand(setup, 0).run, 1))]


if __name__ == "__main__":
    sys.exit(main())
