"""Factors from the last round's basis: the optimum where it is known, the audit, and what the record is told."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_runs import finished, run_all, small_config

from fedmpi.lowrank import warm
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.svd import Solver, Triplets, gram, truncated_svd
from fedmpi.lowrank.warm import AUDIT, is_of_bases
from fedmpi.mpi.serial import SerialComm
from fedmpi.running.folder import Origin
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import Params

TALL, FLAT = (96, 80), (70, 112)
R = 16
LAYERS = {
    "tall": FactorizedLayer("tall", *TALL, None, fixed=R),
    "flat": FactorizedLayer("flat", *FLAT, None, fixed=R),
    "small": FactorizedLayer("small", 40, 40, None, fixed=R),
}
BASES = warm.WarmBases(LAYERS, 0.5)


def low_rank(shape: tuple[int, int], r: int, seed: int) -> torch.Tensor:
    """A matrix of rank r with singular values r, r - 1, ..., 1."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.linalg.qr(torch.randn(side, r, generator=generator).double()).Q for side in shape)
    return (left * torch.arange(r, 0, -1)) @ right.t()


def state_of(seed: int, r: int = R + warm.NUM_MORE) -> Params:
    """Weights of the two layers, as the net has them (outputs, inputs)."""
    shapes = {"tall": TALL, "flat": FLAT}
    return {f"{name}.weight": low_rank(shape, r, seed).t().float() for name, shape in shapes.items()}


def solver(state: Params, name: str) -> Callable[[torch.Tensor], Triplets]:
    found = BASES.solver(state, name)
    assert found is not None
    return found


def error(state: Params, name: str, solver: Solver) -> float:
    """||W - U V||^2 for the factors of rank R, float64."""
    matrix = LAYERS[name].unroll(state[f"{name}.weight"])
    u, v, _ = truncated_svd(matrix.double(), R, solver)
    return float((matrix.double() - u @ v).square().sum())


def test_a_basis_is_kept_where_it_has_at_most_half_of_all_directions() -> None:
    assert BASES.ranks == {"tall": R, "flat": R}


@pytest.mark.parametrize("name", BASES.ranks)
def test_two_steps_find_any_matrix_that_has_no_more_directions_than_the_basis(name: str) -> None:
    """Of rank r + 16 and unlike the one that the basis is of: its columns are within reach of one step."""
    first = BASES.refreshed(state_of(1))
    state = BASES.refreshed({**first, **state_of(2)})
    optimum = float(torch.arange(warm.NUM_MORE, 0, -1).double().square().sum())
    assert error(state, name, solver(state, name)) == pytest.approx(optimum, rel=1e-6)
    assert state[warm.AUDIT][2:].tolist() == [0, 0]


@pytest.mark.parametrize("name", BASES.ranks)
def test_spectra_have_the_whole_energy_and_the_tail_of_the_last_audit(name: str) -> None:
    full = {key: value + 0.01 * torch.randn_like(value) for key, value in state_of(3).items()}
    state = BASES.refreshed(full)  # the first bases are those of the Gram matrix
    doubled = {**state, f"{name}.weight": 2 * state[f"{name}.weight"]}
    matrix = LAYERS[name].unroll(doubled[f"{name}.weight"])
    _, _, sigma = truncated_svd(matrix, R, solver(doubled, name))
    expected, within = gram(matrix)[1].float(), R + warm.NUM_MORE
    torch.testing.assert_close(sigma[:within], expected[:within], rtol=1e-5, atol=1e-6)
    # A float32 basis is orthonormal to some 1e-7, and 5e-5 of the energy is in the tail.
    torch.testing.assert_close(sigma, expected, rtol=2e-3, atol=1e-6)


def test_layers_are_audited_in_turn() -> None:
    state, audited = state_of(4), []
    for _ in range(4):
        state = BASES.audited(BASES.refreshed(state))
        notes = BASES.notes(state)["svd"]
        assert isinstance(notes, dict)
        audited.append(notes["audited"])
    assert audited == ["flat", "tall", "flat", "tall"]


def test_a_bad_basis_is_found_and_the_gram_matrix_takes_over_for_ten_rounds() -> None:
    """A basis at right angles to all that the matrix has stays there for ever, but for an audit."""
    matrix, num_directions = torch.zeros(FLAT), R + warm.NUM_MORE
    matrix[num_directions:] = torch.randn(FLAT[0] - num_directions, FLAT[1], generator=torch.Generator().manual_seed(5))
    state = BASES.refreshed({**state_of(5), "flat.weight": matrix.t()})
    blind = {
        **state,
        warm.BASIS + "flat": torch.eye(num_directions, FLAT[0]),
        warm.AUDIT: torch.tensor([1.0, 0, 0, 0]).double(),
    }
    assert error(blind, "flat", solver(blind, "flat")) == pytest.approx(float(matrix.double().square().sum()))
    blind = BASES.audited(blind)
    assert blind[warm.AUDIT][1] > 1
    rounds = []
    for _ in range(warm.NUM_ROUNDS_BY_GRAM + 1):
        rounds.append(int(blind[warm.AUDIT][3]))
        blind = BASES.audited(BASES.refreshed(blind))
        assert error(blind, "flat", solver(blind, "flat")) == pytest.approx(error(blind, "flat", "gram"))
        assert blind[warm.AUDIT][1] == pytest.approx(0, abs=1e-6)  # the last audits were of bases of the Gram matrix
    assert rounds == list(range(warm.NUM_ROUNDS_BY_GRAM, -1, -1))


def test_the_record_has_no_audit_where_there_was_none() -> None:
    """In turn tall, flat, tall, flat; the bases of tall come from the Gram matrix in the first three rounds."""
    state = BASES.refreshed(state_of(13))
    assert BASES.notes(state) == {"svd": {"audited": None, "excess": None, "by_gram": []}}
    state = {**state, warm.AUDIT: torch.tensor([1.0, 0, 3, 0]).double()}
    told = []
    for _ in range(4):
        state = BASES.audited(BASES.refreshed(state))
        notes = BASES.notes(state)["svd"]
        assert isinstance(notes, dict) and (notes["audited"] is None) == (notes["excess"] is None)
        told.append((notes["audited"], notes["by_gram"]))
    assert told == [(None, ["tall"]), ("flat", ["tall"]), ("tall", []), ("flat", [])]


def test_an_audit_changes_nothing_before_the_next_round() -> None:
    """It may happen twice, and what is published of the state before and after it is the same."""
    state = BASES.refreshed({**BASES.refreshed(state_of(7)), **state_of(8)})
    once = BASES.audited(state)
    twice = BASES.audited(once)
    for name in once:
        torch.testing.assert_close(once[name], twice[name], rtol=0, atol=0)
    for before, after in zip(
        *(solver(which, "tall")(which["tall.weight"].t()) for which in (state, once)), strict=True
    ):
        torch.testing.assert_close(before, after, rtol=0, atol=0)
    matrix = LAYERS["tall"].unroll(once["tall.weight"])
    torch.testing.assert_close(once[warm.FOUND], gram(matrix)[1].float(), rtol=1e-5, atol=1e-5)
    following = BASES.refreshed(once)
    assert torch.equal(following[warm.SPECTRUM + "tall"], once[warm.FOUND]) and warm.FOUND not in following


def test_a_layer_of_zeros_is_audited() -> None:
    """As a residual branch may begin: nothing lies beyond r, and nothing is in excess."""
    zeros = {**state_of(11), "flat.weight": torch.zeros(FLAT).t()}
    state = BASES.audited(BASES.refreshed(BASES.refreshed(BASES.refreshed(zeros))))  # from its own basis, in its turn
    assert state[warm.AUDIT].tolist() == [1, 0, 0, 0]
    u, v, sigma = truncated_svd(torch.zeros(FLAT), R, solver(state, "flat"))
    assert not u.any() and not v.any() and not sigma.any() and not state[warm.FOUND].any()


def test_a_layer_of_zeros_that_changes_has_its_energy_spread_evenly_beyond_its_basis() -> None:
    """Its last known singular values are all 0, and say nothing of how what is there now is spread."""
    state = BASES.refreshed({**state_of(11), "flat.weight": torch.zeros(FLAT).t()})
    matrix = torch.randn(FLAT, generator=torch.Generator().manual_seed(12))
    state = BASES.refreshed({**state, "flat.weight": matrix.t()})
    *_, sigma = truncated_svd(matrix, R, solver(state, "flat"))
    beyond = sigma[R + warm.NUM_MORE :]
    assert len(sigma) == min(FLAT) and float(beyond[0]) > 1 and torch.equal(beyond, beyond[:1].expand_as(beyond))
    torch.testing.assert_close(sigma.square().sum(), matrix.square().sum(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("smallest", [1e-3, 1e-6])
def test_float32_finds_directions_far_below_the_largest(smallest: float) -> None:
    """Values from 1 down to `smallest`: two products without an orthonormalization between them would lose those below
    some 3e-4."""
    values = torch.logspace(0, float(torch.tensor(smallest).log10()), R + warm.NUM_MORE, dtype=torch.float64)
    generator = torch.Generator().manual_seed(9)
    left, right = (torch.linalg.qr(torch.randn(side, len(values), generator=generator).double()).Q for side in FLAT)
    weights = {**state_of(9), "flat.weight": ((left * values) @ right.t()).t().float()}
    state = BASES.refreshed({**BASES.refreshed(state_of(10)), **weights})
    optimum = float(values[R:].square().sum())
    assert error(state, "flat", solver(state, "flat")) - optimum < max(1e-3 * optimum, 1e-12)


def test_a_layer_without_basis_is_factorized_by_gram() -> None:
    assert BASES.solver(BASES.refreshed(state_of(6)), "small") is None
    state = {"small.weight": torch.ones(40, 40)}
    assert warm.WarmBases({"small": LAYERS["small"]}, 0.5).refreshed(state) == state


# A branch of a run with `solver: auto`: its bases fit only the settings that they were made with.


# 16 and 32 channels; at rank ratio 0.5 two of its layers have bases of 32 directions.
WORDS = ("method.name=fedhm", "model.width=0.25", "method.rank_ratio=[1,0.5]", "evaluation.every=9")
AUTO, GRAM = "method.solver=auto", "method.solver=gram"


def run(folder: Path, *words: str, origin: Path | None = None) -> Params:
    """The server's tensors at the end of such a run."""
    run_all(small_config(*words), SerialComm(), folder, origin=origin and Origin(RunDir(origin)))
    return checkpoint.load(RunDir(folder).checkpoints()[0][1]).server


def bases_of(state: Params) -> set[str]:
    return set(filter(is_of_bases, state))


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds, which ends with bases."""
    folder = tmp_path_factory.mktemp("warm") / "parent"
    assert AUDIT in run(folder, *WORDS, AUTO, "rounds=2")
    return folder


@pytest.mark.parametrize("change", ["rank_ratio=[1,0.6,0.25]", "dense_layers=0", "unroll=code"])
def test_a_branch_with_other_settings_begins_without_bases(parent: Path, tmp_path: Path, change: str) -> None:
    """So its first round has the very weights that `gram` comes to, and then it has bases of its own."""
    words = (*WORDS, f"method.{change}", "rounds=3")
    auto, gram = (run(tmp_path / solver, *words, solver, origin=parent) for solver in (AUTO, GRAM))
    assert bases_of(auto) and not bases_of(gram)
    for name in gram:
        assert torch.equal(auto[name], gram[name]), name


def test_the_bases_end_with_the_solver(parent: Path, tmp_path: Path) -> None:
    """So a branch of that one, with `auto` again, finds none that are old."""
    assert not bases_of(run(tmp_path / "gram", *WORDS, GRAM, "rounds=3", origin=parent))


def test_a_branch_with_the_same_method_keeps_them(parent: Path, tmp_path: Path) -> None:
    """Bits as if it had never ended."""
    run(tmp_path / "branch", *WORDS, AUTO, "rounds=3", origin=parent)
    run(tmp_path / "whole", *WORDS, AUTO, "rounds=3")
    assert finished(tmp_path / "branch").server == finished(tmp_path / "whole").server
