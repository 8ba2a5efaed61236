"""The current snapshot, and subscriptions to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, TypeVar

SnapshotT = TypeVar("SnapshotT")


@dataclass(frozen=True, kw_only=True, slots=True)
class Published(Generic[SnapshotT]):
    """A snapshot, and the highest epoch that is in it."""

    snapshot: SnapshotT
    epoch: int


class Broadcast(Generic[SnapshotT]):
    """Holds the newest snapshot; only the coordinator publishes."""

    def __init__(self, first: SnapshotT) -> None:
        self.current = Published(snapshot=first, epoch=0)
        self._ended: BaseException | None = None
        self._changed = asyncio.Event()

    def publish(self, published: Published[SnapshotT]) -> None:
        """Replace the snapshot and wake those that wait for a newer one."""
        self.current = published
        self._wake()

    def end(self, error: BaseException) -> None:
        """Make waiters fail with `error`: no further snapshot will come."""
        self._ended = error
        self._wake()

    def _wake(self) -> None:
        # Each event wakes once: later waiters wait for the next one.
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, epoch: int) -> Published[SnapshotT]:
        """The newest snapshot as soon as it is beyond `epoch`; raises when none will come."""
        while self.current.epoch <= epoch:
            if self._ended is not None:
                raise self._ended
            await self._changed.wait()
        return self.current


class Subscription(Generic[SnapshotT]):
    """One reader's view: always the newest snapshot, never a copy that can grow stale."""

    def __init__(self, broadcast: Broadcast[SnapshotT]) -> None:
        self._broadcast = broadcast
        self._seen_epoch = broadcast.current.epoch

    @property
    def current(self) -> Published[SnapshotT]:
        """The newest snapshot."""
        return self._broadcast.current

    async def changed(self) -> Published[SnapshotT]:
        """Wait for a snapshot newer than the one that this returned last.

        Some may be passed over. Raises FlushFailed or Closed when no newer one will come.
        """
        published = await self._broadcast.after(self._seen_epoch)
        self._seen_epoch = published.epoch
        return published
