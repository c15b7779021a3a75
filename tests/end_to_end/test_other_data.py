"""A run continues with the data that it was begun with, wherever they lie, and with no others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fast import fast
from launched import RunMain, Start
from small_data import WORDS, dataset, options_in
from small_runs import SMALL, finished

from fedmpi.data import prepare
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir

ARGUMENTS = (
    *(word for word in SMALL if not word.startswith(("data.", "model."))),
    *WORDS,
    "clients.count=4",
    "partition.name=natural",
    "model.name=mlp",
    "model.hidden=[8]",
    "method.name=fedavg",
    "train.lr=0.000001",
)


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, Path]:
    """Three folders with prepared data: `first`, the same as `copy`, and `other` with two examples exchanged.

    Groups and labels are the same in all, so the partition is, too.
    """
    order = np.arange(20)
    order[[0, 12]] = order[[12, 0]]
    ours = dataset()
    made = {"first": ours, "copy": ours, "other": replace(ours, train_x=ours.train_x[order])}
    for name, what in made.items():
        prepare.save(options_in(tmp_path / name), what)
    return {name: tmp_path / name for name in made}


@pytest.fixture
def run_dir(run_main: RunMain, roots: dict[str, Path], tmp_path: Path) -> Path:
    """Two rounds with the `first` data."""
    code, _, errors = run_main(*with_data(roots["first"], tmp_path / "run"), "rounds=2")
    assert code == 0, errors
    return tmp_path / "run"


def with_data(root: Path, run_dir: Path) -> tuple[str, ...]:
    return *ARGUMENTS, f"data.root={root}", "--run-dir", str(run_dir)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", fast(3, of=(1, 3), slow=()))
def test_other_data_are_refused(start: Start, roots: dict[str, Path], run_dir: Path, ranks: int) -> None:
    """In one line with both folders and both digests; the run is left as it was."""
    before = finished(run_dir)
    words = "--run-dir", str(run_dir), "--resume", "rounds=3", f"data.root={roots['other']}"
    launched = start(ranks, *words, small=False)
    assert launched.wait() == 2, launched.err
    (line,) = [line for line in launched.err.splitlines() if "other data" in line]
    digests = [options_in(roots[name]).read().digest[:12] for name in ("first", "other")]
    assert all(word in line for word in (*digests, str(roots["first"]), str(roots["other"]))), line
    assert "Traceback" not in launched.err and finished(run_dir) == before


def test_the_same_data_may_lie_elsewhere(
    run_main: RunMain, roots: dict[str, Path], run_dir: Path, tmp_path: Path
) -> None:
    code, _, errors = run_main("--run-dir", str(run_dir), "--resume", "rounds=3", f"data.root={roots['copy']}")
    assert code == 0 and errors == "", errors
    assert run_main(*with_data(roots["first"], tmp_path / "one"), "rounds=3")[0] == 0
    assert finished(run_dir) == finished(tmp_path / "one")
    digest = options_in(roots["first"]).read().digest
    assert {entry["data_digest"] for entry in manifest.read_starts(RunDir(run_dir))} == {digest}
