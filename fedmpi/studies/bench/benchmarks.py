"""What fedmpi costs, beside a yardstick that is measured in turn with it.

    python jobs/bench.py overhead      # a round against bare PyTorch loops doing the same steps
    python jobs/bench.py steps         # training steps of each tier, against the dense tier's and a bare loop's
    python jobs/bench.py tests         # tests as a share of a run
    python jobs/bench.py memory        # all ranks' memory against that of as many bare loops
    python jobs/bench.py aggregate     # lifting and adding uploads, against plain copies
    python jobs/bench.py factorize     # FedHM's factorization: the solvers auto and gram
    python jobs/bench.py population    # a thousand to a million registered clients
    python jobs/bench.py scaling       # the engine by ranks, against a bare program of mpi4py
    python jobs/bench.py startup       # commands, and runs up to their first round, against bare imports
    python jobs/bench.py gpu           # all that needs a GPU, in 10 minutes at most and one file

Each has a help of its own: python jobs/bench.py overhead --help.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from fedmpi.command.manners import Parser, run_command

MODULES = {
    "overhead": "overhead",
    "steps": "steps",
    "tests": "share_of_tests",
    "memory": "whole_job",
    "aggregate": "aggregate",
    "factorize": "factorize",
    "population": "population",
    "scaling": "scaling",
    "startup": "startup",
    "gpu": "gpu",
}
"""The module of each benchmark, whose `main` takes the command line. Only the one asked for is imported, because
`startup` needs no torch."""
_FLAGS = ("--growth", "--dry-run", "--help", "-h")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the benchmark that the command line names, wherever the name stands; 2 for a mistake."""
    words = list(sys.argv[1:] if argv is None else argv)
    places = _places(words)
    place = next((place for place in places if words[place] in MODULES), None)
    if place is None:
        return run_command(lambda: _unnamed(words, places))
    name = words.pop(place)
    module = importlib.import_module(f"fedmpi.studies.bench.{MODULES[name]}")
    code: int = module.main([name, *words])
    return code


def _places(words: Sequence[str]) -> list[int]:
    """Where a name may stand: not at an override, nor after an option, as in `--only memory`."""
    befores = ["", *words]
    valued = [before.startswith("-") and "=" not in before and before not in _FLAGS for before in befores]
    return [place for place, word in enumerate(words) if not (valued[place] or word.startswith("-") or "=" in word)]


def _unnamed(words: Sequence[str], places: Sequence[int]) -> NoReturn:
    """Prints the help, or raises `ConfigError` with the names that there are."""
    parser = Parser("jobs/bench.py", __doc__)
    parser.add_argument("what", choices=MODULES, help="the benchmark")
    wants_help = not {"-h", "--help"}.isdisjoint(words)
    parser.parse_args(["--help"] if wants_help else [words[place] for place in places[:1]])
    raise AssertionError("no name was found")
