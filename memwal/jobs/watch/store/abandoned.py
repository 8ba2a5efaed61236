"""Counts shards with rows that no writer will flush, from the listings of looks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from memwal.errors import MemWalError, StoreUnavailable
from memwal.jobs.status.plan import AbandonedLimits, measure_wal
from memwal.model import ShardFiles, ShardId, ShardManifest, StoredFile
from memwal.ports import Clock, Objects
from memwal.store.shards.listing import ShardListing, wal_entries
from memwal.store.shards.wal import WalEntries

# Shards count as abandoned after an hour or so, so the count need not be newer than this.
_COUNT_SECONDS = 60.0
# Counting delays merges: it may take this share of the time, so a slow count is made more rarely.
_COUNT_SHARE_MAX = 0.02


class AbandonedShards:
    """The abandoned shards of one table. `count` is None until they were first counted."""

    def __init__(self, objects: Objects, clock: Clock, limits: AbandonedLimits) -> None:
        self._wal = WalEntries(objects)
        self._clock = clock
        self._limits = limits
        self._count_at = -math.inf
        self._heads: dict[str, int | None] = {}
        self.count: int | None = None

    @property
    def is_due(self) -> bool:
        """Whether the last count is old enough to count again."""
        return self._clock.monotonic_seconds() >= self._count_at

    def count_anew(
        self,
        manifests: Mapping[ShardId, ShardManifest],
        listing: ShardListing,
    ) -> None:
        """Count the abandoned shards by the files of a listing. Raises StoreUnavailable.

        If that has no files, each shard's WAL is listed instead of the whole shard, since its
        generations may have many more files.
        """
        began = self._clock.monotonic_seconds()
        known, self._heads = self._heads, {}
        found = (
            measure_wal(
                manifest,
                ShardFiles(wal=self._entries(shard_id, listing), manifests=0),
                self._limits,
                self._clock.now_nanos(),
                partial(self._is_covered, manifest, known),
            )
            for shard_id, manifest in manifests.items()
        )
        self.count = sum(size.abandoned for size in found)
        now = self._clock.monotonic_seconds()
        self._count_at = now + max(_COUNT_SECONDS, (now - began) / _COUNT_SHARE_MAX)

    def _entries(
        self, shard_id: ShardId, listing: ShardListing
    ) -> Sequence[tuple[int, StoredFile]]:
        if listing.is_whole:
            return wal_entries(shard_id, listing.files(shard_id))
        return self._wal.list_entries(shard_id)

    def _is_covered(
        self,
        manifest: ShardManifest,
        known: Mapping[str, int | None],
        position: int,
        entry: StoredFile,
    ) -> bool:
        """Whether a WAL entry is in a generation, by its own head, which is read only once."""
        path = entry.path
        self._heads[path] = known[path] if path in known else self._read(entry)
        generation = self._heads[path]
        return generation is not None and generation < manifest.current_generation

    def _read(self, entry: StoredFile) -> int | None:
        try:
            return self._wal.head(entry.path, entry.size_bytes).generation
        except StoreUnavailable:
            raise
        except MemWalError:
            return None
