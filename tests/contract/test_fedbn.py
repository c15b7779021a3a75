"""FedBN: which part stays, by hand and in a run; a net without BatchNorm is refused."""

from pathlib import Path

import pytest
import torch
from by_hand import Bench, after, numbers
from small_runs import small_setup
from torch import nn

from fedmpi.errors import StartupError
from fedmpi.methods.fedbn import FedBN, FedBNOptions


def normed() -> nn.Module:
    """x -> w x -> gamma (w x - mean) / deviation + beta, as its own statistics."""
    return nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, eps=1e-12, track_running_stats=False))


def test_a_round_by_hand() -> None:
    """Inputs -1 and 1 normalize to themselves, so w has no gradient. gamma = 1, beta = 0, labels 0 and 2.

    Outputs -1 and 1, residuals -1 and -1: the gradient of beta is -1, that of gamma (1 - 1) / 2 = 0; beta = 1/4.
    """
    one = Bench(FedBN, FedBNOptions(), [[-1.0], [1.0]], [0, 2], [[0, 1]], net=normed)
    state = one.start(1.0, 1.0, 0.0)
    client, upload = one.trained(0, state)
    assert set(upload) == {"0.weight"} and numbers(upload, "0.weight") == [1.0]
    assert numbers(one.memories[0], "1.weight") == [1.0] and numbers(one.memories[0], "1.bias") == [0.25]
    assert set(one.method.regions(client)) == {"1.weight", "1.bias"}
    one.client(0, state, round_number=2)
    assert one.weights == [1.0, 1.0, 0.25]


def test_the_servers_batchnorm_never_changes(tmp_path: Path) -> None:
    """The clients' does, and no two have the same."""
    start = small_setup(tmp_path / "start", "method.name=fedbn").method.initial_state()
    left = after(tmp_path / "run", "method.name=fedbn")
    norms = {name for name in start if "bn" in name or "shortcut.1" in name}
    for name, value in left.server.items():
        assert torch.equal(value, start[name]) == (name in norms), name
    memories = list(left.memories.values())
    assert len(memories) > 1 and all(set(memory) == norms for memory in memories)
    assert not torch.equal(memories[0]["bn1.bias"], memories[1]["bn1.bias"])


def test_a_net_without_batchnorm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="method.name.*this net trains none; take lgfedavg"):
        small_setup(tmp_path, "method.name=fedbn", "model.norm=group")
