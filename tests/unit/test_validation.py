"""Validation data in the place of the test data: by hand, and that no run on them can have seen a test example."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_fixtures import refusal
from small_runs import run_alone, small_config, small_setup

from fedmpi.data.dataset import Dataset, load_data
from fedmpi.data.partition import Partition
from fedmpi.data.personal import hold_out
from fedmpi.data.sets.digits import Synthetic
from fedmpi.mpi.communicator import SerialComm
from fedmpi.running import start
from fedmpi.running.forecast import forecast

ON_VALIDATION = ("evaluation.on=validation",)

# Client 0 has eight examples of class 0 and four of class 1, client 1 has four of class 1, client 2 three of class 0.
LABELS = np.array([0] * 8 + [1] * 4 + [1] * 4 + [0] * 3)
OWNED = Partition.of(np.arange(19), np.array([12, 4, 3]))
DATA = Dataset(10 * np.arange(19.0), LABELS, np.array([-1.0]), np.array([7]), groups=np.arange(19), digest="x")


@pytest.mark.parametrize("seed", range(10))
def test_shares_by_hand(seed: int) -> None:
    """A quarter: 2 of 8 and 1 of 4 of client 0; 2 (at least) of 4 of client 1; client 2 keeps its 3."""
    dataset, training, validation = hold_out(DATA, OWNED, 0.25, seed)
    assert validation.sizes.tolist() == [3, 2, 0] and training.sizes.tolist() == [9, 2, 3]
    assert np.bincount(dataset.test_y[validation.client(0)]).tolist() == [2, 1]
    held = (dataset.test_x / 10).astype(int)
    assert sorted([*held, *training.indices]) == list(range(19)), "every example once"
    assert (dataset.test_y == LABELS[held]).all() and (dataset.test_groups == held).all()
    assert set(training.client(0)) | set(held[validation.client(0)]) == set(range(12))
    assert dataset.digest == "x" and dataset.train_x is DATA.train_x


def test_each_client_holds_out_by_a_draw_of_its_own() -> None:
    """Two clients with twenty examples of one class each: 5 of the 20 places."""
    labels = np.zeros(40, dtype=np.int64)
    dataset = Dataset(np.arange(40.0), labels, np.array([-1.0]), np.array([0]))
    held, _, validation = hold_out(dataset, Partition.of(np.arange(40), np.array([20, 20])), 0.25, 0)
    first, second = ({*(held.test_x[validation.client(client)] % 20)} for client in (0, 1))
    assert len(first) == len(second) == 5 and first != second


def test_refused_where_no_client_has_enough() -> None:
    assert "evaluation.on" in refusal(lambda: hold_out(DATA, Partition.of(np.arange(6), np.array([3, 3])), 0.25, 0))


def test_the_partition_is_divided_not_made_anew() -> None:
    """Each client's training and validation examples are those that it trains on in a run with test data."""
    plain, held = (start.load_material(small_config(*more), SerialComm()) for more in ((), ON_VALIDATION))
    _, _, validation = start.divided(small_config(*ON_VALIDATION), plain.dataset)
    assert validation is not None
    assert len(plain.dataset.test_y) == 48 and held.info.num_test == len(held.dataset.test_y) < 48
    x = plain.dataset.train_x
    for client in range(8):
        own = {x[number].tobytes() for number in plain.partition.client(client)}
        trains = {x[number].tobytes() for number in held.partition.client(client)}
        tests = {held.dataset.test_x[number].tobytes() for number in validation.client(client)}
        assert trains | tests == own and not trains & tests


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedhm", "hermes"])
def test_no_bit_depends_on_the_test_data(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run with all test examples replaced by noise of class 0: on validation data nothing changes, where a run
    on test data scores other numbers."""
    read = Synthetic.read

    def replaced(self: Synthetic) -> Dataset:
        whole = read(self)
        noise = np.random.default_rng(0).integers(256, size=whole.test_x.shape).astype(whole.test_x.dtype)
        return replace(whole, test_x=noise, test_y=np.zeros_like(whole.test_y))

    def run(folder: str, *more: str) -> object:
        return run_alone(tmp_path / folder, f"method.name={method}", "rounds=2", *more)

    before, on_test = run("before", *ON_VALIDATION), run("on_test")
    monkeypatch.setattr(Synthetic, "read", replaced)
    assert run("after", *ON_VALIDATION) == before
    assert run("other_test") != on_test


def test_clients_are_tested_on_their_own_share(tmp_path: Path) -> None:
    setup = small_setup(tmp_path, *ON_VALIDATION, "evaluation.personal=on", "evaluation.clients=3")
    _, _, held = start.divided(setup.config, load_data(setup.config.data))
    assert held is not None
    tested = np.flatnonzero(setup.personal_tests.sizes)
    assert len(tested) == 3
    assert all(setup.personal_tests.client(one).tolist() == held.client(one).tolist() for one in tested)


def test_plan_knows_both_parts() -> None:
    """120 examples of 8 clients, a fifth held out: 12 train, 24 test, against 15 and 48."""
    plain, held = (forecast(small_config("partition.name=iid", *more), 1) for more in ((), ON_VALIDATION))
    assert (plain.tiers[0].training_examples, held.tiers[0].training_examples) == (15, 12)
