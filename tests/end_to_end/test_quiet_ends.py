"""A job that ends with an exit code says its own line last: mpirun adds none, and has the code of rank 0."""

from pathlib import Path

import pytest
from fast import fast
from launched import Start, block, ends_in_time


def test_a_mistake_in_the_config_is_the_only_line(start: Start) -> None:
    launched = start(3, "rounds=0")
    assert launched.wait() == 2
    assert launched.err.startswith("command line: rounds ") and launched.err.count("\n") == 1
    assert launched.out == ""


def test_a_mistake_that_ranks_find_together_is_the_only_line(start: Start, tmp_path: Path) -> None:
    """After MPI has started. No rank waits for others that have left: that would outlast this test."""
    (tmp_path / "file").touch()
    patch = "from fedmpi.mpi import in_turn\nin_turn._PATIENCE_S = 1e6"
    launched = start(2, "--run-dir", str(tmp_path / "file"), "output.progress=off", patch=patch)
    assert launched.wait() == 2
    assert str(tmp_path / "file") in launched.err and launched.err.count("\n") == 1


def test_a_mistake_that_rank_0_alone_finds_is_all_that_is_said(start: Start) -> None:
    """No other rank imports observers."""
    launched = start(3, "output.observers=[json:nothing,collections:OrderedDict]")
    assert launched.wait() == 2 and launched.out == ""
    assert launched.err.startswith("command line: 2 problems\n") and launched.err.count("\n") == 3


WITHOUT_LIMITS = "from fedmpi.mpi import in_turn, leaving\nin_turn._PATIENCE_S = leaving._COME_S = 1e6\n"
RANK_1_FAILS = """
def fails(setup, task, published):
    {others}
    if rank == 1:
        with setup.clock.stage("local_training", task.round_number, task.client):
            raise ValueError("no")
before(train_round, "simulate_client", fails)"""


@pytest.mark.parametrize("exchange", fast("gather", of=("gather", "reduce")))
def test_a_divergence_ends_all_ranks_in_order(start: Start, exchange: str) -> None:
    """Whatever they are doing; one rank says all, and MPI nothing."""
    words = ("train.lr=1e12", "method.name=fedavg", f"mpi.exchange={exchange}")
    launched = start(3, *words, patch=WITHOUT_LIMITS)
    assert launched.wait() == 1
    assert "cause: DivergenceError: " in launched.err and "abort" not in launched.err.lower()


def test_a_rank_that_trains_ends_with_one_that_has_failed(start: Start) -> None:
    """Its training would outlast this test."""
    launched = start(3, "train.local_epochs=100000", patch=WITHOUT_LIMITS + RANK_1_FAILS.format(others=""))
    assert launched.wait() == 1
    assert "ValueError: no" in block(launched.err) and "abort" not in launched.err.lower()


def test_a_user_s_code_that_ends_the_process_ends_the_job_in_order(start: Start) -> None:
    """As by `sys.exit` in the net: with the block of any other failure, and without a word of MPI."""
    patch = RANK_1_FAILS.format(others="").replace('ValueError("no")', "SystemExit(7)")
    launched = start(3, "train.local_epochs=100000", patch=WITHOUT_LIMITS + patch)
    assert launched.wait() == 1
    assert "SystemExit: 7" in block(launched.err) and "abort" not in launched.err.lower()
    assert "round 1, client " in block(launched.err) and "stage local_training" in block(launched.err)


def test_a_rank_that_does_not_look_is_ended(start: Start) -> None:
    """MPI ends it; the line before MPI's own text says so."""
    patch = "from fedmpi.mpi import leaving\nleaving._COME_S = 0.1\n"
    launched = start(3, patch=patch + RANK_1_FAILS.format(others="time.sleep(1e6 * (rank == 2))"))
    assert ends_in_time(launched, lambda: "fedmpi: failed" in launched.err) != 0
    assert launched.err.count("MPI ends them") == 1 and "ValueError: no" in block(launched.err)
