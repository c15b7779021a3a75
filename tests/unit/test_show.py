"""The table and the picture of a partition: numbers by hand, files that are pictures, many clients."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedmpi.data import show
from fedmpi.data.partition import Partition, make_partition
from fedmpi.data.partitions.iid import Iid

# Client 0 has classes 0 0 1, client 1 class 2, client 2 nothing, client 3 classes 1 1; example 6 is nobody's.
LABELS = np.array([0, 0, 1, 2, 1, 1, 2])
PARTITION = Partition(np.arange(6), np.array([0, 3, 4, 4, 6]))
COUNTS = [[2, 1, 0], [0, 0, 1], [0, 0, 0], [0, 2, 0]]


def test_class_counts_by_hand() -> None:
    assert show.class_counts(PARTITION, LABELS, 3).tolist() == COUNTS


def test_table_by_hand() -> None:
    """Sizes 3 1 0 2, classes for each client 2 1 0 1, of the classes 2 3 1; writers 0 1 2 are in use, 3 is not."""
    lines = show.table(PARTITION, LABELS, 3, np.array([0, 0, 1, 1, 2, 2, 3])).splitlines()
    assert [line.split(maxsplit=1)[0] for line in lines[:2]] == ["clients", "examples"]
    assert [line[20:] for line in lines] == [
        "4",
        "6 of 7 in use",
        "0 to 3, median 1.5",
        "0 to 2, median 1",
        "1 to 3, median 2",
        "3 of 4 in use",
        "0 to 2, median 1",
    ]
    assert len(show.table(PARTITION, LABELS, 3).splitlines()) == 5


def test_equal_numbers_are_one_number() -> None:
    lines = show.table(make_partition(Iid(), np.zeros(4000, np.int64), 2, 0), np.zeros(4000, np.int64), 1)
    assert "per client          2,000\n" in lines


def test_shares_are_sorted_by_favourite_class() -> None:
    """Favourites 0 (two thirds), 2, none, 1: columns are clients 0, 3, 1."""
    assert np.allclose(show.sorted_shares(PARTITION, LABELS, 3), [[2 / 3, 1 / 3, 0], [0, 1, 0], [0, 0, 1]])


def test_neighbours_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two columns for three clients: the first is the mean of two."""
    monkeypatch.setattr(show, "MAX_COLUMNS", 2)
    assert np.allclose(show.sorted_shares(PARTITION, LABELS, 3), [[1 / 3, 2 / 3, 0], [0, 0, 1]])


@pytest.mark.parametrize(
    ("low", "high", "first", "last", "num_most"),
    [
        (400, 400, 399, 401, 3),
        (300, 410, 299, 411, 60),
        (3, 5, 2, 6, 5),
        (0, 3, 0, 3, 6),
        (2, 9, 0, 9, 12),
        (1, 100_000, 0, 100_000, 62),
        (50_000, 90_000, 49_999, 90_001, 62),
    ],
)
def test_the_bins_of_sizes(low: int, high: int, first: int, last: int, num_most: int) -> None:
    """From just below the smallest size, or from 0 where less than half would be blank; every size is inside."""
    edges = show._edges(low, high)
    assert edges[0] == first - 0.5 and edges[-1] >= last + 0.5 and edges[-2] <= last + 1
    assert len(edges) - 1 <= num_most


@pytest.mark.parametrize(("num_clients", "num_classes"), [(60, 15), (61, 62), (61, 2), (61, 1), (2, 2)])
def test_a_picture_is_written_and_its_ticks_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_clients: int, num_classes: int
) -> None:
    drawn, save = list[Figure](), Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, path, dpi: drawn.append(self) or save(self, path, dpi=dpi))
    labels, path = np.arange(300) % num_classes, tmp_path / "who.png"
    show.picture(make_partition(Iid(), labels, num_clients, 0), labels, num_classes, path, "who has what")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000
    for axes in drawn[0].axes[:2]:
        for ticks in (axes.get_xticks(), axes.get_yticks()):
            assert len(ticks) and (ticks == np.round(ticks)).all()


def test_bars_have_the_counts() -> None:
    """Every bar's height is a client's count of a class, stacked on those of the classes before."""
    axes = Figure().subplots()
    show._bars(axes, np.array(COUNTS))
    heights = np.array([bar.get_height() for bar in axes.patches]).reshape(3, 4)
    bottoms = np.array([bar.get_y() for bar in axes.patches]).reshape(3, 4)
    assert np.array_equal(heights.T, COUNTS)
    assert np.array_equal(bottoms, np.cumsum(heights, axis=0) - heights)
