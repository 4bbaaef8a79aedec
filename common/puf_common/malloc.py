"""What the C library does with freed memory, for processes that move large payloads round after round.

Left alone it gives every buffer of a mebibyte and more back to the system, and takes it anew for the next one: the kernel
then clears the same pages again and again, which costs a round more than its sums. And it keeps a heap per thread, each
with free memory of its own.
"""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

# Of mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8

# Free memory at the end of a heap that is kept, and buffers that come from heaps rather than from the system.
_KEPT = 128 << 20
_LARGEST = 64 << 20
_HEAPS = 2


def keep_freed_memory() -> bool:
    """Has buffers used again within this process; for its start. False where the C library has no such choice."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all([mallopt(_TRIM_THRESHOLD, _KEPT), mallopt(_MMAP_THRESHOLD, _LARGEST), mallopt(_ARENA_MAX, _HEAPS)])
