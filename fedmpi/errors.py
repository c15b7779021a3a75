"""The errors a user can meet.

A `UserError` is something that the person who started the run can fix: one line a problem, exit code 2, no traceback.
Everything else that happens inside a round is a `RoundError`, which says where and ends every rank.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

# The exit codes of every command, beside 0; slurm/README.md says what to do. A process that a signal ends has none.
FAILED = 1
MISTAKE = 2
TO_CONTINUE = 75
"""The run is saved and has more rounds to go: the same command with `--resume` continues it (os.EX_TEMPFAIL)."""
INTERRUPTED = 130
"""A command of one process, after Ctrl-C."""


class UserError(Exception):
    """Something the user can fix: `where` is a file or a section, `problems` say what was found, allowed and to do."""

    exit_code = MISTAKE

    def __init__(self, where: str, *problems: str) -> None:
        self.where = where
        self.problems = tuple(one_line(problem) for problem in problems)
        super().__init__(self.text())

    def text(self) -> str:
        where = one_line(self.where)
        if len(self.problems) == 1:
            return f"{where}: {self.problems[0]}"
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        return f"{where}: {len(self.problems)} problems{lines}"


MAX_LINE = 1000


def one_line(text: str) -> str:
    """Escapes line ends and control characters, which must not write to a terminal; shortens to MAX_LINE characters."""
    if len(text) > MAX_LINE:
        text = f"{text[: MAX_LINE - 100]} ... {text[-90:]}"
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def reason(error: BaseException) -> str:
    """Returns the message of an exception; of a system's error without its number and path."""
    if isinstance(error, MemoryError):
        return "it takes more memory than there is"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(getattr(error, "strerror", None) or error)[:300] or type(error).__name__


STANDARDIZE = "standardize them: subtract the mean and divide by the std of the training examples"
WHOLE_NUMBERS = "rows of whole numbers count as tokens; if they are features, give them as x.astype('float32')"


def counted(number: int, noun: str) -> str:
    """Returns `1 rank` or `1,000 ranks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def type_in_words(value: object) -> str:
    """Returns `an int`, `a list`, or `nothing` for None."""
    if value is None:
        return "nothing"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def as_one_line(error: BaseException) -> str:
    """Returns the error of a user's own code and its place: `ValueError: no (/home/me/nets.py:12)`."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return one_line(f"{type(error).__name__}{': ' if text else ''}{text}{place}")


@contextmanager
def users_code(where: str, what: str, kind: type[UserError] = UserError) -> Iterator[None]:
    """Makes an error of one line, `WHERE: WHAT: the error and its place`, of all that a user's code raises within."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise kind(where, f"{what}: {as_one_line(error)}") from error


class ConfigError(UserError):
    """The configuration cannot be run as it stands."""


class DataError(UserError):
    """A data file is missing, damaged or not what its format says."""


class LaunchError(UserError):
    """The ranks were started in a way in which they do not find each other."""


class RunDirError(UserError):
    """The run directory cannot be used as asked (occupied, unreadable, of another config)."""


class StartupError(UserError):
    """A user's mistake that every rank knows of: rank 0 says it, all exit with code 2."""

    def text(self) -> str:
        return "\n".join(self.problems)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or a notebook's interrupt, has stopped a run; the text says what is saved and how to continue."""


class RoundError(Exception):
    """A failure inside a round; `where` says in which round, for which client, at which stage."""

    advice = ""
    """The next step, for a caller that catches it; empty where a command prints it itself."""

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(where)

    def __str__(self) -> str:
        text = self.where if self.__cause__ is None else f"{self.where}: {message_of(self.__cause__)}"
        return f"{text}\n{self.advice}" if self.advice else text


def message_of(error: BaseException) -> str:
    """Returns the message; prefixes the type for exceptions that fedmpi did not raise."""
    if isinstance(error, (UserError, DivergenceError, RoundError)):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def cause_of(error: BaseException | None) -> BaseException | None:
    """Returns the cause of a failure within a round; any other error is its own cause."""
    return error.__cause__ or error if isinstance(error, RoundError) else error


def where(stage: str, round_number: int | None = None, client: int | None = None) -> str:
    """Returns a place within a run: `round 3, client 17, stage local_training`."""
    words = {"round": round_number, "client": client, "stage": stage}
    return ", ".join(f"{word} {value}" for word, value in words.items() if value is not None)


class DivergenceError(Exception):
    """A client's result is not finite or left its bound, and `train.on_divergence` is `fail`."""


class RankLossError(Exception):
    """Other ranks died: this communicator is over, and those left meet in `Comm.recover`."""


class ServerLossError(Exception):
    """The rank that was the server died, and with it all that is not in a checkpoint."""


class TooFewRanksError(Exception):
    """The job lost so many ranks that it stops (`mpi.min_ranks`); `made_progress` if this start has saved a round."""

    def __init__(self, why: str, *, made_progress: bool) -> None:
        self.made_progress = made_progress
        super().__init__(why)


class UnknownError(ValueError):
    """A name that means nothing, or something that cannot be used: its text says why, in one line."""
