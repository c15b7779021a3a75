"""FDNNC: eq. 6, an iteration of each pattern by hand, its limits and whole runs, who sends what (CEFO), what it costs,
which layers have factors, how large cohorts are."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import after
from narrow_nets import PLAIN, context, exchanged
from small_runs import finished, small_setup
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi.check.contract import published_for
from fedmpi.config.schema import Clients, Train
from fedmpi.data.batches import DeviceData
from fedmpi.data.dataset import DataInfo, Dataset
from fedmpi.errors import UserError
from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import Buffers, FlatNet, net_layout
from fedmpi.learning.local import LocalTrainer, MaskedCrossEntropy, TrainOutcome
from fedmpi.lowrank.spectrum import beyond
from fedmpi.methods.fdnnc import BIG, FDNNC, SMALL, FDNNCOptions
from fedmpi.methods.values import Client, Contributions, LocalWork, Phase, Turn
from fedmpi.running.remarks import equal_tiers
from fedmpi.tensors import Params

A, BT = "fc.v.weight", "fc.u.weight"
"""As the server calls them: v is applied last, u first."""
EXAMPLES = torch.tensor([[1.0, 0.0, 0.0], [2.0, 1.0, 0.0], [0.0, -1.0, 3.0]])
LABELS = torch.tensor([0, 1, 1])
MLP = ("method.name=fdnnc", "model.name=mlp", "model.hidden=[16]")


def one_layer() -> nn.Module:
    """Three inputs, two outputs: the smallest layer that r = 1 makes smaller (5 numbers for 6)."""
    return nn.Sequential(OrderedDict(fc=nn.Linear(3, 2)))


def two_layers() -> nn.Module:
    """Six inputs, five hidden units, three outputs."""
    return nn.Sequential(OrderedDict(fc1=nn.Linear(6, 5), act=nn.ReLU(), fc2=nn.Linear(5, 3)))


def method_of(
    blocks: tuple[int, int], per_round: int, net: Callable[[], nn.Module] = one_layer, **options: object
) -> FDNNC:
    def make(*ignored: object) -> nn.Module:
        torch.manual_seed(0)
        return net()

    clients, train = Clients(count=sum(blocks), per_round=per_round), PLAIN.model_copy(update={"batch_size": 8})
    return FDNNC(context(FDNNCOptions(**options), make, clients=clients, tier_blocks=blocks, train=train))


def state_of(method: FDNNC, **values: list) -> Params:
    """The initial state, with what is given of the one layer."""
    state = method.initial_state()
    given = {f"fc.{short}": torch.tensor(value) for short, value in values.items()}
    assert all(state[name].shape == value.shape for name, value in given.items())
    return state | given


def published(method: FDNNC, state: Params, *nets: int) -> Params:
    return published_for(method, state, nets)


Gradients = Callable[[Task, Params], Mapping[str, Tensor] | None]


def iteration(
    method: FDNNC, state: Params, gradients: Gradients, *, lr: float = 1.0, number: int = 1, kind: str = "gather"
) -> Params:
    """A round in which the first clients of each group take part; `gradients` are theirs, None of one that diverges."""
    for phase in method.phases(number):
        (tier,) = phase.tiers
        first, count = (0, method.blocks[BIG])[tier], phase.num_clients
        tasks = [Task(first + place, tier, number, phase.name, 1, 1.0, place, count) for place in range(count)]
        known = published(method, state, tier)
        given = {task: gradients(task, known) for task in tasks}
        contributed = [task for task in tasks if given[task]]
        uploads = [
            (
                Client(task, known, np.arange(1), 0),
                sent and {name: sent[name] for name in method.upload_specs(task.tier, task)},
            )
            for task, sent in given.items()
        ]
        results = exchanged(method, state, *uploads, kind=kind)
        if contributed:
            brought = Contributions(phase, number, lr, contributed, results.shares)
            state = method.refresh(method.update(state, results.means, brought))
    return state


def constant(**gradients: list) -> Gradients:
    """Everybody's gradients; what is not given is zero."""
    named = {f"fc.{short}": torch.tensor(value) for short, value in gradients.items()}

    def of(task: Task, known: Params) -> Params:
        return {name: named.get(name, torch.zeros(value.shape)) for name, value in known.items()}

    return of


def trainer_of(method: FDNNC, tier: int, x: Tensor, y: Tensor) -> LocalTrainer:
    info = DataInfo("vector", (x.shape[1],), int(y.max()) + 1, len(y), len(y))
    data = DeviceData(info, Dataset(x.numpy(), y.numpy(), x.numpy(), y.numpy()), "cpu", augment=False)
    layout = net_layout(method.net(tier, empty=True).named_parameters(), [], channels_last=False)
    net = FlatNet(method.net(tier), layout, Buffers(layout.num_bytes, "cpu"))
    return LocalTrainer(net, data, Train(batch_size=8), [])


def trained(
    method: FDNNC,
    task: Task,
    known: Params,
    examples: list[int],
    x: Tensor = EXAMPLES,
    y: Tensor = LABELS,
    trainer: LocalTrainer | None = None,
) -> tuple[Params, FlatNet, TrainOutcome]:
    """Returns the upload of a client that owns these examples, the net that it leaves behind, and the outcome."""
    trainer = trainer or trainer_of(method, task.tier, x, y)
    client = Client(task, known, np.array(examples, np.int64), 0)
    method.narrow(known, task.tier, trainer.net.params, client)
    work = LocalWork(trainer.data, 3, 0.5, MaskedCrossEntropy(None), torch.Generator().manual_seed(1))
    outcome = method.train(trainer, client, work)
    return method.upload(trainer.net, client), trainer.net, outcome


# What a client does.


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_eqs_5_and_6(loss: str) -> None:
    """Against the paper's formulas in float64, for the two layers of a small device's net.

    delta^2 is a - y of softmax under cross-entropy, (a - y) a (1 - a) of the sigmoid under mse, both over the batch
    size; delta^1 = (A^2 B^2T)^T delta^2 where z^1 > 0. float32 sums of up to 8 terms: 1e-6.
    """
    method = method_of((0, 2), 2, two_layers, loss=loss, layer_ranks={"*": 1})
    torch.manual_seed(3)
    x, y = torch.randn(8, 6), torch.arange(8) % 3
    state = {name: torch.randn(value.shape) for name, value in method.initial_state().items()}
    known = published(method, state, SMALL)
    upload, *_ = trained(method, Task(0, SMALL, 1, "small", 8, 1.0), known, list(range(8)), x, y)

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
    _, net, outcome = trained(method, Task(0, BIG, 1, "big", 3, 1.0), known, [0, 1, 2])
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
        upload, *_ = trained(method, task, known, list(range(1, 40)), x, y)
        means.add(float(upload["fc.weight"][0, 0]) / -0.125)
    assert len(means) == 2 and all(5.5 <= mean <= 36.5 and mean * 8 % 1 == 0 for mean in means)


def test_a_client_without_examples_sends_zeros() -> None:
    """Not what the client before it has left in the gradient buffer."""
    method = method_of((1, 1), 2)
    known = published(method, state_of(method), BIG)
    trainer, task = trainer_of(method, BIG, EXAMPLES, LABELS), Task(0, BIG, 1, "big", 1, 1.0)
    uploads = [trained(method, task, known, examples, trainer=trainer)[0] for examples in ([0, 1], [])]
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
    state = iteration(method, start, lambda task, known: trained(method, task, known, [task.client])[0], lr=2.0)
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
    state = iteration(method, start, lambda task, known: trained(method, task, known, [0])[0])
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


# CEFO.


@pytest.mark.parametrize("kind", ["gather", "reduce"])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_halves_that_see_the_same_data_are_full(count: int, kind: str) -> None:
    """To the bit: means of equal numbers."""
    states = []
    for upload in ("full", "half"):
        method = method_of((0, 8), count, upload=upload, layer_ranks={"fc": 1})
        start = state_of(method, bias=[1.0, 2.0], **{"u.weight": [[1.0, 2.0, 3.0]], "v.weight": [[1.0], [2.0]]})
        given = constant(**{"u.weight": [[0.5, 0.25, 1.0]], "v.weight": [[3.0], [-1.0]], "bias": [0.5, 1.0]})
        states.append(iteration(method, start, given, lr=0.5, kind=kind))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert states[1]["fc.v.weight"].tolist() == [[-0.5], [2.5]]


def test_halves_by_hand() -> None:
    """Five clients, client p sends p + 1 in each entry: b steps by 3, A and B by the means over their senders."""
    method = method_of((0, 5), 5, upload="half", layer_ranks={"fc": 1})
    start = {name: torch.zeros(value.shape) for name, value in state_of(method).items()} | {BT: torch.ones(1, 3)}

    def gradients(task: Task, known: Params) -> Params:
        return {name: torch.full(value.shape, task.client + 1.0) for name, value in known.items()}

    tasks = [Task(place, SMALL, 1, "small", 1, 1.0, place, 5) for place in range(5)]
    of_a = [task.client + 1 for task in tasks if A in method.upload_specs(SMALL, task)]
    of_b = [task.client + 1 for task in tasks if BT in method.upload_specs(SMALL, task)]
    assert len(of_a) == 2 and sorted(of_a + of_b) == [1, 2, 3, 4, 5]
    state = iteration(method, start, gradients)
    assert state["fc.bias"].tolist() == [-3.0, -3.0]
    assert state[A].flatten().tolist() == [-sum(of_a) / 2] * 2
    assert state[BT].flatten().tolist() == pytest.approx([1 - sum(of_b) / 3] * 3, rel=1e-6)


def test_a_factor_that_nobody_sends_stays() -> None:
    """Both senders of A diverge: B and the bias step alone."""
    method = method_of((0, 4), 4, upload="half", layer_ranks={"fc": 1})
    start = state_of(method, bias=[0.0, 0.0], **{"u.weight": [[1.0, 2.0, 3.0]], "v.weight": [[1.0], [2.0]]})
    ones = constant(**{"u.weight": [[1.0] * 3], "v.weight": [[1.0], [1.0]], "bias": [1.0, 1.0]})
    state = iteration(
        method, start, lambda task, known: None if A in method.upload_specs(SMALL, task) else ones(task, known)
    )
    assert state[A].tolist() == [[1.0], [2.0]]
    assert state[BT].tolist() == [[0.0, 1.0, 2.0]] and state["fc.bias"].tolist() == [-1.0, -1.0]


def senders_of_a(method: FDNNC, count: int, number: int) -> list[int]:
    tasks = (Task(place, SMALL, number, "small", 1, 1.0, place, count) for place in range(count))
    return [task.place for task in tasks if A in method.upload_specs(SMALL, task)]


def test_who_sends_a() -> None:
    """floor(c / 2) of c, others in other rounds; every place about half of the time; one client takes turns.

    400 rounds: half of them +- 5 standard deviations of 10.
    """
    method = method_of((0, 9), 9, upload="half", layer_ranks={"fc": 1})
    for count in (2, 5, 8):
        drawn = [senders_of_a(method, count, number) for number in range(1, 401)]
        assert {len(places) for places in drawn} == {count // 2} and len(set(map(tuple, drawn))) > 1
        often = np.bincount(np.concatenate(drawn), minlength=count)
        assert np.all(np.abs(often - 400 * (count // 2) / count) < 50)
    assert [senders_of_a(method, 1, number) for number in (1, 2, 3, 4)] == [[0], [], [0], []]


@pytest.mark.parametrize("blocks", [(0, 1), (1, 1)])
def test_one_small_device_takes_turns(blocks: tuple[int, int]) -> None:
    method = method_of(blocks, 1, upload="half", layer_ranks={"fc": 1}, pattern="switch")
    state = state_of(method, **{"u.weight": [[1.0, 0.0, 0.0]], "v.weight": [[1.0], [0.0]]})
    state = state | ({"fc.weight": torch.tensor([[1.0, 0, 0], [0, 0, 0]])} if blocks[0] else {})
    given = constant(**{"u.weight": [[0.0, 1.0, 0.0]], "v.weight": [[0.0], [1.0]]})
    first = iteration(method, state, given, number=1)
    second = iteration(method, state, given, number=2)
    assert published(method, first, BIG)["fc.weight"].flatten().tolist() == pytest.approx([1, 0, 0, -1, 0, 0], abs=1e-6)
    assert published(method, second, BIG)["fc.weight"].flatten().tolist() == pytest.approx([1, -1] + [0] * 4, abs=1e-6)


# Sizes.


def test_uploaded_numbers() -> None:
    """Layers 5 x 6 (r = 2: 22 < 30) and 3 x 5 (r = 1: 8 < 15), M x N with biases of 5 and 3.

    Big: 30 + 5 + 15 + 3 = 53. FULL: 22 + 5 + 8 + 3 = 38. HALF: 11 + 5 + 4 + 3 = 23 on the average; with A
    (5 r + 3 r' = 13) 21, with B (6 r + 5 r' = 17) 25.
    """
    ranks = {"fc1": 2, "fc2": 1}
    full, half = (method_of((2, 4), 4, two_layers, upload=upload, layer_ranks=ranks) for upload in ("full", "half"))
    assert [full.costs(Turn(tier)).down_bytes // 4 for tier in (BIG, SMALL)] == [53, 38]
    assert [half.costs(Turn(tier)).down_bytes // 4 for tier in (BIG, SMALL)] == [53, 38]
    assert [full.costs(Turn(tier)).up_bytes // 4 for tier in (BIG, SMALL)] == [53, 38]
    assert [half.costs(Turn(tier)).up_bytes // 4 for tier in (BIG, SMALL)] == [53, 23]
    tasks = [Task(2 + place, SMALL, 1, "small", 1, 1.0, place, 4) for place in range(4)]
    clients = [Client(task, {}, np.arange(1), 0) for task in tasks]
    assert sorted(half.costs(Turn.of(client)).up_bytes // 4 for client in clients) == [21, 21, 25, 25]
    assert {half.costs(Turn.of(client)).down_bytes // 4 for client in clients} == {38}
    assert {full.costs(Turn.of(client)).up_bytes // 4 for client in clients} == {38}


def test_which_layers_are_factorized(tmp_path: Path) -> None:
    """r = ratio min(M, N) where that saves, the last layer included, convs never; `dense` and r by pattern."""

    def ranks(*words: str) -> dict[str, int]:
        method = small_setup(tmp_path, *MLP, *words).method
        assert isinstance(method, FDNNC)
        return {name: layer.r(0) for name, layer in method.layers.items()}

    assert ranks() == {"layers.0": 4, "layers.2": 1}  # 16 x 64, 4 x 16
    assert ranks("method.rank_ratio=0.75") == {"layers.0": 12, "layers.2": 3}  # 80 12 < 1024, 20 3 < 64
    assert ranks("method.rank_ratio=0.9") == {}  # 80 14 and 20 4
    assert ranks('method.layer_ranks={"layers.0": dense, "*.2": 2}') == {"layers.2": 2}
    convs = small_setup(tmp_path, "method.name=fdnnc", "method.rank_ratio=0.1").method
    assert [*convs.layers] == ["fc"]
    with pytest.raises(UserError, match="no layer matches"):
        ranks('method.layer_ranks={"layer.0": 2}')


def test_cohorts_are_shared_in_proportion() -> None:
    """The paper's 20 of 200 devices: 10 % of each group, and one at least; an empty group has no phase."""

    def sizes(blocks: tuple[int, int], per_round: int) -> list[int | None]:
        return [phase.num_clients for phase in method_of(blocks, per_round).phases(1)]

    assert [sizes((big, 200 - big), 20) for big in (0, 40, 100, 140, 200)] == [[20], [4, 16], [10, 10], [14, 6], [20]]
    assert sizes((1, 99), 10) == [1, 9] and sizes((99, 1), 10) == [9, 1]
    assert sizes((5, 5), 10) == [5, 5]
    assert FDNNCOptions(big_share=0.7).tier_blocks(200) == (140, 60)
    assert FDNNCOptions(big_share=0).tier_blocks(9) == (0, 9)


def test_what_is_hardly_meant_is_said() -> None:
    assert method_of((1, 1), 2, layer_ranks={"fc": 1}).warnings() == ()
    assert "smaller" in equal_tiers(method_of((1, 1), 2, layer_ranks={"fc": 2}))[0]
    assert "FedSGD" in method_of((0, 2), 2, layer_ranks={"fc": 1}, pattern="switch").warnings()[0]
    assert method_of((0, 2), 2, layer_ranks={"fc": 1}, pattern="both").warnings() == ()
