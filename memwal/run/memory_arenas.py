"""Keeps the C library from hoarding memory that Lance's threads have freed.

glibc gives threads arenas of their own, up to eight a core, and what is freed in one is not used by
the others. A merge of sixty generations of 25 MB kept 200 MB that way: tests/bench/cases/memory.py.
"""

from __future__ import annotations

import ctypes
import os

_M_ARENA_MAX = -8


def limit_arenas() -> None:
    """At most one arena a core, and two. Nothing where the C library knows no arenas, or the
    environment has MALLOC_ARENA_MAX. Arenas that are there already stay.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, max(2, os.cpu_count() or 1))
