"""Nets that draw from global generators (dropout: torch's) keep contracts 1 and 2."""

import contextlib
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import finished, run_alone, undisturbed

from fedmpi.learning.determinism import global_generator

DROPOUT = tuple(
    """
    model.name=torchvision:squeezenet1_1 data.shape=[3,32,32] method.name=fedavg rounds=2
    evaluation.bn=restat train.schedule.milestones=[]
""".split()
)


def test_what_ran_before_changes_nothing(tmp_path: Path) -> None:
    """The same run twice, the global generator in another state each time, and left as it was found."""
    results = []
    for attempt in range(2):
        torch.manual_seed(attempt)
        before = torch.get_rng_state()
        run_alone(tmp_path / str(attempt), *DROPOUT)
        assert torch.equal(torch.get_rng_state(), before)
        results.append(finished(tmp_path / str(attempt)))
    assert results[0] == results[1]


def test_generators_are_seeded_and_left_alone() -> None:
    """Torch's, Python's and numpy's: the numbers follow from the seed, and the outer streams continue, also after an
    error."""

    def outer() -> list[object]:
        return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]

    before, drawn = outer(), []
    for seed in (1, 2**62, 1):
        with contextlib.suppress(ZeroDivisionError), global_generator(seed, torch.device("cpu")):
            drawn.append((torch.rand(3).tolist(), random.random(), np.random.random()))
            raise ZeroDivisionError
    assert drawn[0] == drawn[2] and all(one != other for one, other in zip(drawn[0], drawn[1], strict=True))
    assert outer() == before


@pytest.mark.parametrize("kind", ["gather", "reduce"])
def test_resume_draws_as_an_uninterrupted_run(tmp_path: Path, kind: str) -> None:
    """One round, then resumed for the second, equals two in a row."""
    parts = tmp_path / "parts"
    run_alone(parts, *DROPOUT, "rounds=1")
    run_alone(parts, *DROPOUT, f"mpi.exchange={kind}", resume=True)
    assert finished(parts).server == undisturbed(tmp_path, *DROPOUT).server
