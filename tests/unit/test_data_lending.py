"""Arrays that processes of one node have together."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_data import dataset

from fedmpi.data import lending
from fedmpi.data.dataset import Dataset, digest_of

IMAGES = Dataset(
    np.arange(5 * 12, dtype=np.uint8).reshape(5, 2, 2, 3)[:, ::-1],  # not contiguous
    np.arange(5),
    np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3),
    np.arange(1),
    digest="abc",
)
LENDER = """
import sys
from small_data import dataset
from fedmpi.data import lending
with lending.lent(dataset().arrays) as text:
    print(text, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("given", [dataset(), IMAGES])
def test_the_same_examples_at_addresses_of_whole_lines(given: Dataset) -> None:
    with lending.lent(given.arrays) as text:
        found = lending.taken(text)
    assert found is not None and digest_of(found) == digest_of(given.arrays)
    assert found.keys() == {name for name, array in given.arrays.items() if array is not None}
    assert all(array.ctypes.data % 64 == 0 for array in found.values())


def test_nobody_can_change_them_for_others() -> None:
    with lending.lent(IMAGES.arrays) as text:
        first, second = lending.taken(text), lending.taken(text)
        with pytest.raises(PermissionError), open(json.loads(text)["path"], "r+b", buffering=0) as file:
            file.write(b"changed")
        with pytest.raises(PermissionError):
            os.truncate(json.loads(text)["path"], 1)
    first["train_x"][:] = 7
    assert (second["train_x"] == IMAGES.train_x).all()


def test_none_where_they_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the block; where another file has that number; where there is no memory for one."""
    with lending.lent(IMAGES.arrays) as text:
        known = json.loads(text)
    assert lending.taken(text) is None
    assert lending.taken(json.dumps(known | {"path": "/dev/null"})) is None
    with lending.lent(None) as text:
        assert text == "" and lending.taken(text) is None

    def full(*_: object) -> int:
        raise OSError("no memory")

    monkeypatch.setattr(os, "memfd_create", full)
    with lending.lent(IMAGES.arrays) as text:
        assert text == ""


def test_they_outlive_the_process_that_lent_them_and_then_nothing_is_left() -> None:
    places = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    command, environ = [sys.executable, "-c", LENDER], os.environ | {"PYTHONPATH": places}
    lender = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
    text = lender.stdout.readline()
    found = lending.taken(text)
    lender.send_signal(signal.SIGKILL)
    lender.communicate()
    assert found is not None and digest_of(found) == digest_of(dataset().arrays)
    assert lending.taken(text) is None
