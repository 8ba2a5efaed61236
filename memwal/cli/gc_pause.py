"""Starting fast: Python's garbage collector waits until a command has imported what it needs.

The collector runs each time that Python has made 700 objects more. Starting makes 300,000, nearly
all of them modules and their parts, which stay: looking at them takes a fifth of the time, here and
once more when the interpreter ends.
"""

from __future__ import annotations

import atexit
import gc

_OBJECTS_AT_START = 1_000_000
_USUAL = gc.get_threshold()


def pause() -> None:
    """Let the collector wait. Once in a process."""
    if not gc.get_freeze_count():
        gc.set_threshold(_OBJECTS_AT_START)
        atexit.register(gc.freeze)


def resume() -> None:
    """Everything is imported: collect as usual, but for what is there now."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.set_threshold(*_USUAL)
