"""The only real clock, sleep, random source and id source of the package."""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass


@dataclass(frozen=True)
class SystemClock:
    """The Clock port on this host; all are equal."""

    def now_nanos(self) -> int:
        """Wall clock, nanoseconds since the epoch."""
        return time.time_ns()

    def monotonic_seconds(self) -> float:
        """Seconds on a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def random(self) -> float:
        """Uniform in [0, 1)."""
        return random.random()

    def new_id(self) -> str:
        """A fresh UUID v4 as text."""
        return str(uuid.uuid4())
