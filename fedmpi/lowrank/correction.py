"""What a mean of factorized nets loses of a layer, and how the server keeps it. No method's paper has this.

Aggregation step of a round. The server holds W (M, N) = sum_k sigma_k u_k v_k^T of a layer. A client of rank r starts
from the leading r triplets, P_r W = U_r V_r, a dense one from W. Client i comes back with W_i, and its share of all
weight is alpha_i. The plain mean sum_i alpha_i W_i multiplies triplet k by c_k, the share of the clients that hold it,
even where no client has changed anything: `fedmpi/methods/RANK_COLLAPSE.md` derives what follows from that.

    W+ = mean + rho untouched     `untouched` is what some clients did not get. At rho = 1 this is W and the mean of
                                  what each client changed; at rho = 0 the plain mean.
    W+ = W + covered_change       The same, with each change averaged over the clients that could make it.

A client of rank r_j changes, to first order, only entries of U^T W V whose row or column is among the first r_j. With
U_j and V_j the leading r_j singular vectors, T_j(X) = X - (I - U_j U_j^T) X (I - V_j^T V_j) keeps these entries: it
projects onto the tangent space of the matrices of rank r_j at P_{r_j} W. A dense client's T is the identity.

What holds exactly:
- Where all contributing clients are dense this is federated averaging, to the bit.
- Clients of one rank r give the plain mean plus what of W lies beyond r. If no client is ever dense, U V takes the
  place of W, because what lies beyond all ranks would stay as the random start has left it. Tiers that all have one
  rank then have nothing to keep: the plain mean, to the bit.
- Without a change by clients W stays, to the rounding of float32.
- `covered_change` at p = 1 gives each entry of U^T W V the mean over the clients that cover it, plus what their changes
  have outside their own T, which is of second order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# Singular vectors of values below this share of the largest one are no longer orthogonal (`gram`: to 2e-4 here), and
# training can hardly move them: gradients are proportional to the square roots of the values.
_SMALLEST_VALUE = 2.0**-23


@dataclass(frozen=True)
class TierCoverage:
    """Which share of the contributing clients' weight holds the triplets of a layer.

    `share_by_rank[r]` is c_k of every k up to r and beyond the next smaller key, ascending (of rank ratios likewise);
    `dense` is the share of the dense clients, who hold all triplets.
    """

    share_by_rank: Mapping[float, float]
    dense: float

    @classmethod
    def from_clients(cls, clients: Iterable[tuple[float | None, float]]) -> TierCoverage:
        """Returns the cover of clients that are given as (r, weight), r None for a dense one, in any order."""
        found = list(clients)
        total = math.fsum(weight for _, weight in found)

        def share(least: float) -> float:
            return math.fsum(weight for r, weight in found if r is None or r >= least) / total

        ranks = sorted({r for r, _ in found if r is not None})
        return cls({r: share(r) for r in ranks}, share(math.inf))

    def share_at(self, r: float) -> float:
        """Returns c_k of k = r."""
        return next((share for largest, share in self.share_by_rank.items() if r <= largest), self.dense)


def received(weight: Tensor, factors: tuple[Tensor, Tensor] | None, cover: TierCoverage) -> Tensor:
    """Returns a_D W + U diag(s) V, the mean of what the contributing clients started from; (M, N), float64. One thin
    product. The factors may be None where all clients are dense."""
    dense = weight.double() * cover.dense
    return dense if factors is None else dense.add_(_product(*factors, low_shares(cover)))


def untouched(weight: Tensor | None, u: Tensor, v: Tensor, cover: TierCoverage) -> Tensor:
    """Returns (1 - a_D) W - U diag(s) V: what a mean over clients lacks of W, because some did not get it.

    Where no client is ever dense, `weight` is None and U V takes the place of W: U diag(1 - s) V. What lies beyond all
    clients' ranks would otherwise stay as the random start has left it. (M, N), float64. One thin product.
    """
    shares = low_shares(cover)
    if weight is None:
        return _product(u, v, 1.0 - torch.nn.functional.pad(shares, (0, u.shape[1] - len(shares))))
    return _product(u, v, shares).neg_().add_(weight.double(), alpha=1.0 - cover.dense)


def covered_change(
    sums: Mapping[int | None, Tensor],
    weight: Tensor,
    u: Tensor,
    v: Tensor,
    cover: TierCoverage,
    power: float,
    bases: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Returns sum_t A_t + sum_j (c_j^-p - 1) (T_j - T_{j-1}) sum_{t >= j} A_t, (M, N), float64.

    A_t is the sum of alpha_i (W_i - start_i) over the clients of rank r_t. `sums` has that of alpha_i W_i by r_t (None:
    the dense ones). p = 0 leaves the plain sum of changes. Some twelve thin products in the type of `weight`: float32
    rounds only the second sum, to 2^-24 of a change. T is that of `bases` (M, r) and (r', N); None: of the singular
    vectors.
    """
    result = weight.new_zeros(weight.shape, dtype=torch.float64)
    left, right = bases or _orthonormal(u.to(weight), v.to(weight))
    above = gained = weight.new_zeros(weight.shape)
    for r, change in _changes(sums, weight, u, v, cover):
        result += change
        above = above + change.to(weight.dtype)
        share = cover.dense if r is None else cover.share_by_rank[r]
        gain = above * (share**-power - 1.0)
        result += gain if r is None else _tangent(gain - gained, left[:, :r], right[:r])
        gained = gain
    return result


def _changes(
    sums: Mapping[int | None, Tensor], weight: Tensor, u: Tensor, v: Tensor, cover: TierCoverage
) -> Iterator[tuple[int | None, Tensor]]:
    """Yields each rank and its A_t, float64, the dense clients' and the largest rank first."""
    if cover.dense:
        yield None, torch.sub(sums[None].double(), weight, alpha=cover.dense)
    held = [(int(r), share) for r, share in cover.share_by_rank.items()]
    start = _product(u, v, torch.ones(max(r for r, _ in held), dtype=torch.float64))
    beyond = cover.dense
    for place, (r, share) in reversed(list(enumerate(held))):
        yield r, torch.sub(sums[r], start, alpha=share - beyond)
        if place:
            beyond = share
            smaller = held[place - 1][0]
            start.addmm_(u[:, smaller:r].double(), v[smaller:r].double(), alpha=-1)


def low_shares(cover: TierCoverage) -> Tensor:
    """Returns s (r,), float64: the share of the low-rank clients that hold each triplet, r the largest of theirs."""
    shares = [share - cover.dense for share in cover.share_by_rank.values()]
    lengths = [int(last - first) for first, last in zip((0, *cover.share_by_rank), cover.share_by_rank, strict=False)]
    return torch.tensor(shares, dtype=torch.float64).repeat_interleave(torch.tensor(lengths, dtype=torch.int64))


def _tangent(matrix: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Applies T of the leading singular vectors `left` (M, r) and `right` (r, N)."""
    inside = left @ (left.t() @ matrix)
    return inside + ((matrix - inside) @ right.t()) @ right


def _orthonormal(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the singular vectors (M, r') and (r', N) of factors whose columns and rows have the norm sqrt(sigma)."""
    left = u.norm(dim=0)
    right = v.norm(dim=1)
    kept = int((left * right > _SMALLEST_VALUE * (left * right).max()).sum())
    return u[:, :kept] / left[:kept], v[:kept] / right[:kept, None]


def nested_bases(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Returns orthonormal vectors (M, r) whose first j span the first j columns of u (M, r), and (r', N) likewise for
    those rows of v (r, N) that are not zero, which come first: factors of an adapter, whose B is zero at the start.
    """
    kept = int((v.norm(dim=1) > 0).sum())
    return torch.linalg.qr(u).Q, torch.linalg.qr(v[:kept].t()).Q.t()


def _product(u: Tensor, v: Tensor, factors: Tensor) -> Tensor:
    """Returns U diag(factors) V of the leading columns of U and rows of V, float64."""
    r = len(factors)
    return (u[:, :r].double() * factors.to(u.device)) @ v[:r].double()
