"""Speeds up the start: the garbage collector pauses until a command has imported what it needs.

The collector runs after every 700 new objects. The start makes 300,000, nearly all of them modules
and their parts, which are never freed. Scanning them takes a fifth of the time, and again when the
interpreter ends.
"""

from __future__ import annotations

import atexit
import gc
from functools import cache

_OBJECTS_AT_START = 1_000_000
_USUAL = gc.get_threshold()


@cache  # counting what is frozen walks through all of it
def pause() -> None:
    """Pause the collector; has an effect once in a process."""
    if not gc.get_freeze_count():
        gc.set_threshold(_OBJECTS_AT_START)
        atexit.register(gc.freeze)


@cache
def resume() -> None:
    """Collect as usual again, except for the objects that exist now; all imports are done."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.set_threshold(*_USUAL)
