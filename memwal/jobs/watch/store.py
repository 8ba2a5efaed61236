"""Looks at tables: a fresh view each, with when its generations were flushed."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.jobs.watch.model import Generation, Look
from memwal.model import TableView
from memwal.run.stores import Stores, open_stores


class StoredLooks:
    """The Looks port over an object store and Lance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Stores, dict[Generation, int], TableView | None]] = {}

    def look(self, table: ResolvedTable) -> Look:
        """A fresh view."""
        with self._lock:
            known = self._known.get(table.name)
        stores, times, before = known or (open_stores(table.uri, table.storage_options), {}, None)
        asked = stores.objects.counts.as_dict()
        view = stores.views.table(pending_sizes=True)
        found: dict[Generation, int] = {}
        for shard in view.shards:
            for generation in shard.manifest.flushed_generations:
                key = (shard.shard_id, generation.generation)
                at = times.get(key)
                if at is None:
                    try:
                        at = stores.views.flushed_at_nanos(shard.shard_id, generation)
                    except MemWalError:
                        continue
                found[key] = at
        with self._lock:
            self._known[table.name] = (stores, found, view)
        counts: Mapping[str, int] = stores.objects.counts.as_dict()
        return Look(
            view=view,
            flushed_at_nanos=found,
            changed=before is None or _mark(before) != _mark(view),
            requests={name: counts[name] - asked[name] for name in counts},
        )

    def forget(self, table: str) -> None:
        """Open it anew."""
        with self._lock:
            self._known.pop(table, None)


def _mark(view: TableView) -> object:
    shards = [(shard.shard_id, shard.manifest.version) for shard in view.shards]
    return view.version, sorted(shards), sorted(str(b.error) for b in view.broken)
