"""A job that ends with an exit code prints its own line last: mpirun adds none, and has the code of rank 0."""

from pathlib import Path

import pytest
from launched import Start, block


@pytest.mark.slow
def test_a_mistake_that_ranks_find_together_is_the_only_line(start: Start, tmp_path: Path) -> None:
    """After MPI has started."""
    (tmp_path / "file").touch()
    launched = start(2, "--run-dir", str(tmp_path / "file"), "output.progress=off")
    assert launched.wait() == 2
    assert str(tmp_path / "file") in launched.err and launched.err.count("\n") == 1


@pytest.mark.slow
def test_a_divergence_is_all_that_is_printed(start: Start) -> None:
    """Both workers diverge; one rank prints it."""
    launched = start(3, "train.lr=1e12", "method.name=fedavg")
    assert launched.wait() == 1
    assert launched.err.count("fedmpi: failed on rank ") == 1 and "abort" not in launched.err.lower()


@pytest.mark.slow
def test_a_user_s_code_that_ends_the_process_ends_ranks_that_train(start: Start) -> None:
    """As by `sys.exit` in the net. The training of rank 2 would outlast this test."""
    patch = """
def fails(setup, task, published):
    if rank == 1:
        with setup.clock.stage("local_training", task.round_number, task.client):
            raise SystemExit(7)
before(train_round, "simulate_client", fails)"""
    launched = start(3, "train.local_epochs=100000", patch=patch)
    assert launched.wait() == 1
    assert "SystemExit: 7" in block(launched.err) and "abort" not in launched.err.lower()
    assert "round 1, client " in block(launched.err) and "stage local_training" in block(launched.err)
