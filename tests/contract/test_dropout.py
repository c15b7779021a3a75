"""Nets that draw from global generators (dropout: torch's) keep contracts 1 and 2."""

import contextlib
import random
from pathlib import Path

import numpy as np
import torch
from small_runs import finished, run_alone, undisturbed

from fedmpi.learning.determinism import global_generator

DROPOUT = ("model.name=torchvision:squeezenet1_1", "data.shape=[3,32,32]", "method.name=fedavg", "rounds=2")
DROPOUT += ("evaluation.bn=restat", "train.schedule.milestones=[]")


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


def test_a_resumed_run_draws_as_an_uninterrupted_one(tmp_path: Path) -> None:
    """One round, then resumed for the second, equals two in a row, whatever the global generator's state is; it is left
    as it was found."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    run_alone(tmp_path / "parts", *DROPOUT, "rounds=1")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    run_alone(tmp_path / "parts", *DROPOUT, "mpi.exchange=reduce", resume=True)
    torch.manual_seed(3)
    assert finished(tmp_path / "parts").server == undisturbed(tmp_path, *DROPOUT).server
