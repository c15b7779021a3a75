"""The truncated SVD: optimal, split evenly, prefix property, signs, edge cases; for both solvers."""

import pytest
import torch
from model_inputs import randn

from fedmpi.lowrank.svd import truncated_svd

both_solvers = pytest.mark.parametrize("solver", ["exact", "gram"])


def decaying(rows: int, columns: int, decay: float) -> torch.Tensor:
    """Singular values decay^0, decay^1, ...: what trained layers look like."""
    k = min(rows, columns)
    left, _ = torch.linalg.qr(randn(rows, k).double())
    right, _ = torch.linalg.qr(randn(columns, k, seed=1).double())
    return ((left * decay ** torch.arange(k).double()) @ right.t()).float()


@both_solvers
@pytest.mark.parametrize("matrix", [randn(96, 48), randn(40, 90), decaying(60, 60, 0.8)])
@pytest.mark.parametrize("r", [1, 7, 20])
def test_error_is_the_optimum(solver: str, matrix: torch.Tensor, r: int) -> None:
    """Eckart-Young: the squared error is the sum of the squared singular values cut off.

    Float32 factors move it by at most about 1e-6 of the matrix's norm (eps = 6e-8, times r terms).
    """
    u, v, _ = truncated_svd(matrix, r, solver)
    tail = torch.linalg.svdvals(matrix.double())[r:].norm()
    error = (u.double() @ v.double() - matrix).norm()
    assert abs(error - tail) <= 1e-6 * matrix.norm()


@both_solvers
def test_singular_values_are_split_evenly(solver: str) -> None:
    """The norm of column i of u and of row i of v is sqrt(sigma_i), and the columns are orthogonal."""
    matrix = randn(30, 50)
    u, v, _ = truncated_svd(matrix, 12, solver)
    sigma = torch.diag(torch.linalg.svdvals(matrix)[:12])
    torch.testing.assert_close(u.t() @ u, sigma, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(v @ v.t(), sigma, rtol=1e-5, atol=1e-4)


@both_solvers
@pytest.mark.parametrize("shape", [(33, 64), (64, 33)])
def test_prefix_property_to_the_bit(solver: str, shape: tuple[int, int]) -> None:
    matrix = randn(*shape)
    u, v, _ = truncated_svd(matrix, 20, solver)
    for r in (1, 5, 19):
        small_u, small_v, _ = truncated_svd(matrix, r, solver)
        assert torch.equal(small_u, u[:, :r]) and torch.equal(small_v, v[:r])


@both_solvers
def test_signs_follow_the_rule(solver: str) -> None:
    """The largest entry of each column of u is positive, so that negating the matrix negates v alone."""
    matrix = randn(24, 17)
    u, v, _ = truncated_svd(matrix, 9, solver)
    assert (u.gather(0, u.abs().argmax(dim=0, keepdim=True)) > 0).all()
    negated_u, negated_v, _ = truncated_svd(-matrix, 9, solver)
    torch.testing.assert_close(negated_u, u, rtol=0, atol=1e-4)
    torch.testing.assert_close(negated_v, -v, rtol=0, atol=1e-4)


def test_gram_is_at_least_as_exact_as_the_float32_svd() -> None:
    """The measure behind the default: singular values (squared column norms) against float64's."""
    matrix = randn(192, 192)
    truth = torch.linalg.svdvals(matrix.double())[:32]

    def worst(solver: str) -> float:
        u, *_ = truncated_svd(matrix, 32, solver)
        return ((u.double().square().sum(dim=0) - truth).abs() / truth).max().item()

    assert worst("gram") <= worst("exact") <= 1e-5
    assert worst("gram") <= 1e-7


def test_types_and_errors() -> None:
    assert truncated_svd(randn(4, 5).bfloat16(), 2)[0].dtype == torch.float32
    assert truncated_svd(randn(4, 5).double(), 2)[1].dtype == torch.float64
    with pytest.raises(ValueError, match="at least 1"):
        truncated_svd(randn(4, 5), 0)
    for solver in ("exact", "gram"):
        with pytest.raises(torch.linalg.LinAlgError):
            truncated_svd(torch.full((4, 5), float("nan")), 2, solver)


@both_solvers
def test_zero_and_rank_deficient_matrices(solver: str) -> None:
    """Components that the matrix does not have stay below the rounding of the ones that it has."""
    u, v, _ = truncated_svd(torch.zeros(6, 9), 4, solver)
    assert (u == 0).all() and (v == 0).all()
    matrix = randn(40, 3) @ randn(3, 25, seed=1)
    u, v, _ = truncated_svd(matrix, 8, solver)
    torch.testing.assert_close(u @ v, matrix, rtol=0, atol=1e-5)
    assert u[:, 3:].norm() < 1e-2 and v[3:].norm() < 1e-2
