"""What low rank needs to know of one layer: shapes, the unrolled matrix, and back.

The paper (FedHM, arXiv:2111.14655, 2.2) unrolls a conv weight (n, m, kh, kw) into rows (m, kh) and columns (n, kw); u
then holds r filters of kh x 1, applied first, and v n filters of 1 x kw. The authors' code pairs kh with the outputs:
rows (m, kw) and columns (n, kh) here, the horizontal filters first (we transpose their matrix, so that `u` is the first
one in both). Either is exact at full rank; truncated, they are different approximations with the same counts. PriSM
(arXiv:2208.13141, 3.1) keeps the kernel whole, rows (m, kh, kw) and columns n: u then holds r full filters, its
"principal kernels", and v is 1 x 1. A linear weight (n, m) is unrolled into (m, n).

Differences from the paper: inside a side, the kernel index runs slower than the channel, which permutes rows and
columns and leaves the approximation as it is. A factor in channels_last memory format then is its matrix: `u_matrix`
and `v_matrix` are views.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from fedmpi.lowrank.svd import Solver, Triplets, truncated_svd
from fedmpi.tensors import Params, Spec

_COST = 6
"""On one core the factors of an (M, N) matrix take as long as training of _COST min(M, N) M N multiply-accumulates of a
forward pass: measured 7 on an AMD EPYC, about 5 on an Intel Xeon."""
Unroll = Literal["paper", "code", "output"]
"""Which side the kernel's axes go to: FedHM's paper, FedHM's code, or both to the inputs (PriSM)."""

# Of each order: the axes of (n, m, kh, kw) that are the rows, then those that are the columns.
_AXES = {"paper": (2, 1, 0, 3), "code": (3, 1, 0, 2), "output": (2, 3, 1, 0)}


@dataclass(frozen=True)
class FactorizedLayer:
    """One layer that is sent as two factors.

    `kernel` is (kh, kw), or None for a linear layer; `fixed` is this layer's own rank ratio (float) or rank (int).
    """

    name: str
    in_features: int
    out_features: int
    kernel: tuple[int, int] | None
    unroll_order: Unroll = "paper"
    fixed: float | int | None = None

    @classmethod
    def of(cls, name: str, module: nn.Module, unroll: Unroll, fixed: float | int | None = None) -> FactorizedLayer:
        """Returns the factorization of a dense conv or linear layer, on any device."""
        n, m, *kernel = module.get_parameter("weight").shape
        return cls(name, m, n, (kernel[0], kernel[1]) if kernel else None, unroll, fixed)

    @property
    def factor_names(self) -> tuple[str, str]:
        """Names of the weights of `u` and `v`."""
        return f"{self.name}.u.weight", f"{self.name}.v.weight"

    @property
    def _kernels(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns the kernels of `u` and `v`."""
        kh, kw = self.kernel or (1, 1)
        return {"paper": ((kh, 1), (1, kw)), "code": ((1, kw), (kh, 1)), "output": ((kh, kw), (1, 1))}[
            self.unroll_order
        ]

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Returns (M, N) of the unrolled weight."""
        rows, columns = map(math.prod, self._kernels)
        return self.in_features * rows, self.out_features * columns

    def r(self, rank_ratio: float) -> int:
        """Returns max(1, round(rank_ratio * n)), at most the full rank min(M, N)."""
        asked = rank_ratio if self.fixed is None else self.fixed
        wanted = asked if isinstance(asked, int) else max(1, round(asked * self.out_features))
        return min(wanted, *self.matrix_shape)

    def growth(self, r: int, num_outputs: int | None = None) -> int:
        """Returns how many more numbers the factors of rank r (with these outputs only) have than the layer; fewer:
        below 0."""
        rows, columns = self.matrix_shape
        kept = columns if num_outputs is None else columns // self.out_features * num_outputs
        return r * (rows + kept) - rows * columns

    def u_shape(self, r: int) -> tuple[int, ...]:
        return (r, self.in_features, *(self._kernels[0] if self.kernel else ()))

    def v_shape(self, r: int) -> tuple[int, ...]:
        return (self.out_features, r, *(self._kernels[1] if self.kernel else ()))

    def unroll(self, weight: torch.Tensor) -> torch.Tensor:
        """Maps a dense weight (n, m, kh, kw) or (n, m) to its matrix (M, N)."""
        if self.kernel is None:
            return weight.t()
        return weight.permute(_AXES[self.unroll_order]).reshape(self.matrix_shape)

    def fold(self, matrix: torch.Tensor) -> torch.Tensor:
        """Maps a matrix (M, N) to its dense weight, a view of the matrix or of its transpose."""
        if self.kernel is None:
            return matrix.t()
        axes = _AXES[self.unroll_order]
        dense_shape = (self.out_features, self.in_features, *self.kernel)
        unrolled = matrix.reshape([dense_shape[axis] for axis in axes])
        return unrolled.permute([axes.index(axis) for axis in range(4)])

    def folded_as(self, weight: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """Folds a matrix (M, N), with the type, device and memory format of `weight`."""
        return torch.empty_like(weight).copy_(self.fold(matrix))

    def decompose(self, weight: torch.Tensor, r: int, solver: Solver = "gram") -> Triplets:
        """Returns the weights of `u` (r, m, *kernel) and `v` (n, r, *kernel), contiguous, and all singular values,
        largest first."""
        u, v, sigma = truncated_svd(self.unroll(weight), r, solver)
        return self._weight(u.t(), self.u_shape(len(v))), self._weight(v.t(), self.v_shape(len(v))), sigma

    def lift(self, u_weight: torch.Tensor, v_weight: torch.Tensor) -> torch.Tensor:
        """Maps the weights of `u` and `v`, at any rank, to the dense weight that they stand for, contiguous."""
        return self.lifted(u_weight, v_weight).contiguous()

    def product(self, params: Params) -> torch.Tensor:
        """Returns the dense weight that the layer's factors among `params` stand for, as `lift` does."""
        return self.lift(*(params[name] for name in self.factor_names))

    def lifted(self, u_weight: torch.Tensor, v_weight: torch.Tensor) -> torch.Tensor:
        """Returns what `lift` does as it comes out of the product V^T U^T, without a copy: inputs lie innermost in
        memory, as in channels_last."""
        return self.fold((self.v_matrix(v_weight).t() @ self.u_matrix(u_weight).t()).t())

    def u_matrix(self, u_weight: torch.Tensor) -> torch.Tensor:
        """Maps (r, m, *kernel) to (M, r); a view if `u_weight` is channels_last."""
        return channels_inside(u_weight).reshape(u_weight.shape[0], -1).t()

    def v_matrix(self, v_weight: torch.Tensor) -> torch.Tensor:
        """Maps (n, r, *kernel) to (r, N); a view if `v_weight` is channels_last."""
        return channels_inside(v_weight).reshape(-1, v_weight.shape[1]).t()

    @torch.no_grad()
    def add_decay(self, params: Params, grads: Params, coefficient: float) -> None:
        """Adds the gradient of (coefficient / 2) ||U V||_F^2 to `grads`, in place, between backward and the optimizer's
        step: coefficient U (V V^T) for U (M, r), and coefficient (U^T U) V for V (r, N).

        Khodak, Tenenholtz, Mackey, Fusi, "Initialization and regularization of factorized neural layers",
        arXiv:2105.01029; FedHM, 2.3. Kernels lie in channels_last. O(r^2 (M + N)) multiply-adds; nothing larger than
        (r, r) is allocated, and nothing waits for the device.
        """
        name_u, name_v = self.factor_names
        u = self.u_matrix(params[name_u]).t()  # (r, M)
        v = self.v_matrix(params[name_v]).t()  # (N, r)
        channels_inside(grads[name_u]).view(u.shape).addmm_(v.t() @ v, u, alpha=coefficient)
        channels_inside(grads[name_v]).view(v.shape).addmm_(v, u @ u.t(), alpha=coefficient)

    def decay_macs(self, specs: Mapping[str, Spec]) -> int:
        """Returns the multiply-adds of `add_decay`, 2 r^2 (M + N)."""
        u, v = (specs[name] for name in self.factor_names)
        return 2 * u.shape[0] * (u.num_elements + v.num_elements)

    # What a server that keeps dense weights publishes of a layer: once a round, at the largest r that some tier needs.

    @property
    def published_names(self) -> tuple[str, str, str]:
        """Names the factors and, for the record, the singular values."""
        return (*self.factor_names, f"{self.name}.sigma")

    def published_specs(self, rank_ratio: float) -> dict[str, Spec]:
        r = self.r(rank_ratio)
        shapes = (self.u_shape(r), self.v_shape(r), (min(self.matrix_shape),))
        specs = (Spec(shape, channels_last=len(shape) == 4) for shape in shapes)
        return dict(zip(self.published_names, specs, strict=True))

    @property
    def cost(self) -> float:
        """Returns how long `publish` takes: multiply-accumulates of a client that trains as long."""
        rows, columns = self.matrix_shape
        return float(_COST * min(rows, columns) * rows * columns)

    def publish(self, weight: torch.Tensor, out: Params, solver: Solver) -> None:
        """Factorizes the layer's weight into `out` if its factors are there; their shape says to which r."""
        names = self.published_names
        if names[0] in out:
            parts = self.decompose(weight, len(out[names[0]]), solver)
            for name, value in zip(names, parts, strict=True):
                out[name].copy_(value)

    def _weight(self, rows: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        if self.kernel is None:
            return rows.contiguous()
        out_channels, in_channels, kh, kw = shape
        return rows.reshape(out_channels, kh, kw, in_channels).permute(0, 3, 1, 2).contiguous()


def channels_inside(weight: torch.Tensor) -> torch.Tensor:
    """Maps (out, in, kh, kw) to (out, kh, kw, in), a view; leaves two-dimensional weights as they are."""
    return weight.permute(0, 2, 3, 1) if weight.dim() == 4 else weight
