"""MOON: the contrast and its gradient by hand, who has one, and what it costs."""

import math
from pathlib import Path

import pytest
import torch
from by_hand import Bench, after, numbers
from narrow_nets import chain
from small_runs import small_setup

from fedmpi.methods.moon import Moon, MoonOptions
from fedmpi.methods.values import ClientLoad
from fedmpi.store.hdf5 import digest_of


def bench(mu: float = 2.0) -> Bench:
    """One client, one example x = 1 of label 0; x -> two numbers, the representation -> one; tau = 1/2."""
    options = MoonOptions(mu=mu, temperature=0.5)
    return Bench(Moon, options, [[1.0]], [0], [[0]], net=lambda: chain(1, 2, act=False))


def test_a_step_by_hand() -> None:
    """The published representation is (1, 0), that of before (0, 1), and the last layer is (0, 0).

    The net begins at the published one: z = (1, 0), similarities 1 and 0. With s = (away - towards) / tau = -2 the
    derivative of l_con by s is p = 1 / (1 + e^2). At z the derivatives of the cosines are (0, 0) towards, because z is
    of length 1 in that direction, and (0, 1) away. So the gradient is mu p / tau (0, 1), and the step 1/4 of it.
    """
    one = bench()
    one.memories[0] = {"0.weight": torch.tensor([[0.0], [1.0]]), "2.weight": torch.zeros(1, 2)}
    _, upload = one.trained(0, one.start(1.0, 0.0, 0.0, 0.0))
    p = 1 / (1 + math.e**2)
    assert numbers(upload, "0.weight") == pytest.approx([1.0, -2.0 * p / 0.5 / 4], abs=1e-6)
    assert numbers(upload, "2.weight") == [0.0, 0.0]
    assert numbers(one.memories[0], "0.weight") == numbers(upload, "0.weight")


def test_the_contrast_by_hand() -> None:
    """Cosines 0.6 and 0.8: log(1 + e^((0.8 - 0.6) / 0.5)), and of equals log 2; the mean of both."""
    z, published, previous = (
        torch.tensor(rows) for rows in ([[3.0, 4.0]] * 2, [[1.0, 0.0]] * 2, [[0.0, 2.0], [5.0, 0]])
    )
    expected = (math.log(1 + math.e**0.4) + math.log(2)) / 2
    assert float(bench().method._contrast(z, published, previous)) == pytest.approx(expected, abs=1e-6)


def test_a_first_round_is_that_of_fedavg(tmp_path: Path) -> None:
    """Nobody has a net of before; in the second round somebody has."""
    words = ("partition.name=iid", "clients.per_round=8")
    for rounds, is_same in ((1, True), (2, False)):
        ours = after(tmp_path / f"ours{rounds}", "method.name=moon", *words, f"rounds={rounds}").server
        theirs = after(tmp_path / f"theirs{rounds}", "method.name=fedavg", *words, f"rounds={rounds}").server
        assert (digest_of(ours) == digest_of(theirs)) == is_same


def test_an_example_passes_three_nets(tmp_path: Path) -> None:
    method = small_setup(tmp_path, "method.name=moon").method
    assert method.count_training(ClientLoad(0, 5)).macs([7.0]) == 3 * 5 * 7.0
