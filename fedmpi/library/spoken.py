"""What an error calls an option: `--run-dir` where a command was typed, `run_dir=` where a program has called fedmpi.

Messages are written in the command's words, with an `=` before a value (`--tier=0.5`). `checks_arguments` has every
error that leaves the library name the arguments of the function that was called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from fedmpi.errors import UserError

# Of several arguments the first that the function has; of none of them the last.
_ARGUMENTS = {
    "run-dir": ("run_dir=",),
    "init-from": ("init_from=",),
    "resume": ("resume=True",),
    "tier": ("tier=", "tiers=", "Run.net with tier="),
    "client": ("client=", "Run.client_net with client="),
    "round": ("round=",),
    "format": ("format=",),
    "out": ("path=",),
    "check": ("check=True",),
    "cut": ("cut=True",),
    "x": ("x=",),
    "y": ("y=",),
}
_COMMAND = re.compile(r"(?:\bmpirun -n \d+ )?python -m fedmpi\b")
"""Where a command to type begins, which ends its sentence and stays as it is."""
_OPTION = re.compile(rf"(?<![\w-])--({'|'.join(_ARGUMENTS)})(?![\w-])=?")


def in_python(error: BaseException, function: str, parameters: Collection[str]) -> None:
    """Has `error` and what has caused it name the arguments of this function; an option alone as the place of a mistake
    becomes `fedmpi.run: run_dir`.
    """

    def said(option: re.Match[str]) -> str:
        arguments = _ARGUMENTS[option[1]]
        return next((one for one in arguments if one.partition("=")[0] in parameters), arguments[-1])

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            if option := _OPTION.match(cause.where):
                cause.where = f"{function}: {said(option).partition('=')[0]}"
            cause.problems = tuple(_outside_commands(said, problem) for problem in cause.problems)
            cause.args = (cause.text(),)
        cause = cause.__cause__


def _outside_commands(said: Callable[[re.Match[str]], str], problem: str) -> str:
    command = _COMMAND.search(problem)
    end = command.start() if command else len(problem)
    return _OPTION.sub(said, problem[:end]) + problem[end:]
