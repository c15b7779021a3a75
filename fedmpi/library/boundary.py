"""Stands between a program and fedmpi: a call finds the process as a command does, and leaves it as it was."""

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from fedmpi.data import own
from fedmpi.learning.determinism import settings_kept
from fedmpi.running.stopping import ENDING, SIGNAL


@contextmanager
def as_a_command() -> Iterator[None]:
    """Looks anew at the user's data. Puts signal handlers, environment variables, filters of warnings and torch's
    settings (threads, determinism, precision, default dtype and device) back after the block.
    """
    own.forget()
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
