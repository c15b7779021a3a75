"""A job that ends with an exit code says its own line last: mpirun adds none, and has the code of rank 0."""

from pathlib import Path

from launched import Start


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
