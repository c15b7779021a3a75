"""Which groups Hermes prunes, and when: the sequence of remaining shares, order, threshold, the sizes of Table 3."""

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from by_hand import PLAIN, Bench
from golden_file import Told
from narrow_nets import PLAINLY, chain, context
from small_runs import small_setup
from torch import nn

from fedmpi.errors import ConfigError
from fedmpi.methods.hermes import Hermes, HermesOptions
from fedmpi.methods.values import Turn
from fedmpi.models import create
from fedmpi.models.options import MlpHar, ModelOptions, Vgg16
from fedmpi.models.surgery import groups
from fedmpi.tensors import Params


def method_of(net: nn.Module, **options: object) -> Hermes:
    """Hermes on a net, for what needs no clients."""
    return Hermes(context(HermesOptions(**options), lambda: net))


def test_remaining_shares_of_the_paper() -> None:
    """1, .8, .64, .512, .4096, .3277 (.32768), .3: exactly, on 15,625 rows of 5 and as many outgoing weights.

    Of 93,750 numbers 20 % and so on are multiples of 5 up to the last one; 0.3 is 28,125. Then it stays; what
    goes down and up are the numbers that the mask before and the new one keep, and a bit for each of all.
    """
    options = HermesOptions(**PLAINLY)
    slow = PLAIN.model_copy(update={"lr": 2**-20})
    bench = Bench(Hermes, options, [[0.1] * 4], [0], [[0]], slow, net=lambda: chain(4, 15625, bias=True))
    state, held, mask_bytes = bench.method.initial_state(), [93750], math.ceil(93750 / 8)
    for round_number in range(1, 9):
        before = bench.memories.get(0)
        client, _ = bench.trained(0, state, round_number)
        held.append(round(bench.method.remaining_share(bench.memories[0]) * 93750))
        at_work = replace(client, recall=lambda memory=before: memory)
        costs = bench.method.costs(Turn.of(at_work))
        assert (costs.down_bytes, costs.up_bytes) == (4 * held[-2], 4 * held[-1] + mask_bytes)
    assert held == [93750, 75000, 60000, 48000, 38400, 30720, 28125, 28125, 28125]
    assert bench.method.costs(Turn(0)).up_bytes == 4 * 93750 + mask_bytes


def naive_pruning(method: Hermes, params: Params, masks: Params, rate: float, target: Fraction) -> Params:
    """The first group in the order that fits goes, again and again, until none does."""
    masks = {family: mask.clone() for family, mask in masks.items()}
    total = sum(value.numel() for value in params.values())
    left = num_left(method, params, masks) * (1 - Fraction(rate).limit_denominator())
    least = max(target * total, left)
    queue: list[tuple[Fraction, int, str, int]] = []
    for number, (family, mask) in enumerate(masks.items()):
        weight = params[f"{family.partition('.')[2]}.weight"]
        rows = weight.flatten(1) if family.startswith("out") else weight.transpose(0, 1).flatten(1)
        alive = sorted(mask.nonzero().flatten().tolist(), key=lambda group: (float(rows[group].norm()), group))
        gone = len(mask) - len(alive)
        queue += [(Fraction(gone + j, len(mask)), number, family, group) for j, group in enumerate(alive[:-1], 1)]
    while any(take(method, params, masks[family], group, masks, least) for _, _, family, group in sorted(queue)):
        pass
    return masks


def take(method: Hermes, params: Params, mask: torch.Tensor, group: int, masks: Params, least: Fraction) -> bool:
    """Prunes this group if enough is left without it."""
    was_there = bool(mask[group])
    mask[group] = False
    if was_there and num_left(method, params, masks) < least:
        mask[group] = True
    return was_there and not bool(mask[group])


def num_left(method: Hermes, params: Params, masks: Params) -> int:
    whole = {name: torch.ones(value.shape) for name, value in params.items()}
    groups.zeroing(whole, groups.kept_entries(method.structure, masks))()
    return int(sum(value.sum() for value in whole.values()))


@pytest.mark.parametrize("axes", ["output", "both"])
@pytest.mark.parametrize("order", ["post", "pre"])
def test_pruning_equals_its_naive_version(tmp_path: Path, axes: str, order: str) -> None:
    """On a small ResNet, until the target; masks only shrink, the share never falls below what was asked, and every
    layer keeps a group, the last one all its outputs."""
    words = ("method.name=hermes", f"method.prune_axes={axes}", f"model.order={order}")
    method = small_setup(tmp_path, *words).method
    generator = torch.Generator().manual_seed(0)
    params = {name: torch.randn(value.shape, generator=generator) for name, value in method.initial_state().items()}
    families = [f"out.{name}" for name in method.structure.layers if name != "fc"]
    families += [f"in.{name}" for name in method.structure.layers] if axes == "both" else []
    old = {family: torch.ones(groups_of(method, family), dtype=torch.bool) for family in families}
    share = 1.0
    for _ in range(9):
        new = method.pruned(params, old)
        expected = naive_pruning(method, params, old, 0.2, Fraction(3, 10))
        assert list(new) == families and all(torch.equal(new[family], expected[family]) for family in families)
        assert all(bool((new[family] <= old[family]).all()) and bool(new[family].any()) for family in families)
        assert max(0.8 * share, 0.3) <= method.remaining_share(new) <= share
        old, share = new, method.remaining_share(new)
    assert 0.3 <= share < 0.32


def groups_of(method: Hermes, family: str) -> int:
    axis, _, layer = family.partition(".")
    return method.structure.layers[layer].size(axis)


@pytest.mark.parametrize(("score", "first_gone"), [("l2", 0), ("l1", 1)])
def test_the_lowest_norm_goes_first(score: str, first_gone: int) -> None:
    """Rows (2, 2), (3, 0), (9, 9): l2 is 2.83, 3 and l1 4, 3; 0.23 of 9 numbers is one row of 2."""
    net = chain(2, 3)
    method = method_of(net, score=score, prune_rate=0.23, target_share=0.1)
    weights = torch.tensor([[2.0, 2.0], [3.0, 0.0], [9.0, 9.0]])
    masks = method.pruned({"0.weight": weights, "2.weight": torch.ones(1, 3)}, {})
    assert masks["out.0"].tolist() == [group != first_gone for group in range(3)] and set(masks) == {"out.0"}


def test_the_last_group_of_a_layer_stays() -> None:
    """However small the target; and a target out of reach is said before the run."""
    net = chain(2, 3)
    method = method_of(net, prune_rate=0.99, target_share=0.01)
    masks = method.pruned({"0.weight": torch.eye(3, 2), "2.weight": torch.ones(1, 3)}, {})
    assert masks["out.0"].sum() == 1
    (warning,) = method.warnings()
    assert "0.56 of its parameters" in warning
    assert method_of(net, target_share=0.6).warnings() == ()


@pytest.mark.parametrize(("label", "threshold", "prunes"), [(0, 0.5, True), (1, 0.5, False), (0, 1.0, False)])
def test_only_above_the_threshold(label: int, threshold: float, prunes: bool) -> None:
    """The net's only output is class 0: its accuracy is 1 where that is the label, else 0. 1 is not above 1."""
    options = HermesOptions(accuracy_threshold=threshold, **PLAINLY)
    bench = Bench(Hermes, options, [[1.0, 1.0]], [label], [[0]], net=lambda: chain(2, 10))
    bench.trained(0, bench.method.initial_state())
    assert bool(bench.memories) == prunes


def test_accuracy_is_of_the_validation_part() -> None:
    """8 examples of class 0 and 2 of class 1 at 0.5: 4 and 1 validate, the net is right about 4/5."""
    for threshold, prunes in ((0.79, True), (0.81, False)):
        options = HermesOptions(accuracy_threshold=threshold, validation_share=0.5, group_lasso=0.0)
        owned = [list(range(10))]
        bench = Bench(Hermes, options, [[1.0, 0.0]] * 10, [0] * 8 + [1] * 2, owned, net=lambda: chain(2, 10))
        bench.trained(0, bench.method.initial_state())
        assert bool(bench.memories) == prunes


@pytest.mark.parametrize(
    ("options", "kind", "shape", "classes", "dense_mb", "sparse_mb"),
    [
        (Vgg16(), "image", (3, 32, 32), 10, 537.21, 161.16),
        (Vgg16(), "image", (3, 32, 32), 64, 538.09, 161.43),
        (MlpHar(), "vector", (561,), 6, 4.41, 1.32),
    ],
)
def test_sizes_of_table_3(
    options: ModelOptions, kind: str, shape: tuple[int, ...], classes: int, dense_mb: float, sparse_mb: float
) -> None:
    """In MB of 10^6 bytes, dense and at 0.3; weights of a single stored number, so that nothing is computed for long.

    A row of VGG's first linear layer, the largest group, has 0.1 MB: so much may be left above the target.
    """
    info = SimpleNamespace(kind=kind, example_shape=shape, num_classes=classes)
    net = create.skeleton(options, info)
    method = method_of(net, prune_rate=0.7)
    params = {name: torch.ones(()).expand(value.shape) for name, value in net.named_parameters()}
    shares = 1.0, method.remaining_share(method.pruned(params, {}))
    sizes = [4e-6 * method.structure.num_params * share for share in shares]
    assert round(sizes[0], 2) == dense_mb
    assert 0 <= sizes[1] - 0.3 * sizes[0] < 0.1003
    assert sizes[1] == pytest.approx(sparse_mb, abs=0.11)


def test_a_net_with_nothing_to_prune_is_refused(told: Told) -> None:
    with told.by(ConfigError):
        method_of(nn.Sequential(nn.Linear(2, 3)))
