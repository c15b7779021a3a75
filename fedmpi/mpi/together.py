"""A step that may fail by the user's doing, done by all ranks together: all come through it, or all end with the same
lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from fedmpi.errors import StartupError, UserError

if TYPE_CHECKING:
    from fedmpi.mpi.communicator import Communicator

Value = TypeVar("Value")


def together(comm: Communicator, action: Callable[[], Value]) -> Value:
    """`action` on every rank; if it is a `UserError` anywhere, a `StartupError` with all of them everywhere."""
    outcome: Value | UserError
    try:
        outcome = action()
    except UserError as error:
        outcome = error
    own = outcome.text() if isinstance(outcome, UserError) else ""
    problems = list(dict.fromkeys(filter(None, comm.allgather_text(own))))
    if problems or isinstance(outcome, UserError):
        raise StartupError("start", *problems)
    return outcome
