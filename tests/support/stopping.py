"""Ends a run at a step of its own."""

from __future__ import annotations

from threading import Lock


class Stop(Exception):
    """The run ends here."""


class Stopper:
    """Raises at the nth step, and at all that come after it: nothing more is done."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.lock = Lock()

    def __call__(self, step: str) -> None:
        with self.lock:
            self.left -= 1
            if self.left <= 0:
                self.stop(step)

    def stop(self, step: str) -> None:
        raise Stop(step)


class StopAt(Stopper):
    """The same, and counts the steps of one name only."""

    def __init__(self, name: str, nth: int = 1) -> None:
        super().__init__(nth)
        self.name = name

    def __call__(self, step: str) -> None:
        if step == self.name or self.left <= 0:
            super().__call__(step)
