"""A job that ends with an exit code says its own line last: mpirun adds none, and has the code of rank 0."""

from pathlib import Path

from launched import Start


def test_a_mistake_in_the_config_is_the_only_line(start: Start) -> None:
    launched = start(3, "rounds=0")
    assert launched.wait() == 2
    assert launched.err.startswith("command line: rounds ") and launched.err.count("\n") == 1
    assert launched.out == ""


def test_a_mistake_that_ranks_find_together_is_the_only_line(start: Start, tmp_path: Path) -> None:
    """After MPI has started."""
    (tmp_path / "file").touch()
    launched = start(3, "--run-dir", str(tmp_path / "file"), "output.progress=off")
    assert launched.wait() == 2
    assert str(tmp_path / "file") in launched.err and launched.err.count("\n") == 1
