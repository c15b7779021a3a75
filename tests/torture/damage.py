"""Damage to files of `fedmpi.disk.hdf5`: what disks and networks do, and what an attacker does who knows the format.

Everything is drawn from a `random.Random` that the caller seeds.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

from sealed import parts, sealed, with_contents

from fedmpi.disk.hdf5 import USER_BLOCK_BYTES

_HDF5 = re.compile(rb"\x89HDF|OHDR|OCHK|FRHP|FHDB|BTHD|BTLF|FSHD|TREE|SNOD|HEAP")  # its signatures
_NESTED: Any = [[[[]]]]
_HOSTILE: tuple[Any, ...] = (
    *(0, 1, -1, 511, 513, 2**31, 2**40, 2**63 - 1, 2**63, 2**64, 10**300, True, None, 1.5, float("nan"), float("inf")),
    *("", "x", "\0", "/", "server", "server/", "../../x", "\ud800", "x" * 10_000, "[" * 5000, "9" * 5000, "{}"),
    *("<f4", "<f8", ">f4", "|u1", "|O8", "|V8", "<M8[s]", "|S1000000", "<f4,<f4", "(1000000000,)u1", "bfloat16"),
    *([], {}, _NESTED, [2**62] * 4, [0, 2**62], [1] * 100, {"__class__": "os.system"}),
)


def cut_off(whole: bytes, draw: random.Random) -> bytes:
    return whole[: draw.randrange(len(whole))]


def flipped(whole: bytes, draw: random.Random) -> bytes:
    """One to eight bits, anywhere."""
    damaged = bytearray(whole)
    for at in draw.choices(range(len(whole)), k=draw.choice([1, 1, 1, 2, 8])):
        damaged[at] ^= 1 << draw.randrange(8)
    return bytes(damaged)


def overwritten(whole: bytes, draw: random.Random) -> bytes:
    """Up to a page of other bytes; a page may also be put in or lost."""
    at, length = draw.randrange(len(whole)), draw.choice([1, 2, 4, 8, 64, 512, 4096])
    filling = _filling(whole, length, draw)
    match draw.randrange(4):
        case 0:
            return whole[:at] + filling + whole[at:]
        case 1:
            return whole[:at] + whole[at + length :]
    return (whole[:at] + filling + whole[at + length :])[: len(whole)]


def structure_changed(whole: bytes, draw: random.Random) -> bytes:
    """One to eight values within 200 bytes of where the HDF5 library keeps its own: sizes, addresses, flags."""
    damaged, places = bytearray(whole), [match.start() for match in _HDF5.finditer(whole)]
    for _ in range(draw.choice([1, 1, 2, 4, 8])):
        at, length = min(draw.choice(places or [0]) + draw.randrange(200), len(whole) - 8), draw.choice([1, 2, 4, 8])
        damaged[at : at + length] = _filling(whole, length, draw)
    return bytes(damaged)


def _filling(whole: bytes, length: int, draw: random.Random) -> bytes:
    """Zeros, ones, noise, or bytes from elsewhere in the file."""
    elsewhere = draw.randrange(max(len(whole) - length, 1))
    return draw.choice([bytes(length), b"\xff" * length, draw.randbytes(length), whole[elsewhere:][:length]])


def header_changed(whole: bytes, draw: random.Random) -> bytes:
    """Another number, word or sign in the first line."""
    line, rest = whole[:USER_BLOCK_BYTES].rstrip(b"\0"), whole[USER_BLOCK_BYTES:]
    at = draw.randrange(len(line))
    sign = bytes([draw.choice(b"0189afxz \n\0\xff")])
    words = line.split(b" ")
    words[draw.randrange(len(words))] = draw.choice([b"0", b"-1", b"9" * 9, b"9" * 18, b"1", b"memory", b"data", b""])
    line = draw.choice([line[:at] + sign + line[at + 1 :], b" ".join(words)])
    return line.ljust(USER_BLOCK_BYTES, b"\0") + rest


def forged_bytes(whole: bytes, draw: random.Random) -> bytes:
    """Damage to the HDF5 image, with a checksum that is right again."""
    kind, image, contents = parts(whole)
    damage = draw.choice([flipped, overwritten, structure_changed])
    return sealed(kind, damage(image, draw) + contents, len(contents))


def forged_contents(whole: bytes, draw: random.Random) -> bytes:
    """Up to four hostile values in the table of contents, or a damaged text of it; the checksum is right again."""
    _, _, contents = parts(whole)
    if draw.random() < 0.2:
        return with_contents(whole, draw.choice([flipped, overwritten, cut_off])(contents, draw))
    table = json.loads(contents)
    for _ in range(draw.choice([1, 1, 2, 4])):
        _spoil(table, draw)
    return with_contents(whole, json.dumps(table).encode())


def _spoil(table: Any, draw: random.Random) -> None:
    """Puts a hostile value somewhere into nested lists and dicts, or takes one out, or has one twice."""
    holder = table
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            return
        key = draw.choice(keys)
        if not isinstance(holder[key], (dict, list)) or draw.random() < 0.1:
            break
        holder = holder[key]
    action = draw.randrange(8)
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, list):
        holder.append(holder[key])
    elif action == 2 and type(holder[key]) is int:
        holder[key] += draw.choice([-(2**20), -8, -1, 1, 8, 2**20])
    else:
        holder[key] = draw.choice(_HOSTILE)


ACCIDENTS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut off": cut_off,
    "bits flipped": flipped,
    "overwritten": overwritten,
    "header changed": header_changed,
}
"""What must be refused, or change nothing of what is read."""

FORGERIES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "forged bytes": forged_bytes,
    "forged contents": forged_contents,
}
"""What may be read as something else, but by no crash, hang or excess of memory."""
