"""How the C library treats freed memory, for processes that move large payloads in every round.

By default glibc returns every buffer of a mebibyte or more to the system and requests it again for the next one. The
kernel then clears the same pages repeatedly, which takes longer than the sums of a round. It also keeps one heap per
thread, each with its own free memory.
"""

from __future__ import annotations

import ctypes

# Constants of mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8

# Free memory that a heap keeps at its end; the largest buffer that comes from a heap; the number of heaps.
_KEPT = 128 << 20
_LARGEST = 64 << 20
_HEAPS = 2


def keep_freed_memory() -> bool:
    """Makes this process reuse freed buffers. Call it at the start. False if the C library cannot be set so."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all([mallopt(_TRIM_THRESHOLD, _KEPT), mallopt(_MMAP_THRESHOLD, _LARGEST), mallopt(_ARENA_MAX, _HEAPS)])
