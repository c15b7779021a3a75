"""Hermes: which groups it prunes and when, training under a mask, both aggregations by hand, bytes, Table 3's sizes."""

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from by_hand import PLAIN, Bench, after, numbers
from golden_file import Told
from narrow_nets import PLAINLY, chain, context, exchanged
from papers.nets import setting
from small_runs import small_setup
from torch import Tensor, nn

from fedmpi.errors import ConfigError, StartupError
from fedmpi.methods.hermes import Hermes, HermesOptions, _add_group_lasso
from fedmpi.methods.values import ClientLoad, Contributions, Phase
from fedmpi.models.surgery import groups
from fedmpi.models.surgery.cutting import cut
from fedmpi.running import start
from fedmpi.tensors import Params

HERMES = ("method.name=hermes", "method.accuracy_threshold=0")
MASK = {"prune_axes": "output", "share_of": "mask"}
"""Only outputs are pruned, and what is counted are the entries of the mask."""


# Local training.


def test_a_step_under_a_mask_by_hand() -> None:
    """y = v (W x) with hidden units 0 and 1 of three, x = (1, 1), y = 0, and no activation.

    Units give 2, 4 and 0.5, v = 1: unit 2 is the weakest and goes (0.23 of 9 numbers is one row of 2).
    Then y = 6, dL/dv = 6 (2, 4, 0), dL/dW = 6 (1, 1) for units 0 and 1; lr 1/64: W - 6/64, v - (12, 24, 0) / 64.
    The outgoing weight of the pruned unit is no part of its group: it stays at 1.
    """
    options = HermesOptions(prune_rate=0.23, **MASK, **PLAINLY)
    train = PLAIN.model_copy(update={"lr": 1 / 64})
    bench = Bench(Hermes, options, [[1.0, 1.0]], [0], [[0]], train, net=lambda: chain(2, 3, act=False))
    state = bench.start(1.0, 1.0, 2.0, 2.0, 0.25, 0.25, 1.0, 1.0, 1.0)
    client, upload = bench.trained(0, state)
    step = 6 / 64
    assert numbers(upload, "0.weight") == [1 - step, 1 - step, 2 - step, 2 - step, 0, 0]
    assert numbers(upload, "2.weight") == [1 - 2 * step, 1 - 4 * step, 1.0]
    assert bench.memories[0]["out.0"].tolist() == [True, True, False]
    lifted = dict(bench.method.lift(upload, client))
    assert numbers(lifted, "0.weight") == [1 - step, 1 - step, 2 - step, 2 - step]
    assert numbers(lifted, "2.weight") == numbers(upload, "2.weight")


def test_masked_weights_stay_at_zero(tmp_path: Path) -> None:
    """With momentum, weight decay and group lasso on, on a ResNet with its norms, over all rounds: what comes back
    is zero exactly where the memory says so, and the server still has values there."""
    words = (*HERMES, "method.group_lasso=0.01", "train.weight_decay=0.1")
    setup = small_setup(tmp_path, *words)
    left = after(tmp_path / "run", *words, "rounds=4")
    pruned = 0
    for memory in left.memories.values():
        kept = groups.kept_entries(setup.method.structure, memory)
        for name in setup.method.state_specs():
            value = memory[f"own..{name}"]
            outside = torch.ones(value.shape, dtype=torch.bool)
            if name in kept:
                outside[groups.region(kept[name])] = False
                assert not bool(value[outside].any()), name
                assert bool(left.server[name][outside].any()) or name.endswith("bias")
                pruned += int(outside.sum())
            assert bool((value[~outside] if name in kept else value).any()) or name.endswith("bias")
    assert pruned > 1000


def test_group_lasso_is_the_gradient_of_equation_3() -> None:
    """Against autograd, float32 (1e-6); groups of zeros and of tiny numbers get finite gradients, zeros get 0."""
    generator = torch.Generator().manual_seed(0)
    params = {
        "conv.weight": torch.randn(4, 3, 3, 3, generator=generator).to(memory_format=torch.channels_last),
        "fc.weight": torch.randn(5, 7, generator=generator),
    }
    grads = {name: torch.ones_like(value) for name, value in params.items()}
    _add_group_lasso(SimpleNamespace(params=params, grads=grads), params, 0.3)
    weights = [value.clone().requires_grad_() for value in params.values()]
    # Eq. 2: filters and channels of convs, rows and columns of linear layers.
    rows = [weight[row].norm() for weight in weights for row in range(weight.shape[0])]
    columns = [weight[:, column].norm() for weight in weights for column in range(weight.shape[1])]
    (0.3 * sum(rows + columns)).backward()
    for weight, found in zip(weights, grads.values(), strict=True):
        torch.testing.assert_close(found - 1, weight.grad, rtol=1e-5, atol=1e-6)
    params["fc.weight"][:] = 0.0
    params["fc.weight"][0, 0] = 1e-30
    grads = {name: torch.zeros_like(value) for name, value in params.items()}
    _add_group_lasso(SimpleNamespace(params=params, grads=grads), params, 1.0)
    assert not bool(grads["fc.weight"][1:].any()) and 0 <= float(grads["fc.weight"][0, 0]) <= 2


# Aggregation.


def aggregated(bench: Bench, state: Params, round_number: int, sent: dict[int, Params]) -> tuple[Params, float]:
    """Returns the state after a round of these uploads, and by the record the share of numbers that a client keeps.
    A row or column of zeros in an upload is pruned."""
    for number, upload in sent.items():
        client = bench.client(number, state, round_number)
        for name, value in upload.items():
            bench.trainer.net.params[name].copy_(value)
        weights = {name: value for name, value in upload.items() if name.endswith("weight")}
        first, *_, last = weights
        client.scratch.update({f"out.{name[0]}": value.any(1) for name, value in weights.items() if name != last})
        client.scratch.update({f"in.{name[0]}": value.any(0) for name, value in weights.items() if name != first})
        remembered = bench.method.remember(bench.trainer.net, client)
        bench.memories[number] = {name: value.clone() for name, value in remembered.items()}
    clients = [bench.client(number, state, round_number) for number in sent]
    results = exchanged(bench.method, state, *((client, sent[client.task.client]) for client in clients))
    contributions = Contributions(Phase(), round_number, 0.1, [client.task for client in clients], results.shares)
    share = bench.method.diagnostics(state, {}, contributions)["mask_share"]
    return bench.method.update(state, results.means, contributions), share


def rows(*numbers: float) -> Params:
    """An upload of 1 -> 4 -> 1: these in the first layer, 2 everywhere in the second."""
    return {"0.weight": torch.tensor(numbers)[:, None], "2.weight": torch.full((1, 4), 2.0)}


def test_all_by_hand() -> None:
    """Each client holds some of the rows of a first layer 1 -> 4; the second layer is everybody's.

    Round 1, clients 0 and 1: only row 0 is everybody's, (2 + 6) / 2; the others keep their theta.
    Each continues with its own rows beside it: client 0 with 2, client 1 with 6, client 2 with theta. In round 2
    client 1 takes part alone with 8 and writes rows 0 and 2. In round 3 client 0, which was away, finds a newer
    row 0 but nothing newer in row 1; a client that was there in round 2 finds theta equal to its own.
    """
    options = HermesOptions(accuracy_threshold=1.0, **PLAINLY)
    bench = Bench(Hermes, options, [[1.0]], [0], [[0]] * 3, net=lambda: chain(1, 4))
    state = bench.start(10.0, 20.0, 30.0, 40.0, 1.0, 1.0, 1.0, 1.0)
    state, share = aggregated(bench, state, 1, {0: rows(2.0, 2.0, 0.0, 0.0), 1: rows(6.0, 0.0, 6.0, 0.0)})
    assert share == (2 + 4) / 8
    assert numbers(state, "0.weight") == [4.0, 20.0, 30.0, 40.0]
    assert numbers(state, "round..0.weight") == [1, 0, 0, 0] and numbers(state, "round..2.weight") == [1] * 4
    for number, expected in enumerate([[4.0, 2.0, 0.0, 0.0], [4.0, 0.0, 6.0, 0.0], [4.0, 20.0, 30.0, 40.0]]):
        bench.client(number, state, 2)
        assert numbers(bench.trainer.net.params, "0.weight") == expected
    state, _ = aggregated(bench, state, 2, {1: rows(8.0, 0.0, 8.0, 0.0)})
    assert numbers(state, "0.weight") == [8.0, 20.0, 8.0, 40.0]
    assert numbers(state, "round..0.weight") == [2, 0, 2, 0]
    for number, expected in enumerate([[8.0, 2.0, 0.0, 0.0], [8.0, 0.0, 8.0, 0.0]]):
        bench.client(number, state, 3)
        assert numbers(bench.trainer.net.params, "0.weight") == expected


@pytest.mark.parametrize(("weighting", "first", "second"), [("uniform", 3.0, 5.0), ("samples", 4.0, 6.0)])
@pytest.mark.parametrize("intersection", ["all", "holders"])
def test_both_axes_by_hand(intersection: str, weighting: str, first: float, second: float) -> None:
    """1 -> 3 -> 2 -> 1. Client 0 (one example) has lost the second layer's unit 1, client 1 (three) the first's unit 2.

    Of the second layer both hold row 0 in columns 0 and 1, where client 0 sends 1 and 3, and client 1 sends 5 and 7:
    means 3 and 5, or (1 + 3 x 5) / 4 = 4 and (3 + 3 x 7) / 4 = 6; in the first and the third layer, too. Column 2 of
    row 0 is client 0's, the rest of row 1 client 1's, and column 2 of row 1 nobody's. Then each has the means and its
    own.
    """
    layers = nn.Linear(1, 3), nn.Linear(3, 2), nn.Linear(2, 1)
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    options = HermesOptions(intersection=intersection, weighting=weighting, accuracy_threshold=1.0, **PLAINLY)
    bench = Bench(Hermes, options, [[1.0]], [0], [[0], [0, 0, 0]], net=lambda: net)
    sent = {
        0: tree([[1.0], [3.0], [9.0]], [[1.0, 3.0, 9.0], [0.0, 0.0, 0.0]], [[1.0, 0.0]], 3.0),
        1: tree([[5.0], [7.0], [0.0]], [[5.0, 7.0, 0.0], [8.0, 8.0, 0.0]], [[5.0, 8.0]], 7.0),
    }
    theta = tree([[10.0], [20.0], [30.0]], [[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]], [[10.0, 40.0]], 20.0)
    state, _ = aggregated(bench, {**bench.method.initial_state(), **theta}, 1, sent)
    alone = (30.0, 40.0, 50.0, 40.0) if intersection == "all" else (9.0, 8.0, 8.0, 8.0)
    expected = tree(
        [[first], [second], [alone[0]]],
        [[first, second, alone[0]], [alone[1], alone[2], 60.0]],
        [[first, alone[3]]],
        second,
    )
    for name, value in expected.items():
        assert torch.equal(state[name], value), name
    own = {
        0: tree([[first], [second], [9.0]], [[first, second, 9.0], [0.0, 0.0, 0.0]], [[first, 0.0]], second),
        1: tree([[first], [second], [0.0]], [[first, second, 0.0], [8.0, 8.0, 0.0]], [[first, 8.0]], second),
    }
    for number, values in own.items():
        bench.client(number, state, 2)
        for name, value in values.items():
            assert torch.equal(bench.trainer.net.params[name], value), name


def tree(one: list[list[float]], two: list[list[float]], three: list[list[float]], last_bias: float) -> Params:
    """The weights of 1 -> 3 -> 2 -> 1; each unit of the hidden layers has the bias of its first weight."""
    weights = {"0": torch.tensor(one), "2": torch.tensor(two), "4": torch.tensor(three)}
    biases = {"0.bias": weights["0"][:, 0], "2.bias": weights["2"][:, 0], "4.bias": torch.tensor([last_bias])}
    return {f"{name}.weight": weight for name, weight in weights.items()} | biases


# The data.


def test_the_parts_are_the_same_in_every_round() -> None:
    """What trains and what validates does not depend on the round, but on the client. Three epochs over 80 of 100
    examples, and a forward pass, a third of a step, over 20 (all 3 where none is held out)."""
    options = HermesOptions(validation_share=0.5, accuracy_threshold=1.0)
    owned = [list(range(20)), list(range(20))]
    bench = Bench(Hermes, options, [[float(i)] for i in range(20)], [0, 1] * 10, owned, net=lambda: chain(1, 4))
    seen: list[list[int]] = []
    inner = bench.data.draws

    def noting(examples: np.ndarray, *rest: object) -> object:
        seen.append(sorted(examples.tolist()))
        return inner(examples, *rest)

    bench.data.draws = noting
    for number, round_number in ((0, 1), (0, 2), (1, 1)):
        bench.trained(number, bench.method.initial_state(), round_number)
    assert seen[0] == seen[1] != seen[2] and len(seen[0]) == 10
    thrice = Hermes(context(HermesOptions(), lambda: chain(1, 4), train=PLAIN.model_copy(update={"local_epochs": 3})))
    assert [thrice.count_training(ClientLoad(0, count)).macs([1.0]) for count in (100, 3)] == [240 + 20, 9 + 3]


# Pruning.


def method_of(net: nn.Module, **options: object) -> Hermes:
    """Hermes on a net, for what needs no clients."""
    return Hermes(context(HermesOptions(**options), lambda: net))


def test_remaining_shares_of_the_paper() -> None:
    """1, .8, .64, .512, .4096, .3277 (.32768), .3: exactly, on 15,625 rows of 5 and as many outgoing weights.

    Of 93,750 numbers 20 % and so on are multiples of 5 up to the last one; 0.3 is 28,125. Then it stays; what
    goes down and up are the numbers that the mask before and the new one keep, and a bit for each of all.
    """
    options = HermesOptions(**MASK, **PLAINLY)
    slow = PLAIN.model_copy(update={"lr": 2**-20})
    bench = Bench(Hermes, options, [[0.1] * 4], [0], [[0]], slow, net=lambda: chain(4, 15625, bias=True))
    state, held, mask_bytes = bench.method.initial_state(), [93750], math.ceil(93750 / 8)
    for round_number in range(1, 9):
        before = bench.memories.get(0)
        client, _ = bench.trained(0, state, round_number)
        held.append(round(bench.method.remaining_share(bench.memories[0]) * 93750))
        at_work = replace(client, recall=lambda memory=before: memory)
        costs = bench.method.costs(ClientLoad.of(at_work))
        assert (costs.down_bytes, costs.up_bytes) == (4 * held[-2], 4 * held[-1] + mask_bytes)
    assert held == [93750, 75000, 60000, 48000, 38400, 30720, 28125, 28125, 28125]
    assert bench.method.costs(ClientLoad(0)).up_bytes == 4 * 93750 + mask_bytes
    # What the last round saves both ways: 1 / 0.3, less the bits of the mask.
    assert 8 * 93750 / (costs.down_bytes + costs.up_bytes) == pytest.approx(8 / (8 * 0.3 + 1 / 8), abs=1e-4)


def naive_pruning(method: Hermes, params: Params, masks: Params, least: Fraction) -> Params:
    """The first group in the order that leaves at least so much goes, again and again, until none does."""
    masks = {family: mask.clone() for family, mask in masks.items()}
    queue: list[tuple[Fraction, int, str, int]] = []
    for number, (family, mask) in enumerate(masks.items()):
        weight = params[f"{family.partition('.')[2]}.weight"]
        rows = weight.flatten(1) if family.startswith("out") else weight.transpose(0, 1).flatten(1)
        alive = sorted(mask.nonzero().flatten().tolist(), key=lambda group: (float(rows[group].norm()), group))
        gone = len(mask) - len(alive)
        queue += [(Fraction(gone + j, len(mask)), number, family, group) for j, group in enumerate(alive[:-1], 1)]
    queue.sort()
    place = 0
    while place < len(queue):
        _, _, family, group = queue[place]
        masks[family][group] = False
        if num_left(method, params, masks) >= least:
            queue.pop(place)
            place = 0
        else:
            masks[family][group] = True
            place += 1
    return masks


def resnet(tmp_path: Path, axes: str, order: str, *words: str) -> tuple[Hermes, Params]:
    """Hermes on a small ResNet, and values for it."""
    words = ("method.name=hermes", f"method.prune_axes={axes}", f"model.order={order}", *words)
    method = small_setup(tmp_path, *words).method
    generator = torch.Generator().manual_seed(0)
    return method, {name: torch.randn(spec.shape, generator=generator) for name, spec in method.model_specs.items()}


def num_left(method: Hermes, params: Params, masks: Params) -> int:
    whole = {name: torch.ones(value.shape) for name, value in params.items()}
    groups.zeroing(whole, groups.kept_entries(method.structure, masks))()
    return int(sum(value.sum() for value in whole.values()))


def prunings(method: Hermes, params: Params, masks: Params) -> Iterator[tuple[Params, Params]]:
    """Yields the masks before and after each pruning, until the target: they only shrink, the share never falls below
    max(0.8 rho, 0.3), and every layer keeps a group."""
    share = 1.0
    for _ in range(9):
        new = method.pruned(params, masks)
        assert all(bool((mask <= masks.get(family, mask)).all()) and bool(mask.any()) for family, mask in new.items())
        assert max(0.8 * share, 0.3) <= method.remaining_share(new) <= share
        yield masks, new
        masks, share = new, method.remaining_share(new)
    assert 0.3 <= share < 0.32


@pytest.mark.parametrize("axes", ["output", "both"])
@pytest.mark.parametrize("order", ["post", "pre"])
def test_pruning_equals_its_naive_version(tmp_path: Path, axes: str, order: str) -> None:
    """On a small ResNet; the last layer keeps all its outputs."""
    method, params = resnet(tmp_path, axes, order, "method.share_of=mask")
    layers = method.structure.layers
    whole = {f"out.{name}": torch.ones(layers[name].num_outputs, dtype=torch.bool) for name in layers if name != "fc"}
    if axes == "both":
        whole |= {f"in.{n}": torch.ones(layers[n].num_inputs, dtype=torch.bool) for n in layers if n != "conv1"}
    total = sum(value.numel() for value in params.values())
    for old, new in prunings(method, params, whole):
        least = max(Fraction(3, 10) * total, num_left(method, params, old) * Fraction(4, 5))
        expected = naive_pruning(method, params, old, least)
        assert list(new) == list(old) and all(torch.equal(new[family], expected[family]) for family in old)


@pytest.mark.parametrize("order", ["post", "pre"])
@pytest.mark.parametrize("axes", ["output", "both"])
def test_what_remains_is_the_size_of_the_cut_net(tmp_path: Path, axes: str, order: str) -> None:
    """On a small ResNet: cutting a net by the masks leaves what was counted."""
    method, params = resnet(tmp_path, axes, order)
    for _, new in prunings(method, params, {}):
        size = sum(value.numel() for value in cut(method.context.make(), new).parameters())
        assert size == round(method.remaining_share(new) * method.structure.num_params)


def test_the_last_group_of_a_layer_stays() -> None:
    """However small the target; and a target out of reach is said before the run."""
    net = chain(2, 3)
    method = method_of(net, prune_rate=0.99, target_share=0.01, **MASK)
    masks = method.pruned({"0.weight": torch.eye(3, 2), "2.weight": torch.ones(1, 3)}, {})
    assert masks["out.0"].sum() == 1
    (warning,) = method.warnings()
    assert "0.56 of its parameters" in warning
    assert method_of(net, target_share=0.6, **MASK).warnings() == ()
    (warning,) = method_of(net, target_share=0.01).warnings()
    assert "0.33 of its parameters" in warning


def test_the_cut_net_counts_by_hand() -> None:
    """2 -> 3 -> 2 without biases: 12 numbers, 4 for each hidden unit and 4 of them gone at a rate of 1/3.

    Rows have the norms 1, 5 and 5, columns of the second layer 5, 1 and 5. In the order of the families row 0 goes
    first, at rate 1/3: 8 numbers of the cut net remain, which is what 12 (1 - 1/3) may be, and its column goes along.
    The mask alone would count 10. Next the column of unit 1 goes, with its row; then one unit is left. The second
    column of the first layer, of norm 0, is the data's: it stays, and nothing goes below 2 + 2 numbers.
    """
    net = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    method = method_of(net, prune_rate=1 / 3, target_share=0.3)
    rows = torch.tensor([[1.0, 0.0], [5.0, 0.0], [5.0, 0.0]])
    params = {"0.weight": rows, "2.weight": torch.tensor([[5.0, 1.0, 5.0], [0.0, 0.0, 0.0]])}
    masks = method.pruned(params, {})
    assert masks["out.0"].tolist() == masks["in.2"].tolist() == [False, True, True]
    assert method.remaining_share(masks) == 8 / 12
    assert method.remaining_share({"out.0": masks["out.0"]}) == 8 / 12
    half = method_of(net, prune_rate=0.5, target_share=0.3)
    assert half.pruned(params, masks)["out.0"].tolist() == [False, False, True]
    for share_of in ("cut", "mask"):
        least = method_of(net, prune_rate=0.99, target_share=0.01, share_of=share_of)
        masks = least.pruned(params, {})
        assert "in.0" not in masks and "out.2" not in masks and least.remaining_share(masks) == 4 / 12


class Skips(nn.Module):
    """x -> c(x + b(a(x))): what b writes is added to the data."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(x + self.b(self.a(x)))


def test_what_is_added_to_the_data_stays() -> None:
    masks = method_of(Skips(), prune_rate=0.9, target_share=0.01).pruned(dict(Skips().named_parameters()), {})
    assert set(masks) == {"out.a", "in.b"} and masks["out.a"].sum() == masks["in.b"].sum() == 1


@pytest.mark.parametrize(
    ("cell", "words", "fewer"),
    [
        ("har/hermes", (), 0.0),
        ("har_windows/hermes", ("model.hidden=[300,100]",), 0.0),
        ("cifar10/hermes", ("model.name=lenet5",), 0.05),
        ("cifar10/hermes", ("model.width=0.1",), 0.05),
        ("femnist/hermes", ("model.name=cnn_hermes",), 0.05),
        ("qmnist/hermes", (), 0.055),
    ],
)
def test_how_much_of_the_cut_net_the_mask_keeps(cell: str, words: tuple[str, ...], fewer: float) -> None:
    """At the target, by `share_of: cut`: all of a perceptron; of nets that flatten images less, by single columns of a
    channel, in shares of the dense net."""
    found = setting("hermes", cell, *words)
    method = Hermes(start.method_context(found.config, found.info))
    generator = torch.Generator().manual_seed(0)
    params = {name: torch.rand(spec.shape, generator=generator) for name, spec in method.model_specs.items()}
    masks: Params = {}
    for _ in range(6):
        masks = method.pruned(params, masks)
    left = num_left(method, params, masks) / method.structure.num_params
    assert 0.3 <= method.remaining_share(masks) < 0.302
    assert 0 <= method.remaining_share(masks) - left <= fewer and (left < 0.3) == (fewer > 0)


def test_without_the_clip_the_last_pruning_goes_below_the_target() -> None:
    """Algorithm 1: 1, .8, .64, .512, .4096, .32768, .262144 of 500,000 numbers, 5 of each of 100,000 hidden units."""
    method = method_of(chain(4, 100000), clip_to_target=False)
    params = {name: torch.rand(spec.shape) for name, spec in method.model_specs.items()}
    masks: Params = {}
    shares = []
    while method.remaining_share(masks) > 0.3:
        masks = method.pruned(params, masks)
        shares.append(method.remaining_share(masks))
    assert shares == pytest.approx([0.8, 0.64, 0.512, 0.4096, 0.32768, 0.262144], abs=6 * 1e-5)


@pytest.mark.parametrize(
    ("labels", "share", "threshold", "prunes"),
    [
        ([0], 0.0, 0.5, True),
        ([1], 0.0, 0.5, False),
        ([0], 0.0, 1.0, False),
        ([0] * 8 + [1] * 2, 0.5, 0.79, True),
        ([0] * 8 + [1] * 2, 0.5, 0.81, False),
    ],
)
def test_only_above_the_threshold(labels: list[int], share: float, threshold: float, prunes: bool) -> None:
    """The net's only output is class 0: its accuracy is 1 where that is the label, else 0. 1 is not above 1. Of 8
    examples of class 0 and 2 of class 1 at a share of 0.5 4 and 1 validate: the net is right about 4/5."""
    options = HermesOptions(
        accuracy_threshold=threshold, validation_share=share, group_lasso=0.0, intersection="holders"
    )
    owned = [list(range(len(labels)))]
    bench = Bench(Hermes, options, [[1.0, 1.0]] * len(labels), labels, owned, net=lambda: chain(2, 10))
    bench.trained(0, bench.method.initial_state())
    assert bool(bench.memories) == prunes


def test_a_net_with_nothing_to_prune_is_refused(told: Told) -> None:
    with told.by(ConfigError):
        method_of(nn.Sequential(nn.Linear(2, 3)), prune_axes="output")


def test_a_net_with_frozen_layers_is_refused(tmp_path: Path, told: Told) -> None:
    with told.by(StartupError):
        small_setup(tmp_path, *HERMES, "model.trained=[classifier.*]", "model.name=cnn_femnist", "model.width=0.25")
