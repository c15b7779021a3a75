"""fedmpi plan [CONFIG.yaml] [section.key=value ...] [--measure] [--json]

Says what a run will cost: parameters, MACs, bytes and memory of every tier. Trains nothing, and needs no data file of a
built-in data set. Under mpirun it plans for that many ranks.
"""

import json
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace

from fedmpi.command.manners import Parser, report, run_command, say, show
from fedmpi.config.load import one_config
from fedmpi.config.schema import Config
from fedmpi.errors import UserError
from fedmpi.mpi.launch import claimed
from fedmpi.results.grid_file import load_address


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command on rank 0; returns the exit code."""
    rank = 0
    try:
        rank, size = claimed()
        parser = Parser("fedmpi plan", __doc__)
        parser.add_argument("words", nargs="*", metavar="CONFIG.yaml | section.key=value")
        parser.add_argument("--measure", action="store_true", help="train one round here; adds hours, memory and disk")
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        arguments = parser.parse_intermixed_args(sys.argv[1:] if argv is None else argv)
        arguments.repeated = parser.repeated
        config = load_address(*one_config(arguments.words))
    except UserError as error:
        return report(error, rank)
    if rank > 0:
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it cleans up behind itself
    return run_command(lambda: show(_plan(config, size, arguments)))


def _plan(config: Config, size: int, arguments: Namespace) -> str:
    from fedmpi.command.job import loading_for_good, repeatable_cublas
    from fedmpi.data.dataset import place_of
    from fedmpi.report.terminal import wrapped

    with loading_for_good():
        from fedmpi.running.forecast import forecast, lacking_here  # loads torch

    plan = forecast(config, size)
    plan = replace(plan, warnings=(*plan.warnings, *lacking_here(plan, config.mpi.threads)))
    notes = [*arguments.repeated]
    if getattr(config.data, "reads_to_know", False):
        notes.append(f"{place_of(config.data)} was read, because nothing else says its sizes")
    if not arguments.measure:
        return json.dumps(asdict(plan), indent=2) if arguments.json else "\n".join([str(plan), *wrapped(*notes)])
    from fedmpi.command.measured_plan import estimated, lines, measured_round

    repeatable_cublas()
    say("training one round here:")
    estimate = estimated(config, plan, measured_round(config))
    if arguments.json:
        return json.dumps({**asdict(plan), "measured": estimate}, indent=2)
    return "\n".join([str(plan), *wrapped(*notes, *lines(estimate))])
