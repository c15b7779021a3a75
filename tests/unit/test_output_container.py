"""Files of tensors: what goes in comes out, and nothing else is let in."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from golden_file import Told
from sealed import parts, sealed, with_contents

from fedmpi.errors import RunDirError
from fedmpi.store import container
from fedmpi.store.stored import digest_of, escape, from_array, to_array, unescape

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


def forged(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """`path` with a changed table of contents and a checksum that is right: what a forger would hand us."""
    table = json.loads(parts(path.read_bytes())[2])
    change(table)
    path.write_bytes(with_contents(path.read_bytes(), json.dumps(table).encode()))
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


def test_names_that_are_no_names_are_refused() -> None:
    assert [unescape(escape(name)) for name in ("a/b", "%", ".")] == ["a/b", "%", "."]
    with pytest.raises(ValueError, match="without a name"):
        escape("")
    for link in ("%2f", "%zz", "%41"):
        with pytest.raises(ValueError, match=link):
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


def test_foreign_files_and_formats_are_named(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["server/a"] = np.ones(3)
    foreign, whole = path.read_bytes(), write(path, {}).read_bytes()
    for content, problem in {
        foreign: "not written by fedmpi",
        pickle.dumps({"a": 1}): "not written by fedmpi",
        whole + b"x": "is too long",
    }.items():
        path.write_bytes(content)
        with pytest.raises(RunDirError, match=problem):
            read(path)
    with told.by(RunDirError):
        container.unpack(write(path, {}), "memory", ATTRIBUTES, ("server",))
    for other, problem in ((tmp_path / "absent.h5", "no such file"), (tmp_path, "is a directory, not a file")):
        with pytest.raises(RunDirError, match=problem):
            read(other)


def _entry(*changes: tuple[int, Any]) -> Callable[[dict[str, Any]], object]:
    """Changes of the first array's [name, dtype, shape, offset]."""
    return lambda table: [table["arrays"][0].__setitem__(place, value) for place, value in changes]


def _attribute(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda table: table["attributes"].__setitem__(name, value)


NAME, DTYPE, SHAPE, OFFSET = range(4)
NO_TABLE, TOO_MUCH, OTHER = "a table of contents that is not one", "declares more data than it has", "content digest"
FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a petabyte": (_entry((SHAPE, [2**48])), TOO_MUCH),
    "too far": (lambda table: table["arrays"][0].__setitem__(OFFSET, table["arrays"][0][OFFSET] + 4), TOO_MUCH),
    "the header": (_entry((OFFSET, 0)), TOO_MUCH),
    "many names for one": (
        lambda table: table["arrays"].extend([f"server/{number}", *table["arrays"][0][1:]] for number in range(1000)),
        TOO_MUCH,
    ),
    "one name twice": (lambda table: table["arrays"].append(table["arrays"][0]), NO_TABLE),
    "a negative shape": (_entry((SHAPE, [-1])), NO_TABLE),
    "objects": (_entry((DTYPE, "|O8")), NO_TABLE),
    "other bytes first": (_entry((DTYPE, ">f4")), NO_TABLE),
    "other numbers": (_entry((DTYPE, "<i4")), OTHER),
    "other axes": (_entry((SHAPE, [10, 100])), OTHER),
    "a name that none has": (_entry((NAME, "server/%41")), "is not a tensor's name"),
    "another group": (_entry((NAME, "elsewhere/a")), "has groups ['elsewhere'], expected ['server']"),
    "no arrays": (lambda table: table.pop("arrays"), NO_TABLE),
    "no such dtype": (_attribute("torch_dtypes", '{"server/a": "storage"}'), "does not hold 'storage'"),
    "dtypes in a list": (_attribute("torch_dtypes", "[]"), "torch_dtypes are no table"),
    "an attribute of another type": (_attribute("number", "7"), "of a type that fedmpi does not write"),
    "a missing attribute": (lambda table: table["attributes"].pop("number"), "lacks the attribute number"),
    "another attribute": (_attribute("number", 8), OTHER),
    "one attribute more": (_attribute("more", 8), OTHER),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_forged_tables_are_refused(case: str, tmp_path: Path) -> None:
    change, problem = FORGERIES[case]
    path = forged(write(tmp_path / "x.h5", {"a": torch.arange(1000.0)}), change)
    with pytest.raises(RunDirError) as caught:
        read(path)
    assert problem in caught.value.text() and caught.value.text().isprintable()


def test_forged_values_are_refused(tmp_path: Path) -> None:
    """Where the checksum of the file is right, the digest of its contents is not."""
    path = write(tmp_path / "x.h5", {"a": torch.arange(1000.0)})
    kind, image, contents = parts(path.read_bytes())
    changed = image.replace(np.float32(500).tobytes(), np.float32(501).tobytes())
    path.write_bytes(sealed(kind, changed + contents, len(contents)))
    with pytest.raises(RunDirError, match="content digest"):
        read(path)


def test_one_group_can_be_read_without_the_others(tmp_path: Path, told: Told) -> None:
    """Its damage is noticed without the checksum of the whole file."""
    path = write(tmp_path / "x.h5", {"a": torch.arange(100.0)})
    assert torch.equal(container.unpack_group(path, "checkpoint", "server")["a"], torch.arange(100.0))
    with pytest.raises(RunDirError, match="lacks the attribute clients_digest"):
        container.unpack_group(path, "checkpoint", "clients")
    path.write_bytes(path.read_bytes().replace(np.float32(50).tobytes(), np.float32(51).tobytes()))
    with told.by(RunDirError):
        container.unpack_group(path, "checkpoint", "server")
