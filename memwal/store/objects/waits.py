"""Says when a store keeps us waiting: a request that takes 5 s is told of, and again every 30 s.

Requests that are under way are looked at by one thread, which is there while any is: an attempt
that hangs is told of as well as one that is tried again. Of the requests to one store the oldest
speaks. The lines are warnings of the Python logger `memwal`; a command shows them as its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from memwal.clock import SystemClock
from memwal.config import mask_address
from memwal.ports import Clock

FIRST_SECONDS = 5.0
AGAIN_SECONDS = 30.0
_LOOK_SECONDS = 0.5


@dataclass(kw_only=True, slots=True, eq=False)
class Wait:
    """A request under way. `seconds_max` is for how long it is tried, None where Lance decides."""

    store: str
    request: str
    began: float
    seconds_max: float | None
    attempts: int = 1
    fault: str = ""
    context: Context = field(default_factory=copy_context)

    def describe(self, now: float) -> str:
        """The warning's text."""
        passed = f" for {now - self.began:.0f} s" if now > self.began + 1 else ""
        parts = [self.request]
        if self.attempts > 1:
            parts.append(f"attempt {self.attempts}")
        if self.seconds_max is not None:
            parts.append(f"given up after {self.seconds_max:.0f} s")
        text = f"waiting for {mask_address(self.store)}{passed}: {', '.join(parts)}"
        return f"{text} ({self.fault})" if self.fault else text


class Waits:
    """The requests under way in this process."""

    def __init__(self, clock: Clock, tell: Callable[[str], object]) -> None:
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._going: list[Wait] = []
        self._told: dict[str, float] = {}
        self._pause = threading.Event()
        self._watcher = threading.Thread()

    @contextmanager
    def watch(self, store: str, request: str, seconds_max: float | None = None) -> Iterator[Wait]:
        """Warn about the request made inside this context, if it takes long."""
        wait = Wait(
            store=store,
            request=request,
            began=self._clock.monotonic_seconds(),
            seconds_max=seconds_max,
        )
        with self._lock:
            self._going.append(wait)
            if not self._watcher.is_alive():  # nor is it in a fork
                self._watcher = threading.Thread(target=self._run, daemon=True, name="memwal-waits")
                self._watcher.start()
        try:
            yield wait
        finally:
            with self._lock:
                self._going.remove(wait)

    def look(self) -> bool:
        """Tell what there is to tell; whether any request is under way."""
        with self._lock:
            going = tuple(self._going)
            if not going:
                self._watcher = threading.Thread()
        now = self._clock.monotonic_seconds()
        oldest = {wait.store: wait for wait in reversed(going)}
        for wait in oldest.values():
            if now - wait.began >= FIRST_SECONDS:
                self.tell(wait)
        return bool(going)

    def tell(self, wait: Wait) -> None:
        """Tell of a request now, unless its store was told of lately."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            lately = {s: at for s, at in self._told.items() if now - at < AGAIN_SECONDS}
            self._told = {wait.store: now, **lately}
        if wait.store not in lately:
            wait.context.copy().run(self._tell, wait.describe(now))

    def _run(self) -> None:
        while self.look():
            self._pause.wait(_LOOK_SECONDS)


WAITS = Waits(SystemClock(), logging.getLogger("memwal").warning)
