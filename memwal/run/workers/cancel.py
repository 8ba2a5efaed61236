"""Tells units in other threads that the run was cancelled: they stop before their next commit."""

from __future__ import annotations

import threading

from memwal.errors import StandDown

_cancelled = threading.Event()


def begin() -> None:
    """Reset at the start of a run: nothing is cancelled yet."""
    _cancelled.clear()


def cancel() -> None:
    """Ask every unit of this process to stop before its next commit."""
    _cancelled.set()


def check() -> None:
    """Raise StandDown when the run was cancelled."""
    if _cancelled.is_set():
        raise StandDown("cancelled before this commit; run again to go on")
