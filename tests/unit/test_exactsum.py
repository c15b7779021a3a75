"""Order-free sums: equal bits for every order and split, hand-computed means, bounds that hold."""

import itertools
import math
import random
from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from fedmpi.exactsum import ExactSum, StatisticSum, WeightSum, bound_of, scale_exponent
from fedmpi.tensors import Region, Spec

WEIGHTS = (1.0, 0.5, 0.3, 1 / 3, 0.8187307530779818, 1e-3)


def sum_of(values: Sequence[Tensor], weights: Sequence[float], total: float, bound: float) -> ExactSum:
    """A sum of one tensor "a" of the values' shape."""
    exact = ExactSum({"a": Spec(tuple(values[0].shape))}, {"a": bound}, total)
    for value, weight in zip(values, weights, strict=True):
        exact.add("a", value, weight)
    return exact


def random_terms(count: int, size: int, seed: int) -> tuple[list[Tensor], list[float]]:
    """Floats of both signs and of all magnitudes from 2^-60 to 64, with weights of eq. 2's kind."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-60, 7, (count, size), generator=generator)
    terms = torch.ldexp(torch.rand(count, size, generator=generator) * 2 - 1, exponents)
    return list(terms), [WEIGHTS[place % len(WEIGHTS)] for place in range(count)]


def test_places_by_hand() -> None:
    """61 - ceil(log2(W B)): 64 is 2^6; 640 lies between 2^9 and 2^10; 1024 is 2^10. W B 2^k is at most 2^61."""
    cases = [(1.0, 64.0), (10.0, 64.0), (16.0, 64.0), (16.01, 64.0), (10.0, 128.0), (1.0, 2.0**100)]
    assert [scale_exponent(total, bound) for total, bound in cases] == [55, 51, 51, 50, 50, -39]
    for total, bound in (*cases, *itertools.product((1.1, 3.0, 999.5, 1e6), (65.0, 1e5, 3.4e38 * 64))):
        assert 2**60 < Fraction(total) * Fraction(bound) * Fraction(2) ** scale_exponent(total, bound) <= 2**61
    assert [bound_of(magnitude) for magnitude in (0.0, 0.5, 1.0, 2.0, 1e30)] == [64.0, 64.0, 64.0, 128.0, 6.4e31]


def test_any_order_and_any_split_give_the_same_bits() -> None:
    """100 permutations, each cut in two sums that are added as MPI would: all int64 equal, and the mean's bits too."""
    values, weights = random_terms(23, 17, seed=1)
    total, bound, shuffler = sum(weights), 64.0, random.Random(2)
    reference = sum_of(values, weights, total, bound)
    old, terms = torch.zeros(17), list(zip(values, weights, strict=True))
    for _ in range(100):
        shuffler.shuffle(terms)
        cut = shuffler.randint(1, 22)
        first, second = (sum_of(*zip(*part, strict=True), total, bound) for part in (terms[:cut], terms[cut:]))
        first.buffer += second.buffer
        assert torch.equal(first.buffer, reference.buffer)
        assert torch.equal(first.mean("a", total, old), reference.mean("a", total, old))
    # As float64 the same terms depend on their order.
    products = [value.double() * weight for value, weight in terms]
    assert not torch.equal(sum(products), sum(reversed(products)))


@pytest.mark.parametrize("weight", [*WEIGHTS, 0.125])
def test_a_term_loses_no_more_than_float64_does(weight: float) -> None:
    """w x is rounded to 53 bits, then to a multiple of 2^-k: at most 2^-53 |w x| + 2^-(k+1). A weight of 2^-j leaves
    the 24 bits of a float32 as they are, so only half a place is lost."""
    product_loss = 0 if weight in (1.0, 0.5, 0.125) else Fraction(2) ** -53
    for value in random_terms(60, 1, seed=4)[0]:
        exact = Fraction(weight) * Fraction(float(value))
        found = Fraction(int(sum_of([value], [weight], 10.0, 64.0).buffer[0])) / Fraction(2) ** 51
        assert abs(found - exact) <= Fraction(2) ** -52 + abs(exact) * product_loss


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("count", "magnitude"), [(1, 1.0), (3, 1.0), (1000, 3.0), (1024, 1.0), (7, 2.0**121)])
def test_no_overflow_at_the_bound(count: int, magnitude: float, sign: float) -> None:
    """All weights are 1, all values B = 64 |theta|: the mean is B, sign and all. The largest B is 2^127."""
    bound = bound_of(magnitude)
    value = torch.full((3,), sign * bound)
    exact = sum_of([value] * count, [1.0] * count, float(count), bound)
    assert exact.buffer[:3].abs().max() <= 2**61
    assert torch.equal(exact.mean("a", float(count), value), value)


def test_means_by_hand() -> None:
    """Weights 1 and 1/4, values (1, 2) and (5, -2): (1 + 1.25) / 1.25 = 1.8 and (2 - 0.5) / 1.25 = 1.2. Six clients of
    weight 1, multiples of 2^-20, so that no term is rounded: the float32 next to the rational (x_1 + ... + x_6) / 6."""
    weights = WeightSum(2)
    for weight in (1.0, 0.25):
        weights.add(weight, {})
    exact = sum_of([torch.tensor([1.0, 2.0]), torch.tensor([5.0, -2.0])], [1.0, 0.25], 1.25, 64.0)
    assert weights.of("a") == 1.25
    assert torch.equal(exact.mean("a", weights.of("a"), torch.zeros(2)), torch.tensor([1.8, 1.2]))
    generator = torch.Generator().manual_seed(5)
    values = [torch.randint(-(2**23), 2**23, (50,), generator=generator).float() * 2.0**-20 for _ in range(6)]
    found = sum_of(values, [1.0] * 6, 6.0, 64.0).mean("a", 6.0, torch.zeros(50))
    by_hand = [float(sum(Fraction(float(value[place])) for value in values) / 6) for place in range(50)]
    assert torch.equal(found, torch.tensor(by_hand, dtype=torch.float64).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_mean_has_the_old_tensor_s_dtype_and_memory_format(dtype: torch.dtype) -> None:
    """Beside an empty tensor and a number of another bound, so of another k."""
    exact = ExactSum({"a": Spec((2, 3, 2, 2)), "none": Spec((0, 2)), "b": Spec(())}, {"a": 64, "none": 64, "b": 1e6}, 1)
    old = torch.zeros(2, 3, 2, 2, dtype=dtype).to(memory_format=torch.channels_last)
    values = {"a": torch.arange(24.0).view(2, 3, 2, 2).to(dtype), "none": torch.zeros(0, 2), "b": torch.tensor(3.0)}
    for name, value in values.items():
        exact.add(name, value, 1.0)
    mean = exact.mean("a", 1.0, old)
    assert mean.dtype == dtype and mean.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(mean, values["a"]) and not old.any()
    assert exact.mean("b", 1.0, torch.zeros(())) == 3 and exact.mean("none", 1.0, torch.zeros(0, 2)).shape == (0, 2)


# Regions: rows 0 and 2 of column 1 of a (3, 2) tensor, said in three ways, or its upper left part as slices.

PLACES = torch.tensor([[False, True], [False, False], [False, True]])
REGIONS: list[tuple[Region, tuple[int, ...]]] = [
    ((torch.tensor([0, 2])[:, None], torch.tensor([1])), (2, 1)),
    ((slice(0, 3, 2), slice(1, 2)), (2, 1)),
    (PLACES, (2,)),
]
each_region = pytest.mark.parametrize(("region", "shape"), REGIONS, ids=["indices", "slices", "mask"])


@each_region
def test_regions_by_hand(region: Region, shape: tuple[int, ...]) -> None:
    """One client holds all (weight 1, value 4), one a region (1/2, value 1): (4 + 1/2) / (3/2) = 3 there, else 4."""
    exact, weights = ExactSum({"a": Spec((3, 2))}, {"a": 64.0}, 1.5), WeightSum(2)
    for other, where in (((1,), region), ((1, *shape), region), ((3, 1), None)):
        with pytest.raises(ValueError, match="^a "):  # never broadcast
            exact.add("a", torch.full(other, 9.0), 1.0, where)
    exact.add("a", torch.full((3, 2), 4.0), 1.0)
    exact.add("a", torch.ones(shape), 0.5, region)
    weights.add(1.0, {})
    weights.add(0.5, {"a": ((3, 2), region)})
    expected = torch.tensor([[4.0, 3.0], [4.0, 4.0], [4.0, 3.0]])
    assert torch.equal(exact.mean("a", weights.of("a"), torch.zeros(3, 2)), expected)


@each_region
def test_entries_that_nobody_holds_keep_their_value(region: Region, shape: tuple[int, ...]) -> None:
    """Bit for bit: 0.1 and 1e30 are no multiples of 2^-k. So does a tensor that nobody has sent."""
    exact, weights = ExactSum({"a": Spec((3, 2))}, {"a": 64.0}, 0.5), WeightSum(1)
    old = torch.tensor([[0.1, 8.0], [1e30, -0.1], [7.0, 8.0]])
    untouched = exact.mean("a", 0.0, old)
    assert torch.equal(untouched, old) and untouched.data_ptr() != old.data_ptr()
    exact.add("a", torch.tensor([2.0, 3.0]).view(shape), 0.5, region)
    weights.add(0.5, {"a": ((3, 2), region)})
    expected = torch.tensor([[0.1, 2.0], [1e30, -0.1], [7.0, 3.0]])
    assert torch.equal(exact.mean("a", weights.of("a"), old), expected)


def test_weights_in_any_order_are_the_same_number() -> None:
    """0.3, 1/3 and their like: as floats their sum depends on the order, as whole numbers it does not."""
    many, shuffler = list(WEIGHTS) * 7, random.Random(7)
    floats, exact = set(), set()
    for _ in range(50):
        shuffler.shuffle(many)
        weights, plain = WeightSum(len(many)), 0.0
        for weight in many:
            weights.add(weight, {})
            plain += weight
        floats.add(plain)
        exact.add(weights.of("a"))
    assert len(floats) > 1 and len(exact) == 1
    assert exact.pop() == float(sum(map(Fraction, many)))


def statistics(count: int, seed: int) -> Tensor:
    """float32 values of magnitudes 1e-12 to 1e6, shape (count, 5)."""
    generator = torch.Generator().manual_seed(seed)
    values = 10.0 ** (torch.rand(count, 5, generator=generator) * 18 - 12)
    signs = torch.randint(0, 2, values.shape, generator=generator) * 2 - 1
    return (values * signs).clamp(-1e6, 1e6).float()


@pytest.mark.parametrize("count", [1, 100, 1000])
def test_statistics_are_summed_exactly(count: int) -> None:
    """Against Fractions. A float32 of 1e-12 ends at 2^-63, above the last place 2^-(122 - 20 - 2 * 10) for 1000
    terms, so nothing is lost but by the two limbs' conversion to float64: 2^-53 of the total and of the fine
    limb, which is below n 2^-32."""
    values = statistics(count, count)
    running = StatisticSum(5, count)
    for row in values:
        running.add(row)
    for place, found in enumerate(running.total().tolist()):
        exact = sum(Fraction(float(value)) for value in values[:, place])
        slack = abs(exact) * Fraction(2) ** -51 + count * Fraction(2) ** -(32 + 53)
        assert abs(Fraction(found) - exact) <= slack


def test_statistics_in_any_order_and_split_give_the_same_bits() -> None:
    values, shuffler = list(statistics(60, 8)), random.Random(9)
    totals = []
    for _ in range(100):
        shuffler.shuffle(values)
        cut = shuffler.randint(1, 59)
        first, second = StatisticSum(5, 60), StatisticSum(5, 60)
        for place, value in enumerate(values):
            (first if place < cut else second).add(value)
        first.buffer += second.buffer
        totals.append(first.total())
    assert all(torch.equal(total, totals[0]) for total in totals)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("count", [1, 3, 1024])
def test_statistics_do_not_overflow_at_the_bound(count: int, sign: float) -> None:
    """The largest float64 below 2^20, once for each planned term: n (2^20 - 2^-33), to float64's last place."""
    largest = math.nextafter(2.0**20, 0.0)
    running = StatisticSum(1, count)
    for _ in range(count):
        running.add(torch.tensor([sign * largest], dtype=torch.float64))
    assert running.buffer.abs().max() <= 2**61
    assert running.total().item() == sign * largest * count


def test_weights_and_shares_by_hand() -> None:
    """Weights 1, 1/2, 1/2: a block held by the first two (3/4), a mask held by the last (1/4), one entry by both."""
    weights = WeightSum(3)
    mask = torch.tensor([False, False, True, True])
    for weight, region in ((1.0, (slice(0, 3),)), (0.5, (slice(0, 3),)), (0.5, mask)):
        weights.add(weight, {"a": ((4,), region)})
    assert weights.share("a").tolist() == [0.75, 0.75, 1.0, 0.25]
    assert weights.of("a").tolist() == [1.5, 1.5, 2.0, 0.5] and weights.of("a").dtype == torch.float64
    assert weights.share("b") == 1.0 and weights.of("b") == 2.0
    same_end = WeightSum(2)
    for first in (0, 2):
        same_end.add(1.0, {"a": ((4,), (slice(first, 4),))})
    assert same_end.share("a").tolist() == [0.5, 0.5, 1.0, 1.0]
    thirds = WeightSum(3)
    for weight in (1.0, 1 / 3, 1 / 7):  # rounded to units, but the sum of all is the sum of all
        thirds.add(weight, {"a": ((2,), (slice(0, 1),))})
    assert thirds.share("a").tolist() == [1.0, 0.0]


@pytest.mark.parametrize("weight", [0.5, 0.8187307530779818])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "region",
    [None, (slice(0, 40), slice(3, 60)), (slice(None), torch.arange(0, 64, 3))],
    ids=["all", "slices", "index"],
)
def test_blocks_add_what_the_formula_says(
    weight: float, dtype: torch.dtype, channels_last: bool, region: Region | None
) -> None:
    """rint(w x 2^k) in one plain expression, against the sum's blocks: of several rows, of parts of a long row, of
    values that lie in memory as the sum does, or otherwise.
    """
    generator = torch.Generator().manual_seed(10)
    for shape in ((48, 64, 5, 5), (1, 64, 40, 40)):
        exact = ExactSum({"a": Spec(shape, channels_last=channels_last)}, {"a": 64.0}, 10.0)
        held = torch.zeros(shape)[region or ()]
        exponents = torch.randint(-60, 7, held.shape, generator=generator)
        value = torch.ldexp(torch.rand(held.shape, generator=generator) * 2 - 1, exponents).to(dtype)
        expected = torch.zeros(shape, dtype=torch.int64)
        expected[region or ()] += 2 * (value.double() * (weight * 2.0**51)).round().long()
        exact.add("a", value, weight, region)
        exact.add("a", value.to(memory_format=torch.channels_last), weight, region)
        found = exact.buffer[: expected.numel()].view(shape)
        if channels_last:
            found = exact.buffer[: expected.numel()].view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
        assert torch.equal(found, expected) and expected.any()
