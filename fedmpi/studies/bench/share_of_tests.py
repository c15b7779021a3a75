"""How much of a run tests take.

    python jobs/bench.py tests [CONFIG[@CELL] ...] [section.key=value ...] [--pairs 3]

Does what `fedmpi plan CONFIG --measure` does, `--pairs` times in one process: tests of all nets, with the re-estimation
of BatchNorm's statistics, and then a client of every tier, its upload, and the server's part. Of each it reckons the
time of one test and of the `evaluation.every` rounds before it, without it and on one process, and the share of the
whole run that tests take. It prints medians, lowest and highest, and the share of tests in the run's MACs. Without a
config it takes some of those on CIFAR, which needs their data; data.name=synthetic data.shape=[3,32,32] needs none. A
config takes minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmpi.command.manners import Parser, run_command
from fedmpi.config.address import CONFIGS
from fedmpi.config.load import load, parted
from fedmpi.report.table_text import print_lines
from fedmpi.running.forecast import forecast
from fedmpi.running.measure import measure
from fedmpi.running.prediction import Prediction, predict
from fedmpi.studies.arguments import number
from fedmpi.studies.bench.on_ranks import launched

_DEFAULT = (
    "fedhm/table3.yaml@cifar10_iid_fedhm",
    "fedhm/table3.yaml@cifar10_iid_heterofl",
    "prism/figure4.yaml@cifar10_iid_origdrop",
    "fedrolex_cifar10.yaml",
)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for a user's mistake."""
    return run_command(lambda: _bench(_arguments(argv)))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("jobs/bench.py tests", __doc__)
    parser.add_argument("what", choices=["tests"])
    parser.add_argument("words", nargs="*", metavar="CONFIG.yaml | section.key=value")
    parser.add_argument("--pairs", type=number(int, 1), default=3, help="trials, each of tests and rounds (default 3)")
    arguments = parser.parse_intermixed_args(argv)
    configs, arguments.overrides = parted(arguments.words)
    arguments.configs = configs or [str(CONFIGS / name) for name in _DEFAULT]
    for address in arguments.configs:
        load(address, arguments.overrides)  # here a mistake is one line
    return arguments


def _bench(arguments: argparse.Namespace) -> None:
    lines = []
    for address in arguments.configs:
        found = launched("share_of_tests", arguments.overrides, address=address, pairs=arguments.pairs)
        lines.append([Path(address).name, *cells(found)])
    measured = ["a test", "lowest - highest", "rounds before it", "lowest - highest"]
    head = ["config", "every", *measured, "share of the run", "lowest - highest", "of its MACs"]
    print_lines(head, lines, 1, sys.stdout)


def cells(found: dict[str, Any]) -> list[str]:
    """The line of a config, from what `on_ranks` has found."""
    shown = [str(found["every"])]
    for key, form in (("test_s", "{:.3g} s"), ("rounds_s", "{:.3g} s"), ("share", "{:.1%}")):
        values = found[key]
        shown += [form.format(statistics.median(values)), " - ".join(map(form.format, (min(values), max(values))))]
    return [*shown, f"{found['macs_share']:.1%}"]


def on_ranks(comm: Any, folder: Path, words: Sequence[str], address: str, pairs: int) -> dict[str, Any]:
    """Of each trial the seconds of a test and of the rounds before it, and the tests' share of the run."""
    config = load(address, words)
    plan = forecast(config, 1)
    trials = [predict(config, plan, measure(config), num_cores=1) for _ in range(pairs)]
    every = config.evaluation.every
    return {
        "every": every,
        "test_s": [trial.test_s + trial.personal_test_s + trial.restat_s for trial in trials],
        "rounds_s": [every * rest_s(trial) for trial in trials],
        "share": [trial.test_share for trial in trials],
        "macs_share": plan.test_share,
    }


def rest_s(trial: Prediction) -> float:
    """Seconds of a round without its test, and without saving."""
    return trial.training_s + trial.aggregation_s + trial.publishing_s


if __name__ == "__main__":
    sys.exit(main())
