"""Cohorts, tiers and learning rates: uniform, reproducible, and as the papers say."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product
from math import comb

import numpy as np
import pytest
from small_runs import small_config

from fedmpi.config.schema import CosineSchedule, StepSchedule, Train
from fedmpi.federation import cohort
from fedmpi.federation.cohort import eligible_clients, learning_rate, sample_cohort
from fedmpi.federation.participation import Participation
from fedmpi.federation.tiers import equal_blocks, tier_of

# Quantiles of the chi-square distribution at 0.999, by degrees of freedom. Seeds are fixed: a test
# that passes once passes always, and a biased draw would exceed them by far.
CHI_SQUARE_999 = {1: 10.83, 2: 13.82, 3: 16.27, 14: 36.12}


def chi_square(counts: Counter, expected: dict) -> float:
    assert set(counts) <= set(expected)
    return sum((counts[key] - want) ** 2 / want for key, want in expected.items())


def draw(count: int, size: int, round_number: int = 1, phase: str = "train", seed: int = 0) -> list[int]:
    config = small_config("method.name=fedavg", f"seed={seed}")
    clients = config.clients.model_copy(update={"count": count, "per_round": size})
    everyone = Participation(config.model_copy(update={"clients": clients}))
    return [client for client, _ in everyone.cohort(round_number, phase)]


def draw_among(eligible: Sequence[range], size: int) -> list[int]:
    return sample_cohort(eligible, size, np.random.default_rng(0))


# Cohorts.


class Scripted:
    """A generator whose draws are given, each checked to be within what was asked for."""

    def __init__(self, draws: tuple[int, ...]) -> None:
        self._draws = iter(draws)

    def integers(self, below: int) -> int:
        drawn = next(self._draws)
        assert drawn < below
        return drawn


@pytest.mark.parametrize(("count", "size"), [(3, 1), (4, 2), (5, 3), (5, 5), (6, 2)])
def test_every_cohort_has_the_same_chance(count: int, size: int) -> None:
    """By enumeration: all equally likely sequences of draws; each of the C(count, size) sets comes equally often."""
    sequences = list(product(*(range(last + 1) for last in range(count - size, count))))
    sets = Counter(frozenset(cohort._distinct(count, size, Scripted(sequence))) for sequence in sequences)
    assert set(sets) == set(map(frozenset, combinations(range(count), size)))
    assert set(sets.values()) == {len(sequences) // comb(count, size)}


def test_cohorts_are_frozen() -> None:
    """Golden: a change here changes the bits of every run."""
    assert draw(20, 10) == [0, 1, 3, 4, 5, 6, 8, 13, 14, 18]
    for other in ({"phase": "small"}, {"seed": 1}, {"round_number": 2}):
        assert draw(20, 10) != draw(20, 10, **other)
    assert draw(10**9, 5) == [27056554, 126307875, 258437216, 490597314, 685999336]


def test_clients_of_fixed_tiers() -> None:
    """Blocks 3, 2, 4 are clients 0-2, 3-4 and 5-8; of tiers that are apart the places drawn are those of as many."""
    apart, eligible = eligible_clients((3, 2, 4), {2, 0}), [0, 1, 2, 5, 6, 7, 8]
    assert eligible_clients((3, 2, 4), {1}) == [range(3, 5)]
    assert draw_among(apart, 3) == [eligible[place] for place in draw_among([range(7)], 3)]
    assert draw_among(apart, 8) == eligible and draw_among([], 3) == []
    assert draw_among(eligible_clients((3, 2, 4), None), 9) == list(range(9))


# Tiers.


def test_equal_blocks() -> None:
    expected = {(20, 4): (5, 5, 5, 5), (22, 4): (5, 5, 5, 7), (3, 3): (1, 1, 1), (7, 1): (7,), (9, 2): (4, 5)}
    assert {sizes: equal_blocks(*sizes) for sizes in expected} == expected


@pytest.mark.parametrize("blocks", [(5, 5, 5, 5), (20,), (1, 18, 1)])
def test_fixed_tiers_are_blocks_of_clients(blocks: tuple[int, ...]) -> None:
    """Largest capacity first; neither the round nor the seed matters."""
    expected = [tier for tier, size in enumerate(blocks) for _ in range(size)]
    for seed, number in ((0, 1), (7, 99)):
        tiers = [tier_of(c, blocks, dynamic=False, seed=seed, round_number=number) for c in range(20)]
        assert tiers == expected


@pytest.mark.parametrize("blocks", [(5, 5, 5, 5), (10, 5, 5), (15, 5)])
def test_dynamic_tiers_have_the_blocks_shares(blocks: tuple[int, ...]) -> None:
    """4,000 draws, 20 clients in 200 rounds: block / 20 of them in each tier, whoever the client is."""
    drawn = Counter(tier_of(c, blocks, dynamic=True, seed=0, round_number=t) for t in range(1, 201) for c in range(20))
    expected = {tier: 4000 * size / 20 for tier, size in enumerate(blocks)}
    assert chi_square(drawn, expected) < CHI_SQUARE_999[len(blocks) - 1]


def test_dynamic_tiers_are_drawn_apart() -> None:
    """Two clients in one round, and one client in two rounds: four equal cells of 500 in 2,000 draws each."""

    def tier(client: int, number: int) -> int:
        return tier_of(client, (10, 10), dynamic=True, seed=3, round_number=number)

    cells = dict.fromkeys(product((0, 1), repeat=2), 500)
    assert chi_square(Counter((tier(0, t), tier(1, t)) for t in range(2000)), cells) < CHI_SQUARE_999[3]
    assert chi_square(Counter((tier(5, t), tier(5, t + 1)) for t in range(0, 4000, 2)), cells) < CHI_SQUARE_999[3]


# Learning rates.


def test_step_schedule_of_the_paper() -> None:
    """FedHM: 160 rounds, milestones 100 and 150: rounds 1-100 at 0.1, 101-150 at 0.01, 151-160 at 0.001. The number of
    rounds does not matter, so that a resumed run may ask for more of them."""
    train = Train(lr=0.1, schedule=StepSchedule(milestones=(100, 150), factor=0.1))
    for rounds in (160, 400):
        rates = [learning_rate(train, number, rounds) for number in (1, 100, 101, 150, 151, 160)]
        assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001], rel=1e-14)
    assert {learning_rate(Train(lr=0.3), number, 9) for number in range(1, 10)} == {0.3}


def test_cosine_schedule_by_hand() -> None:
    """From 1.0001 to 0.0001 in 4 rounds: 0.0001 + (1 + cos(0, 45, 90, 135 degrees)) / 2; round 5 is the end."""
    train = Train(lr=1.0001, schedule=CosineSchedule())
    rates = [learning_rate(train, t, 4) for t in range(1, 6)]
    half = math.sqrt(0.5) / 2
    assert rates == pytest.approx([1.0001, 0.5001 + half, 0.5001, 0.5001 - half, 0.0001], rel=1e-14)
    assert rates[0] == 1.0001 and rates[-1] == 0.0001


def test_clients_of_drawn_tiers_are_uniform_among_those_who_drew_them() -> None:
    """2 of the clients 0-5 in tier 0 of (3, 3), in 3,000 rounds: each pair as often as the rounds in which it could be
    drawn say, one over the number of pairs; fewer, or none, where fewer have drawn it."""
    words = ("clients.tier_assignment=dynamic", "clients.count=6", "clients.per_round=2", "method.rank_ratio=[1,0.5]")
    config = small_config(*words)
    everyone = Participation(config)
    seen: Counter = Counter()
    expected: dict[tuple[int, ...], float] = dict.fromkeys(combinations(range(6), 2), 0.0)
    for number in range(1, 3001):
        drawn = everyone.cohort(number, "big", tiers={0})
        chosen = [client for client, _ in drawn]
        could = [c for c in range(6) if tier_of(c, (3, 3), dynamic=True, seed=0, round_number=number) == 0]
        assert set(chosen) <= set(could) and len(chosen) == min(2, len(could)) and chosen == sorted(chosen)
        if len(could) >= 2:
            seen[tuple(chosen)] += 1
            pairs = list(combinations(could, 2))
            expected |= {pair: expected[pair] + 1 / len(pairs) for pair in pairs}
    assert chi_square(seen, expected) < CHI_SQUARE_999[14]
    empty = small_config("clients.tier_assignment=dynamic", "method.name=fdnnc", "method.big_share=1")
    assert Participation(empty).cohort(1, "small", tiers={1}) == []
