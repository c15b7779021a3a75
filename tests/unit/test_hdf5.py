"""HDF5 files: what goes in comes out, h5py reads them, a damaged or foreign one is refused before libhdf5 sees it."""

import os
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from data_fixtures import refusal
from golden_file import Told

from fedmpi.store import hdf5
from fedmpi.store.hdf5 import digest_of

ARRAYS = {
    "large": np.arange(300_000, dtype=np.float64).reshape(3, -1),
    "server/b": np.float32(1.5),
    "server/a": np.zeros((3, 0, 2), np.int8),
}
ATTRIBUTES: dict[str, str | int] = {"text": "gr\u00fc\u00dfe " * 20_000, "number": -7}
DTYPES = [
    *(torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.bool),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "x.h5").write_bytes(hdf5.pack("data", ATTRIBUTES, ARRAYS))
    return tmp_path / "x.h5"


def through_a_file(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    path.write_bytes(hdf5.pack_tensors("checkpoint", {}, {"server": tensors}))
    return hdf5.read_tensors(path, "checkpoint")[1].get("server", {})


def test_arrays_and_attributes_come_back(path: Path) -> None:
    attributes, arrays = hdf5.read(path, "data")
    assert attributes == ATTRIBUTES and list(arrays) == ["large", "server/b", "server/a"]
    for name, array in ARRAYS.items():
        assert np.array_equal(arrays[name], array) and arrays[name].dtype == array.dtype, name
        arrays[name][...] = 1  # our own, to be written
    assert list(hdf5.read(path, "data", "server")[1]) == ["b", "a"]
    assert hdf5.pack("data", ATTRIBUTES, ARRAYS) == path.read_bytes(), "equal contents are equal bytes"


def test_others_read_it_as_plain_hdf5(path: Path) -> None:
    with h5py.File(path, "r") as file:
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(file[name], array)
            assert file[name].dtype == array.dtype and file[name].chunks is None
        assert file.attrs["text"].decode() == ATTRIBUTES["text"] and file.attrs["number"] == ATTRIBUTES["number"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3, 0, 2), (2, 3, 4)], ids=str)
def test_every_dtype_and_shape_comes_back(dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path) -> None:
    values = (100 * torch.rand(shape, generator=torch.Generator().manual_seed(1))).to(dtype)
    found = through_a_file(tmp_path / "x.h5", {"a": values})["a"]
    assert found.dtype == dtype and found.shape == values.shape
    assert torch.equal(found, values)


def test_special_floats_keep_their_bits(tmp_path: Path) -> None:
    """NaN payloads, minus zero and subnormals are compared as integers, where NaN equals itself."""
    bits = torch.tensor([0x7FC00001, -0x80000000, 1, 0x7F800000], dtype=torch.int64).to(torch.int32)
    found = through_a_file(tmp_path / "x.h5", {"a": bits.view(torch.float32)})["a"]
    assert torch.equal(found.view(torch.int32), bits)


def test_names_and_their_order_come_back(tmp_path: Path) -> None:
    names = ["z.weight", "a/b/c", "..", "100%", "m\u00fc", "layer.0.u.weight", "%2F"]
    found = through_a_file(tmp_path / "x.h5", {name: torch.tensor(i) for i, name in enumerate(names)})
    assert list(found) == names and [int(tensor) for tensor in found.values()] == list(range(len(names)))


def test_the_digest_tells_names_dtypes_shapes_and_bytes_apart_and_no_more() -> None:
    base = torch.tensor([1.0, 0.0])
    others = [base.view(1, 2), base.view(torch.int32), torch.tensor([1.0, -0.0]), base[:1]]
    digests = {digest_of({"a": base}), digest_of({"b": base}), *(digest_of({"a": other}) for other in others)}
    assert len(digests) == 6
    dense = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(2))
    strided = dense.to(memory_format=torch.channels_last).requires_grad_()
    assert digest_of({"a": strided, "b": dense}) == digest_of({"b": dense, "a": dense})


def test_what_is_no_such_file_is_refused_without_libhdf5(
    path: Path, tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    with h5py.File(tmp_path / "foreign", "w") as file:
        file["a"] = np.ones(3)
    os.mkfifo(tmp_path / "pipe")
    contents = {
        "empty": b"",
        "changed": bytes(changed),
        "of another format": whole.replace(b"format 3", b"format 2", 1),
        "of another kind": hdf5.pack("memory", {}, {}),
        "pickled": pickle.dumps({"a": 1}),
        "foreign": (tmp_path / "foreign").read_bytes(),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(h5py, "File", lambda *_: pytest.fail("the HDF5 library was asked"))
    for name in (*contents, "absent", "pipe", "."):
        told(refusal(hdf5.read, tmp_path / name, "data"))
