"""Memory on a CPU: freed blocks are kept for the next operator, instead of being handed back and cleared again.

Eager PyTorch asks for memory at nearly every operator. A GPU's allocator keeps what it has; glibc gives large blocks
back to the system at once, and a model then spends a tenth of its time or more on page faults.
"""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3). Large blocks come from the heap too, instead of a mapping of their own that is given back
# when they are freed; and the heap is not cut back at its end.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_memory() -> bool:
    """Have this process keep the memory it frees, up to its peak; whether that was possible (on Linux with glibc).

    It cannot be taken back, so it is for programs to call. Here, commands do, and who loads an embedded pipeline,
    which generate on the CPU; a patch on a pipeline of yours never does.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
