"""`fedmpi.run`, called by every rank of an mpirun: the bits of one process, and a run that every rank can read."""

import os
import signal

import pytest
from same_bits import Bits
from small_runs import small_config

import fedmpi

pytestmark = pytest.mark.mpi(min_size=2)
WORDS = ("method.name=fedhm", "method.rank_ratio=[1,0.5]", "rounds=2")


def test_a_program_on_all_ranks(bits: Bits) -> None:
    """In two parts, since a program may call it again: MPI has been started by then."""
    before = dict(os.environ), [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    with bits.all_or_none():
        fedmpi.run(small_config(*WORDS, "rounds=1"), bits.folder / "run", progress=False)
        run = fedmpi.run(small_config(*WORDS), bits.folder / "run", resume=True, progress=False)
        opened = fedmpi.open_run(bits.folder / "run")
    after = dict(os.environ), [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    bits.on_all_ranks(before == after, "the run has left something behind")
    bits.on_all_ranks(run.is_finished and run.scores == opened.scores and len(run.rounds()) == 2, "not read everywhere")
    bits.check(bits.alone(small_config(*WORDS)))
