"""Rounds whose clients return what they got, taken apart: FedAvg, FedHM and the tests' own method, to exact numbers.

What holds for every method is in test_every_method.py.
"""

import math
from collections.abc import Callable

import pytest
import torch
from model_inputs import params
from toy_methods import LOCAL

from fedmpi.exactsum import scale_exponent
from fedmpi.methods.values import Turn
from fedmpi.rounds.exchange import Weights
from fedmpi.store.stored import digest_of
from fedmpi.tensors import Params

CASES = ("fedavg", "fedavg-samples", "fedhm", "fedhm-dynamic", "fedhm-low-only", "toy")


@pytest.fixture(params=CASES)
def federation(request: pytest.FixtureRequest, federation_of: Callable) -> object:
    return federation_of(request.param)


def expected_of_a_round_without_training(federation, assignment) -> Params:
    """The state, but for what a method loses by design: low rank (float64 SVD, alpha-mean) and bfloat16."""
    state, expected = federation.state, {}
    for name in federation.method.state_specs():
        expected[name] = state[name].double()
        if federation.name == "toy":
            held = torch.zeros_like(state[name], dtype=torch.bool)
            for task in assignment.tasks:
                held[federation.method.regions(federation.client(task)).get(name, ...)] = True
            expected[name] = torch.where(held, state[name].bfloat16().double(), expected[name])
    for layer in getattr(federation.method, "layers", {}).values():
        expected[f"{layer.name}.weight"] = alpha_mean_of_truncations(federation, assignment, layer)
    return expected


def alpha_mean_of_truncations(federation, assignment, layer) -> torch.Tensor:
    weight = federation.state[f"{layer.name}.weight"].double()
    left, sigma, right = torch.linalg.svd(layer.unroll(weight), full_matrices=False)
    total, mean = 0.0, torch.zeros_like(weight)
    for task in assignment.tasks:
        gamma = federation.method.tiers[task.tier].capacity
        r = layer.r(gamma) if gamma < 1 else len(sigma)
        alpha = federation.method.client_weight(task)
        mean += alpha * layer.fold(left[:, :r] @ torch.diag(sigma[:r]) @ right[:r])
        total += alpha
    return mean / total


@pytest.mark.parametrize("kind", ["gather", "reduce"])
def test_clients_that_return_what_they_got_change_nothing(federation, kind: str) -> None:
    """A fixed point, up to what the method loses by design.

    A term w x 2^k is rounded to a whole number and the sum divided by W: an error of 2^-(k+1) (n + 1) / W
    before the one rounding to float32, so 2^-(k-2) for n <= 8 clients of weight > 1/4 is safe. Factors are
    float32: the relative error of u v, r <= 16 terms, is within 2^-24 (r + 2).
    """
    for assignment in federation.phases():
        uploads = {task.client: federation.returned(task) for task in assignment.tasks}
        means = federation.exchanged(kind, assignment, uploads).means
        expected = expected_of_a_round_without_training(federation, assignment)
        total = Weights(federation.method, assignment.tasks).total
        low_rank = {f"{name}.weight" for name in getattr(federation.method, "layers", {})}
        for name, mean in means.items():
            atol = math.ldexp(1.0, 2 - scale_exponent(total, federation.bounds()[name]))
            if name in low_rank:
                atol += 2**-24 * 18 * float(federation.state[name].abs().max()) * 4
            torch.testing.assert_close(mean.double(), expected[name], rtol=0, atol=atol, msg=name)


def test_exchanges_agree_where_a_client_is_dropped(federation) -> None:
    """Gather and reduce give the same bits, and the state is not touched."""
    before = digest_of(federation.state)
    for assignment in federation.phases():
        uploads: dict[int, Params | None] = {
            t.client: federation.returned(t, 1 + t.client / 7) for t in assignment.tasks
        }
        uploads[assignment.tasks[0].client] = None
        gathered, reduced = (federation.exchanged(kind, assignment, uploads) for kind in ("gather", "reduce"))
        assert digest_of(gathered.means) == digest_of(reduced.means)
        assert gathered.reports == reduced.reports and len(gathered.reports) == len(assignment.tasks)
    assert digest_of(federation.state) == before


def test_the_toy_uses_what_it_is_there_for(federation_of: Callable) -> None:
    """Two phases of the right tiers, regions, memories that change what is trained, a state beside the means; two bytes
    go up for each parameter but those of the local tensor."""
    federation = federation_of("toy")
    for tier in federation.tiers:
        net, costs = federation.method.net(tier, empty=True), federation.method.costs(Turn(tier))
        assert costs.down_bytes == 4 * params(net)
        assert costs.up_bytes == 2 * (params(net) - net.get_parameter(LOCAL).numel())
    wide, narrow = federation.phases()
    assert {t.tier for t in wide.tasks} == {0} and len(wide.tasks) == 2
    assert {t.tier for t in narrow.tasks} <= {1, 2} and len(narrow.tasks) == 4
    assert set(federation.method.regions(federation.client(narrow.tasks[0])))
    assert not federation.method.regions(federation.client(wide.tasks[0]))
    assert set(federation.state) - set(federation.method.state_specs()) >= {"phases_done", LOCAL}
