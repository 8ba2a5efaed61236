"""Starting fast: Python's search for garbage is put off until a command has what it needs.

Python looks for garbage each time that it has made 700 objects more. Starting makes 300,000, nearly
all of them modules and their parts, which stay: a fifth of the time goes into looking at them, here
and once more when the interpreter ends.
"""

from __future__ import annotations

import atexit
import gc

_OBJECTS_AT_START = 1_000_000
_USUAL = gc.get_threshold()


def begin() -> None:
    """What is imported from here on is not searched for garbage. Once in a process."""
    if not gc.get_freeze_count():
        gc.set_threshold(_OBJECTS_AT_START)
        atexit.register(gc.freeze)


def end() -> None:
    """Everything is imported: search what comes from here on, as usual."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.set_threshold(*_USUAL)
