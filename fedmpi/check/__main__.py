"""fedmpi check [PACKAGE.MODULE:NAME] [section.key=value ...]

With a name: puts what you bring (a method, a model, a data set, a partition, an observer) to contract checks and bits
checks, in a small federation on synthetic data, and prints a line for each: `ok` and what holds, or `FAIL` and what is
wrong. The bits of a run that is resumed after round 2 must be those of a run in one go: in one process, and on 3 ranks
where there is an mpirun.

Without a name: says whether this machine, container or allocation is ready for a run, alone or under the launcher that
a run would have (mpirun -n 5 fedmpi check): a line for each thing, `ok`, `warning` or `problem`, with what to do. At
the end all ranks make a run of a few seconds, whose bits must be those of one process.

  section.key=value   an option of yours, or another setting of the federation (data.shape=[3,32,32]); without a name,
                      of the run that is to be made, as is CONFIG.yaml
  --kind KIND         method, model, data, partition or observer, where the name could be several of them
  --run-dir DIR       where runs are to live, instead of output.dir (without a name)
  --json              one JSON object instead of the page (without a name)

Exit code 0: all holds, or no problem; 1: something does not; 2: a mistake in the words.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
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

            return check_machine(arguments, rank)
    except UserError as error:
        return report(error, rank)
    return run_command(lambda: _check(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Reads the command line. Raises `ConfigError`."""
    parser = Parser("fedmpi check", __doc__)
    parser.add_argument("words", nargs="*", metavar="PACKAGE.MODULE:NAME | CONFIG.yaml | section.key=value")
    parser.add_argument("--kind", choices=things.KINDS)
    parser.add_argument("--run-dir", metavar="DIR", type=Path)
    parser.add_argument("--json", action="store_true")
    return parser.parse_intermixed_args(argv)


def _check(arguments: Namespace) -> int:
    place, *given = arguments.words
    kind = arguments.kind or things.kind_of(place)
    words = things.words_of(kind, place, given)
    config = small_config(*words)  # a mistake in the words ends here
    if kind == "method":
        methods.create(method_context(config, config.data.info()))
    show(f"{kind} {place}")
    with tempfile.TemporaryDirectory(prefix="fedmpi-check-") as folder:
        found = [passes(said, check) for said, check in _all_checks(kind, Path(folder), words)]
    return 0 if all(found) else 1


def _all_checks(kind: str, folder: Path, words: Sequence[str]) -> Iterator[tuple[str, Callable[[], None]]]:
    yield from things.checks_of(kind, folder, words)
    yield "a run that is resumed after round 2 has the bits of one in one go", lambda: bits.bits_stay(folder, words, 1)
    if bits.has_launcher(RANKS):
        yield f"a run on {RANKS} ranks has the bits of one alone", lambda: bits.bits_stay(folder, words, RANKS)
    else:
        show(f"--    no mpirun beside {sys.executable} and none in PATH: bits are not checked on {RANKS} ranks")


def passes(said: str, check: Callable[[], None]) -> bool:
    """Prints the line of one check; whatever it raises is what does not hold."""
    try:
        _guarded(check)
    except BrokenError as error:
        show(f"FAIL  {said}: {error}")
        return False
    show(f"ok    {said}")
    return True


def _guarded(check: Callable[[], None]) -> None:
    """Raises `BrokenError` alone; an exception of what is checked by its type and its text."""
    try:
        check()
    except Exception as error:
        cause = error.__cause__ if isinstance(error, RoundError) and error.__cause__ else error
        line = str(cause) if isinstance(cause, (BrokenError, UserError)) else f"{type(cause).__name__}: {cause}"
        raise BrokenError(one_line(" ".join(line.split()))) from error


if __name__ == "__main__":
    sys.exit(main())
