"""The command with something of it changed, on some ranks: `die()` and `stop()` end or stop a rank's process,
`before(module, name, what)` calls `what`, with the same arguments, before each call of that function, and after
`hours_go_by()` this rank's watchdog finds that hours have gone by.
"""

from collections.abc import Sequence

PROGRAM = """
import os, signal, sys, time
from fedmpi import experiment, train_round
from fedmpi.running import folder, limits, losses, resuming, server, start
from fedmpi.clock import Traffic
from fedmpi.errors import RunDirError
from fedmpi.mpi.launch import claimed
rank = claimed()[0]

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def before(module, name, what):
    original = getattr(module, name)
    def call(*arguments, **options):
        what(*arguments, **options)
        return original(*arguments, **options)
    setattr(module, name, call)

clocks = []
before(Traffic, "__init__", lambda traffic: clocks.append(traffic))

def hours_go_by():
    limits.SUSPENDED_AFTER_S = float("inf")  # they are not those of a process that was suspended
    for traffic in clocks:
        traffic.now = lambda: time.perf_counter() + 36_000

PATCH
from fedmpi.main import main
sys.exit(main(sys.argv[1:]))
"""


def patched(patch: str) -> Sequence[str]:
    """The command as a program that begins with `patch`."""
    return "-c", PROGRAM.replace("PATCH", patch)
