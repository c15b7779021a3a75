"""Damaged and forged files, by the thousand: each is refused in one line, or changes nothing of what is read.

    python -m tests.torture.fuzz_files [--seed 0] [--count 1000] [--files checkpoint,memory,...]

Two small runs, with and without client memories, write real files; `--count` copies of each are damaged
(`damage.py`) and read as fedmpi reads them, in a process of their own. So are archives of a data set (zip, and tar in
gz, bz2 and xz), or archives that lie take their place (`fuzz_archives.py`). The table says how it went:

    refused      a UserError of one line
    unchanged    the damage is where nothing is read
    other        what is read differs: allowed for forgeries, whose checksum is right, and for nothing else
    traceback    any other exception
    crash, hang  the process was ended by a signal, or took more than 10 s
    memory       it grew by more than 64 MiB (the files have some 10 KB)

The last four must be 0, and `other` for accidents; else the exit code is 1. `planted` are links, pipes and devices
under the names of files in a run directory (`planted.py`), a tenth as many, since each is a resume or a look: there
`unchanged` is a run that goes on, and `other` a file outside the run that has changed. `h5py`, which is not among the
files by default, reads arrays as h5py offers it, to show why `fedmpi.disk.hdf5` does without.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import random
import resource
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import torch

from fedmpi.command.manners import Parser, run_command
from fedmpi.data import prepared, reading
from fedmpi.data.dataset import Dataset
from fedmpi.data.partition import Partition
from fedmpi.data.sets.har import Har
from fedmpi.errors import UserError
from fedmpi.main import main as fedmpi_main
from fedmpi.store import checkpoint
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir
from fedmpi.store.stored import digest_of
from fedmpi.studies.arguments import number

from . import damage, fuzz_archives, planted, print_groups

OUTCOMES = ("refused", "unchanged", "other", "traceback", "crash", "hang", "memory")
PLANTED = "planted"
BAD = ("traceback", "crash", "hang", "memory")
LIMIT_S, LIMIT_KB, ADDRESS_SPACE_BYTES = 10, 65_536, 8 * 2**30
SMALL = shlex.split("""
    data.name=synthetic data.shape=[1,8,8] data.classes=4 data.num_train=120 data.num_test=48
    model.width=0.125 model.blocks=[1,1] clients.count=8 clients.per_round=4 rounds=2
    train.local_epochs=1 train.batch_size=8 train.schedule.milestones=[1] evaluation.batch_size=16
    output.progress=off output.tensorboard=false
""")


@dataclass(frozen=True)
class Victim:
    """A good file, and a digest of what is read of it."""

    path: Path
    read: Callable[[], str]
    harm: Callable[[bytes, random.Random], tuple[str, bytes]] | None = None
    """Returns what it has done to a good file, in a word, and the damaged bytes; None: as `_harmed`."""

    def harmed(self, whole: bytes, seed: int) -> tuple[str, bytes]:
        return (self.harm or _harmed)(whole, random.Random(seed))


def victims(folder: Path, run: Callable[[str], None]) -> dict[str, Victim]:
    """Real files of two small runs, and a prepared data set; `run(method)` is to make the run `folder/method`."""
    for method in ("fedhm", "topk"):
        run(method)
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
        "partition": Victim(plain.partition_path, lambda: _arrays(vars(Partition.load(plain.partition_path)))),
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


def outcomes(victim: Victim, seeds: range) -> Iterator[tuple[int, str, str]]:
    """(seed, damage, outcome) of each seed; a child process reads until it is done or dies, then the next goes on."""
    whole, expected, left = victim.path.read_bytes(), victim.read(), list(seeds)
    while left:
        heard, say = os.pipe()
        child = os.fork()
        if child == 0:
            _read_all(victim, whole, expected, left, say)
        os.close(say)
        with open(heard, encoding="ascii") as lines:
            answered = [line.strip().split("|") for line in lines]
        _, status = os.waitpid(child, 0)
        yield from ((seed, kind, outcome) for seed, (kind, outcome) in zip(left, answered, strict=False))
        left = left[len(answered) :]
        if left:
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            seed = left.pop(0)
            yield seed, victim.harmed(whole, seed)[0], "hang" if number == signal.SIGALRM else "crash"
    victim.path.write_bytes(whole)


def _harmed(whole: bytes, draw: random.Random) -> tuple[str, bytes]:
    if not whole.startswith(b"fedmpi "):
        return "structure changed", damage.structure_changed(whole, draw)
    kind, harm = draw.choice([*damage.ACCIDENTS.items(), *damage.FORGERIES.items()])
    return kind, harm(whole, draw)


def _read_all(victim: Victim, whole: bytes, expected: str, seeds: list[int], say: int) -> None:
    """The child: one line a seed. Ends the process."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for seed in seeds:
        kind, damaged = victim.harmed(whole, seed)
        victim.path.write_bytes(damaged)
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.alarm(LIMIT_S)
        outcome = planted.answer(lambda: "unchanged" if victim.read() == expected else "other")
        signal.alarm(0)
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb > LIMIT_KB:
            outcome = "memory"
        os.write(say, f"{kind}|{outcome}\n".encode())
    os._exit(0)


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
    found: list[tuple[str, str, str]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        known = victims(folder, lambda method: _run(folder / method, method))
        names = given.files.split(",")
        if unknown := [name for name in names if name not in (*known, PLANTED)]:
            there = ", ".join([*known, PLANTED])
            raise UserError("--files", f"no such files: {', '.join(unknown)}; there are {there}")
        seeds = range(given.seed, given.seed + given.count)
        for name in names:
            for seed, kind, outcome in _outcomes(folder, known, name, seeds):
                found.append((name, kind, outcome))
                if _is_bad(kind, outcome):
                    print(f"{name}: {kind}: {outcome}; again: --files '{name}' --seed {seed} --count 1")
    columns = {outcome: lambda those, of=outcome: sum(case[2] == of for case in those) for outcome in OUTCOMES}
    print_groups("file: damage", found, lambda case: f"{case[0]}: {case[1]}", columns)
    return int(any(_is_bad(kind, outcome) for _, kind, outcome in found))


def _outcomes(folder: Path, known: dict[str, Victim], name: str, seeds: range) -> Iterator[tuple[int, str, str]]:
    if name != PLANTED:
        return outcomes(known[name], seeds)
    return planted.outcomes(folder / "topk", seeds[: -(-len(seeds) // 10)], _resume)


def _resume(folder: Path) -> int:
    return fedmpi_main(["--run-dir", str(folder), "--resume", "rounds=3"])


def _run(folder: Path, method: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        code = fedmpi_main([*SMALL, f"method.name={method}", "--run-dir", str(folder)])
    if code:
        sys.exit(code)


def _is_bad(kind: str, outcome: str) -> bool:
    return outcome in BAD or (outcome == "other" and kind in (*damage.ACCIDENTS, *planted.SHAPES))


if __name__ == "__main__":
    sys.exit(main())
