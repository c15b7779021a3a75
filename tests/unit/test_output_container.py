"""Files of tensors: what goes in comes out, and nothing else is let in."""

from __future__ import annotations

import hashlib
import pickle
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from fedmpi.errors import RunDirError
from fedmpi.output import container
from fedmpi.output.stored import digest_of, escape, from_array, to_array, unescape

DTYPES = [
    *(torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.complex64, torch.complex128),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
]
ATTRIBUTES: dict[str, type] = {"text": str, "number": int}


def write(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    content = container.Content({"text": "gr\u00fc\u00dfe", "number": -7}, {"server": tensors})
    path.write_bytes(container.pack("checkpoint", content))
    return path


def read(path: Path) -> container.Content:
    return container.unpack(path, "checkpoint", ATTRIBUTES, ("server",))


def resealed(path: Path, change: Callable[[h5py.File], None]) -> Path:
    """`path` after `change`, its user block made valid again: what a forger would hand us."""
    with h5py.File(path, "r+") as file:
        change(file)
    whole = path.read_bytes()
    body = whole[container.USER_BLOCK_BYTES :]
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    header = f"fedmpi checkpoint format 1 bytes {len(body)} blake2b {digest}\n".encode()
    path.write_bytes(header.ljust(container.USER_BLOCK_BYTES, b"\0") + body)
    return path


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)], ids=str)
def test_every_dtype_and_shape_comes_back(dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path) -> None:
    values = (100 * torch.rand(shape, generator=torch.Generator().manual_seed(1))).to(dtype)
    found = read(write(tmp_path / "x.h5", {"a": values})).groups["server"]["a"]
    assert found.dtype == dtype and found.shape == values.shape
    assert torch.equal(found, values)


def test_special_floats_keep_their_bits(tmp_path: Path) -> None:
    """NaN payloads, minus zero and subnormals are compared as integers, where NaN equals itself."""
    bits = torch.tensor([0x7FC00001, -0x80000000, 1, 0x7F800000], dtype=torch.int64).to(torch.int32)
    found = read(write(tmp_path / "x.h5", {"a": bits.view(torch.float32)})).groups["server"]["a"]
    assert torch.equal(found.view(torch.int32), bits)


def test_names_order_and_attributes_come_back(tmp_path: Path) -> None:
    names = ["z.weight", "a/b/c", ".", "..", "100%", "m\u00fc", "layer.0.u.weight", "%2F"]
    content = read(write(tmp_path / "x.h5", {name: torch.tensor(i) for i, name in enumerate(names)}))
    assert list(content.groups["server"]) == names
    assert [int(tensor) for tensor in content.groups["server"].values()] == list(range(len(names)))
    assert content.attributes["text"] == "gr\u00fc\u00dfe" and content.attributes["number"] == -7


def test_the_file_is_plain_hdf5_with_one_dataset_a_tensor(tmp_path: Path) -> None:
    tensors = {"conv.weight": torch.ones(2, 3), "a/b": torch.zeros(1)}
    path = write(tmp_path / "x.h5", tensors)
    with h5py.File(path, "r") as file:
        assert sorted(file["server"]) == ["a%2Fb", "conv.weight"]
        np.testing.assert_array_equal(file["server/conv.weight"], np.ones((2, 3), np.float32))
        assert file.attrs["server_digest"].decode() == digest_of(tensors)


def test_names_that_are_no_names_are_refused() -> None:
    assert [unescape(escape(name)) for name in ("a/b", "%", ".")] == ["a/b", "%", "."]
    with pytest.raises(ValueError, match="without a name"):
        escape("")
    for link in ("%2f", "%zz", "%41"):
        with pytest.raises(ValueError):
            unescape(link)


def test_dtypes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="does not hold"):
        from_array(np.zeros(2, np.float32), "int64")
    with pytest.raises(TypeError, match="sparse"):
        to_array(torch.ones(2).to_sparse())


def test_layout_and_grad_do_not_matter() -> None:
    dense = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(2))
    strided = dense.to(memory_format=torch.channels_last).requires_grad_()
    assert digest_of({"a": strided, "b": dense}) == digest_of({"b": dense, "a": dense})


def test_digest_tells_names_dtypes_shapes_and_bytes_apart() -> None:
    base = torch.tensor([1.0, 0.0])
    others = [base.view(1, 2), base.view(torch.int32), torch.tensor([1.0, -0.0]), base[:1]]
    digests = {digest_of({"a": base}), digest_of({"b": base}), *(digest_of({"a": other}) for other in others)}
    assert len(digests) == 6


def test_equal_contents_give_equal_files(tmp_path: Path) -> None:
    """HDF5 stores times in whole seconds: a second apart, a stored one would show."""
    first = write(tmp_path / "1.h5", {"a": torch.ones(3)}).read_bytes()
    time.sleep(1.1)
    assert write(tmp_path / "2.h5", {"a": torch.ones(3)}).read_bytes() == first


def test_truncated_at_every_tenth_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.h5", {"a": torch.arange(1000.0)})
    whole = path.read_bytes()
    for tenth in range(10):
        path.write_bytes(whole[: len(whole) * tenth // 10])
        with pytest.raises(RunDirError, match="is empty" if tenth == 0 else "truncated"):
            read(path)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "x.h5", {"a": torch.arange(100.0)})
    whole = path.read_bytes()
    draw = random.Random(3)
    for position in [*range(0, 120, 3), *(draw.randrange(len(whole)) for _ in range(200))]:
        damaged = bytearray(whole)
        damaged[position] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(RunDirError):
            read(path)


def test_foreign_files_and_formats_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["server/a"] = np.ones(3)
    with pytest.raises(RunDirError, match="not written by fedmpi"):
        read(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(RunDirError, match="not written by fedmpi"):
        read(path)
    whole = write(path, {}).read_bytes()
    path.write_bytes(whole.replace(b"format 1 ", b"format 2 ", 1))
    with pytest.raises(RunDirError, match="has format 2, this fedmpi reads format 1"):
        read(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(RunDirError, match="is too long"):
        read(path)
    with pytest.raises(RunDirError, match="is a checkpoint file, not a memory"):
        container.verify(write(path, {}), "memory")
    with pytest.raises(RunDirError, match="no such file"):
        read(tmp_path / "absent.h5")
    with pytest.raises(RunDirError, match="cannot be read"):
        read(tmp_path)


def _huge_contiguous(file: h5py.File) -> None:
    file["server"].create_dataset("huge", shape=(2**50,), dtype="f4")


def _huge_chunked(file: h5py.File) -> None:
    file["server"].create_dataset("huge", shape=(2**50,), dtype="f4", chunks=(1024,))


def _compressed(file: h5py.File) -> None:
    file["server"].create_dataset("bomb", data=np.zeros(10**6, np.float32), compression="gzip")


def _objects(file: h5py.File) -> None:
    file["server"].create_dataset("text", data=["x"], dtype=h5py.string_dtype())


def _opaque(file: h5py.File) -> None:
    file["server"].create_dataset("pickle", data=np.void(pickle.dumps(print)))


def _external_link(file: h5py.File) -> None:
    file["server"]["link"] = h5py.ExternalLink("/etc/passwd", "/")


def _soft_link(file: h5py.File) -> None:
    file["server"]["link"] = h5py.SoftLink("/server/a")


def _nested_group(file: h5py.File) -> None:
    file["server"].create_group("deeper")


def _external_storage(file: h5py.File) -> None:
    file["server"].create_dataset("x", shape=(4,), dtype="u1", external=[("/etc/hostname", 0, 4)])


def _virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(shape=(2**40,), dtype="f4")
    file["server"].create_virtual_dataset("x", layout)


def _many_names_for_one(file: h5py.File) -> None:
    for number in range(1000):
        file["server"][f"again{number}"] = file["server/a"]


def _no_torch_dtype(file: h5py.File) -> None:
    file["server"].create_dataset("x", data=np.ones(2))


def _wrong_torch_dtype(file: h5py.File) -> None:
    file["server/a"].attrs["torch_dtype"] = np.bytes_("storage")


def _variable_length_attribute(file: h5py.File) -> None:
    file.attrs["text"] = "variable"


def _array_attribute(file: h5py.File) -> None:
    file.attrs["number"] = np.arange(3)


def _missing_attribute(file: h5py.File) -> None:
    del file.attrs["number"]


def _missing_group(file: h5py.File) -> None:
    del file["server"]


def _dataset_for_group(file: h5py.File) -> None:
    del file["server"]
    file["server"] = np.ones(3)


def _changed_value(file: h5py.File) -> None:
    file["server/a"][0] = 5


def _changed_attribute(file: h5py.File) -> None:
    file.attrs["number"] = np.int64(8)


FORGERIES = {
    _huge_contiguous: "more data than is stored",
    _huge_chunked: "not a plain array",
    _compressed: "not a plain array",
    _objects: "not a plain array",
    _opaque: "not a plain array",
    _external_link: "a link in its place",
    _soft_link: "a link in its place",
    _nested_group: "not a dataset",
    _external_storage: "not a plain array",
    _virtual: "not a plain array",
    _many_names_for_one: "more data than the file has",
    _no_torch_dtype: "lacks the attribute torch_dtype",
    _wrong_torch_dtype: "does not hold 'storage'",
    _variable_length_attribute: "of a type that fedmpi does not write",
    _array_attribute: "of a type that fedmpi does not write",
    _missing_attribute: "lacks the attribute number",
    _missing_group: "has groups",
    _dataset_for_group: "not a group",
    _changed_value: "content digest",
    _changed_attribute: "content digest",
}


@pytest.mark.parametrize("change", FORGERIES, ids=lambda change: change.__name__.strip("_"))
def test_forged_files_are_refused_without_allocating(change: Callable[[h5py.File], None], tmp_path: Path) -> None:
    """A declared petabyte would end the process here; 100 MB is far below every size declared above."""
    path = resealed(write(tmp_path / "x.h5", {"a": torch.arange(1000.0)}), change)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RunDirError, match=FORGERIES[change]) as caught:
        read(path)
    assert "\n" not in caught.value.text()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 100_000


def test_one_group_can_be_read_without_the_others(tmp_path: Path) -> None:
    path = write(tmp_path / "x.h5", {"a": torch.ones(2)})
    assert torch.equal(container.unpack_group(path, "checkpoint", "server")["a"], torch.ones(2))
    with pytest.raises(RunDirError, match="has no clients"):
        container.unpack_group(path, "checkpoint", "clients")
