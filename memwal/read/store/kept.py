"""What was read of generations, for the next read."""

from __future__ import annotations

from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")

BYTES_MAX = 64 * 1024 * 1024


class Kept(Generic[T]):
    """Things that never change, by names that stand for nothing else; what is used stays longest.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._things: dict[str, tuple[T, int]] = {}
        self._bytes = 0
        self._lock = Lock()

    def find(self, name: str) -> T | None:
        """What is kept under the name."""
        with self._lock:
            found = self._things.pop(name, None)
            if found is None:
                return None
            self._things[name] = found  # the last to go
            return found[0]

    def keep(self, name: str, thing: T, size_bytes: int) -> None:
        """Keep it, and let go of what was used longest ago where all is too large."""
        with self._lock:
            self._bytes += size_bytes - self._things.pop(name, (None, 0))[1]
            self._things[name] = (thing, size_bytes)
            while self._bytes > BYTES_MAX:
                self._bytes -= self._things.pop(next(iter(self._things)))[1]
