"""Freed memory goes back to Linux, in a process of its own, because what glibc is told cannot be undone."""

import subprocess
import sys

PROGRAM = """
import psutil
from fedmpi.learning.freed_memory import give_back_freed_memory, keep_freed_memory

keep_freed_memory()
blocks = [bytearray(2**20) for _ in range(200)]
last = bytearray(2**20)  # the end of the heap stays in use
del blocks
before = psutil.Process().memory_info().rss
give_back_freed_memory()
print(before - psutil.Process().memory_info().rss)
"""


def test_what_is_free_goes_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 190 * 2**20
