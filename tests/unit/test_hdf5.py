"""HDF5 files without the HDF5 library: what is written is ordinary HDF5, what is read takes no more than it has."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
from fast import fast
from golden_file import Told
from sealed import parts, sealed, with_contents

from fedmpi.disk import hdf5

ARRAYS = {
    "server/b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "server/a": np.array(7, np.int64),
    "nothing": np.empty((0, 3), np.uint8),
    "large": np.arange(100_000, dtype=np.int16),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}
ATTRIBUTES = {"text": "gr\u00fc\u00dfe", "empty": "", "number": -(2**63)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.h5"
    path.write_bytes(hdf5.pack("data", ATTRIBUTES, ARRAYS))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(hdf5.Damaged) as caught, hdf5.opened(path, "data"):
        pass
    return str(caught.value)


def test_we_read_what_was_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the HDF5 library has no part in it."""
    monkeypatch.setattr(h5py, "File", lambda *_: pytest.fail("the HDF5 library was asked"))
    with hdf5.opened(path, "data") as file:
        assert file.attributes == ATTRIBUTES and list(file.entries) == list(ARRAYS)
        found = {name: file.array(name) for name in file.entries}
    for name, array in ARRAYS.items():
        assert np.array_equal(found[name], array) and found[name].dtype == array.dtype, name
        found[name][...] = 1  # our own, to be written


def test_others_read_it_as_plain_hdf5(path: Path) -> None:
    with h5py.File(path, "r") as file:
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(file[name], array)
            assert file[name].dtype == array.dtype and file[name].chunks is None
        assert list(file["server"]) == ["b", "a"]
        assert file.attrs["text"].decode() == ATTRIBUTES["text"] and file.attrs["number"] == ATTRIBUTES["number"]


def test_a_file_and_a_buffer_get_the_same_bytes(path: Path, tmp_path: Path) -> None:
    with open(tmp_path / "y.h5", "w+b") as file:
        hdf5.write(file, "data", ATTRIBUTES, ARRAYS)
    assert (tmp_path / "y.h5").read_bytes() == path.read_bytes()


def test_reading_takes_one_array_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(hdf5.pack("data", {}, {str(number): np.zeros(2**20, np.uint8) for number in range(16)}))
    tracemalloc.start()
    with hdf5.opened(path, "data") as file:
        for name in file.entries:
            file.array(name)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4 * 2**20


TABLES = {
    "dicts": b"[" + b"{}," * (hdf5.MAX_CONTENTS_BYTES // 3 - 1) + b"0]",
    "depth": b"[" * hdf5.MAX_CONTENTS_BYTES,
    "arrays": json.dumps(
        {"attributes": {}, "arrays": [[str(number), "|u1", [0], 512] for number in range(200_000)] + [0]}
    ).encode(),
}


@pytest.mark.parametrize("table", fast("depth", of=TABLES, slow=("dicts",)))
def test_no_table_takes_more_than_a_few_times_its_bytes(table: str, tmp_path: Path, told: Told) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(sealed("data", TABLES[table], len(TABLES[table])))
    tracemalloc.start()
    line = refusal(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    told(line)
    assert peak_bytes < 60 * len(TABLES[table]) <= 60 * hdf5.MAX_CONTENTS_BYTES


def test_long_tables_are_neither_read_nor_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    path, long = tmp_path / "x.h5", b"[" * (hdf5.MAX_CONTENTS_BYTES + 1)
    path.write_bytes(sealed("data", long, len(long)))
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it was read"))
    told(refusal(path))
    with told.by(ValueError):
        hdf5.pack("data", {"text": "x" * hdf5.MAX_CONTENTS_BYTES}, {})


@pytest.mark.parametrize("contents_bytes", [0, 5, 10**8])
def test_a_table_that_is_not_there(path: Path, contents_bytes: int) -> None:
    kind, image, contents = parts(path.read_bytes())
    path.write_bytes(sealed(kind, image + contents, contents_bytes))
    assert "table of contents" in refusal(path)


@pytest.mark.parametrize("shape", [[1] * 70, [0] * 70, [0, 2**62, 2**62], [0, 2**62, 2**62, 2**62]], ids=str)
def test_shapes_that_no_array_has(path: Path, shape: list[int], told: Told) -> None:
    """Each has hardly any bytes, so it could be within the file."""
    whole = path.read_bytes()
    table = json.loads(parts(whole)[2])
    table["arrays"][0][1:3] = ["<f8", shape]
    path.write_bytes(with_contents(whole, json.dumps(table).encode()))
    told(refusal(path))


def test_a_pipe_is_not_waited_for(tmp_path: Path, told: Told) -> None:
    os.mkfifo(tmp_path / "pipe")
    told(refusal(tmp_path / "pipe"))


def test_a_file_that_shrinks_while_it_is_read(path: Path) -> None:
    with hdf5.opened(path, "data") as file:
        os.truncate(path, 1000)
        with pytest.raises(hdf5.Damaged, match="has shrunk"):
            file.array("large")


FULL = """
import resource, signal, sys
import numpy as np
from fedmpi.disk import hdf5
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
try:
    with open(sys.argv[1], "w+b") as file:
        hdf5.write(file, "data", {}, {str(n): np.zeros(2**18) for n in range(4)})
except OSError as error:
    print("OSError", error.errno)
"""


def test_a_full_disk_is_an_oserror(tmp_path: Path) -> None:
    """And the interpreter ends well: no half-closed HDF5 file is left for it to trip over."""
    command = [sys.executable, "-c", FULL, str(tmp_path / "x.h5")]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environ)
    assert (done.returncode, done.stdout.strip()) == (0, "OSError 27"), done.stderr
