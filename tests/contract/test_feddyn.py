"""FedDyn: two clients by hand over two rounds; h is the mean of all clients' gradients."""

from pathlib import Path

import pytest
import torch
from by_hand import PLAIN, Bench, after, numbers
from fast import fast

from fedmpi.methods.feddyn import FedDyn, FedDynOptions

H = "feddyn.h.weight"


def test_two_rounds_by_hand() -> None:
    """Two of four clients, f_0 = w^2 / 2 and f_1 = (w - 4)^2 / 2, two steps of 1/4, alpha = 1/2, x = 1.

    Client 0: gradient 1, w = 3/4; 3/4 + (3/4 - 1)/2 = 5/8, w = 19/32. l_0 = -1/2 (-13/32) = 13/64.
    Client 1: gradient -3, w = 7/4; -9/4 + 3/8 = -15/8, w = 71/32. l_1 = -1/2 (39/32) = -39/64.
    Mean 45/32; h = -1/2 * 2/4 * 13/32 = -13/128; x = 45/32 + 13/64 = 103/64.
    Round 2, client 0: gradient 103/64 - 13/64 = 90/64, w = 103/64 - 45/128 = 161/128; then
    161/128 - 26/128 - 45/256 = 225/256, w = 1288/1024 - 225/1024 = 1063/1024.
    l_0 = 13/64 - (1063/1024 - 1648/1024) / 2 = 416/2048 + 585/2048 = 1001/2048.
    """
    train = PLAIN.model_copy(update={"local_epochs": 2})
    two = Bench(FedDyn, FedDynOptions(alpha=0.5), [[1.0], [1.0]], [0, 4], [[0], [1]], train, num_clients=4)
    state = two.round(two.start(1.0))
    assert [numbers(two.memories[client]) for client in (0, 1)] == [[13 / 64], [-39 / 64]]
    assert numbers(state, H) == [-13 / 128] and numbers(state) == [103 / 64]
    assert two.method.published_specs({0}).keys() == {"weight"}
    _, upload = two.trained(0, state, round_number=2)
    assert numbers(upload) == [1063 / 1024] and numbers(two.memories[0]) == [1001 / 2048]


@pytest.mark.parametrize("per_round", fast(2, of=[8, 2]))
def test_h_is_the_mean_of_all_clients(tmp_path: Path, per_round: int) -> None:
    """Over all 8 clients, zeros of those that never came; float32 rounds each term in each of three rounds."""
    left = after(tmp_path, "method.name=feddyn", "method.alpha=0.1", f"clients.per_round={per_round}")
    assert (len(left.memories) == 8) == (per_round == 8)
    for name in (name for name in left.server if name.startswith("feddyn.h.")):
        own = [memory[name.removeprefix("feddyn.h.")].double() for memory in left.memories.values()]
        scale = max(float(each.abs().max()) for each in own)
        assert scale > 0
        expected = sum(own) / 8
        torch.testing.assert_close(left.server[name].double(), expected, rtol=0, atol=2**-20 * max(scale, 0.1))
