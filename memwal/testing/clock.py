"""A clock that is moved by hand."""

from __future__ import annotations

import random
import uuid
from threading import Lock


class ManualClock:
    """The Clock port, moved by hand: `sleep` returns at once and moves it too."""

    def __init__(self, *, start_nanos: int = 1_750_000_000_000_000_000, seed: int = 0) -> None:
        self._start_nanos = start_nanos
        self._passed_nanos = 0
        self._chance = random.Random(seed)
        self._ids = random.Random(seed + 1)
        self._lock = Lock()
        self.slept_seconds: list[float] = []

    def now_nanos(self) -> int:
        """The start, plus all time slept and advanced."""
        return self._start_nanos + self._passed_nanos

    def monotonic_seconds(self) -> float:
        """Seconds slept and advanced so far."""
        return self._passed_nanos / 1e9

    def sleep(self, seconds: float) -> None:
        """Move on by `seconds` without waiting, and note it in `slept_seconds`."""
        with self._lock:
            self.slept_seconds.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass without noting it as slept."""
        with self._lock:
            self._passed_nanos += round(seconds * 1e9)

    def random(self) -> float:
        """The next of the seed's numbers in [0, 1)."""
        with self._lock:
            return self._chance.random()

    def new_id(self) -> str:
        """The next of the seed's UUIDs."""
        with self._lock:
            return str(uuid.UUID(int=self._ids.getrandbits(128), version=4))
