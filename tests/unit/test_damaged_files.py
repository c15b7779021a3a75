"""Every file that a run or a user hands us, damaged and forged by hypothesis: refused in one line, or read right.

The files are those of small runs, with and without client memories, and of a prepared data set.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealed import parts, sealed, with_contents
from small_runs import run_all, small_config

from fedmpi.data import prepare
from fedmpi.data.dataset import Dataset, load_data
from fedmpi.data.partition import saved
from fedmpi.data.sets.har import Har
from fedmpi.errors import UserError
from fedmpi.mpi.serial import SerialComm
from fedmpi.store import checkpoint
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir
from fedmpi.store.stored import digest_of

FILES = ("checkpoint", "with memories", "index", "memory", "partition", "data")


@dataclass(frozen=True)
class File:
    """A good file, and a function that returns what is read of it, to be compared."""

    path: Path
    read: Callable[[], object]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, File]:
    folder = tmp_path_factory.mktemp("runs")
    for method in ("fedhm", "topk"):
        run_all(small_config(f"method.name={method}", "rounds=2"), SerialComm(), folder / method)
    plain, keeping = RunDir(folder / "fedhm"), RunDir(folder / "topk")
    (_, newest), (_, with_memories) = plain.checkpoints()[0], keeping.checkpoints()[0]
    client, version = next(iter(checkpoint.load(with_memories).clients.items()))
    options = Har(root=str(folder), num_train=20, num_test=8, num_groups=4, window=8)
    x, numbers = np.zeros((20, 48), np.float32), np.arange(20)
    prepare.save(options, Dataset(x, numbers % 6, x[:8], numbers[:8] % 6, numbers % 4, numbers[:8] % 4))
    return {
        "checkpoint": File(newest, lambda: everything(newest)),
        "with memories": File(with_memories, lambda: everything(with_memories)),
        "index": File(with_memories, lambda: checkpoint.index_of(with_memories)),
        "memory": File(
            keeping.memory_path(client, *version), lambda: digest_of(MemoryStore(keeping).get(client, version) or {})
        ),
        "partition": File(plain.partition_path, lambda: in_bytes(vars(saved(plain.partition_path)[0]))),
        "data": File(options.path, lambda: in_bytes(load_data(options).arrays)),
    }


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest, files: dict[str, File], monkeypatch: pytest.MonkeyPatch) -> File:
    """The HDF5 library, which crafted files can crash, is not asked."""
    for module, name in ((h5py, "File"), (h5py.h5f, "open")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("the HDF5 library was asked"))
    return files[request.param]


def everything(path: Path) -> list[object]:
    found = checkpoint.load(path)
    return [digest_of(found.server), *(value for name, value in vars(found).items() if name != "server")]


def in_bytes(arrays: dict[str, np.ndarray]) -> list[object]:
    return [(name, str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()]


def refusal(file: File, content: bytes) -> str:
    """The line with which `content` is refused; '' if it is read. The file is a good one again."""
    return answer(file, content)[0]


def answer(file: File, content: bytes) -> tuple[str, object]:
    """The line with which `content` is refused, or what is read of it."""
    good = file.path.read_bytes()
    file.path.write_bytes(content)
    try:
        return "", file.read()
    except UserError as error:
        refused = error
    finally:
        file.path.write_bytes(good)
    assert all(line.isprintable() for line in refused.problems)
    return refused.problems[0], None


ACCIDENTS: dict[str, Callable[[bytes, int, bytes], bytes]] = {
    "cut off": lambda whole, at, other: whole[:at],
    "bit flipped": lambda whole, at, other: whole[:at] + bytes([whole[at] ^ 1 << len(other) % 8]) + whole[at + 1 :],
    "lost": lambda whole, at, other: whole[:at] + whole[at + len(other) :],
    "inserted": lambda whole, at, other: whole[:at] + other + whole[at:],
    "overwritten": lambda whole, at, other: whole[:at] + other + whole[at + len(other) :],
}
"""What disks and networks do to the bytes of a file."""
OTHER = st.binary(min_size=1, max_size=8) | st.sampled_from([bytes(64), bytes(4096), b"\xff" * 512])
at_a_place = given(kind=st.sampled_from(sorted(ACCIDENTS)), place=st.floats(0, 1), other=OTHER)


def damaged(whole: bytes, kind: str, place: float, other: bytes) -> bytes:
    return ACCIDENTS[kind](whole, int(place * (len(whole) - 1)), other)


@at_a_place
def test_whatever_a_disk_does_is_seen(file: File, kind: str, place: float, other: bytes) -> None:
    """It is refused; of an index alone, which is read without the rest, it may be that nothing has changed."""
    whole = file.path.read_bytes()
    content = damaged(whole, kind, place, other)
    line, found = answer(file, content)
    assert line or content == whole or found == file.read()


HOSTILE = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**31, 2**63 - 1, 2**63, 10**300, float("nan"), float("inf"), [0, 2**62], [1] * 100]),
    st.sampled_from(
        ["<f8", ">f4", "|O8", "|V8", "<M8[s]", "<f4,<f4", "(1000000000,)u1", "server/", "../../x", "\ud800"]
    ),
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5),
)


@st.composite
def forged_tables(draw: st.DrawFn, contents: bytes) -> bytes:
    """A table of contents with a hostile value in it, or without one that it had."""
    table: Any = json.loads(contents)
    holder = table
    while True:
        key = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
        if not isinstance(holder[key], (dict, list)) or not holder[key] or draw(st.booleans()):
            break
        holder = holder[key]
    if draw(st.booleans()):
        holder[key] = draw(HOSTILE)
    else:
        del holder[key]
    return json.dumps(table).encode()


@given(data=st.data())
def test_a_forged_table_makes_nothing_but_a_line(file: File, data: st.DataObject) -> None:
    """Its checksum is right, so what it holds may be read; but no other exception than a `UserError` comes of it."""
    whole = file.path.read_bytes()
    refusal(file, with_contents(whole, data.draw(forged_tables(parts(whole)[2]))))


@at_a_place
def test_a_forged_image_makes_nothing_but_a_line(file: File, kind: str, place: float, other: bytes) -> None:
    name, image, contents = parts(file.path.read_bytes())
    refusal(file, sealed(name, damaged(image, kind, place, other) + contents, len(contents)))


def test_another_format_kind_or_program(file: File, files: dict[str, File], tmp_path: Path) -> None:
    whole = file.path.read_bytes()
    for number in (b"1", b"3", b"999999999"):
        line = refusal(file, whole.replace(b"format 2", b"format " + number, 1))
        assert line.startswith(f"has format {number.decode()}, "), line
    other = files["memory" if file.path != files["memory"].path else "partition"].path.read_bytes()
    assert refusal(file, other).startswith(f"is a {parts(other)[0]} file, ")
    assert refusal(file, b"").startswith("is empty") and refusal(file, whole[:-1]).startswith("is truncated")
    for block in (b"", bytes(512)):
        assert "written by fedmpi" in refusal(file, block + b"\x89HDF\r\n\x1a\n" + bytes(2000))
