"""Contract 1 across processes: no byte of a run follows PYTHONHASHSEED, which differs from process to process."""

import subprocess
import sys
from pathlib import Path

import method_cases
import pytest
from launched import environment
from small_runs import SMALL

from fedmpi.disk import hdf5

CASES = ("lgfedavg", "hermes-all", "topk", "splitmix")
"""Three methods with memory, and one whose clients train some of the nets."""
SCRIPT = """
import sys
from fedmpi.main import main
folder, *rest = sys.argv[1:]
for words in " ".join(rest).split(" then "):
    case, *overrides = words.split()
    assert main([*overrides, "--run-dir", f"{folder}/{case}"]) == 0
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders with a run of each case, made under two hash seeds."""
    words = " then ".join(" ".join([case, *_words(case)]) for case in CASES)
    folders = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("other")
    for seed, folder in enumerate(folders, 1):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(folder), *words.split()],
            env={**environment(), "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
    return folders


def _words(case: str) -> list[str]:
    words = method_cases.CASES[case]
    renamed = tuple(f"{word.partition('.name=')[0]}." for word in words if ".name=" in word)
    return [*(word for word in SMALL if not word.startswith(renamed)), *words]


@pytest.mark.parametrize("case", CASES)
def test_memories_and_checkpoints_have_the_same_bytes(both: tuple[Path, Path], case: str) -> None:
    one, other = (
        {str(path.relative_to(folder)): _bytes(path) for path in sorted((folder / case).rglob("*.h5"))}
        for folder in both
    )
    assert list(one) == list(other)
    assert any(name.startswith(f"{case}/memory/") for name in one) == (case != "splitmix")
    assert [name for name in one if one[name] != other[name]] == []


def _bytes(path: Path) -> bytes:
    """All bytes of the file; of a checkpoint, without the times in its progress and the digest that covers them."""
    if path.parent.name != "checkpoints":
        return path.read_bytes()
    with hdf5.opened(path, "checkpoint") as file:
        changing = ("progress", "content_digest")
        attributes = {name: value for name, value in file.attributes.items() if name not in changing}
        arrays = [(name, entry.dtype, entry.shape, file.array(name).tobytes()) for name, entry in file.entries.items()]
    return repr((attributes, arrays)).encode()
