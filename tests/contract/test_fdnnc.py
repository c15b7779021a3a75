"""FDNNC: eq. 6, an iteration of each pattern by hand, its limits and whole runs (methods.md 12.2, 12.4, 12.5, 15)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import after
from fdnnc_bench import (
    EXAMPLES,
    LABELS,
    MLP,
    A,
    TwoLayers,
    constant,
    iteration,
    method_of,
    published,
    state_of,
    trained,
    trainer_of,
)
from small_runs import finished, small_setup
from torch.nn import functional as F

from fedmpi.federation.assignment import Task
from fedmpi.learning.local import MaskedCrossEntropy
from fedmpi.lowrank.spectrum import beyond
from fedmpi.methods.fdnnc import BIG, SMALL
from fedmpi.methods.values import Client, Contributions, LocalWork, Phase, Turn
from fedmpi.tensors import Params

# What a client does.


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_eqs_5_and_6(loss: str) -> None:
    """Against the paper's formulas in float64, for the two layers of a small device's net.

    delta^2 is a - y of softmax under cross-entropy, (a - y) a (1 - a) of the sigmoid under mse, both over the batch
    size; delta^1 = (A^2 B^2T)^T delta^2 where z^1 > 0. float32 sums of up to 8 terms: 1e-6.
    """
    method = method_of((0, 2), 2, TwoLayers, loss=loss, layer_ranks={"*": 1})
    torch.manual_seed(3)
    x, y = torch.randn(8, 6), torch.arange(8) % 3
    state = {name: torch.randn(value.shape) for name, value in method.initial_state().items()}
    known = published(method, state, SMALL)
    upload, *_ = trained(method, Task(0, SMALL, 1, "small", 8, 1.0), known, x, y, list(range(8)))

    p = {name: value.double() for name, value in state.items()}
    inner = x.double() @ p["fc1.u.weight"].t()
    z1 = inner @ p["fc1.v.weight"].t() + p["fc1.bias"]
    a1 = z1.relu()
    z2 = a1 @ p["fc2.u.weight"].t() @ p["fc2.v.weight"].t() + p["fc2.bias"]
    wanted = F.one_hot(y, 3).double()
    a2 = z2.sigmoid()
    delta2 = ((a2 - wanted) * a2 * (1 - a2) if loss == "mse" else z2.softmax(1) - wanted) / 8
    delta1 = delta2 @ p["fc2.v.weight"] @ p["fc2.u.weight"] * (z1 > 0)
    for layer, delta, below in (("fc1", delta1, x.double()), ("fc2", delta2, a1)):
        bt, a = p[f"{layer}.u.weight"], p[f"{layer}.v.weight"]
        expected = {"v.weight": delta.t() @ below @ bt.t(), "u.weight": a.t() @ delta.t() @ below, "bias": delta.sum(0)}
        for short, value in expected.items():
            torch.testing.assert_close(upload[f"{layer}.{short}"].double(), value, rtol=1e-5, atol=1e-6)


def test_a_client_takes_no_step() -> None:
    """Its net stays what was published; one batch, however many epochs are asked for."""
    method = method_of((1, 1), 2)
    known = published(method, state_of(method), BIG)
    _, net, outcome = trained(method, Task(0, BIG, 1, "big", 3, 1.0), known, EXAMPLES, LABELS, [0, 1, 2])
    assert outcome.steps == 1 and all(torch.equal(net.params[name], known[name]) for name in known)
    assert method.costs(Turn(0, 3)).examples == 3 and method.costs(Turn(0, 100)).examples == 8


def test_a_batch_is_drawn_anew_in_each_round() -> None:
    """Eight of forty examples 1, 2, 4, ...: their mean is read off the gradient of W, 1/2 - y apart."""
    method = method_of((2, 0), 1, loss="mse")
    x, y = torch.arange(1.0, 41)[:, None].repeat(1, 3), torch.zeros(40, dtype=torch.int64)
    y[0] = 1
    known = {name: torch.zeros(value.shape) for name, value in state_of(method).items()}
    means = set()
    for number in (1, 2, 1):
        task = Task(0, BIG, number, "big", 39, 1.0)
        upload, *_ = trained(method, task, known, x, y, list(range(1, 40)))
        means.add(float(upload["fc.weight"][0, 0]) / -0.125)
    assert len(means) == 2 and all(5.5 <= mean <= 36.5 and mean * 8 % 1 == 0 for mean in means)


def test_a_client_without_examples_sends_zeros() -> None:
    """Not what the client before it has left in the gradient buffer."""
    method = method_of((1, 1), 2)
    known = published(method, state_of(method), BIG)
    trainer, data = trainer_of(method, BIG, EXAMPLES, LABELS)
    uploads = []
    for examples in ([0, 1], []):
        client = Client(Task(0, BIG, 1, "big", 1, 1.0), known, np.array(examples, np.int64), 0)
        method.narrow(known, BIG, trainer.net.params, client)
        work = LocalWork(data, 1, 0.5, MaskedCrossEntropy(None), torch.Generator().manual_seed(1))
        method.train(trainer, client, work)
        uploads.append(method.upload(trainer.net, client))
    assert bool(uploads[0]["fc.weight"].any()) and not any(bool(value.any()) for value in uploads[1].values())


# An iteration by hand.


def test_fedsgd_by_hand() -> None:
    """1.0-BOTH-FULL with mse from W = 0, b = 0, where a = 1/2 and so delta = (1/2 - y) / 4, -1/8 or 1/8.

    Client 0, x = (1, 0, 0), label 0: G_W = (-1/8, 1/8)^T x, G_b = (-1/8, 1/8).
    Client 1, x = (2, 1, 0), label 1: G_W = (1/8, -1/8)^T x, G_b = (1/8, -1/8).
    Means: rows +-(1/16, 1/16, 0), and 0. At lr 2: W = -+(1/8, 1/8, 0).
    """
    method = method_of((2, 0), 2, pattern="both", loss="mse")
    start = state_of(method, weight=[[0.0] * 3] * 2, bias=[0.0, 0.0])

    def gradients(task: Task, known: Params) -> Params:
        return trained(method, task, known, EXAMPLES, LABELS, [task.client])[0]

    state = iteration(method, start, gradients, lr=2.0)
    assert {name: value.tolist() for name, value in state.items()} == {
        "fc.weight": [[-0.125, -0.125, 0.0], [0.125, 0.125, 0.0]],
        "fc.bias": [0.0, 0.0],
    }


def test_both_by_hand() -> None:
    """A big and a small device with the example x = (1, 0, 0), label 0, mse; W = A B^T and A B^T x + b = 0.

    delta = (-1/8, 1/8) for both. Big: G_W = delta x^T, so W = +-(1.125, 2, 0).
    Small: B^T x = 1, so G_A = delta and A = (1.125, -1.125); A^T delta = -1/4, so B^T = (1.25, 2, 0).
    A B^T = +-(1.40625, 2.25, 0); W+ = +-(1.265625, 2.125, 0); b = (-0.875, 0.875) in both.
    W+ has rank 1, so its SVD is exact up to the factors' float32.
    """
    method = method_of((1, 1), 2, pattern="both", loss="mse", layer_ranks={"fc": 1})
    layer = {"u.weight": [[1.0, 2.0, 0.0]], "v.weight": [[1.0], [-1.0]]}
    start = state_of(method, weight=[[1.0, 2.0, 0.0], [-1.0, -2.0, 0.0]], bias=[-1.0, 1.0], **layer)

    def gradients(task: Task, known: Params) -> Params:
        return trained(method, task, known, EXAMPLES, LABELS, [0])[0]

    state = iteration(method, start, gradients)
    assert list(state) == list(method.state_specs()) == list(start)
    assert state["fc.weight"].tolist() == [[1.265625, 2.125, 0.0], [-1.265625, -2.125, 0.0]]
    assert state["fc.bias"].tolist() == [-0.875, 0.875]
    torch.testing.assert_close(state["fc.v.weight"] @ state["fc.u.weight"], state["fc.weight"], rtol=1e-6, atol=1e-6)


def test_both_with_equal_nets_and_no_gradients_returns_w() -> None:
    method = method_of((1, 1), 2, pattern="both", layer_ranks={"fc": 1})
    layer = {"u.weight": [[1.0, 2.0, 3.0]], "v.weight": [[1.0], [-1.0]]}
    start = state_of(method, weight=[[1.0, 2.0, 3.0], [-1.0, -2.0, -3.0]], bias=[5.0, 7.0], **layer)
    state = iteration(method, start, constant())
    assert torch.equal(state["fc.weight"], start["fc.weight"]) and torch.equal(state["fc.bias"], start["fc.bias"])


def test_both_halves_what_small_devices_lack() -> None:
    """W = diag(4, 3): r = 1 keeps 4, so without gradients 3 becomes 3/2, then 3/4; of the energy 16 + s^2, s^2 lies
    beyond."""
    method = method_of((1, 1), 2, pattern="both", layer_ranks={"fc": 1})
    layer = {"u.weight": [[2.0, 0.0, 0.0]], "v.weight": [[2.0], [0.0]]}
    state = state_of(method, weight=[[4.0, 0.0, 0.0], [0.0, 3.0, 0.0]], **layer)
    for number, left in ((1, 1.5), (2, 0.75)):
        state = iteration(method, state, constant(), number=number)
        expected = torch.tensor([[4.0, 0.0, 0.0], [0.0, left, 0.0]])
        torch.testing.assert_close(state["fc.weight"], expected, rtol=1e-6, atol=1e-6)
        share = beyond(method.diagnostics(state, {}, Contributions(Phase("small"), number, 0.1, [])), "small")
        assert share == pytest.approx(left**2 / (16 + left**2), rel=1e-3)


@pytest.mark.parametrize("lost", [BIG, SMALL])
def test_both_without_one_group(lost: int) -> None:
    """Big devices lost: W+ = (A B^T + W) / 2 with W as it was, ((2 - 1) + 4) / 2 at the top left (A gains -1).
    Small ones lost: the round has not happened."""
    method = method_of((1, 1), 2, pattern="both", layer_ranks={"fc": 1})
    layer = {"u.weight": [[1.0, 0.0, 0.0]], "v.weight": [[2.0], [0.0]]}
    start = state_of(method, weight=[[4.0, 0.0, 0.0], [0.0] * 3], **layer)
    given = constant(**{"weight": [[9.0] * 3] * 2, "v.weight": [[1.0], [0.0]]})
    state = iteration(method, start, lambda task, known: None if task.tier == lost else given(task, known))
    expected = 2.5 if lost == BIG else 4.0
    assert published(method, state, BIG)["fc.weight"].tolist() == [[expected, 0.0, 0.0], [0.0] * 3]
    again = iteration(method, state, constant(), number=2)
    assert list(again) == list(start)


def test_a_round_that_lost_its_small_devices_leaves_nothing_behind() -> None:
    """Big devices step by -9 in the first round, of which nothing comes; in the second they are lost. With W[0, 0] = 4
    and (A B^T)[0, 0] = 2 the mean is 3, and 0 elsewhere."""
    method = method_of((1, 1), 2, pattern="both", layer_ranks={"fc": 1})
    layer = {"u.weight": [[1.0, 0.0, 0.0]], "v.weight": [[2.0], [0.0]]}
    start = state_of(method, weight=[[4.0, 0.0, 0.0], [0.0] * 3], **layer)
    given = constant(weight=[[9.0] * 3] * 2)
    first = iteration(method, start, lambda task, known: None if task.tier == SMALL else given(task, known))
    state = iteration(
        method, first, lambda task, known: None if task.tier == BIG else constant()(task, known), number=2
    )
    assert published(method, state, BIG)["fc.weight"].tolist() == [[3.0, 0.0, 0.0], [0.0] * 3]


SECOND = {"v.weight": [[1.0], [-1.0]], "u.weight": [[0.0, -1.0, 0.0]]}


def test_switch_by_hand() -> None:
    """Big devices: W = diag(3 + 1), so A = (2, 0), B = (2, 0, 0). Small ones: A = (1, 1), B = (2, 1, 0).
    In the second round big devices make W = diag(2 + 7), so A = (3, 0); small ones have no gradient."""
    method = method_of((1, 1), 2, pattern="switch", layer_ranks={"fc": 1})
    start = state_of(method, weight=[[3.0, 0.0, 0.0], [0.0] * 3], bias=[0.0, 1.0])
    seen = []

    def gradients(task: Task, known: Params) -> Params:
        seen.append({name: value.clone() for name, value in known.items()})
        given = {"weight": [[-1.0, 0.0, 0.0], [0.0] * 3], "bias": [1.0, 1.0], **SECOND}
        return constant(**given)(task, known)

    state = iteration(method, start, gradients)
    assert "fc.weight" not in seen[1] and seen[1]["fc.v.weight"].flatten().tolist() == pytest.approx([2, 0], abs=1e-6)
    assert state["fc.v.weight"].flatten().tolist() == pytest.approx([1, 1], abs=1e-6)
    assert state["fc.u.weight"].flatten().tolist() == pytest.approx([2, 1, 0], abs=1e-6)
    assert state["fc.weight"].flatten().tolist() == pytest.approx([2, 1, 0, 2, 1, 0], abs=1e-5)
    assert state["fc.bias"].tolist() == [-2.0, -1.0]
    second = iteration(method, state, constant(weight=[[-7.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), number=2)
    assert second[A].flatten().tolist() == pytest.approx([3, 0], abs=1e-5)


def test_bfirst_by_hand() -> None:
    """One round of the big devices as above, tested on both nets; then the small ones continue from the SVD, and in the
    third round from their own factors, which no SVD balances again."""
    method = method_of((1, 1), 2, pattern="bfirst", switch_round=1, layer_ranks={"fc": 1})
    start = state_of(method, weight=[[3.0, 0.0, 0.0], [0.0] * 3], bias=[0.0, 1.0])
    first = iteration(method, start, constant(weight=[[-1.0, 0.0, 0.0], [0.0] * 3]))
    tested = published(method, first, BIG, SMALL)
    assert tested["fc.weight"].tolist() == [[4.0, 0.0, 0.0], [0.0] * 3]
    assert tested["fc.v.weight"].flatten().tolist() == pytest.approx([2, 0], abs=1e-6)
    second = iteration(method, first, constant(**SECOND), number=2)
    assert second["fc.weight"].flatten().tolist() == pytest.approx([2, 1, 0, 2, 1, 0], abs=1e-5)
    third = iteration(method, second, constant(), number=3)
    assert all(torch.equal(third[name], second[name]) for name in second)
    assert [[phase.name for phase in method.phases(number)] for number in (1, 2)] == [["big"], ["small"]]


# Whole runs.


@pytest.mark.parametrize("words", [(), ("train.weight_decay=0.01", "train.clip_norm=0.3", "train.masked_loss=false")])
def test_only_big_devices_are_fedsgd(tmp_path: Path, words: tuple[str, ...]) -> None:
    """1.0-BOTH-FULL is FedAvg with one full batch, in a cohort of all clients so that both draw the same.

    One round; W - lr mean(G) against mean(W - lr G), and batches in other orders: float32 rounding.
    """
    once = ("clients.per_round=8", "train.batch_size=64", "train.augment=false", "rounds=1", *MLP[1:], *words)
    ours = after(tmp_path / "a", "method.name=fdnnc", "method.big_share=1", "method.pattern=both", *once).server
    theirs = after(tmp_path / "b", "method.name=fedavg", *once).server
    start = small_setup(tmp_path, "method.name=fedavg", *once).method.initial_state()
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-7)
        assert not torch.equal(value, start[name])


@pytest.mark.parametrize("upload", ["full", "half"])
@pytest.mark.parametrize("pattern", ["switch", "bfirst", "both"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_both_nets_are_one_in_the_end(tmp_path: Path, pattern: str, upload: str, share: float) -> None:
    """SWITCH and BFIRST: W is A B^T to the bit, so both nets score alike (48 examples, 4 classes); so do they with
    small devices alone. In BOTH, and with big ones alone, the small net is W's truncation."""
    words = (f"method.pattern={pattern}", f"method.upload={upload}", f"method.big_share={share}")
    state = after(tmp_path, *MLP, *words, "method.switch_round=2", "evaluation.every=1").server
    method = small_setup(tmp_path / "setup", *MLP, *words, "method.switch_round=2").method
    scores = finished(tmp_path).records[-1]["tiers"]
    nets = published(method, state, BIG, SMALL)
    composed = nets["layers.0.v.weight"] @ nets["layers.0.u.weight"]
    gap = float((composed - nets["layers.0.weight"]).norm() / nets["layers.0.weight"].norm())
    if share == 0 or (share < 1 and pattern != "both"):
        assert gap < 1e-6 and scores["big"]["accuracy"] == scores["small"]["accuracy"]
    else:
        assert gap > 0.01
