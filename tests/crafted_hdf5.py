"""HDF5 files that other programs write, or that an attacker crafted to run code, take memory, or never end.

Each function fills an open h5py file; `write` makes the file, `disguised` puts fedmpi's own header and a
table of contents around it, as an attacker would who knows the format.
"""

import pickle
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from torture import damage

from fedmpi.disk.hdf5 import USER_BLOCK_BYTES

Fill = Callable[[h5py.File], object]


def _external_link(file: h5py.File) -> None:
    file["server"] = h5py.ExternalLink("/etc/passwd", "/")


def _external_storage(file: h5py.File) -> None:
    file.create_dataset("server/x", shape=(4,), dtype="u1", external=[("/etc/hostname", 0, 4)])


def _virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(shape=(2**40,), dtype="f4")
    layout[:8] = h5py.VirtualSource("elsewhere.h5", "x", (8,))
    file.create_virtual_dataset("server/x", layout)


def _netcdf(file: h5py.File) -> None:
    """As netCDF-4 does: dimension scales, `_NCProperties`."""
    file.attrs["_NCProperties"] = "version=2,netcdf=4.9.2,hdf5=1.14.3"
    file["time"] = np.arange(4.0)
    file["time"].make_scale("time")
    file["t2m"] = np.zeros(4)
    file["t2m"].dims[0].attach_scale(file["time"])


def _filter_from_a_plugin(file: h5py.File) -> None:
    """LZ4, which the library would look for in HDF5_PLUGIN_PATH and load."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((10,))
    plan.set_filter(32004, h5py.h5z.FLAG_OPTIONAL, (0,))
    h5py.h5d.create(file.id, b"server", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((100,)), plan)


def _never_allocated(file: h5py.File) -> None:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    h5py.h5d.create(file.id, b"server", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((2**20,)), plan)


def _references(file: h5py.File) -> None:
    data = file.create_dataset("x", data=np.arange(9))
    objects = file.create_dataset("server/objects", (2,), h5py.ref_dtype)
    objects[:] = data.ref
    file.create_dataset("server/regions", (1,), h5py.regionref_dtype)[0] = data.regionref[2:5]


def _thousands_of_fields(file: h5py.File) -> None:
    file["server"] = np.zeros(2, [(f"field{number}", "f4") for number in range(1500)])


def _enormous_attributes(file: h5py.File) -> None:
    file.attrs["format"] = np.zeros(200_000)
    for number in range(300):
        file.attrs[f"a{number}"] = "x" * 100


def _deep_groups(file: h5py.File) -> None:
    group = file
    for _ in range(500):
        group = group.create_group("server")


def _cycle(file: h5py.File) -> None:
    file["server/again"] = file["/"]
    file["server/server"] = file["server"]


def _links(file: h5py.File) -> None:
    file["server/a"] = np.zeros(3)
    for number in range(5_000):
        file["server"][f"l{number}"] = h5py.SoftLink("/server/a")


def _compressed(file: h5py.File, **how: object) -> None:
    file.create_dataset("server", data=np.zeros(10**6, np.float32), chunks=(10**6,), **how)


def _dataset(**given: object) -> Fill:
    return lambda file: file.create_dataset("server/x", **given)


CRAFTED: dict[str, Fill] = {
    "another layout": _dataset(data=np.ones(3)),
    "netCDF": _netcdf,
    "a pickle": _dataset(data=np.void(pickle.dumps(print))),
    "vlen strings": _dataset(data=["x"] * 5, dtype=h5py.string_dtype()),
    "soft link": lambda file: file.__setitem__("server", h5py.SoftLink("/elsewhere")),
    "external link": _external_link,
    "external storage": _external_storage,
    "virtual": _virtual,
    "huge without storage": _dataset(shape=(2**50,), dtype="f4"),
    "huge in chunks": _dataset(shape=(2**50,), dtype="f4", chunks=(1024,)),
    "a fill value": _dataset(shape=(2**30,), dtype="f8", fillvalue=7.0, chunks=(2**20,)),
    "a hole": _never_allocated,
    "gzip": lambda file: _compressed(file, compression="gzip"),
    "lzf": lambda file: _compressed(file, compression="lzf"),
    "scale-offset": lambda file: _compressed(file, scaleoffset=2),
    "a filter to load": _filter_from_a_plugin,
    "references": _references,
    "thousands of fields": _thousands_of_fields,
    "enormous attributes": _enormous_attributes,
    "deep groups": _deep_groups,
    "a cycle": _cycle,
    "5,000 links": _links,
}


def write(path: Path, fill: Fill, *, libver: str = "latest", userblock_size: int = 0) -> bytes:
    """The bytes of a crafted file, which lies at `path`."""
    with h5py.File(path, "w", libver=libver, userblock_size=userblock_size) as file:
        fill(file)
    return path.read_bytes()


def looped(path: Path) -> bytes:
    """A group whose B-tree has itself as its child."""

    def groups(file: h5py.File) -> None:
        for number in range(400):
            file.create_group(f"server/{number}")

    whole = bytearray(write(path, groups, libver="earliest"))
    tree = whole.rindex(b"TREE")
    for at in range(tree + 32, tree + 96, 16):
        whole[at : at + 8] = tree.to_bytes(8, "little")
    path.write_bytes(whole)
    return bytes(whole)


def disguised(path: Path, fill: Fill, good: bytes) -> bytes:
    """A crafted file behind the header of a `good` one and before its table of contents, all sealed."""
    kind, _, contents = damage.parts(good)
    image = write(path, fill, userblock_size=USER_BLOCK_BYTES)[USER_BLOCK_BYTES:]
    return damage.sealed(kind, image + contents, len(contents))
