"""Damaged and forged files, by the thousand: each is refused in one line, or changes nothing of what is read.

    python -m tests.torture.fuzz_files [--seed 0] [--count 1000] [--files checkpoint,memory,...]

Two small runs, with and without client memories, write real files; `--count` copies of each are damaged
(`damage.py`) and read as fedmpi reads them, in a process of their own. So are archives of a data set (zip, and tar in
gz, bz2 and xz), or archives that lie take their place (`fuzz_archives.py`). The table says how it went:

    refused      a UserError of one line
    unchanged    the damage is where nothing is read
    other        what is read differs: allowed for forgeries, whose checksum is right, and for nothing else
    traceback    any other exception
    crash, hang  the process was ended by a signal, or took more than 10 s of a core
    memory       it grew by more than 64 MiB (the files have some 10 KB)

The last four must be 0, and `other` for accidents; else the exit code is 1. `planted` are links, pipes and devices
under the names of files in a run directory (`planted.py`), a tenth as many, since each is a resume or a look: there
`unchanged` is a run that continues, and `other` a file outside the run that has changed. `h5py`, which is not among the
files by default, reads arrays as h5py offers it, to show why `fedmpi.disk.hdf5` does without.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import torch

from fedmpi.check.small import run_all, small_config
from fedmpi.command.manners import Parser, run_command
from fedmpi.data import prepared, reading
from fedmpi.data.dataset import Dataset
from fedmpi.data.partition import saved
from fedmpi.data.sets.har import Har
from fedmpi.errors import UserError
from fedmpi.main import main as fedmpi_main
from fedmpi.mpi.serial import SerialComm
from fedmpi.store import checkpoint
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir
from fedmpi.store.stored import digest_of
from fedmpi.studies.arguments import number

from . import bounded, damage, fuzz_archives, planted, print_groups

OUTCOMES = ("refused", "unchanged", "other", "traceback", "crash", "hang", "memory")
PLANTED = "planted"
BAD = ("traceback", "crash", "hang", "memory")
MOST_S, MOST_BYTES = 10, 2**26


def damaged(whole: bytes, draw: random.Random) -> tuple[str, bytes]:
    """What was done to the bytes of a good file, in a word, and what they are then."""
    if not whole.startswith(b"fedmpi "):
        return "structure changed", damage.structure_changed(whole, draw)
    kind, harm = draw.choice([*damage.ACCIDENTS.items(), *damage.FORGERIES.items()])
    return kind, harm(whole, draw)


@dataclass(frozen=True)
class Victim:
    """A good file, a digest of what is read of it, and how it is damaged."""

    path: Path
    read: Callable[[], str]
    harm: Callable[[bytes, random.Random], tuple[str, bytes]] = damaged


def victims(folder: Path) -> dict[str, Victim]:
    """Real files of two small runs, a prepared data set, and archives; all in `folder`."""
    for method in ("fedhm", "topk"):
        run_all(small_config(f"method.name={method}", "rounds=2"), SerialComm(), folder / method)
    plain, keeping = RunDir(folder / "fedhm"), RunDir(folder / "topk")
    (_, newest), (_, with_memories) = plain.checkpoints()[0], keeping.checkpoints()[0]
    client, version = next(iter(checkpoint.load(with_memories).clients.items()))
    options = Har(root=str(folder), num_train=20, num_test=8, num_groups=4, window=8)
    x, numbers = np.zeros((20, 48), np.float32), np.arange(20)
    prepared.save(options, Dataset(x, numbers % 6, x[:8], numbers[:8] % 6, numbers % 4, numbers[:8] % 4))
    foreign = folder / "foreign.h5"
    with h5py.File(foreign, "w") as file:
        file.attrs["format"] = "text"
        file["indices"], file["offsets"] = np.arange(100), np.arange(11)
    return {
        "checkpoint": Victim(newest, lambda: _checkpoint(newest)),
        "with memories": Victim(with_memories, lambda: _checkpoint(with_memories)),
        "index": Victim(with_memories, lambda: repr(sorted(checkpoint.index_of(keeping.checkpoints()[0][1]).items()))),
        "memory": Victim(
            keeping.memory_path(client, *version), lambda: digest_of(MemoryStore(keeping).get(client, version) or {})
        ),
        "partition": Victim(plain.partition_path, lambda: _arrays(vars(saved(plain.partition_path)[0]))),
        "data": Victim(options.path, lambda: _arrays(reading.load(options).arrays)),
        "h5py": Victim(foreign, lambda: _h5py(foreign)),
        **{
            name: Victim(path, partial(fuzz_archives.digest, path), fuzz_archives.harmed)
            for name, path in fuzz_archives.good(folder).items()
        },
    }


def _checkpoint(path: Path) -> str:
    found = checkpoint.load(path)
    return repr([digest_of(found.server), *(value for name, value in vars(found).items() if name != "server")])


def _h5py(path: Path) -> str:
    try:
        with h5py.File(path, "r") as file:
            if file.attrs.get("format") != "text":
                raise KeyError("format")
            return _arrays({name: file[name][...] for name in ("indices", "offsets")})
    except Exception as error:  # whatever it answers, it has answered
        raise UserError(str(path), str(error)) from error


def _arrays(arrays: dict[str, np.ndarray]) -> str:
    found = [(name, str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()]
    return hashlib.blake2b(repr(found).encode()).hexdigest()


def outcomes(victim: Victim, seeds: range) -> Iterator[bounded.Outcome]:
    """Of a damaged copy for each seed; the file is a good one again in the end."""
    whole, expected = victim.path.read_bytes(), victim.read()

    def draw(seed: int) -> tuple[str, bounded.Attempt]:
        kind, content = victim.harm(whole, random.Random(seed))

        def attempt() -> tuple[str, str]:
            victim.path.write_bytes(content)
            return bounded.answer(lambda: "unchanged" if victim.read() == expected else "other")

        return kind, attempt

    yield from bounded.outcomes(seeds, draw, most_s=MOST_S, most_bytes=MOST_BYTES)
    victim.path.write_bytes(whole)


def main(argv: list[str] | None = None) -> int:
    return run_command(lambda: _fuzz(_arguments(argv)))


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("python -m tests.torture.fuzz_files", __doc__)
    parser.add_argument("--seed", type=number(int, 0), default=0)
    parser.add_argument("--count", type=number(int, 1), default=1000, help="damaged copies of each file")
    parser.add_argument("--files", default="checkpoint,with memories,index,memory,partition,data,planted,zip,gz,bz2,xz")
    return parser.parse_args(argv)


def _fuzz(given: argparse.Namespace) -> int:
    torch.set_num_threads(1)  # a child made by fork must not wait for threads that it has not
    found: list[tuple[str, bounded.Outcome]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with contextlib.redirect_stdout(io.StringIO()):
            known = victims(folder)
        names = given.files.split(",")
        if unknown := [name for name in names if name not in (*known, PLANTED)]:
            there = ", ".join([*known, PLANTED])
            raise UserError("--files", f"no such files: {', '.join(unknown)}; there are {there}")
        seeds = range(given.seed, given.seed + given.count)
        for name in names:
            planted_ones = planted.outcomes(folder / "topk", seeds[: -(-len(seeds) // 10)], _resume)
            for outcome in planted_ones if name == PLANTED else outcomes(known[name], seeds):
                found.append((name, outcome))
                if _is_bad(outcome):
                    print(f"{name}: {outcome.kind}: {outcome.verdict} {outcome.detail}")
                    print(f"  again: --files '{name}' --seed {outcome.number} --count 1", flush=True)
    columns = {verdict: lambda those, of=verdict: sum(one.verdict == of for _, one in those) for verdict in OUTCOMES}
    print_groups("file: damage", found, lambda case: f"{case[0]}: {case[1].kind}", columns)
    return int(any(_is_bad(outcome) for _, outcome in found))


def _resume(folder: Path) -> int:
    return fedmpi_main(["--run-dir", str(folder), "--resume", "rounds=3"])


def _is_bad(outcome: bounded.Outcome) -> bool:
    changes_nothing = (*damage.ACCIDENTS, *planted.SHAPES)
    return outcome.verdict in BAD or (outcome.verdict == "other" and outcome.kind in changes_nothing)


if __name__ == "__main__":
    sys.exit(main())
