"""Every HDF5 file that a run or a user hands us, damaged by hypothesis: refused in one line, or read right.

The files are those of a small run with client memories, and of a prepared data set.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import small_data
from hypothesis import given
from hypothesis import strategies as st
from small_runs import run_alone

from fedmpi.data.dataset import load_data
from fedmpi.data.files import save
from fedmpi.data.partition import saved
from fedmpi.errors import UserError
from fedmpi.store import checkpoint
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir

File = tuple[Path, Callable[[], object]]
"""A good file, and the function that reads it."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, File]:
    folder = tmp_path_factory.mktemp("runs")
    run_alone(folder / "topk", "method.name=topk", "rounds=2")
    run = RunDir(folder / "topk")
    newest = run.checkpoints()[0][1]
    client, version = next(iter(checkpoint.load(newest).clients.items()))
    options = small_data.options_in(folder)
    save(options, small_data.dataset())
    return {
        "checkpoint": (newest, lambda: checkpoint.load(newest)),
        "memory": (run.memory_path(client, *version), lambda: MemoryStore(run).get(client, version)),
        "partition": (run.partition_path, lambda: saved(run.partition_path)),
        "data": (options.path, lambda: load_data(options)),
    }


@pytest.fixture(params=["checkpoint", "memory", "partition", "data"])
def file(request: pytest.FixtureRequest, files: dict[str, File]) -> File:
    return files[request.param]


ACCIDENTS: dict[str, Callable[[bytes, int, bytes], bytes]] = {
    "cut off": lambda whole, at, other: whole[:at],
    "bit flipped": lambda whole, at, other: whole[:at] + bytes([whole[at] ^ 1 << len(other) % 8]) + whole[at + 1 :],
    "lost": lambda whole, at, other: whole[:at] + whole[at + len(other) :],
    "inserted": lambda whole, at, other: whole[:at] + other + whole[at:],
    "overwritten": lambda whole, at, other: whole[:at] + other + whole[at + len(other) :],
}
"""What disks and networks do to the bytes of a file."""
OTHER = st.binary(min_size=1, max_size=8) | st.sampled_from([bytes(64), bytes(4096), b"\xff" * 512])


@given(kind=st.sampled_from(sorted(ACCIDENTS)), place=st.floats(0, 1), other=OTHER)
def test_whatever_a_disk_does_is_seen(file: File, kind: str, place: float, other: bytes) -> None:
    path, read = file
    whole = path.read_bytes()
    content = ACCIDENTS[kind](whole, int(place * (len(whole) - 1)), other)
    path.write_bytes(content)
    try:
        if content == whole:
            read()
        else:
            with pytest.raises(UserError) as refused:
                read()
            assert len(refused.value.problems) == 1 and refused.value.problems[0].isprintable()
    finally:
        path.write_bytes(whole)
