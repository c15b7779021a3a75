"""SCAFFOLD: two clients by hand over two rounds; c is the mean of all clients' c_i."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from by_hand import PLAIN, Bench, after, numbers
from fast import fast
from small_runs import small_setup

from fedmpi.federation.assignment import Task
from fedmpi.library.api import load_config
from fedmpi.methods.scaffold import Scaffold, ScaffoldOptions
from fedmpi.methods.values import Client, ClientLoad

CONTROL = "control..weight"


def bench() -> Bench:
    """Two of four clients, f_0 = w^2 / 2 and f_1 = (w - 4)^2 / 2, two steps of lr 1/4 each."""
    train = PLAIN.model_copy(update={"local_epochs": 2})
    return Bench(Scaffold, ScaffoldOptions(), [[1.0], [1.0]], [0, 4], [[0], [1]], train, num_clients=4)


def test_two_rounds_by_hand() -> None:
    """Round 1 from x = 1, c = c_i = 0, so no correction. K lr = 1/2.

    Client 0: 1, 0.75, 0.5625; c_0 = 0.4375 / 0.5 = 0.875 = (1 + 0.75) / 2, the mean of its gradients.
    Client 1: 1, 1.75, 2.3125; c_1 = -1.3125 / 0.5 = -2.625 = (-3 - 2.25) / 2.
    x = mean y = 1.4375.
    c = 2/4 (0.875 - 2.625) / 2 = -0.4375.
    Round 2, client 0: c - c_0 = -1.3125. Gradients 1.4375 and, at 1.40625, 1.40625, so
    y = 1.4375 - 0.25 (0.125 + 0.09375) = 1.3828125 and c_0 = (1.4375 + 1.40625) / 2 = 1.421875.
    """
    two = bench()
    state = two.round(two.start(1.0))
    assert numbers(state) == [1.4375] and numbers(state, CONTROL) == [-0.4375]
    assert [numbers(two.memories[client], CONTROL) for client in (0, 1)] == [[0.875], [-2.625]]
    _, upload = two.trained(0, state, round_number=2)
    assert numbers(upload) == [1.3828125]
    assert numbers(upload, CONTROL) == [1.421875 - 0.875]
    assert numbers(two.memories[0], CONTROL) == [1.421875]


def test_a_client_without_a_step_changes_no_control() -> None:
    """No examples: y = x, and c_i stays."""
    idle = bench()
    idle.round(idle.start(1.0))
    idle.owned = [[], [1]]
    _, upload = idle.trained(0, idle.start(1.0), round_number=2)
    assert numbers(upload) == [1.0] and numbers(upload, CONTROL) == [0.0]
    assert numbers(idle.memories[0], CONTROL) == [0.875]


@pytest.mark.parametrize("per_round", fast(2, of=[8, 2]))
def test_c_is_the_mean_of_all_clients(tmp_path: Path, per_round: int) -> None:
    """Over all 8 clients, also when 2 take part (the others keep theirs, zeros to begin with).

    c gains dc / 8 where c_i gains dc: in three rounds float32 rounds the sums of eight by some 2^-24 of
    their size each time, and exact sums keep 2^-38 of terms up to 2^20.
    """
    left = after(tmp_path, "method.name=scaffold", f"clients.per_round={per_round}", "train.momentum=0")
    controls = [name for name in left.server if name.startswith("control..")]
    assert controls and (len(left.memories) == 8) == (per_round == 8)
    for name in controls:
        own = [memory[name].double() for memory in left.memories.values()]
        scale = max(float(value.abs().max()) for value in own)
        assert scale > 0
        torch.testing.assert_close(left.server[name].double(), sum(own) / 8, rtol=0, atol=8 * 2**-24 * scale + 2**-36)


def test_twice_the_bytes_and_what_is_warned_of(tmp_path: Path) -> None:
    fedavg = small_setup(tmp_path, "method.name=fedavg").method.costs(ClientLoad(0))
    method = small_setup(tmp_path, "method.name=scaffold", "train.momentum=0").method
    costs = method.costs(ClientLoad(0))
    assert costs.down_bytes == costs.up_bytes == 2 * fedavg.down_bytes
    assert method.warnings() == ()
    (said,) = small_setup(tmp_path, "method.name=scaffold").method.warnings()
    assert "set train.momentum=0," in said and "config scaffold_digits" in said
    assert load_config("scaffold_digits").train.momentum == 0


@pytest.mark.parametrize(("is_restored", "change"), [(False, -7.0), (True, 0.0)])
def test_a_client_that_was_restored_leaves_its_control_variate(is_restored: bool, change: float) -> None:
    """How many steps are left of a path that was cut short nobody knows: the change is 0, whatever the parameters."""
    published = {CONTROL: torch.tensor([5.0]), "weight": torch.zeros(1)}
    client = Client(Task(0, 0, 1, "train", 3, 1.0), published, np.arange(3), 0, is_restored=is_restored)
    client.scratch["path"] = torch.tensor(0.5, dtype=torch.float64)
    net = SimpleNamespace(params={"weight": torch.tensor([1.0])})
    assert numbers(bench().method.upload(net, client), CONTROL) == [change]
