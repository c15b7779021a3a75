"""Memory that a process has freed: what it will need again in the next step stays, the rest goes back to Linux."""

import ctypes

# mallopt(3): M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, and the largest values that glibc takes for them on 64 bits.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST_TRIM_BYTES = 2**31 - 1
_LARGEST_MMAP_BYTES = 32 * 2**20


def keep_freed_memory() -> None:
    """Keeps freed blocks of up to 32 MiB for this process's own use; without glibc nothing changes.

    Else glibc gives them back to Linux, and the activations of the next training step are new pages, each of which
    Linux fills with zeros. It cannot be undone, because glibc does not say what was set before.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_BYTES)
        mallopt(_TRIM_THRESHOLD, _LARGEST_TRIM_BYTES)


def give_back_freed_memory() -> None:
    """Gives all free pages back to Linux, once, as after a start, which makes nets to try them; only with glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
