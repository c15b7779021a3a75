"""A process keeps what it has freed. In a process of its own, because it holds for the rest of it."""

import platform
import subprocess
import sys

import pytest

# Steps that fill eight blocks of 16 MiB and free them; the second step's new pages, as a share of the first one's.
SCRIPT = """
import resource, sys
from fedmpi.learning.freed_memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
found = []
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [b"x" * 2**24 for _ in range(8)]
    del blocks
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(found[2] / found[0])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_what_a_step_frees_the_next_one_finds() -> None:
    """Without the setting, the third step's blocks are new pages, all or all but two (glibc keeps twice the largest
    block)."""
    assert share_of_new_pages("keep") < 0.1
    assert share_of_new_pages("leave") > 0.5


def share_of_new_pages(what: str) -> float:
    command = [sys.executable, "-c", SCRIPT, what]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout)
