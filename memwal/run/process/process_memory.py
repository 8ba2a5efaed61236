"""Keeps the C library from hoarding memory that Lance's threads have freed.

glibc gives threads arenas of their own, up to eight per core, and memory freed in one is not used
by the others. A merge of sixty generations of 25 MB kept 200 MB that way:
bench/cases/memory.py. glibc also keeps freed large blocks for later ones of that size. With a
memory limit they are given back to the system at once, which saves a third of what wide rows take
for a fifth more CPU time.
"""

from __future__ import annotations

import ctypes
import os

from memwal.errors import Refused
from memwal.rows.memory import Memory
from memwal.text import format_mb

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BYTES = 1024 * 1024
_LEAST_BYTES = 256 * 1024 * 1024


def limit_arenas() -> None:
    """Limit the C library to one arena per core, or two on a single core.

    Does nothing when the C library has no arenas, or the environment sets MALLOC_ARENA_MAX.
    Existing arenas stay.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        _set(_M_ARENA_MAX, max(2, os.cpu_count() or 1))


def limit_memory(bytes_max: int | None) -> Memory:
    """The memory this process may take; with a limit, freed memory is given back at once.

    Raises Refused for a limit that is too small for any work.
    """
    memory = Memory(bytes_max=bytes_max)
    if bytes_max is not None:
        if bytes_max < _LEAST_BYTES:
            raise Refused(
                "MW-E12",
                f"--memory-max leaves this process {format_mb(bytes_max)}; "
                f"Python, Lance and small batches take {format_mb(_LEAST_BYTES)}",
            )
        import pyarrow as pa

        limit_arenas()
        _set(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        pa.set_memory_pool(pa.system_memory_pool())  # the default pool keeps freed memory, too
        # Bounds what Lance reads by itself to build an index; it looks at this variable once.
        os.environ.setdefault("LANCE_DEFAULT_IO_BUFFER_SIZE", str(memory.ahead_bytes))
    return memory


def _set(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)
