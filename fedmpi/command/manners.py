"""How every command reads its words and says what is wrong: one line, exit code 2, no traceback."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fedmpi.errors import INTERRUPTED, ConfigError, DivergenceError, RoundError, UserError, reason
from fedmpi.mpi.launch import code_in_order
from fedmpi.report.terminal import as_message, filled, wrapped

if TYPE_CHECKING:
    from fedmpi.mpi.communicator import Communicator


class Parser(argparse.ArgumentParser):
    """Prints `description` as help, in lines of 80 columns; raises a `ConfigError` for a mistake."""

    def __init__(self, prog: str, description: str | None = None, **more: object) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        shown = description and filled(description)
        super().__init__(prog=prog, description=shown, formatter_class=formatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2].partition(" ")[0]
        instead = self._instead_of(unknown) if unknown.startswith("-") else ""
        program = self.prog if self.prog.startswith(("fedmpi", "python")) else f"python {self.prog}"
        raise ConfigError("command line", f"{message}{instead}; see {program} --help")

    def _instead_of(self, unknown: str) -> str:
        """Returns `; write train.lr=0.1` where settings are words of this command, or the option of a similar name."""
        from fedmpi.config.explain import keys_meant, similar  # loads pydantic, which most command lines do without

        word, _, value = unknown.lstrip("-").partition("=")
        takes_settings = any("key=value" in str(action.metavar) for action in self._actions)
        if takes_settings and (keys := keys_meant(word)):
            return f"; write {keys[0]}={value or 'VALUE'}"
        options = [name[2:] for action in self._actions for name in action.option_strings if name.startswith("--")]
        return "".join(f"; did you mean --{name}" for name in similar(word, options))


def run_command(action: Callable[[], int | None]) -> int:
    """The exit code of a command of one process: what `action` gives, 2 and a line for a mistake of the user."""
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
    """Rank 0 prints: a mistake in one line, what a run directory refuses in lines of 80 columns."""
    if rank == 0:
        try:
            sys.stderr.write(f"{as_message(error.text()) if error.is_long else error.text()}\n")
            sys.stderr.flush()
        except OSError:  # full; the exit code says it, too
            _forget(2)
        except AttributeError:  # closed
            pass


def show(text: str) -> None:
    """Prints; without a word when the reader has gone, as with `| head`. Raises `UserError` where there is no room."""
    try:
        print(text, flush=True)
    except OSError as error:
        _forget(1)
        if not isinstance(error, BrokenPipeError):
            raise UserError("stdout", f"cannot be written: {reason(error)}") from error


def say_first(line: str) -> None:
    """Shows what a command waits for; where nobody reads, it starts all the same."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(line, flush=True)


def say(text: str) -> None:
    """One write to stderr, so that the lines of several ranks do not mix."""
    for stream in (sys.stderr, sys.stdout):
        # A signal may have interrupted a print; a full disk has no room; a closed stream is None or says ValueError.
        with contextlib.suppress(RuntimeError, OSError, ValueError, AttributeError):
            stream.flush()
    with contextlib.suppress(OSError):  # a rank that cannot say it must end the others all the same
        os.write(2, f"{text}\n".encode(errors="replace"))


def described(error: BaseException, comm: Communicator) -> str:
    """A failure in one block: rank, host, round, client, stage and cause, then where in the code."""
    head, said, cause = _head_and_cause(error, comm)
    says_all = isinstance(cause, (UserError, DivergenceError))  # a disk is full or a learning rate too high
    frames = [] if says_all else traceback.extract_tb(cause.__traceback__)[-4:]
    places = (f"  at {one.filename}:{one.lineno} in {one.name}" for one in frames)
    return "\n".join(wrapped(head, *f"  {said}".splitlines(), *places))


def in_short(error: BaseException, comm: Communicator) -> str:
    """The same for a rank that fails after another one has said what to do: its first words."""
    head, said, _ = _head_and_cause(error, comm)
    return "\n".join(wrapped(f"{head}; {said.splitlines()[0]}"))


def _head_and_cause(error: BaseException, comm: Communicator) -> tuple[str, str, BaseException]:
    where, cause = f"rank {comm.started_as} on {comm.host}", error
    if isinstance(error, RoundError):
        where, cause = f"{where}, {error.where()}", error.__cause__ or error
    text = f": {cause}".replace("\n", "\n    ") if str(cause) else ""
    return f"fedmpi: failed on {where}", f"cause: {type(cause).__name__}{text}", cause


def _forget(stream: int) -> None:
    """Python flushes stdout (1) and stderr (2) once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def file_to_write(option: str, name: str | os.PathLike[str]) -> Path:
    """Its path. Raises `UserError` where no file can be written under this name."""
    path = Path(name)
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(option, f"{path} is a folder, or its folder is not there; name a file in a folder that is")
    return path
