"""FDNNC: eq. 6, an iteration of each pattern by hand, its limits and whole runs, who sends what (CEFO), what it costs,
which layers have factors, how large cohorts are."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import after, numbers
from narrow_nets import PLAIN, context, exchanged, flat
from small_runs import finished, small_setup
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi.check.contract import published_for
from fedmpi.config.schema import Clients, Train
from fedmpi.data.batches import DeviceData
from fedmpi.data.dataset import DataInfo, Dataset
from fedmpi.errors import UserError
from fedmpi.federation.assignment import Task
from fedmpi.federation.tiers import tier_of
from fedmpi.learning.local import LocalTrainer, MaskedCrossEntropy
from fedmpi.methods.fdnnc import BIG, FDNNC, SMALL, FDNNCOptions
from fedmpi.methods.protocol import renumbered
from fedmpi.methods.values import Client, ClientLoad, Contributions, LocalWork
from fedmpi.rounds.state import plan_phase
from fedmpi.running.remarks import equal_tiers
from fedmpi.tensors import Params

A, BT = "fc.v.weight", "fc.u.weight"
"""As the server calls them: v is applied last, u first."""
EXAMPLES = torch.tensor([[1.0, 0.0, 0.0], [2.0, 1.0, 0.0], [0.0, -1.0, 3.0]])
LABELS = torch.tensor([0, 1, 1])
MLP = ("method.name=fdnnc", "model.name=mlp", "model.hidden=[16]")
ZERO = [0.0, 0.0, 0.0]


def one_layer() -> nn.Module:
    """Three inputs, two outputs: the smallest layer that r = 1 makes smaller (5 numbers for 6)."""
    return nn.Sequential(OrderedDict(fc=nn.Linear(3, 2)))


def two_layers() -> nn.Module:
    """Six inputs, five hidden units, three outputs."""
    return nn.Sequential(OrderedDict(fc1=nn.Linear(6, 5), act=nn.ReLU(), fc2=nn.Linear(5, 3)))


def method_of(
    blocks: tuple[int, int], per_round: int, net: Callable[[], nn.Module] = one_layer, **options: object
) -> FDNNC:
    """Of so many big and small devices; rank 1 unless the options say otherwise."""

    def make(*ignored: object) -> nn.Module:
        torch.manual_seed(0)
        return net()

    clients, train = Clients(count=sum(blocks), per_round=per_round), PLAIN.model_copy(update={"batch_size": 8})
    options = {"layer_ranks": {"*": 1}} | options
    return FDNNC(context(FDNNCOptions(**options), make, clients=clients, tier_blocks=blocks, train=train))


def tensors(w: list | None = None, a: list | None = None, bt: list | None = None, b: list | None = None) -> Params:
    """Those of the one layer that are given: A is a column, B^T a row."""
    given = {"fc.weight": w, A: a and [[value] for value in a], BT: bt and [bt], "fc.bias": b}
    return {name: torch.tensor(value) for name, value in given.items() if value is not None}


def layer(method: FDNNC, *given: list | None, **more: list) -> Params:
    """The state with these values of the one layer; b is 0 if it is not given."""
    return method.initial_state() | {"fc.bias": torch.zeros(2)} | tensors(*given, **more)


def weights_of_big(method: FDNNC, state: Params) -> list[float]:
    return numbers(published_for(method, state, (BIG,)), "fc.weight")


Gradients = Callable[[Task, Params], Mapping[str, Tensor] | None]


def iteration(method: FDNNC, state: Params, gradients: Gradients, *, lr: float = 1.0, number: int = 1) -> Params:
    """A round in which the first clients of each group take part; `gradients` are theirs, None of one that diverges."""
    for phase in method.phases(number):
        (tier,) = phase.tiers
        first, count = (0, method.blocks[BIG])[tier], phase.num_clients
        known = published_for(method, state, (tier,))
        uploads, contributed = [], []
        for place in range(count):
            task = Task(first + place, tier, number, phase.name, 1, 1.0, place, count)
            sent = gradients(task, known)
            if sent:
                sent = {name: sent[name] for name in method.upload_specs(task.tier, task)}
                contributed.append(task)
            uploads.append((Client(task, known, np.arange(1), 0), sent))
        results = exchanged(method, state, *uploads)
        if contributed:
            contributions = Contributions(phase, number, lr, contributed, results.shares)
            state = method.update(state, results.means, contributions)
    return state


def constant(*given: list, **more: list) -> Gradients:
    """Everybody's gradients; what is not given is zero."""
    fixed = tensors(*given, **more)
    return lambda task, known: {name: torch.zeros(value.shape) for name, value in known.items()} | fixed


def without(tier: int, gradients: Gradients) -> Gradients:
    """The clients of a tier diverge."""
    return lambda task, known: None if task.tier == tier else gradients(task, known)


class Device:
    """Trains clients of one tier, which own some of the examples, one after the other."""

    def __init__(self, method: FDNNC, tier: int, x: Tensor = EXAMPLES, y: Tensor = LABELS) -> None:
        self.method, self.tier = method, tier
        info = DataInfo("vector", (x.shape[1],), int(y.max()) + 1, len(y), len(y))
        data = DeviceData(info, Dataset(x.numpy(), y.numpy(), x.numpy(), y.numpy()), "cpu", augment=False)
        self.net = flat(method, tier, published_for(method, method.initial_state(), (tier,)))
        self.trainer = LocalTrainer(self.net, data, Train(batch_size=8), [])

    def upload(self, known: Params, examples: list[int], number: int = 1) -> Params:
        task = Task(0, self.tier, number, ("big", "small")[self.tier], len(examples), 1.0)
        client = Client(task, known, np.array(examples, np.int64), 0)
        self.method.narrow(known, self.tier, self.net.params, client)
        before = {name: value.clone() for name, value in self.net.params.items()}
        work = LocalWork(self.trainer.data, 3, 0.5, MaskedCrossEntropy(None), torch.Generator().manual_seed(1))
        assert self.method.train(self.trainer, client, work).steps <= 1, "one batch, whatever the epochs"
        assert all(torch.equal(self.net.params[name], value) for name, value in before.items()), "and no step"
        return {name: value.clone() for name, value in self.method.upload(self.net, client).items()}


# What a client does.


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_eqs_5_and_6(loss: str) -> None:
    """Against the paper's formulas in float64, for the two layers of a small device's net.

    delta^2 is a - y of softmax under cross-entropy, (a - y) a (1 - a) of the sigmoid under mse, both over the batch
    size; delta^1 = (A^2 B^2T)^T delta^2 where z^1 > 0. float32 sums of up to 8 terms: 1e-6.
    """
    method = method_of((0, 2), 2, two_layers, loss=loss)
    torch.manual_seed(3)
    x, y = torch.randn(8, 6), torch.arange(8) % 3
    state = {name: torch.randn(value.shape) for name, value in method.initial_state().items()}
    upload = Device(method, SMALL, x, y).upload(published_for(method, state, (SMALL,)), list(range(8)))

    p = {name: value.double() for name, value in state.items()}
    z1 = x.double() @ p["fc1.u.weight"].t() @ p["fc1.v.weight"].t() + p["fc1.bias"]
    z2 = z1.relu() @ p["fc2.u.weight"].t() @ p["fc2.v.weight"].t() + p["fc2.bias"]
    wanted = F.one_hot(y, 3).double()
    a2 = z2.sigmoid()
    delta2 = ((a2 - wanted) * a2 * (1 - a2) if loss == "mse" else z2.softmax(1) - wanted) / 8
    delta1 = delta2 @ p["fc2.v.weight"] @ p["fc2.u.weight"] * (z1 > 0)
    for name, delta, below in (("fc1", delta1, x.double()), ("fc2", delta2, z1.relu())):
        bt, a = p[f"{name}.u.weight"], p[f"{name}.v.weight"]
        expected = {"v.weight": delta.t() @ below @ bt.t(), "u.weight": a.t() @ delta.t() @ below, "bias": delta.sum(0)}
        for short, value in expected.items():
            torch.testing.assert_close(upload[f"{name}.{short}"].double(), value, rtol=1e-5, atol=1e-6)
    assert [method.count_training(ClientLoad(SMALL, count)).examples for count in (3, 100)] == [3, 8]


def test_a_client_without_examples_sends_zeros() -> None:
    """Not what the client before it has left in the gradient buffer."""
    method = method_of((1, 1), 2)
    known, device = published_for(method, layer(method), (BIG,)), Device(method, BIG)
    uploads = [device.upload(known, examples) for examples in ([0, 1], [])]
    assert bool(uploads[0]["fc.weight"].any()) and not any(bool(value.any()) for value in uploads[1].values())


# An iteration by hand.


def test_fedsgd_by_hand() -> None:
    """1.0-BOTH-FULL with mse from W = 0, b = 0, where a = 1/2 and so delta = (1/2 - y) / 4, -1/8 or 1/8.

    Client 0, x = (1, 0, 0), label 0: G_W = (-1/8, 1/8)^T x, G_b = (-1/8, 1/8).
    Client 1, x = (2, 1, 0), label 1: G_W = (1/8, -1/8)^T x, G_b = (1/8, -1/8).
    Means: rows +-(1/16, 1/16, 0), and 0. At lr 2: W = -+(1/8, 1/8, 0).
    """
    method = method_of((2, 0), 2, pattern="both", loss="mse")
    device, start = Device(method, BIG), layer(method, w=[ZERO, ZERO])
    state = iteration(method, start, lambda task, known: device.upload(known, [task.client]), lr=2.0)
    assert numbers(state, "fc.weight") == [-0.125, -0.125, 0, 0.125, 0.125, 0] and numbers(state, "fc.bias") == [0, 0]


def test_both_by_hand() -> None:
    """A big and a small device with the example x = (1, 0, 0), label 0, mse; W = A B^T and A B^T x + b = 0.

    delta = (-1/8, 1/8) for both. Big: G_W = delta x^T, so W = +-(1.125, 2, 0).
    Small: B^T x = 1, so G_A = delta and A = (1.125, -1.125); A^T delta = -1/4, so B^T = (1.25, 2, 0).
    A B^T = +-(1.40625, 2.25, 0); W+ = +-(1.265625, 2.125, 0); b = (-0.875, 0.875) in both.
    W+ has rank 1, so its SVD is exact up to the factors' float32.
    """
    method = method_of((1, 1), 2, pattern="both", loss="mse")
    start = layer(method, [[1.0, 2.0, 0.0], [-1.0, -2.0, 0.0]], [1.0, -1.0], [1.0, 2.0, 0.0], [-1.0, 1.0])
    state = iteration(method, start, lambda task, known: Device(method, task.tier).upload(known, [0]))
    assert list(state) == list(method.state_specs()) == list(start)
    assert numbers(state, "fc.weight") == [1.265625, 2.125, 0.0, -1.265625, -2.125, 0.0]
    assert numbers(state, "fc.bias") == [-0.875, 0.875]
    torch.testing.assert_close(state[A] @ state[BT], state["fc.weight"], rtol=1e-6, atol=1e-6)


def test_both_halves_what_small_devices_lack() -> None:
    """W = diag(4, 3): r = 1 keeps 4, so without gradients 3 becomes 3/2, then 3/4."""
    method = method_of((1, 1), 2, pattern="both")
    state = layer(method, [[4.0, 0.0, 0.0], [0.0, 3.0, 0.0]], [2.0, 0.0], [2.0, 0.0, 0.0])
    for number, left in ((1, 1.5), (2, 0.75)):
        state = iteration(method, state, constant(), number=number)
        assert numbers(state, "fc.weight") == pytest.approx([4, 0, 0, 0, left, 0], abs=1e-6)


def test_both_without_one_group() -> None:
    """W[0, 0] = 4 and (A B^T)[0, 0] = 2. Without small devices the round has not happened, whatever the big ones sent;
    without big ones, in the next round, W+ = (A B^T + W) / 2 with W as it was: (2 + 4) / 2, or 5/2 where A gains -1.
    Round 1 of a new run may follow as well: the old gradients, 9, are lost.
    """
    method = method_of((1, 1), 2, pattern="both")
    start = layer(method, [[4.0, 0.0, 0.0], ZERO], [2.0, 0.0], [1.0, 0.0, 0.0])
    first = iteration(method, start, without(SMALL, constant(w=[[9.0] * 3] * 2)))
    assert weights_of_big(method, first) == [4, 0, 0, 0, 0, 0]
    for gradients, expected in ((constant(), 3), (constant(a=[1.0, 0.0]), 2.5)):
        second = iteration(method, first, without(BIG, gradients), number=2)
        assert weights_of_big(method, second) == [expected, 0, 0, 0, 0, 0]
    assert list(iteration(method, second, constant(), number=3)) == list(start)
    new = iteration(method, renumbered(first, 1), without(BIG, constant()))
    assert weights_of_big(method, new) == [3, 0, 0, 0, 0, 0]


def test_switch_by_hand() -> None:
    """Big devices: W = diag(3 + 1), so A = (2, 0), B = (2, 0, 0). Small ones: A = (1, 1), B = (2, 1, 0).
    In the second round big devices make W = diag(2 + 7), so A = (3, 0); small ones have no gradient."""
    method = method_of((1, 1), 2, pattern="switch")
    seen = []

    def gradients(task: Task, known: Params) -> Mapping[str, Tensor] | None:
        seen.append({name: value.clone() for name, value in known.items()})
        return constant([[-1.0, 0.0, 0.0], ZERO], [1.0, -1.0], [0.0, -1.0, 0.0], [1.0, 1.0])(task, known)

    state = iteration(method, layer(method, [[3.0, 0.0, 0.0], ZERO], b=[0.0, 1.0]), gradients)
    assert "fc.weight" not in seen[1] and numbers(seen[1], A) == pytest.approx([2, 0], abs=1e-6)
    assert numbers(state, A) == pytest.approx([1, 1], abs=1e-6)
    assert numbers(state, BT) == pytest.approx([2, 1, 0], abs=1e-6)
    assert numbers(state, "fc.weight") == pytest.approx([2, 1, 0, 2, 1, 0], abs=1e-5)
    assert numbers(state, "fc.bias") == [-2.0, -1.0]
    second = iteration(method, state, constant([[-7.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), number=2)
    assert numbers(second, A) == pytest.approx([3, 0], abs=1e-5)


def test_bfirst_by_hand() -> None:
    """One round of the big devices as above, tested on both nets; then the small ones continue from the SVD, and in the
    third round from their own factors, which no SVD balances again."""
    method = method_of((1, 1), 2, pattern="bfirst", switch_round=1)
    start = layer(method, [[3.0, 0.0, 0.0], ZERO], b=[0.0, 1.0])
    first = iteration(method, start, constant([[-1.0, 0.0, 0.0], ZERO]))
    tested = published_for(method, first, (BIG, SMALL))
    assert numbers(tested, "fc.weight") == [4, 0, 0, 0, 0, 0] and numbers(tested, A) == pytest.approx([2, 0], abs=1e-6)
    second = iteration(method, first, constant(a=[1.0, -1.0], bt=[0.0, -1.0, 0.0]), number=2)
    assert numbers(second, "fc.weight") == pytest.approx([2, 1, 0, 2, 1, 0], abs=1e-5)
    third = iteration(method, second, constant(), number=3)
    assert all(torch.equal(third[name], second[name]) for name in second)
    assert [[phase.name for phase in method.phases(number)] for number in (1, 2)] == [["big"], ["small"]]


# Whole runs.


def test_only_big_devices_are_fedsgd(tmp_path: Path) -> None:
    """1.0-BOTH-FULL is FedAvg with one full batch, in a cohort of all clients so that both draw the same.

    One round; W - lr mean(G) against mean(W - lr G), and batches in other orders: float32 rounding.
    """
    once = ("clients.per_round=8", "train.batch_size=64", "train.augment=false", "rounds=1", *MLP[1:])
    once += ("train.weight_decay=0.01", "train.clip_norm=0.3", "train.masked_loss=false")
    ours = after(tmp_path / "a", "method.name=fdnnc", "method.big_share=1", "method.pattern=both", *once).server
    theirs = after(tmp_path / "b", "method.name=fedavg", *once).server
    start = small_setup(tmp_path, "method.name=fedavg", *once).method.initial_state()
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-7)
        assert not torch.equal(value, start[name])


@pytest.mark.parametrize("pattern", ["switch", "bfirst", "both"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_both_nets_are_one_in_the_end(tmp_path: Path, pattern: str, share: float) -> None:
    """SWITCH and BFIRST: W is A B^T to the bit, so both nets score alike (48 examples, 4 classes); so do they with
    small devices alone. In BOTH, and with big ones alone, the small net is W's truncation."""
    words = (*MLP, f"method.pattern={pattern}", "method.upload=half", f"method.big_share={share}")
    state = after(tmp_path, *words, "method.switch_round=2", "evaluation.every=1").server
    method = small_setup(tmp_path / "setup", *words, "method.switch_round=2").method
    scores = finished(tmp_path).records[-1]["tiers"]
    nets = published_for(method, state, (BIG, SMALL))
    composed = nets["layers.0.v.weight"] @ nets["layers.0.u.weight"]
    gap = float((composed - nets["layers.0.weight"]).norm() / nets["layers.0.weight"].norm())
    if share == 0 or (share < 1 and pattern != "both"):
        assert gap < 1e-6 and scores["big"]["accuracy"] == scores["small"]["accuracy"]
    else:
        assert gap > 0.01


def test_devices_may_change_their_size(tmp_path: Path) -> None:
    """Section III.D: a device is big in some rounds and small in others, and takes part in its phase of the round."""
    words = (*MLP, "clients.tier_assignment=dynamic", "method.pattern=both", "rounds=8")
    after(tmp_path, *words)
    setup = small_setup(tmp_path / "setup", *words)
    blocks = setup.participation.blocks
    sizes: dict[int, set[int]] = {}
    for number in range(1, 9):
        for phase in setup.method.phases(number):
            for task in plan_phase(setup, number, phase).tasks:
                assert setup.method.tiers[task.tier].name == phase.name
                assert tier_of(task.client, blocks, dynamic=True, seed=0, round_number=number) == task.tier
                sizes.setdefault(task.client, set()).add(task.tier)
    assert {BIG, SMALL} in sizes.values()


# CEFO.


def test_halves_by_hand() -> None:
    """Five clients, client p sends p + 1 in each entry: b steps by 3, A and B by the means over their senders. Where
    the senders of A diverge it stays, and the others' gradients step alone."""
    method = method_of((0, 5), 5, upload="half")
    start = {name: torch.zeros(value.shape) for name, value in layer(method).items()} | {BT: torch.ones(1, 3)}

    def gradients(task: Task, known: Params) -> Params:
        return {name: torch.full(value.shape, task.client + 1.0) for name, value in known.items()}

    def sends_a(task: Task) -> bool:
        return A in method.upload_specs(SMALL, task)

    tasks = [Task(place, SMALL, 1, "small", 1, 1.0, place, 5) for place in range(5)]
    of_a = [task.client + 1 for task in tasks if sends_a(task)]
    of_b = [task.client + 1 for task in tasks if BT in method.upload_specs(SMALL, task)]
    assert len(of_a) == 2 and sorted(of_a + of_b) == [1, 2, 3, 4, 5]
    state = iteration(method, start, gradients)
    assert numbers(state, "fc.bias") == [-3.0, -3.0] and numbers(state, A) == [-sum(of_a) / 2] * 2
    assert numbers(state, BT) == pytest.approx([1 - sum(of_b) / 3] * 3, rel=1e-6)
    alone = iteration(method, start, lambda task, known: None if sends_a(task) else gradients(task, known))
    assert numbers(alone, A) == [0.0, 0.0] and numbers(alone, BT) == pytest.approx([1 - sum(of_b) / 3] * 3, rel=1e-6)
    assert numbers(alone, "fc.bias") == pytest.approx([-sum(of_b) / 3] * 2, rel=1e-6)


def test_who_sends_a() -> None:
    """floor(c / 2) of c, others in other rounds; every place about half of the time; one client takes turns.

    400 rounds: half of them +- 5 standard deviations of 10.
    """
    method = method_of((0, 9), 9, upload="half")

    def senders(count: int, number: int) -> list[int]:
        tasks = (Task(place, SMALL, number, "small", 1, 1.0, place, count) for place in range(count))
        return [task.place for task in tasks if A in method.upload_specs(SMALL, task)]

    for count in (2, 5, 8):
        drawn = [senders(count, number) for number in range(1, 401)]
        assert {len(places) for places in drawn} == {count // 2} and len(set(map(tuple, drawn))) > 1
        often = np.bincount(np.concatenate(drawn), minlength=count)
        assert np.all(np.abs(often - 400 * (count // 2) / count) < 50)
    assert [senders(1, number) for number in (1, 2, 3, 4)] == [[0], [], [0], []]


# Sizes.


def test_uploaded_numbers() -> None:
    """Layers 5 x 6 (r = 2: 22 < 30) and 3 x 5 (r = 1: 8 < 15), M x N with biases of 5 and 3.

    Big: 30 + 5 + 15 + 3 = 53. FULL: 22 + 5 + 8 + 3 = 38. HALF: 11 + 5 + 4 + 3 = 23 on the average; with A
    (5 r + 3 r' = 13) 21, with B (6 r + 5 r' = 17) 25.
    """
    ranks = {"fc1": 2, "fc2": 1}
    full, half = (method_of((2, 4), 4, two_layers, upload=upload, layer_ranks=ranks) for upload in ("full", "half"))
    for method, small in ((full, 38), (half, 23)):
        planned = [method.costs(ClientLoad(tier)) for tier in (BIG, SMALL)]
        assert [(costs.down_bytes // 4, costs.up_bytes // 4) for costs in planned] == [(53, 53), (38, small)]
    clients = [Client(Task(2 + p, SMALL, 1, "small", 1, 1.0, p, 4), {}, np.arange(1), 0) for p in range(4)]
    assert sorted(half.costs(ClientLoad.of(client)).up_bytes // 4 for client in clients) == [21, 21, 25, 25]
    assert {full.costs(ClientLoad.of(client)).up_bytes // 4 for client in clients} == {38}


def test_which_layers_are_factorized(tmp_path: Path) -> None:
    """r = ratio min(M, N) where that saves, the last layer included, convs never; `dense` and r by pattern."""

    def ranks(*words: str) -> dict[str, int]:
        return {name: layer.r(0) for name, layer in small_setup(tmp_path, *MLP, *words).method.layers.items()}

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

    assert [sizes((big, 200 - big), 20) for big in (0, 40, 140, 200)] == [[20], [4, 16], [14, 6], [20]]
    assert sizes((1, 99), 10) == [1, 9] and sizes((99, 1), 10) == [9, 1]
    assert FDNNCOptions(big_share=0.7).tier_blocks(200) == (140, 60)


def test_what_is_hardly_meant_is_said() -> None:
    assert method_of((1, 1), 2).warnings() == method_of((0, 2), 2, pattern="both").warnings() == ()
    assert "smaller" in equal_tiers(method_of((1, 1), 2, layer_ranks={"fc": 2}))[0]
    assert "FedSGD" in method_of((0, 2), 2, pattern="switch").warnings()[0]
