"""The table and the heat map of a partition: numbers by hand."""

import numpy as np
import pytest

from fedmpi.data import command, partition
from fedmpi.data.partition import Partition

# Client 0 has classes 0 0 1, client 1 class 2, client 2 nothing, client 3 classes 1 1; example 6 is nobody's.
LABELS = np.array([0, 0, 1, 2, 1, 1, 2])
PARTITION = Partition(np.arange(6), np.array([0, 3, 4, 4, 6]))
COUNTS = [[2, 1, 0], [0, 0, 1], [0, 0, 0], [0, 2, 0]]


def test_class_counts_by_hand() -> None:
    assert partition.class_counts(PARTITION, LABELS, 3).tolist() == COUNTS


def test_table_by_hand() -> None:
    """Sizes 3 1 0 2, classes for each client 2 1 0 1, of the classes 2 3 1."""
    lines = command.table(PARTITION, LABELS, 3).splitlines()
    assert [line.split(maxsplit=1)[0] for line in lines[:2]] == ["clients", "examples"]
    expected = ["4", "6 of 7 in use", "0 to 3, median 1.5", "0 to 2, median 1", "1 to 3, median 2"]
    assert [line[20:] for line in lines] == expected


def test_shares_are_sorted_by_favourite_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Favourites 0 (two thirds), 2, none, 1: columns are clients 0, 3, 1; of two columns the first and the last."""
    assert np.allclose(partition.sorted_shares(np.array(COUNTS)), [[2 / 3, 1 / 3, 0], [0, 1, 0], [0, 0, 1]])
    monkeypatch.setattr(partition, "MAX_COLUMNS", 2)
    assert np.allclose(partition.sorted_shares(np.array(COUNTS)), [[2 / 3, 1 / 3, 0], [0, 0, 1]])
