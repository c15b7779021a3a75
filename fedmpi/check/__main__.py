"""fedmpi check [PACKAGE.MODULE:NAME] [section.key=value ...]

With a name: puts what you bring (a method, a model, a data set, a partition, an observer, an aggregate, a loss, a
metric, a function that samples clients) to contract checks and bits checks, in a small federation on synthetic data,
and prints a line for each: `ok` and what holds, or `FAIL` and what is wrong. The bits of a run that is resumed after
round 2 must be those of a run in one go: in one process, and on 3 ranks where there is an mpirun.

Without a name: says whether this machine, container or allocation is ready for a run, alone or under the launcher that
a run would have (mpirun -n 5 fedmpi check output.dir=/scratch/me/runs): a line for each thing, `ok`, `warning` or
`problem`, with what to do. At the end all ranks make a run of a few seconds, whose bits must be those of one process.

Exit code 0: all holds, or no problem; 1: something does not; 2: a mistake in the words.
"""

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from fedmpi import methods
from fedmpi.check import bits, things
from fedmpi.check.contract import BrokenError
from fedmpi.check.small import small_config
from fedmpi.command.manners import Parser, report, run_command, show
from fedmpi.config.address import is_address
from fedmpi.errors import RoundError, UserError, one_line
from fedmpi.mpi.launch import claimed
from fedmpi.running.start import method_context

RANKS = 3


def main(argv: Sequence[str] | None = None) -> int:
    rank = 0  # all ranks print until the rank is known
    try:
        rank, _ = claimed()
        arguments = parse(sys.argv[1:] if argv is None else argv)
        if all("=" in word or is_address(word) for word in arguments.words[:1]):  # nothing that a user brings is named
            from fedmpi.check.machine import check_machine

            return check_machine(arguments.words, rank)
    except UserError as error:
        return report(error, rank)
    return run_command(lambda: _check(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Reads the command line. Raises `ConfigError`."""
    parser = Parser("fedmpi check", __doc__)
    settings = (
        "an option of yours, a setting of the federation ('data.shape=[3,32,32]') or of the run that is to be made"
    )
    words = "PACKAGE.MODULE:NAME | CONFIG.yaml | section.key=value"
    parser.add_argument("words", nargs="*", metavar=words, help=settings)
    kinds = f"where the name could be several of: {', '.join(things.KINDS)}"
    parser.add_argument("--kind", choices=things.KINDS, metavar="KIND", help=kinds)
    return parser.parse_intermixed_args(argv)


def _check(arguments: Namespace) -> int:
    place, *given = arguments.words
    kind = arguments.kind or things.kind_of(place)
    words = things.words_of(kind, place, given)
    config = small_config(*words)  # a mistake in the words ends here
    if kind == "method":
        methods.create(method_context(config, config.data.info()))
    show(f"{kind} {place}")
    for note in config.data.used().notes:
        show(f"--    data: {note}")
    with tempfile.TemporaryDirectory(prefix="fedmpi-check-") as name:
        folder = Path(name)
        checks = things.checks_of(kind, folder, words)
        resumed = "a run that is resumed after round 2 has the bits of one in one go"
        checks.append((resumed, lambda: bits.bits_stay(folder, words, 1)))
        if bits.has_launcher(RANKS):
            on_ranks = f"a run on {RANKS} ranks has the bits of one alone"
            checks.append((on_ranks, lambda: bits.bits_stay(folder, words, RANKS)))
        found = [passes(holds, check) for holds, check in checks]
    if not bits.has_launcher(RANKS):
        show(f"--    no mpirun beside {sys.executable} and none in PATH: bits are not checked on {RANKS} ranks")
    return 0 if all(found) else 1


def passes(holds: str, check: Callable[[], None]) -> bool:
    """Prints the line of one check: what holds, or the exception that it raises."""
    try:
        check()
    except BaseException as error:
        if not isinstance(error, Exception):
            raise
        cause = error.__cause__ if isinstance(error, RoundError) and error.__cause__ else error
        why = str(cause) if isinstance(cause, (BrokenError, UserError)) else f"{type(cause).__name__}: {cause}"
        show(f"FAIL  {holds}: {one_line(' '.join(why.split()))}")
        return False
    show(f"ok    {holds}")
    return True


if __name__ == "__main__":
    sys.exit(main())
