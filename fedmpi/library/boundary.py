"""Stands between a program and fedmpi: checks arguments, words errors for Python, gives the process back as it was."""

import functools
import inspect
import os
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from pydantic import ValidationError, validate_call

from fedmpi.config import yaml_text
from fedmpi.data import own
from fedmpi.errors import ConfigError, UserError
from fedmpi.learning.determinism import settings_kept
from fedmpi.running.stopping import ENDING, SIGNAL

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Raises a ConfigError with a line for each argument that is not what its annotation says. Errors that `function`
    raises name its arguments where a command has options.

    Each call looks anew at the user's data and at the packages that are installed, as a command does.
    """
    name = f"fedmpi.{function.__qualname__}"
    annotations = function.__annotations__
    # What it returns may be of a package that loads later.
    function.__annotations__ = {key: value for key, value in annotations.items() if key != "return"}
    validated = validate_call(function)
    function.__annotations__ = annotations

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        own.forget()
        try:
            return validated(*args, **kwargs)
        except ValidationError as error:
            raise ConfigError(name, *_problems(error, list(inspect.signature(function).parameters))) from None
        except Exception as error:
            _name_arguments(error, name)
            raise

    return call


def _problems(error: ValidationError, parameters: list[str]) -> list[str]:
    """Returns a line for each argument: of a union's several errors the first."""
    lines: dict[str, str] = {}
    for one in error.errors(include_url=False):
        place = one["loc"][0]
        argument = parameters[place] if isinstance(place, int) else place
        value = "" if one["type"].startswith("missing") else f", got {yaml_text.found(one['input'])}"
        lines.setdefault(argument, f"{argument}: {one['msg']}{value}")
    return [*lines.values()]


def _name_arguments(error: BaseException, function: str) -> None:
    """Writes `run_dir=` for `--run-dir` in an error and in what has caused it. A command in a message stays one."""
    if isinstance(error, UserError):
        if error.where.startswith("--"):
            error.where = f"{function}: {_in_python(error.where).rstrip('=')}"
        error.problems = tuple(map(_in_python, error.problems))
        error.args = (error.text(),)
    if error.__cause__ is not None:
        _name_arguments(error.__cause__, function)


def _in_python(text: str) -> str:
    words, command, rest = text.partition("python -m fedmpi")
    words = re.sub(r"--(resume|check|cut)\b", r"\1=True", words.replace("--out", "--path"))
    words = re.sub(r"(?<![\w-])--([a-z-]+)=?", lambda option: option[1].replace("-", "_") + "=", words)
    return words + command + rest


@contextmanager
def restore_process_state() -> Iterator[None]:
    """Puts signal handlers, environment variables, filters of warnings and torch's settings (threads, determinism,
    precision, default dtype and device) back after the block, whether it raises or not.
    """
    environment = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (SIGNAL, *ENDING)}
    try:
        with warnings.catch_warnings(), settings_kept():
            yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        if threading.current_thread() is threading.main_thread():  # no other can have changed a handler
            for number, handler in handlers.items():
                if handler is not None:  # None was not set by Python
                    signal.signal(number, handler)
