"""Split-Mix: the queue, means of each base by hand, ensembles, training of independent bases, sizes, initial values."""

import dataclasses
from collections import Counter

import pytest
import torch
from model_inputs import Info
from narrow_nets import Small, client_of, context, context_of, filled, flat, make_small, means, state_of

from fedmpi.learning.local import MaskedCrossEntropy
from fedmpi.methods.splitmix import SplitMix, SplitMixOptions
from fedmpi.models.nets.resnet import ResNet18
from fedmpi.models.width import Width
from fedmpi.tensors import Params

PLAIN = MaskedCrossEntropy(None)
CIFAR10 = Info("image", (3, 32, 32), 10)


def small(**options: object) -> SplitMix:
    """Four bases of one hidden unit each; tiers of 4, 2 and 1."""
    return SplitMix(context(SplitMixOptions(**{"levels": (1.0, 0.5, 0.25), "atom": 0.25, **options})))


@pytest.mark.parametrize(
    ("levels", "atom", "expected"),
    [
        ((2.8, 1.2, 0.8, 0.4), 0.4, [7, 3, 2, 1]),
        ((3.15, 1.05, 0.7, 0.35), 0.35, [9, 3, 2, 1]),
        ((1.0, 0.5, 0.25, 0.125), 0.125, [8, 4, 2, 1]),
    ],
)
def test_levels_are_rounded_to_whole_bases(levels: tuple[float, ...], atom: float, expected: list[int]) -> None:
    """2.8 / 0.4 and 1.2 / 0.4 are just below 7 and 3 in floating point."""
    assert [SplitMixOptions(levels=levels, atom=atom).num_bases(level) for level in levels] == expected
    assert int(2.8 / 0.4) == 6 and int(1.2 / 0.4) == 2


def cohorts(method: SplitMix, tier: int, rounds: int, size: int) -> list[list[int]]:
    """The bases of every client of these rounds, in the order of the queue."""
    clients = (
        client_of(10 + place, tier, round_number=number, place=place, cohort_size=size)
        for number in range(1, rounds + 1)
        for place in range(size)
    )
    return [method.assigned(client) for client in clients]


def test_the_queue_serves_every_base_once_before_it_is_shuffled_anew() -> None:
    """Cohorts of 3, 4 bases: 8 rounds are 24 clients and 6 cycles, whose ends do not fall on those of rounds."""
    firsts = [bases[0] for bases in cohorts(small(), 2, 8, 3)]
    cycles = [tuple(firsts[start : start + 4]) for start in range(0, 24, 4)]
    assert all(sorted(cycle) == [0, 1, 2, 3] for cycle in cycles)
    assert len(set(cycles)) > 1


def test_others_are_distinct_and_uniform() -> None:
    """Two of four: the second is one of the three others, each about as often: 1200 / 3, within 5 sigma of 16.3."""
    chosen = cohorts(small(), 1, 400, 3)
    assert all(len(bases) == len(set(bases)) == 2 for bases in chosen)
    apart = Counter((second - first) % 4 for first, second in chosen)
    assert set(apart) == {1, 2, 3} and all(abs(n - 400) < 82 for n in apart.values())
    assert all(sorted(bases) == [0, 1, 2, 3] for bases in cohorts(small(), 0, 2, 3))


def test_a_base_that_one_client_trained_is_that_clients_and_an_untouched_one_stays() -> None:
    """A client of one base and one of two, in the first round in which they share none."""
    method = small()
    for number in range(1, 100):
        one = client_of(0, 2, 1, round_number=number, place=0, cohort_size=2)
        two = client_of(1, 1, 3, round_number=number, place=1, cohort_size=2)
        order = [*method.assigned(one), *method.assigned(two)]
        if len(set(order)) == 3:
            break
    sent = filled(method, 2.0, 1) | {f"1.{name}": value for name, value in filled_base(3.0).items()}
    found = means(method, state_of(method, 7.0), (one, filled(method, 1.0, 2)), (two, sent))
    (rest,) = {0, 1, 2, 3} - set(order)
    for base, value in zip((*order, rest), (1.0, 2.0, 3.0, 7.0), strict=True):
        assert {number for name in filled_base(0.0) for number in found[f"{base}.{name}"].flatten().tolist()} == {value}


def filled_base(value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full(tuple(p.shape), value) for name, p in make_small(0.25).named_parameters()}


@pytest.mark.parametrize(("weighting", "expected"), [("uniform", 4.0), ("samples", 5.0)])
def test_a_base_of_two_clients_is_their_mean(weighting: str, expected: float) -> None:
    """Both train all four bases and send 2 and 6: (2 + 6) / 2, or with 1 and 3 examples (2 + 18) / 4."""
    method = small(weighting=weighting)
    pairs = [(client_of(i, 0, n), filled(method, v, 0)) for i, (n, v) in enumerate([(1, 2.0), (3, 6.0)])]
    for value in means(method, state_of(method, 7.0), *pairs).values():
        assert set(value.flatten().tolist()) == {expected}


def test_a_client_gets_its_bases_and_a_test_the_first_ones() -> None:
    method = small()
    state = method.initial_state()
    client = client_of(4, 1, round_number=3, place=1, cohort_size=3)
    assert method.assigned(client) != [0, 1]
    got, tested = flat(method, 1, state, client).params, flat(method, 1, state).params
    own_test = flat(method, 1, state, dataclasses.replace(client, task=dataclasses.replace(client.task, phase="test")))
    for name in filled_base(0.0):
        for place, base in enumerate(method.assigned(client)):
            assert torch.equal(got[f"{place}.{name}"], state[f"{base}.{name}"])
            assert torch.equal(tested[f"{place}.{name}"], state[f"{place}.{name}"])
            assert torch.equal(own_test.params[f"{place}.{name}"], state[f"{place}.{name}"])


def base_net(state: Params, base: int) -> Small:
    net = Small(Width(0.25))
    net.load_state_dict({name: state[f"{base}.{name}"] for name in net.state_dict()})
    return net


def test_a_level_is_the_mean_of_the_logits_of_its_first_bases() -> None:
    method, x = small(), torch.tensor([[1.5], [-2.0]])
    state = method.initial_state()
    bases = [base_net(state, base)(x).detach() for base in range(4)]
    for number, b in enumerate((4, 2, 1)):
        logits = flat(method, number, state).module.eval()(x)
        torch.testing.assert_close(logits, sum(bases[:b]) / b, rtol=1e-6, atol=1e-7)
    assert [(net.name, net.index) for net in method.tested()] == [("1", 0), ("0.5", 1), ("0.25", 2)]


def test_bases_train_on_their_own_logits() -> None:
    """The gradient of each is that of training it alone; the loss that is told is the mean."""
    method = small(scaler=False)
    state = method.initial_state()
    x, y = torch.tensor([[1.5], [-2.0]]), torch.tensor([0, 2])
    net = flat(method, 1, state)
    told = method.backward(net, x, y, PLAIN)
    losses = []
    for base in range(2):
        alone = base_net(state, base)
        value = PLAIN(alone(x), y)
        value.backward()
        losses.append(value.item())
        for name, parameter in alone.named_parameters():
            torch.testing.assert_close(net.grads[f"{base}.{name}"], parameter.grad, rtol=1e-6, atol=1e-7)
    assert float(told) == pytest.approx(sum(losses) / 2, rel=1e-6)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_scaler_divides_by_the_atom_in_training_only(number: int) -> None:
    """`Small` has no norm layer: its hidden unit is divided by 1/4, so the loss is that of hidden weights times 4. In
    every tier: what counts is the width of a base, not how many of them a client trains."""
    state = small().initial_state()
    scaled_up = {name: value * 4 if "hidden" in name else value for name, value in state.items()}
    x, y = torch.tensor([[1.5], [-2.0]]), torch.tensor([0, 2])
    method, plain = small(), small(scaler=False)
    ours = method.backward(flat(method, number, state), x, y, PLAIN)
    theirs = plain.backward(flat(plain, number, scaled_up), x, y, PLAIN)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-6)
    assert torch.equal(flat(method, number, state).module.eval()(x), flat(plain, number, state).module.eval()(x))


def test_rescaled_values_are_those_of_the_full_nets_fan_in() -> None:
    """`Small`'s last layer sees 1 of 4 units: times sqrt(1/4). Its first sees the data: as it is."""
    own, rescaled = small().initial_state(), small(init="rescaled").initial_state()
    assert not torch.equal(own["0.out.weight"], own["1.out.weight"]), "bases begin apart"
    for base in range(4):
        assert torch.equal(rescaled[f"{base}.hidden.weight"], own[f"{base}.hidden.weight"])
        for name in ("weight", "bias"):
            assert torch.equal(rescaled[f"{base}.out.{name}"], own[f"{base}.out.{name}"] / 2)


def test_a_scaler_without_norm_layers_wants_small_initial_values() -> None:
    """`Small` has none, a ResNet has; where values are drawn for the full net's fan-in the factors cancel."""
    assert ["4-fold" in line for line in small().warnings()] == [True]
    assert not small(init="rescaled").warnings() and not small(scaler=False).warnings()
    assert not SplitMix(context_of(SplitMixOptions(), ResNet18(), CIFAR10)).warnings()
