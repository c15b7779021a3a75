"""Arrays that lie once in the memory of a node: one of its ranks has read or made them, the others map its memory.

They lie in a file without a name (memfd_create(2)), sealed so that no process can change or shorten it, which the other
ranks open through /proc/PID/fd. The system frees it when no process maps it any more: a killed rank leaves nothing
behind, and the others do not need the rank that has read. A file in /dev/shm, as MPI's shared windows are, outlives a
kill that comes before it is unlinked, and where it fills a container's 64 MB, the rank that writes ends by SIGBUS.
"""

import json
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np

from fedmpi.data.dataset import Arrays, chunks

_ALIGN_BYTES = 64
"""As numpy's own arrays of some size begin."""


@contextmanager
def lent(arrays: Arrays | None) -> Iterator[str]:
    """Lends the arrays to other processes of this node within the block: `taken` makes them of the yielded text.

    The text is empty for None, and where the system has no such files or no memory for one.
    """
    with ExitStack() as stack:
        text = ""
        if arrays is not None and sys.platform == "linux":
            with suppress(OSError):
                descriptor = os.memfd_create("fedmpi-data", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                stack.callback(os.close, descriptor)
                text = _written(descriptor, arrays)
        yield text


def _written(descriptor: int, arrays: Arrays) -> str:
    """Fills and seals the file; returns the text for the other processes. Raises OSError if there is no memory."""
    import fcntl

    entries: dict[str, Any] = {}
    with open(descriptor, "wb", closefd=False) as file:
        for name, array in arrays.items():
            if array is not None:
                offset = file.seek(-(-file.tell() // _ALIGN_BYTES) * _ALIGN_BYTES)
                entries[name] = [array.dtype.str, array.shape, offset]
                file.writelines(chunks(array))
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    return json.dumps({"path": path, "known_by": _identity(path), "arrays": entries})


def _identity(path: str) -> list[int]:
    status = os.stat(path)
    return [status.st_dev, status.st_ino, status.st_size]


def taken(text: str) -> dict[str, np.ndarray] | None:
    """Returns the arrays that a process of this node lends by this text; None where that is not possible, as from a
    container that does not see that process. A page that this process changes becomes its own (MAP_PRIVATE)."""
    if not text:
        return None
    found = json.loads(text)
    try:
        if _identity(found["path"]) != found["known_by"]:  # another process has that number here
            return None
        with open(found["path"], "rb") as file:
            memory = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError):
        return None
    return {name: np.ndarray(shape, dtype, memory, offset) for name, (dtype, shape, offset) in found["arrays"].items()}
