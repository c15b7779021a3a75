"""Where this folder is on Python's path, every process has the pretend accelerator, from start to end."""

from pretend.bench import benchmarked

_BLOCK = benchmarked()
_BLOCK.__enter__()
