"""Keeps an ingest from running too far ahead of merging."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from memwal.errors import Refused
from memwal.run.stores import Stores

BACKLOG_CHECK_SECONDS = 5.0
_BACKLOG_POLL_SECONDS = 1.0


@dataclass(kw_only=True)
class Backlog:
    """Holds an ingest back while too many generations wait for a merge.

    `merge` merges the table, and returns False while another run holds it. Without it, this waits
    up to `wait_seconds_max` for merges by other runs.
    """

    stores: Stores
    generations_max: int | None
    merge: Callable[[], bool] | None
    wait_seconds_max: float
    say: Callable[[str], None] = lambda text: None
    merges: int = 0
    _checked_at: float | None = None

    def __call__(self) -> None:
        """Wait until there is room, checking every few seconds. Raises Refused when none comes."""
        if self.generations_max is None:
            return
        now = self.stores.clock.monotonic_seconds()
        if self._checked_at is not None and now - self._checked_at < BACKLOG_CHECK_SECONDS:
            return
        pending = self._count_pending()
        if pending > self.generations_max:
            self.say(f"{pending} generations wait for a merge; {self.generations_max} may")
            self._make_room(self.generations_max)
        self._checked_at = self.stores.clock.monotonic_seconds()

    def _count_pending(self) -> int:
        return sum(len(shard.pending) for shard in self.stores.views.table().shards)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Merge in a thread while the block writes; its error is raised at the end."""
        if self.generations_max is None or self.merge is None:
            yield
            return
        ended = Event()
        with ThreadPoolExecutor(1, thread_name_prefix="merging") as pool:
            looking = pool.submit(self._look_until, ended)
            try:
                yield
            finally:
                ended.set()
            looking.result()

    def _look_until(self, ended: Event) -> None:
        while not ended.wait(BACKLOG_CHECK_SECONDS):
            self()

    def _make_room(self, generations_max: int) -> None:
        clock = self.stores.clock
        deadline = clock.monotonic_seconds() + self.wait_seconds_max
        while True:
            if self.merge is not None:
                self.merges += self.merge()
            pending = self._count_pending()
            if pending <= generations_max:
                return
            if clock.monotonic_seconds() >= deadline:
                raise Refused(
                    "MW-I01",
                    f"{self.stores.uri}: {pending} generations wait for a merge, {generations_max} "
                    "may, and nobody merges them fast enough; run `memwal merge`, or this with "
                    "--merge; it goes on where it stopped",
                )
            clock.sleep(_BACKLOG_POLL_SECONDS)
