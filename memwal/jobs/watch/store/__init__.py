"""Cheap looks at tables: list the versions and `_mem_wal/`, and read only what is new.

Nothing here goes through Lance. The process that looks has to survive whatever is in a table, and
Lance's native code may end a process over a torn file; it also makes more requests. All that a
watch needs of a version is in its manifest file, which we read ourselves. The view has no columns,
as a watch does not need them.

The base is read before the shards, as in `memwal.store.tables.view`, and every look relies on its
own listings. If a listing lags behind, so does the look: what is remembered stands only for files
that were listed just now.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import BadCredentials, MemWalError, unexpected
from memwal.jobs.status.plan import AbandonedLimits
from memwal.jobs.watch.model import Look
from memwal.jobs.watch.ports import LookEnd
from memwal.jobs.watch.store.table_look import SeenTable
from memwal.ports import Clock, Objects
from memwal.run.options import choose_limits
from memwal.store.objects.opening import normalise_uri, open_objects


@dataclass(frozen=True, slots=True)
class _Opened:
    where: Hashable
    objects: Objects
    table: SeenTable


class StoredLooks:
    """The Lookouts port over object stores, with a thread for each look.

    The threads mostly wait for the store, without the GIL. A look that a store never answers ends
    with the process.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        opened: Callable[[ResolvedTable], Objects] | None = None,
    ) -> None:
        """`opened` opens a table's store; by default it is opened by the table's URI."""
        self._clock = clock or SystemClock()
        self._open = opened or self._open_objects
        self._tables: dict[str, _Opened] = {}
        self._lock = threading.Lock()
        self._ended: queue.SimpleQueue[LookEnd] = queue.SimpleQueue()

    def start(self, table: ResolvedTable) -> None:
        """Begin a look; returns at once."""
        thread = threading.Thread(target=self._run, args=(table,), daemon=True, name="memwal-look")
        try:
            thread.start()
        except RuntimeError as error:  # no more threads are to be had
            self._ended.put(LookEnd(table=table, error=unexpected(error)))

    def collect(self) -> Sequence[LookEnd]:
        """The looks that ended since the last call, without waiting."""
        return [self._ended.get() for _ in range(self._ended.qsize())]

    def _run(self, table: ResolvedTable) -> None:
        try:
            end = LookEnd(table=table, look=self.look(table))
        except MemWalError as error:
            end = LookEnd(table=table, error=error)
        except BaseException as error:  # a panic in Lance's Rust code is not an Exception
            end = LookEnd(table=table, error=unexpected(error))
        self._ended.put(end)

    def look(self, table: ResolvedTable) -> Look:
        """Look at a table now; only one look at a table at a time. Raises MemWalError."""
        found = self._find(table)
        before = found.objects.counts.as_dict()
        try:
            view, flushed, changed = found.table.look()
        except BadCredentials:
            self.forget(table.name)  # so that the next look opens the store with new credentials
            raise
        after = found.objects.counts.as_dict()
        return Look(
            view=view,
            flushed_at_nanos=flushed,
            changed=changed,
            abandoned_shards=found.table.abandoned,
            requests={name: after[name] - before[name] for name in ("list", "get")},
        )

    def forget(self, table: str) -> None:
        """Forget a table that is no longer watched, or whose name stands for another one now."""
        with self._lock:
            self._tables.pop(table, None)

    def _find(self, table: ResolvedTable) -> _Opened:
        where = (table.uri, frozenset(table.storage_options.items()))
        with self._lock:
            found = self._tables.get(table.name)
        if found is None or found.where != where:
            objects = self._open(table)
            limits = choose_limits(AbandonedLimits, table)
            found = _Opened(where, objects, SeenTable(objects, self._clock, limits))
            with self._lock:
                self._tables[table.name] = found
        return found

    def _open_objects(self, table: ResolvedTable) -> Objects:
        return open_objects(normalise_uri(table.find_uri()), table.storage_options, self._clock)
