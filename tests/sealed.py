"""Forged files of `fedmpi.disk.hdf5`: whatever is in them, length and checksum are right."""

import hashlib
import re

from fedmpi.disk.hdf5 import FORMAT, USER_BLOCK_BYTES


def sealed(kind: str, body: bytes, contents_bytes: int) -> bytes:
    """Returns a file with this after its user block; the last `contents_bytes` of it are its table of contents."""
    signed = f"fedmpi {kind} format {FORMAT} bytes {len(body)} contents {contents_bytes}".encode()
    checksum = hashlib.blake2b(signed + body, digest_size=16).hexdigest()
    return f"{signed.decode()} blake2b {checksum}\n".encode().ljust(USER_BLOCK_BYTES, b"\0") + body


def parts(whole: bytes) -> tuple[str, bytes, bytes]:
    """Returns kind, HDF5 image without its user block, and table of contents of a good file."""
    match = re.match(rb"fedmpi ([a-z]+) format \d+ bytes \d+ contents (\d+) ", whole)
    assert match is not None
    end = len(whole) - int(match[2])
    return match[1].decode(), whole[USER_BLOCK_BYTES:end], whole[end:]


def with_contents(whole: bytes, contents: bytes) -> bytes:
    """Returns a good file with another table of contents."""
    kind, image, _ = parts(whole)
    return sealed(kind, image + contents, len(contents))
