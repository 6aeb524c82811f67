"""What the C library does with memory that is freed."""

from __future__ import annotations

import ctypes
from functools import cache

# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
PAD = 64 << 20  # bytes that are asked of the system beyond what is needed


def keep_freed_memory() -> None:
    """Let the process keep what it frees, until `give_back_freed_memory`.

    By default glibc gives large pieces back at once, and every page of a new one is filled with
    zeros first: more than half of a training step on a CPU with large tensors (docs/log.md).
    Other C libraries are left as they are.
    """
    library = _glibc()
    if library is not None:
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, -1)
        library.mallopt(M_TOP_PAD, PAD)


def give_back_freed_memory() -> None:
    """Give the system all pages that hold nothing, where the C library is glibc.

    For after work that needed memory of other sizes than what follows.
    """
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  (only glibc has it)
    except (AttributeError, OSError, TypeError):  # another C library; another system
        return None
    return library
