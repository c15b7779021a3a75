"""What a run changes in its process, given back to the program that called it."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from fedmpi.running.interruption import ENDING
from fedmpi.running.stopping import SIGNAL


@contextmanager
def given_back() -> Iterator[None]:
    """After the block, signal handlers, environment variables, filters of warnings and torch's settings (threads,
    determinism, precision, default dtype and device) are as they were before it, whether it raises or not.
    """
    from fedmpi.learning.determinism import settings_kept  # loads torch

    environment = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (SIGNAL, *ENDING)}
    try:
        with warnings.catch_warnings(), settings_kept():
            yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment.items() - os.environ.items())
        if threading.current_thread() is threading.main_thread():  # no other can have changed a handler
            for number, handler in handlers.items():
                if handler is not None:  # None was not set by Python
                    signal.signal(number, handler)
