"""FedProx: the proximal pull by hand."""

import pytest
from by_hand import PLAIN, Bench, numbers

from fedmpi.federation.assignment import Task
from fedmpi.methods.fedprox import FedProx, FedProxOptions


def bench(mu: float, weighting: str = "uniform") -> Bench:
    """One client with f(w) = w^2 / 2, two steps of lr 1/4."""
    options = FedProxOptions(mu=mu, weighting=weighting)
    return Bench(FedProx, options, [[1.0]], [0], [[0]], PLAIN.model_copy(update={"local_epochs": 2}))


@pytest.mark.parametrize(("mu", "expected"), [(0.5, 19 / 32), (0.0, 9 / 16)])
def test_two_steps_by_hand(mu: float, expected: float) -> None:
    """From w_t = 1 with mu = 1/2: g = 1, w = 3/4; then g = 3/4 + (3/4 - 1) / 2 = 5/8, w = 3/4 - 5/32 = 19/32. Without
    the pull it is gradient descent."""
    prox = bench(mu)
    assert numbers(prox.round(prox.start(1.0))) == [expected]


def test_weights() -> None:
    task = Task(0, 0, 1, "train", 7, 1.0)
    assert [bench(0.0, how).method.client_weight(task) for how in ("uniform", "samples")] == [1.0, 7.0]
