"""Seeds the faults of `faults.txt` in the package, one at a time, and runs the tests that should catch each.

    PYTHONPATH=tests python -m nightly.faults [WORD ...]

With words only the faults whose line has all of them. Each is applied to a copy of the tree, in which its tests run
until one fails. The exit code is 1 if one was not caught. Whoever changes the line of a fault writes the fault again.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.txt")


@dataclass(frozen=True)
class Fault:
    file: str
    meaning: str
    tests: str
    old: str
    new: str

    def mutated(self) -> str:
        """Returns the file's text with the fault in it."""
        text = (TOP / "fedmpi" / self.file).read_text()
        if text.count(self.old) != 1:
            sys.exit(f"fedmpi/{self.file} has {self.old!r} {text.count(self.old)} times; write this fault again")
        return text.replace(self.old, self.new)


def is_caught(fault: Fault) -> bool:
    """Runs the tests of a fault on a copy of the tree that has it."""
    files, _, choice = fault.tests.partition(" -k ")
    places = [f"tests/{file}" for file in files.split()]
    pytest = [sys.executable, *"-m pytest -q -x -p no:cacheprovider".split(), "-k", choice]
    alone = [place for place in places if "/mpi/" not in place]
    on_ranks = [place for place in places if "/mpi/" in place]
    commands = [[*pytest, *alone]] if alone else []
    if on_ranks:
        commands.append(["mpirun", "-n", "3", *pytest, "--with-mpi", "-m", "mpi", *on_ranks])
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(TOP, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "runs"))
        (copy / "fedmpi" / fault.file).write_text(fault.mutated())
        for command in commands:
            done = subprocess.run(command, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True)
            if done.returncode == 1:
                return True
            if done.returncode not in (0, 5):
                sys.exit(f"{fault.file}, {fault.meaning}: {' '.join(command)}\n{done.stdout.decode()[-2000:]}")
    return False


def main() -> int:
    lines = [line for line in FAULTS.read_text().splitlines() if not line.startswith("#")]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    faults = [Fault(*head.split(" | "), *change.strip().split("  ==>  ")) for head, change in pairs]
    for fault in faults:
        fault.mutated()
    verdicts = []
    for fault in faults:
        name = f"{fault.file}: {fault.meaning}"
        if all(word in name for word in sys.argv[1:]):
            verdicts.append(is_caught(fault))
            print(f"{'caught' if verdicts[-1] else 'NOT CAUGHT'}: {name}", flush=True)
    print(f"{sum(verdicts)} of {len(verdicts)} faults are caught")
    return int(not all(verdicts))


if __name__ == "__main__":
    sys.exit(main())
