"""The truncated SVD of a matrix that changes little from round to round: FedHM's `solver: auto`.

Refreshing step of a round. For each layer where r + 16 is at most half of min(M, N), r of the largest tier below the
dense one, the server's state has a basis of r + 16 orthonormal directions. After a round two steps of subspace
iteration turn it towards the new matrix (Halko, Martinsson, Tropp, arXiv:0909.4061, algorithm 4.4, but from the last
round's basis instead of a random one). Publishing needs the matrix within the basis alone (Rayleigh-Ritz). The first
basis comes from the float64 eigenvectors of the Gram matrix, as all factors of `gram` do.

Products with the matrix are in its own float32, which takes half of float64's time. Rounding turns a direction of the
singular value sigma by some 1e-7 ||A|| / sigma, so it adds some 1e-14 of the energy to each direction's squared error.
After two products without an orthonormalization between them it would be 1e-7 (||A|| / sigma)^2. The Gram matrix within
the basis and its eigenvectors are float64.

No cheap certificate tells how good a basis is, so in each round one layer in turn is audited, after publishing, while
others go on: its squared error at r against the optimum, by all eigenvalues of the Gram matrix, in float64. If the
excess is above a thousandth of the optimum and above 1e-8 of the whole energy, the layer's bases come from the Gram
matrix in the next ten rounds.

Everything follows from the state, so a resumed run has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.svd import Triplets, gram
from fedmpi.tensors import Params

NUM_MORE, NUM_STEPS, NUM_ROUNDS_BY_GRAM = 16, 2, 10
MOST_EXCESS, LEAST_EXCESS = 1e-3, 1e-8
AUDIT, FOUND, BASIS, SPECTRUM = "svd.audit", "svd.found", "svd.basis@", "svd.spectrum@"
"""Tensors of the state. The audit: the number of the layer whose turn it is, its excess as a share of the optimum, and
by layer how many more rounds its bases come from the Gram matrix; the singular values that it found, until the next
round. By layer: the basis (k, min(M, N)), float32, and all singular values of its last audit.
"""


def is_of_bases(name: str) -> bool:
    """Whether a tensor of the state of this name is one of those."""
    return name in (AUDIT, FOUND) or name.startswith((BASIS, SPECTRUM))


class WarmBases:
    """The bases of those of these layers for which they pay; `rank_ratio` is that of the largest tier below the dense
    one.
    """

    def __init__(self, layers: Mapping[str, FactorizedLayer], rank_ratio: float) -> None:
        ranks = {name: layer.r(rank_ratio) for name, layer in layers.items()}
        self.ranks = {name: r for name, r in ranks.items() if 2 * (r + NUM_MORE) <= min(layers[name].matrix_shape)}
        self._names, self._layers = list(self.ranks), layers

    def refreshed(self, state: Params) -> Params:
        """The state with bases for its weights; it tells which layer is to be audited."""
        if not self.ranks:
            return state
        new, audit = dict(state), state.get(AUDIT, torch.zeros(2 + len(self.ranks), dtype=torch.float64)).clone()
        if FOUND in new:
            new[SPECTRUM + self._names[int(audit[0])]] = new.pop(FOUND)
        audit[0], audit[1] = int(audit[0] + 1) % len(self.ranks), 0.0
        for number, (name, r) in enumerate(self.ranks.items()):
            matrix = self._matrix(state, name)
            if BASIS + name in state and not audit[2 + number]:
                new[BASIS + name] = _turned(matrix, state[BASIS + name])
            else:
                vectors, sigma, _ = gram(matrix)
                new[BASIS + name], new[SPECTRUM + name] = vectors.t()[: r + NUM_MORE].float(), sigma.float()
        audit[2:] = (audit[2:] - 1).clamp_min(0)
        return {**new, AUDIT: audit}

    def audited(self, state: Params) -> Params:
        """The state with what the audit of one of its bases has found; without effect on its factors."""
        if AUDIT not in state or state[AUDIT][2 + int(state[AUDIT][0])]:  # the Gram matrix gives this basis
            return state
        audit = state[AUDIT].clone()
        number = int(audit[0])
        name = self._names[number]
        audit[1], is_good, sigma = _excess(self._matrix(state, name), state[BASIS + name], self.ranks[name])
        if not is_good:
            audit[2 + number] = NUM_ROUNDS_BY_GRAM
        return {**state, AUDIT: audit, FOUND: sigma}

    def solver(self, state: Params, layer: str) -> Callable[[Tensor], Triplets] | None:
        """How a layer of this state is factorized within its basis; None where it has none."""
        if BASIS + layer not in state:
            return None
        return partial(_within, basis=state[BASIS + layer], last=state[SPECTRUM + layer])

    def notes(self, state: Params) -> dict[str, object]:
        """What the round's audit found, for the record: the layer and its excess, both None where there was none, and
        the layers whose bases come from the Gram matrix for now."""
        if AUDIT not in state:
            return {}
        number, excess, *left = state[AUDIT].tolist()
        by_gram = [name for name, rounds in zip(self._names, left, strict=True) if rounds]
        found = (self._names[int(number)], float(f"{excess:.3g}")) if FOUND in state else (None, None)
        return {"svd": {"audited": found[0], "excess": found[1], "by_gram": by_gram}}

    def _matrix(self, state: Params, name: str) -> Tensor:
        """A layer's matrix or its transpose, whichever has no more rows than columns."""
        matrix = self._layers[name].unroll(state[f"{name}.weight"])
        return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.t()


def _turned(matrix: Tensor, basis: Tensor) -> Tensor:
    """The basis (k, m) after some steps towards the leading left singular vectors of (m, n)."""
    for _ in range(NUM_STEPS):
        basis = _orthonormal(_orthonormal(basis @ matrix) @ matrix.t())
    return basis


def _orthonormal(rows: Tensor) -> Tensor:
    return torch.linalg.qr(rows.t()).Q.t()


def _within(matrix: Tensor, *, basis: Tensor, last: Tensor) -> Triplets:
    """The triplets of (M, N) within a basis, and singular values: those, and beyond them the `last` known ones (equal
    ones if all of these are 0), scaled to the energy that is there, which is right to some 1e-7 of the whole."""
    if matrix.shape[0] > matrix.shape[1]:
        right, sigma, left = _within(matrix.t(), basis=basis, last=last)
        return left.t(), sigma, right.t()
    left, sigma, right = gram(basis.to(matrix) @ matrix)
    rest = (torch.linalg.vector_norm(matrix, dtype=torch.float64).square() - sigma.square().sum()).clamp_min(0)
    tail = last[len(sigma) :].double()
    tail = tail.where(tail.any(), 1.0)  # a layer of zeros at its last audit may have become another
    scaled = tail * (rest / tail.square().sum()).sqrt()
    return (left.t().to(basis) @ basis).t(), torch.cat([sigma, scaled]), right


def _excess(matrix: Tensor, basis: Tensor, r: int) -> tuple[float, bool, Tensor]:
    """By how much the squared error of the best matrix of rank r within the basis exceeds the optimum, as a share of
    it, whether that will do, and all singular values of the matrix; float64 throughout, as excesses are differences.
    """
    exact = matrix.double()
    sigma = torch.linalg.eigvalsh(exact @ exact.t()).flip(0).clamp_min(0).sqrt()
    inside = gram(_orthonormal(basis.double()) @ exact)[1]
    energy, optimum = float(sigma.square().sum()), float(sigma[r:].square().sum())
    excess = float(sigma[:r].square().sum() - inside[:r].square().sum())
    is_good = excess <= max(MOST_EXCESS * optimum, LEAST_EXCESS * energy)
    return share(excess, optimum, energy), is_good, sigma.float()


def share(excess: float, optimum: float, energy: float) -> float:
    """An excess as a share of the optimum, or of the least that counts of the energy where that is more; 0 of a matrix
    of zeros, as a residual branch may begin."""
    return excess / max(optimum, LEAST_EXCESS * energy, torch.finfo(torch.float64).tiny)
