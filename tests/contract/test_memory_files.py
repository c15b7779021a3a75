"""Memories on disk: exactly those that a checkpoint still refers to, whatever the rhythm of saving."""

from pathlib import Path

import pytest
from fast import fast
from small_runs import run_alone

from fedmpi.store import checkpoint
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir


@pytest.mark.parametrize(("every", "keep"), fast((3, 2), of=[(1, 2), (1, 1), (3, 2), (2, 3)]))
def test_old_versions_go_with_the_last_checkpoint_that_names_them(tmp_path: Path, every: int, keep: int) -> None:
    """Nothing is left over; after a resume neither."""
    words = (
        "method.name=standalone",
        "clients.per_round=3",
        f"output.checkpoint_every={every}",
        f"output.keep_checkpoints={keep}",
        "evaluation.every=100",
    )
    for rounds, resume in ((9, False), (16, True)):
        run_alone(tmp_path, *words, f"rounds={rounds}", resume=resume)
        assert MemoryStore(RunDir(tmp_path)).versions() == checkpoint.referenced(RunDir(tmp_path)) != set()
