"""Epochs, the two watermarks, and who waits for them. Pure: no time, no tasks.

Every write gets the next epoch; epochs live in memory only. `flushed` is the highest epoch that is
in the current snapshot, `durable` the highest that would survive a crash: two events, and the
second never overtakes the first. For a MemWAL table both come at once, since pylance's put returns
when it is durable; they are apart for handlers of stores that acknowledge later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

Waiter = TypeVar("Waiter")


@dataclass(kw_only=True, slots=True)
class Epochs:
    """What was given out, and how far it has come."""

    assigned: int = 0
    flushed: int = 0
    durable: int = 0

    def next(self) -> int:
        """The epoch of a new write."""
        self.assigned += 1
        return self.assigned

    def advance_flushed(self, epoch: int) -> None:
        """Everything up to `epoch` is in the snapshot."""
        if not self.flushed <= epoch <= self.assigned:
            raise AssertionError(f"flushed goes from {self.flushed} to {epoch}: {self}")
        self.flushed = epoch

    def advance_durable(self, epoch: int) -> None:
        """Everything up to `epoch` is safe."""
        if not self.durable <= epoch <= self.flushed:
            raise AssertionError(f"durable goes from {self.durable} to {epoch}: {self}")
        self.durable = epoch


@dataclass(kw_only=True, slots=True)
class Waiters(Generic[Waiter]):
    """Who waits for which epoch."""

    _by_epoch: dict[int, list[Waiter]] = field(default_factory=dict)

    def add(self, epoch: int, waiter: Waiter) -> None:
        """`waiter` wants to know when `epoch` is reached."""
        self._by_epoch.setdefault(epoch, []).append(waiter)

    def take_reached(self, epoch: int) -> list[Waiter]:
        """Take out everybody who waited for `epoch` or an earlier one, in the epochs' order."""
        reached = sorted(e for e in self._by_epoch if e <= epoch)
        return [waiter for e in reached for waiter in self._by_epoch.pop(e)]
