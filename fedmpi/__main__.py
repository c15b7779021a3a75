"""The command `fedmpi` (also `python -m fedmpi`): its first word says what to do. Without such a word it runs."""

import difflib
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

import fedmpi
from fedmpi.running.stopping import notice_early

if __name__ == "__main__":  # what follows takes a while to load
    notice_early()

from fedmpi.command.manners import report, show
from fedmpi.errors import ConfigError, UserError
from fedmpi.main import COMMANDS
from fedmpi.mpi.launch import claimed
from fedmpi.report.terminal import wrapped


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code. Each command's module has its own codes."""
    if argv is None:
        notice_early()  # loading torch takes seconds
        if not {"", os.getcwd()} & {*sys.path}:  # the installed command: `mynets:Net` is found as under python -m
            sys.path.insert(0, os.getcwd())
    words = list(sys.argv[1:] if argv is None else argv)
    rank = 0
    try:
        rank, _ = claimed()
        if words[:1] in (["-h"], ["--help"], ["help"]):
            show(overview() if rank == 0 else "")
            return 0
        name = words.pop(0) if words and words[0] in COMMANDS else "run"
        if name == "run" and words:
            _refuse_misspelled(words[0])
    except UserError as error:
        return report(error, rank)
    sys.argv = [f"fedmpi {name}", *words]  # a run's manifest notes it
    module = import_module(COMMANDS[name][0])
    if argv is None and name != "run":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it cleans up behind itself
    code: int = module.main()
    return code


def overview() -> str:
    """Returns the commands, a line each."""
    lines = [*wrapped(f"fedmpi {fedmpi.__version__}: {(fedmpi.__doc__ or '').partition(': ')[2].strip()}"), ""]
    lines += [f"  fedmpi {name:8} {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join([*lines, "", "Each has a --help. Without one of these words, fedmpi runs."])


def _refuse_misspelled(word: str) -> None:
    """Raises `ConfigError` for a word that is nearly a command, and cannot be a config or a file."""
    close = difflib.get_close_matches(word, COMMANDS, 1)
    if close and word.isidentifier() and not os.path.exists(word):
        raise ConfigError("command line", f"'{word}' is no command; did you mean 'fedmpi {close[0]}'?")


if __name__ == "__main__":
    sys.exit(main())
