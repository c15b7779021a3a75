"""The corrected mean of factorized nets, against brute force on small matrices in float64."""

import numpy as np
import pytest
import torch

from fedmpi.lowrank.correction import TierCoverage, covered_change, low_shares, received, untouched

ROWS, COLUMNS = 9, 7
RANKS = {1: (0.1, 0.2), 3: (0.15,), 5: (0.25, 0.05), None: (0.25,)}
"""The alphas of the clients of each rank; None: dense."""
# Products of a few numbers near 1, summed a few dozen times, in float64.
ROUNDING = 1e-14


class Round:
    """A round of one layer: what clients of these ranks got and sent. `step` is how far factors move."""

    def __init__(self, clients: dict[int | None, tuple[float, ...]], step: float) -> None:
        generator = np.random.default_rng(0)
        self.clients = clients
        self.weight = generator.normal(size=(ROWS, COLUMNS))
        self.left, sigma, self.right = np.linalg.svd(self.weight)
        root = np.sqrt(sigma)
        self.u, self.v = self.left[:, :COLUMNS] * root, root[:, None] * self.right
        self.start = {r: self.weight if r is None else self.u[:, :r] @ self.v[:r] for r in clients}

        def trained(r: int | None) -> np.ndarray:
            if r is None:
                return self.weight + step * generator.normal(size=self.weight.shape)
            u, v = (part + step * generator.normal(size=part.shape) for part in (self.u[:, :r], self.v[:r]))
            return u @ v

        self.sent = {r: [trained(r) for _ in alphas] for r, alphas in clients.items()}
        self.sums = {r: sum(a * w for a, w in zip(alphas, self.sent[r], strict=True)) for r, alphas in clients.items()}
        self.changes = {r: self.sums[r] - sum(alphas) * self.start[r] for r, alphas in clients.items()}
        self.cover = TierCoverage.from_clients((r, alpha) for r, alphas in clients.items() for alpha in alphas)

    def factors(self, r: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.u[:, :r]), torch.from_numpy(self.v[:r])

    def covered(self, power: float) -> np.ndarray:
        sums = {r: torch.from_numpy(value) for r, value in self.sums.items()}
        return covered_change(sums, torch.from_numpy(self.weight), *self.factors(), self.cover, power).numpy()

    def averaged_by_entry(self, power: float) -> np.ndarray:
        """In the singular basis each entry's changes over c^p, c the weight that covers it; and the rest of each
        client's change, which its rank does not cover to first order."""
        places = np.minimum(np.arange(ROWS)[:, None], np.arange(COLUMNS)[None])
        total, weight, rest = np.zeros((ROWS, COLUMNS)), np.zeros((ROWS, COLUMNS)), np.zeros((ROWS, COLUMNS))
        for r, change in self.changes.items():
            covers = places < (ROWS if r is None else r)
            turned = self.left.T @ change @ self.right.T
            total, rest = total + covers * turned, rest + ~covers * turned
            weight += covers * sum(self.clients[r])
        return self.left @ (total / weight**power + rest) @ self.right


def test_cover_by_hand() -> None:
    """Weights 1, 2, 1 at ranks 2, 4 and dense: c is 1, 3/4 and 1/4; of the low-rank ones 3/4 and 1/2."""
    cover = TierCoverage.from_clients([(4, 2.0), (None, 1.0), (2, 1.0)])
    assert (cover.share_by_rank, cover.dense) == ({2: 1.0, 4: 0.75}, 0.25)
    assert [cover.share_at(k) for k in (1, 2, 3, 4, 5)] == [1.0, 1.0, 0.75, 0.75, 0.25]
    assert low_shares(cover).tolist() == [0.75, 0.75, 0.5, 0.5]


def test_the_server_keeps_w_and_adds_the_mean_change() -> None:
    """mean + untouched = W + sum alpha_i (W_i - start_i); mean - received = the same sum."""
    made = Round(RANKS, 0.1)
    mean, change = sum(made.sums.values()), sum(made.changes.values())
    weight = torch.from_numpy(made.weight)
    kept = untouched(weight, *made.factors(), made.cover).numpy()
    assert mean + kept == pytest.approx(made.weight + change, abs=ROUNDING)
    assert mean - received(weight, made.factors(), made.cover).numpy() == pytest.approx(change, abs=ROUNDING)


def test_one_rank_for_all_is_the_plain_mean_and_the_tail() -> None:
    made = Round({3: (0.25, 0.75)}, 0.1)
    weight, (u, v) = torch.from_numpy(made.weight), made.factors(3)
    tail = made.weight - made.u[:, :3] @ made.v[:3]
    assert untouched(weight, u, v, made.cover).numpy() == pytest.approx(tail, abs=ROUNDING)
    assert not untouched(None, u, v, made.cover).any()


@pytest.mark.parametrize("step", [1e-1, 1e-3])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_each_entry_is_averaged_over_the_clients_that_cover_it(power: float, step: float) -> None:
    made = Round(RANKS, step)
    assert made.covered(power) == pytest.approx(made.averaged_by_entry(power), abs=ROUNDING)


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_without_training_nothing_changes(power: float) -> None:
    assert Round(RANKS, 0.0).covered(power) == pytest.approx(np.zeros((ROWS, COLUMNS)), abs=ROUNDING)


def test_triplets_of_zero_have_no_directions() -> None:
    """W of rank 1 at r = 3: the change of the leading triplet counts twice where half of the weight covers it."""
    u = torch.zeros(4, 3, dtype=torch.float64)
    v = torch.zeros(3, 4, dtype=torch.float64)
    u[0, 0] = v[0, 0] = 2.0
    weight, cover = u @ v, TierCoverage.from_clients([(3, 1.0), (None, 1.0)])
    dense = 0.5 * weight + torch.eye(4, dtype=torch.float64)
    found = covered_change({3: 0.5 * weight, None: dense}, weight, u, v, cover, 1.0)
    # Row and column 0 are everybody's (c = 1), the rest only the dense client's (c = 1/2).
    assert found.tolist() == torch.diag(torch.tensor([1.0, 2.0, 2.0, 2.0], dtype=torch.float64)).tolist()
