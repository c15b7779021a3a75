"""Memory that a process has freed: what it will need again in the next step stays, the rest goes back to Linux."""

import ctypes

# mallopt(3): M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, and the largest values that glibc takes for them on 64 bits.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST_TRIM_BYTES = 2**31 - 1
_LARGEST_MMAP_BYTES = 32 * 2**20


def keep_freed_memory() -> None:
    """Keeps freed blocks of up to 32 MiB for this process's own use; without glibc nothing changes.

    glibc gives the end of the heap back to Linux whenever more than some 32 MiB of it are free. The activations of the
    next training step then are new pages, each of which Linux fills with zeros. Larger blocks, such as data sets, go
    back as before. No result depends on it. It cannot be undone, because glibc does not say what was set before.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_BYTES)
        mallopt(_TRIM_THRESHOLD, _LARGEST_TRIM_BYTES)


def give_back_freed_memory() -> None:
    """Gives all free pages back to Linux, once; without glibc nothing changes.

    A start makes nets to try them, and values of which a node then keeps one copy. In blocks of up to 32 MiB these
    would stay with every rank.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
