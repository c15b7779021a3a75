"""The truncated SVD of a matrix that changes little from round to round: FedHM's `solver: auto`.

Refreshing step of a round. For each layer where r + 16 is at most half of min(M, N), r of the largest tier below the
dense one, the server's state has a basis of r + 16 orthonormal directions. After a round two steps of subspace
iteration turn it towards the new matrix (Halko, Martinsson, Tropp, arXiv:0909.4061, algorithm 4.4, but from the last
round's basis instead of a random one). Publishing needs the matrix within the basis alone (Rayleigh-Ritz). Both are in
float64. The first basis comes from the eigenvectors of the Gram matrix, as all factors of `gram` do.

No cheap certificate tells how good a basis is, so after each round one layer in turn is audited: its squared error at r
against the optimum, by all eigenvalues of the Gram matrix. If the excess is above a thousandth of the optimum and
above 1e-8 of the whole energy, the layer's bases come from the Gram matrix in this round and the next ten.

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
AUDIT, BASIS, SPECTRUM = "svd.audit", "svd.basis@", "svd.spectrum@"
"""Tensors of the state. The audit: the layer's number, its excess as a share of the optimum, and by layer how many more
rounds its bases come from the Gram matrix. By layer: the basis (k, min(M, N)), float32, and all singular values of the
last audit.
"""


class WarmBases:
    """The bases of those of these layers for which they pay; `rank_ratio` is that of the largest tier below the dense
    one.
    """

    def __init__(self, layers: Mapping[str, FactorizedLayer], rank_ratio: float) -> None:
        ranks = {name: layer.r(rank_ratio) for name, layer in layers.items()}
        self.ranks = {name: r for name, r in ranks.items() if 2 * (r + NUM_MORE) <= min(layers[name].matrix_shape)}
        self._layers = layers

    def refreshed(self, state: Params) -> Params:
        """The state with bases for its weights."""
        if not self.ranks:
            return state
        new, audit = dict(state), state.get(AUDIT, torch.zeros(2 + len(self.ranks), dtype=torch.float64)).clone()
        audited = int(audit[0] + 1) % len(self.ranks)
        audit[0], audit[1] = audited, 0.0  # without excess where the Gram matrix gives the basis
        for number, (name, r) in enumerate(self.ranks.items()):
            matrix = _wide(self._layers[name].unroll(state[f"{name}.weight"])).double()
            known, left = state.get(BASIS + name), int(audit[2 + number])
            basis = _turned(matrix, known) if known is not None and not left else None
            audit[2 + number] = max(0, left - 1)
            if basis is not None and number == audited:
                sigma = torch.linalg.eigvalsh(matrix @ matrix.t()).flip(0).clamp_min(0).sqrt()
                audit[1], is_good = _excess(matrix, basis, sigma, r)
                if is_good:
                    new[SPECTRUM + name] = sigma.float()
                else:
                    audit[2 + number], basis = NUM_ROUNDS_BY_GRAM, None
            if basis is None:
                vectors, sigma, _ = gram(matrix)
                basis, new[SPECTRUM + name] = vectors.t()[: r + NUM_MORE], sigma.float()
            new[BASIS + name] = basis.float()
        return {**new, AUDIT: audit}

    def solver(self, state: Params, layer: str) -> Callable[[Tensor], Triplets] | None:
        """How a layer of this state is factorized within its basis; None where it has none."""
        if BASIS + layer not in state:
            return None
        return partial(_within, basis=state[BASIS + layer], last=state[SPECTRUM + layer])

    def notes(self, state: Params) -> dict[str, object]:
        """What the last audit found, for the record: the layer, its excess, and the layers whose bases come from the
        Gram matrix."""
        if AUDIT not in state:
            return {}
        number, excess, *left = state[AUDIT].tolist()
        by_gram = [name for name, rounds in zip(self.ranks, left, strict=True) if rounds]
        return {"svd": {"audited": list(self.ranks)[int(number)], "excess": float(f"{excess:.3g}"), "by_gram": by_gram}}


def _wide(matrix: Tensor) -> Tensor:
    """The matrix or its transpose, whichever has no more rows than columns."""
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.t()


def _turned(matrix: Tensor, basis: Tensor) -> Tensor:
    """The basis (k, m) after some steps towards the leading left singular vectors of (m, n), float64."""
    turned = basis.double()
    for _ in range(NUM_STEPS):
        turned = _orthonormal((turned @ matrix) @ matrix.t())
    return turned


def _orthonormal(rows: Tensor) -> Tensor:
    return torch.linalg.qr(rows.t()).Q.t()


def _within(matrix: Tensor, *, basis: Tensor, last: Tensor) -> Triplets:
    """The triplets of (M, N) within a basis, and singular values: those, and beyond them the `last` known ones, scaled
    to the energy that is there."""
    if matrix.shape[0] > matrix.shape[1]:
        right, sigma, left = _within(matrix.t(), basis=basis, last=last)
        return left.t(), sigma, right.t()
    exact, rows = matrix.double(), _orthonormal(basis.double())
    left, sigma, right = gram(rows @ exact)
    rest = (exact.square().sum() - sigma.square().sum()).clamp_min(0)
    tail = last[len(sigma) :].double()
    scaled = tail * (rest / tail.square().sum().clamp_min(torch.finfo(torch.float64).tiny)).sqrt()
    return rows.t() @ left, torch.cat([sigma, scaled]), right


def _excess(matrix: Tensor, basis: Tensor, sigma: Tensor, r: int) -> tuple[float, bool]:
    """By how much the squared error of the best matrix of rank r within the basis exceeds the optimum, as a share of
    it, and whether that will do. `sigma` are all singular values of the matrix.
    """
    inside = gram(basis @ matrix)[1]
    energy, optimum = float(sigma.square().sum()), float(sigma[r:].square().sum())
    excess = float(sigma[:r].square().sum() - inside[:r].square().sum())
    return excess / max(optimum, LEAST_EXCESS * energy), excess <= max(MOST_EXCESS * optimum, LEAST_EXCESS * energy)
