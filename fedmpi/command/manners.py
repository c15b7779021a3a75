"""How every command reads its words and says what is wrong: one line, exit code 2, no traceback."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fedmpi.errors import INTERRUPTED, ConfigError, DivergenceError, RoundError, UserError, cause_of, reason
from fedmpi.mpi.launch import code_in_order
from fedmpi.report.terminal import filled, wrapped
from fedmpi.store.files import user_path

if TYPE_CHECKING:
    from fedmpi.mpi.communicator import Communicator


class Parser(argparse.ArgumentParser):
    """Prints `description` as help, in lines of 80 columns; raises a `ConfigError` for a mistake."""

    commands: Collection[str] = ()
    """The words of the command `fedmpi`, which may be taken for options."""

    def __init__(self, prog: str, description: str | None = None) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        shown = description and filled(description)
        super().__init__(prog=prog, description=shown, formatter_class=formatter, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses words of which a leading ~ is the home folder, as in --run-dir=~/a. Raises a `ConfigError` for an
        option that stands there twice."""
        words = [_with_home(word) for word in (sys.argv[1:] if args is None else args)]
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        for name, action in self._option_string_actions.items():
            if options.count(name) > 1 and not isinstance(action, argparse._AppendAction):
                raise ConfigError("command line", f"{name} is given twice; leave one out")
        return super().parse_known_args(words, namespace)

    def parse_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Notes in `repeated` which of two values of a setting counts: scripts add words to their own."""
        words = sys.argv[1:] if args is None else args
        settings = [word.partition("=")[::2] for word in words if "=" in word and not word.startswith("--")]
        last = dict(settings)
        repeated = dict.fromkeys(key for key, value in settings if value != last[key])
        self.repeated = [f"{key}: given twice; {last[key]} counts" for key in repeated]
        return super().parse_intermixed_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2].partition(" ")[0]
        instead = self._instead_of(unknown) if unknown.startswith("-") else ""
        program = self.prog if self.prog.startswith(("fedmpi", "python")) else f"python {self.prog}"
        raise ConfigError("command line", f"{message}{instead}; see {program} --help")

    def _instead_of(self, unknown: str) -> str:
        """Returns `; write train.lr=0.1` where settings are words of this command, or the option of a similar name."""
        from fedmpi.config.explain import keys_meant, similar  # loads pydantic, which most command lines do without

        word, _, value = unknown.lstrip("-").partition("=")
        if word in self.commands:
            return f"; write fedmpi {word}"
        if any("key=value" in str(action.metavar) for action in self._actions) and (keys := keys_meant(word)):
            return f"; write {keys[0]}={value or 'VALUE'}"
        options = [name[2:] for action in self._actions for name in action.option_strings if name.startswith("--")]
        return "".join(f"; did you mean --{name}" for name in similar(word, options))


def _with_home(word: str) -> str:
    option, equals, path = word.rpartition("=") if word.startswith("--") else ("", "", word)
    try:
        return f"{option}{equals}{user_path(path)}" if path.startswith("~") else word
    except ValueError as error:
        raise ConfigError("command line", f"{word}: {error}") from None


def run_command(action: Callable[[], int | None]) -> int:
    """Runs a command of one process. Returns its exit code: 2, with a line printed, for a mistake of the user."""
    try:
        return action() or 0
    except UserError as error:
        return report(error)
    except KeyboardInterrupt:
        print("stopped; nothing half done was put in place", file=sys.stderr, flush=True)
        return INTERRUPTED
    except BrokenPipeError:  # as with `| head`: leave without a traceback
        _forget(1)
        return 0


def report(error: UserError, rank: int = 0) -> int:
    """Prints the error on rank 0. Returns the code for this rank, which has not started MPI, to exit with."""
    complain(error, rank)
    return code_in_order(rank, error.exit_code)


def complain(error: UserError, rank: int) -> None:
    """Prints the error on rank 0."""
    if rank == 0:
        try:
            sys.stderr.write(f"{error.text()}\n")
            sys.stderr.flush()
        except OSError:  # full; the exit code says it, too
            _forget(2)
        except AttributeError:  # closed
            pass


def show(text: str) -> None:
    """Prints to stdout. Ignores that the reader has gone, as with `| head`. Raises `UserError` if there is no room."""
    try:
        print(text, flush=True)
    except OSError as error:
        _forget(1)
        if not isinstance(error, BrokenPipeError):
            raise UserError("stdout", f"cannot be written: {reason(error)}") from error


def say_first(line: str) -> None:
    """Prints what a command waits for. Ignores that stdout cannot be written."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(line, flush=True)


def say(text: str) -> None:
    """Writes to stderr at once, so that the lines of several ranks do not mix."""
    for stream in (sys.stderr, sys.stdout):
        # A signal may have interrupted a print; a full disk has no room; a closed stream is None or says ValueError.
        with contextlib.suppress(RuntimeError, OSError, ValueError, AttributeError):
            stream.flush()
    with contextlib.suppress(OSError):  # a rank that cannot print must end the others all the same
        os.write(2, f"{text}\n".encode(errors="replace"))


def describe_failure(error: BaseException, comm: Communicator) -> str:
    """Returns a block of text: rank, host, round, client, stage and cause, then the place in the code."""
    where = f"fedmpi: failed on rank {comm.started_as} on {comm.host}"
    if isinstance(error, RoundError):
        where = f"{where}, {error.where}"
    cause = cause_of(error) or error
    text = f": {cause}".replace("\n", "\n    ") if str(cause) else ""
    is_explained = isinstance(cause, (UserError, DivergenceError))  # a full disk, or a high learning rate
    frames = [] if is_explained else traceback.extract_tb(cause.__traceback__)[-4:]
    places = (f"  at {one.filename}:{one.lineno} in {one.name}" for one in frames)
    return "\n".join(wrapped(where, *f"  cause: {type(cause).__name__}{text}".splitlines(), *places))


def _forget(stream: int) -> None:
    """Discards what Python still writes to stdout (1) or stderr (2) at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def file_to_write(option: str, name: str | os.PathLike[str]) -> Path:
    """Returns the path of a file to write. Raises `UserError` if no file can be written there."""
    path = Path(name)
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(option, f"{path} is a folder, or its folder is not there; name a file in a folder that is")
    return path
