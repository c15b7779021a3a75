"""SCAFFOLD: two clients by hand over two rounds, both options; c is the mean of all clients' c_i."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import PLAIN, Bench, after, numbers
from fast import fast
from small_runs import small_setup
from torch import nn

from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import Buffers, FlatNet
from fedmpi.learning.local import LocalTrainer
from fedmpi.library.api import load_config
from fedmpi.methods.scaffold import Scaffold, ScaffoldOptions
from fedmpi.methods.values import Client, ClientLoad

CONTROL = "control.weight"


def bench(**options: object) -> Bench:
    """Two of four clients, f_0 = w^2 / 2 and f_1 = (w - 4)^2 / 2, two steps of lr 1/4 each."""
    train = PLAIN.model_copy(update={"local_epochs": 2})
    return Bench(Scaffold, ScaffoldOptions(**options), [[1.0], [1.0]], [0, 4], [[0], [1]], train, num_clients=4)


def test_two_rounds_by_hand() -> None:
    """Round 1 from x = 1, c = c_i = 0, so no correction. K lr = 1/2.

    Client 0: 1, 0.75, 0.5625; c_0 = 0.4375 / 0.5 = 0.875 = (1 + 0.75) / 2, the mean of its gradients.
    Client 1: 1, 1.75, 2.3125; c_1 = -1.3125 / 0.5 = -2.625 = (-3 - 2.25) / 2.
    x = 1 + 0.5 (0.4375 + ... ) with eta_g = 1/2: mean y = 1.4375, x = 1.21875.
    c = 2/4 (0.875 - 2.625) / 2 = -0.4375.
    Round 2, client 0: c - c_0 = -1.3125. Gradients 1.21875 and, at 1.2421875, 1.2421875, so
    y = 1.21875 + 0.25 (0.09375 + 0.0703125) = 1.259765625 and c_0 = (1.21875 + 1.2421875) / 2 = 1.23046875.
    """
    two = bench(server_lr=0.5)
    state = two.round(two.start(1.0))
    assert numbers(state) == [1.21875] and numbers(state, CONTROL) == [-0.4375]
    assert [numbers(two.memories[client], CONTROL) for client in (0, 1)] == [[0.875], [-2.625]]
    _, upload = two.trained(0, state, round_number=2)
    assert numbers(upload) == [1.259765625]
    assert numbers(upload, CONTROL) == [1.23046875 - 0.875]
    assert numbers(two.memories[0], CONTROL) == [1.23046875]


def test_option_1_takes_the_gradient_at_x() -> None:
    """At x = 1: c_0 = 1, c_1 = -3, c = 2/4 (1 - 3) / 2; the steps are those of option II, so x = mean y = 1.4375.

    Round 2 from there: c_0 = 1.4375, c_1 = -2.5625, and c is a quarter of their sum.
    """
    two = bench(option="I")
    state = two.round(two.start(1.0))
    assert numbers(state) == [1.4375] and numbers(state, CONTROL) == [-0.5]
    state = two.round(state, round_number=2)
    assert [numbers(two.memories[client], CONTROL) for client in (0, 1)] == [[1.4375], [-2.5625]]
    assert numbers(state, CONTROL) == [-1.125 / 4]


def test_option_1_over_batches_is_the_gradient_over_all_examples() -> None:
    """Five examples (w - y)^2 / 2 in batches of 2 and 3, y = 0, 1, 2, 3, 4: at x = 1 the gradient is 1 - 2."""
    train = PLAIN.model_copy(update={"batch_size": 2})
    five = Bench(Scaffold, ScaffoldOptions(option="I"), [[1.0]] * 5, [0, 1, 2, 3, 4], [[0, 1, 2, 3, 4]], train)
    five.round(five.start(1.0))
    assert numbers(five.memories[0], CONTROL) == [-1.0]
    assert five.method.costs(ClientLoad(0, 5)).examples == 10


@pytest.mark.parametrize(
    ("residuals", "batch_size", "epochs", "steps", "left_out", "expected"),
    [
        # Batches of 2 and 3, whose mean is 3 and whose sums, 6 and 9, would be too large.
        ([3, 3, 3, 3, 3], 2, 1, 2, 0, 3.0),
        # Batches are weighed by their sizes, 2 and 3: 2 / 5 in whatever order, which the mean of both means is not.
        ([1, 1, 1, 1, -2], 2, 1, 2, 0, 0.4),
        # Batches of 1; that of 6 is left out in both passes, and the others have a mean of 1 without it.
        ([1, 1, 6, 1, 1], 1, 1, 5 + 1, 1 + 1, 1.0),
        # One batch: 5 is left out at x and in the first epoch; the second takes it with half the scale.
        ([5, 5], 2, 2, 2 + 1, 1 + 1, 0.0),
    ],
)
def test_option_1_overflows_no_earlier_than_training(
    residuals: list[int], batch_size: int, epochs: int, steps: int, left_out: int, expected: float
) -> None:
    """A client whose examples have these gradients w - y at w = 8. The loss scale is 2^126: times that, float32 has no
    number for 4. Where no batch was taken at x there is no change."""
    train = PLAIN.model_copy(update={"batch_size": batch_size, "lr": 2.0**-10, "local_epochs": epochs})
    y, options = [8 - residual for residual in residuals], ScaffoldOptions(option="I")
    one = Bench(Scaffold, options, [[1.0]] * len(y), y, [range(len(y))], train)
    layout = one.trainer.net.layout
    net = FlatNet(nn.Linear(1, 1, bias=False), layout, Buffers(layout.num_bytes, "cpu", loss_scale=2.0**126))
    one.trainer = LocalTrainer(net, one.data, train, [])
    client = one.client(0, one.start(8.0))
    outcome = one.method.train(one.trainer, client, one.work(client))
    assert (outcome.steps, outcome.left_out) == (steps, left_out)
    assert numbers(one.method.upload(one.trainer.net, client), CONTROL) == pytest.approx([expected], rel=1e-6)
    assert epochs == 1 or one.weights == [8 - 5 * 2**-10]


def test_a_client_without_a_step_changes_no_control() -> None:
    """No examples: y = x, and c_i stays."""
    idle = bench()
    idle.round(idle.start(1.0))
    idle.owned = [[], [1]]
    _, upload = idle.trained(0, idle.start(1.0), round_number=2)
    assert numbers(upload) == [1.0] and numbers(upload, CONTROL) == [0.0]
    assert numbers(idle.memories[0], CONTROL) == [0.875]


@pytest.mark.parametrize(("option", "per_round"), fast(("II", 2), of=[("I", 8), ("II", 2)]))
def test_c_is_the_mean_of_all_clients(tmp_path: Path, option: str, per_round: int) -> None:
    """Over all 8 clients, also when 2 take part (the others keep theirs, zeros to begin with).

    c gains dc / 8 where c_i gains dc: in three rounds float32 rounds the sums of eight by some 2^-24 of
    their size each time, and exact sums keep 2^-38 of terms up to 2^20.
    """
    words = ("method.name=scaffold", f"method.option={option}", f"clients.per_round={per_round}", "train.momentum=0")
    left = after(tmp_path, *words)
    controls = [name for name in left.server if name.startswith("control.")]
    assert controls and (len(left.memories) == 8) == (per_round == 8)
    for name in controls:
        own = [memory[name].double() for memory in left.memories.values()]
        scale = max(float(value.abs().max()) for value in own)
        assert scale > 0
        torch.testing.assert_close(left.server[name].double(), sum(own) / 8, rtol=0, atol=8 * 2**-24 * scale + 2**-36)


def test_twice_the_bytes_and_what_is_warned_of(tmp_path: Path) -> None:
    fedavg = small_setup(tmp_path, "method.name=fedavg").method
    method = small_setup(tmp_path, "method.name=scaffold", "train.momentum=0").method
    assert (
        method.costs(ClientLoad(0)).down_bytes
        == method.costs(ClientLoad(0)).up_bytes
        == 2 * fedavg.costs(ClientLoad(0)).down_bytes
    )
    assert method.warnings() == ()
    for option in ("I", "II"):
        (said,) = small_setup(tmp_path, "method.name=scaffold", f"method.option={option}").method.warnings()
        assert "set train.momentum=0," in said and "config scaffold_digits" in said
    assert load_config("scaffold_digits").train.momentum == 0


def test_a_client_that_was_restored_leaves_its_control_variate(tmp_path: Path) -> None:
    """How many steps are left of a path that was cut short nobody knows: the change is 0, whatever the parameters."""
    method = small_setup(tmp_path, "method.name=scaffold").method
    client = Client(
        Task(0, 0, 1, "train", 3, 1.0), {"control.w": torch.tensor([5.0]), "w": torch.zeros(1)}, np.arange(3), 0
    )
    client.scratch["path"] = torch.tensor(0.5, dtype=torch.float64)
    assert method._change("w", torch.tensor([1.0]), client).tolist() == [-7.0]
    assert method._change("w", torch.tensor([1.0]), replace(client, is_restored=True)).tolist() == [0.0]
