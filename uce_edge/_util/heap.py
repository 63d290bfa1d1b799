"""Keep freed memory in the process, where glibc would return it."""

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # the parameters of mallopt, from malloc.h
_MB = 2**20
_LARGEST = 2**31 - 1  # mallopt takes a C int
_MAPPED = (1024 * _MB, 32 * _MB)
"""Larger blocks are mapped one by one. Older versions of glibc allow half of a heap, 32 MB, at most."""
_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Keep freed memory for the next layer; for a program, not a library.

    A network frees and takes the same large maps for every pass. The kernel clears each page again that glibc has
    returned, which takes as long as the network itself. This changes the whole process.

    Returns:
        Whether anything was set: false without glibc, or where the user has chosen by environment variables.
    """
    if any(os.environ.get(name) for name in _VARIABLES):
        return False
    try:
        if not os.confstr("CS_GNU_LIBC_VERSION"):  # another C library may have a mallopt of its own
            return False
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, ValueError):  # Windows, macOS, musl
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    if not any(mallopt(_MMAP_THRESHOLD, size) for size in _MAPPED):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _LARGEST) and mallopt(_TOP_PAD, 64 * _MB))
