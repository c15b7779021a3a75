"""What registered clients cost that take no part in a round.

    python jobs/bench.py population [section.key=value ...] [--ranks 3]

Runs the same cohort of 20 clients with two examples each, out of the same two million examples, for 1,000, 100,000 and
1,000,000 registered clients, and prints start-up (data, partition, setup, saving the partition), a round (the median of
five), and peak memory, with their ratios.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmpi.command.manners import Parser, run_command
from fedmpi.config.load import load
from fedmpi.report.table_text import print_lines
from fedmpi.studies.arguments import number
from fedmpi.studies.bench.cases import LONG, overrides_of
from fedmpi.studies.bench.on_ranks import launched, of_all, peak_bytes, prepared, rounds_of, timed

POPULATIONS = (1_000, 100_000, 1_000_000)
_ROUNDS = 5
_WORDS = f"""{LONG} data.shape=[1,4,4] data.num_train=2000000 data.num_test=1000 partition.name=dirichlet_equal
    partition.alpha=.inf partition.examples=2 model.name=mlp method.name=fedhm clients.tier_assignment=dynamic
    clients.per_round=20"""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for a user's mistake."""
    return run_command(lambda: _bench(_arguments(argv)))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("jobs/bench.py population", __doc__)
    parser.add_argument("what", choices=["population"])
    parser.add_argument("words", nargs="*", metavar="section.key=value", help="on top of the run's own settings")
    parser.add_argument("--ranks", type=number(int, 1), default=3, help="rank 0 and the workers (default 3)")
    arguments = parser.parse_intermixed_args(argv)
    arguments.overrides = overrides_of(arguments.words, ["clients.count="])
    for count in POPULATIONS:
        load(None, [*_WORDS.split(), *arguments.overrides, f"clients.count={count}"])  # here a mistake is one line
    return arguments


def _bench(arguments: argparse.Namespace) -> None:
    words, results = [*_WORDS.split(), *arguments.overrides], {}
    for count in POPULATIONS:
        results[count] = launched("population", words, arguments.ranks, count=count, num_rounds=_ROUNDS)
    _print_population(results)


def _print_population(results: dict[int, dict[str, float]]) -> None:
    first, lines = results[POPULATIONS[0]], []
    for count, result in results.items():
        shown = (f"{result['startup_s']:.3f} s", f"{result['round_s']:.3f} s", f"{result['peak_bytes'] / 1e6:.0f} MB")
        ratios = (result[name] / first[name] for name in ("startup_s", "round_s", "peak_bytes"))
        lines.append([f"{count:,}", *(f"{cell} (x {ratio:.2f})" for cell, ratio in zip(shown, ratios, strict=True))])
    print_lines(["clients", "start-up", "round", "peak memory"], lines, 0, sys.stdout)


def on_ranks(comm: Any, folder: Path, words: Sequence[str], count: int, num_rounds: int) -> dict[str, float]:
    """Seconds until the first round could begin (without loading torch), median seconds of a round, peak memory."""
    # torch loads it when a net is first measured: seconds that no client costs.
    importlib.import_module("torch._dynamo")
    held = []

    def start() -> None:
        setup = prepared(comm, folder, [*words, f"clients.count={count}"])
        if comm.is_root:
            (folder / "partition.h5").write_bytes(setup.partition.packed())
        held.append(rounds_of(setup))

    startup_s = timed(comm, start)
    next(held[0])  # the first broadcast, and warm-up
    round_s = [timed(comm, lambda: next(held[0])) for _ in range(num_rounds)]
    most = float(of_all(comm, [peak_bytes()]).max())
    return {"startup_s": startup_s, "round_s": statistics.median(round_s), "peak_bytes": most}


if __name__ == "__main__":
    sys.exit(main())
