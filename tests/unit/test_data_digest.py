"""The digest of a data set: the same for the same examples wherever they lie, another one for any other."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_data import dataset, options_in

from fedmpi.data import prepare
from fedmpi.data.dataset import Dataset, digest_of, load_data
from fedmpi.data.sets.digits import Digits
from fedmpi.data.sets.synthetic import Synthetic

OURS = digest_of(dataset().arrays)


def one_label_more(ours: Dataset) -> Dataset:
    return replace(ours, train_y=(ours.train_y + (np.arange(len(ours.train_y)) == 3)) % 6)


CHANGES: dict[str, Callable[[Dataset], Dataset]] = {
    "a value": lambda ours: replace(ours, train_x=np.where(ours.train_x == 7, 7.5, ours.train_x).astype(np.float32)),
    "a test value": lambda ours: replace(ours, test_x=-ours.test_x),
    "a label": one_label_more,
    "a test label": lambda ours: replace(ours, test_y=np.roll(ours.test_y, 1)),
    "a group": lambda ours: replace(ours, groups=np.roll(ours.groups, 1)),
    "a test group": lambda ours: replace(ours, test_groups=np.roll(ours.test_groups, 1)),
    "no groups": lambda ours: replace(ours, test_groups=None),
    "order": lambda ours: replace(ours, train_x=ours.train_x[::-1]),
    "type": lambda ours: replace(ours, train_x=ours.train_x.astype(np.float64)),
    "shape": lambda ours: replace(ours, train_x=ours.train_x.reshape(len(ours.train_x), -1, 2)),
    "train and test": lambda ours: replace(ours, train_x=ours.test_x, test_x=ours.train_x),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_gives_another_digest(change: str) -> None:
    assert digest_of(CHANGES[change](dataset()).arrays) != OURS


def test_memory_layout_byte_order_and_chunks_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the order in which the arrays are named."""
    ours = dataset()
    other = replace(
        ours, train_x=np.asfortranarray(ours.train_x).astype(">f4"), train_y=np.repeat(ours.train_y, 2)[::2]
    )
    assert digest_of(other.arrays) == OURS == digest_of(dict(reversed(ours.arrays.items())))
    monkeypatch.setattr("fedmpi.data.dataset._CHUNK_BYTES", 500)
    assert digest_of(other.arrays) == OURS


def test_a_prepared_file_knows_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is computed once, when the file is written; a copy with other times elsewhere has the same."""
    here, there = options_in(tmp_path / "here"), options_in(tmp_path / "there")
    prepare.save(here, dataset())
    there.path.parent.mkdir()
    shutil.copy(here.path, there.path)
    os.utime(there.path, (0, 0))
    monkeypatch.setattr("fedmpi.data.digest_of", lambda arrays: pytest.fail("computed again"))
    assert load_data(here).digest == load_data(there).digest == OURS


def test_digests_stay() -> None:
    """Written into runs under way, which another digest of the same examples would refuse to continue."""
    assert load_data(Digits()).digest == "83ba26716b9d1ab6dacfc7420e7b84da"
    assert OURS == "faf8f05109bb36a1b851ae7e5ed08007"


def test_options_that_change_what_is_generated_change_the_digest() -> None:
    options = Synthetic(shape=(1, 8, 8), num_train=20, num_test=8)
    changes: tuple[dict[str, int], ...] = ({}, {}, {"seed": 1}, {"num_test": 9})
    first, again, *others = (load_data(options.model_copy(update=change)).digest for change in changes)
    assert first == again and len({first, *others}) == 3
