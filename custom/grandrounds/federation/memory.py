"""Memory that training frees in one step and asks for again in the next stays with the process.

The C library gives large blocks back to the system at once, and the system clears every page of them when they are asked
for again: with small networks on a CPU that costs more than a tenth of a training step.
"""

from __future__ import annotations

import ctypes

# Numbers of the GNU C library's malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 1 << 30
LARGEST_BLOCK = 1 << 25  # the library takes no more than this on 64-bit machines


def keep_freed_memory() -> bool:
    """Ask the C library not to give freed memory back before there is a gigabyte of it.

    Returns:
        Whether it agreed: only the GNU library knows the question, elsewhere nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(TRIM_THRESHOLD, KEPT_BYTES)) and bool(mallopt(MMAP_THRESHOLD, LARGEST_BLOCK))
