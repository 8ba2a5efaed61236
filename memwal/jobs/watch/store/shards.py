"""A table's shards: their newest manifests, what was flushed when, and what nobody will flush."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from memwal.errors import MemWalError, StoreUnavailable
from memwal.format import layout
from memwal.jobs.status.plan import AbandonedLimits, WalSize, measure_wal
from memwal.model import (
    BrokenShard,
    FlushedGeneration,
    ShardFiles,
    ShardId,
    ShardManifest,
    StoredFile,
)
from memwal.ports import Clock, Objects
from memwal.store.objects.base import count_readers
from memwal.store.shards.listing import ShardListing, list_shards, newest_manifest, wal_entries
from memwal.store.shards.manifests import ManifestMemory, ShardManifests
from memwal.store.shards.wal import WalEntries
from memwal.store.tables.manifests import TableManifests
from memwal.threads import side_by_side

# WALs are looked at this often, and so many times while a row reaches the table's freshness.
_WAL_SECONDS_MAX = 60.0
_WAL_LOOKS = 4
# Looking at WALs delays merges: it may take this share of the time, and is rarer where it is slow.
_WAL_SHARE_MAX = 0.02

# A listing of all files may take this many pages, or as many as there are shards if that is more:
# asking each shard would cost more than that.
_PAGES_MIN = 16
# A listing that was found to be longer is tried again after this many looks.
_LOOKS_UNLISTED = 100
# Of a shard whose files are not listed, so many generations' own times are asked for, one by one.
_DATED_MAX = 100


class SeenWals:
    """What the WALs of one table hold that is in no generation; None until they were looked at.

    Of the `unflushed` shards, each with the time of the oldest such row, those are left out whose
    manifests have changed since: their rows may be in a generation by now.
    """

    def __init__(
        self, objects: Objects, clock: Clock, limits: AbandonedLimits, freshness_seconds: float
    ) -> None:
        self._objects = objects
        self._wal = WalEntries(objects)
        self._clock = clock
        self._limits = limits
        self._every_seconds = min(_WAL_SECONDS_MAX, freshness_seconds / _WAL_LOOKS)
        self._due_at = -math.inf
        self._heads: dict[str, int | None] = {}
        self._waiting: dict[ShardId, tuple[ShardManifest, int]] = {}
        self.abandoned: int | None = None
        self.unflushed: Mapping[ShardId, int] | None = None

    def look(self, manifests: Mapping[ShardId, ShardManifest], listing: ShardListing) -> None:
        """Look again if that is due, by the files of the listing. Raises StoreUnavailable.

        If that has no files, each shard's WAL is listed instead of the whole shard, since its
        generations may have many more files.
        """
        if self._clock.monotonic_seconds() >= self._due_at:
            self._measure(manifests, listing)
        if self.abandoned is not None:
            self.unflushed = {
                shard_id: at
                for shard_id, (manifest, at) in self._waiting.items()
                if manifests.get(shard_id) is manifest
            }

    def _measure(self, manifests: Mapping[ShardId, ShardManifest], listing: ShardListing) -> None:
        began = self._clock.monotonic_seconds()
        known, self._heads = self._heads, {}

        def measure(shard_id: ShardId) -> WalSize:
            return measure_wal(
                manifests[shard_id],
                ShardFiles(wal=self._entries(shard_id, listing), manifests=0),
                self._limits,
                self._clock.now_nanos(),
                partial(self._is_covered, manifests[shard_id], known),
            )

        shards = list(manifests)
        readers = count_readers(self._objects)
        found = dict(zip(shards, side_by_side(measure, shards, readers), strict=True))
        self.abandoned = sum(size.abandoned for size in found.values())
        self._waiting = {
            shard_id: (manifests[shard_id], size.unflushed_at_nanos)
            for shard_id, size in found.items()
            if size.unflushed_at_nanos is not None
        }
        now = self._clock.monotonic_seconds()
        self._due_at = now + max(self._every_seconds, (now - began) / _WAL_SHARE_MAX)

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


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenShard:
    """A shard's newest manifest, and when its listed generations were flushed, by their paths.

    A generation that was through when it was first seen may lack its time.
    """

    manifest: ShardManifest
    flushed: Mapping[str, int]


Found = SeenShard | BrokenShard


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenShards:
    """All shards of one look; unchanged shards are the same objects as in the look before."""

    shards: Mapping[ShardId, Found]
    strangers: Sequence[str]


class LatestShards:
    """The shards of one table, each read again only when it has a newer manifest."""

    def __init__(self, objects: Objects, clock: Clock, wals: SeenWals) -> None:
        self._wals = wals
        self._objects = objects
        self._clock = clock
        self._manifests = ShardManifests(objects)
        self._memory = ManifestMemory()
        self._seen: dict[ShardId, Found] = {}
        self._unlisted = 0

    def look(self, through: Callable[[ShardId], int] = lambda shard_id: 0) -> SeenShards:
        """Look at all shards. An error of one makes it a BrokenShard; raises StoreUnavailable.

        `through` tells up to which generation a shard is merged and indexed: no request is made for
        the times of those.
        """
        listing = self._list()
        files = {shard: listing.files(shard) for shard in listing.shards if listing.is_whole}
        newest = {shard: newest_manifest(shard, found) for shard, found in files.items()}
        kept = {
            shard_id: seen
            for shard_id, seen in self._seen.items()
            if isinstance(seen, SeenShard)
            and (file := newest.get(shard_id)) is not None
            and self._memory.recall(shard_id, file) is seen.manifest
        }

        def read(shard_id: ShardId) -> Found | None:
            if not listing.is_whole:
                return self._ask(shard_id, through(shard_id))
            return self._read(shard_id, newest[shard_id], files[shard_id])

        new = [shard_id for shard_id in listing.shards if shard_id not in kept]
        readers = count_readers(self._objects)
        found = dict(zip(new, side_by_side(read, new, readers), strict=True))
        both = ((shard, kept.get(shard) or found[shard]) for shard in listing.shards)
        self._seen = {shard_id: seen for shard_id, seen in both if seen is not None}
        self._memory.forget_others(self._seen)
        there = {k: s.manifest for k, s in self._seen.items() if isinstance(s, SeenShard)}
        self._wals.look(there, listing)
        return SeenShards(shards=self._seen, strangers=listing.strangers)

    def _list(self) -> ShardListing:
        """List all files, unless that takes longer than asking each shard."""
        self._unlisted -= 1
        listing = list_shards(
            self._objects,
            folders_only=self._unlisted > 0,
            pages_max=lambda shards: max(_PAGES_MIN, shards),
        )
        if not listing.is_whole and self._unlisted <= 0:
            self._unlisted = _LOOKS_UNLISTED
        return listing

    def _read(
        self, shard_id: ShardId, file: StoredFile | None, files: Sequence[StoredFile]
    ) -> Found | None:
        """The shard, by the listing of all its files."""
        listed = 0 if file is None else file.modified_at_nanos

        def date(generations: Sequence[FlushedGeneration]) -> Mapping[str, int]:
            times = find_flush_times(shard_id, files)
            return {g.path: times.get(g.path, listed) for g in generations}

        return self._renew(
            shard_id, lambda: self._manifests.newest(shard_id, file, self._memory), date
        )

    def _ask(self, shard_id: ShardId, through: int) -> Found | None:
        """The shard, by asking the store, as none of its files were listed."""
        before = self._seen.get(shard_id)
        known = before.manifest if isinstance(before, SeenShard) else None

        def date(generations: Sequence[FlushedGeneration]) -> Mapping[str, int]:
            unfinished = [g for g in generations if g.generation > through]
            unfinished.sort(key=lambda g: g.generation)
            times = {g.path: self._ask_time(shard_id, g) for g in unfinished[:_DATED_MAX]}
            # Those after them are younger: they may be merged too early by this, but not too late.
            return (
                dict.fromkeys((g.path for g in unfinished), max(times.values(), default=0)) | times
            )

        return self._renew(shard_id, lambda: self._manifests.latest(shard_id, known), date)

    def _ask_time(self, shard_id: ShardId, generation: FlushedGeneration) -> int:
        folder = layout.generation_folder(shard_id, generation.path, generation.generation)
        try:
            return TableManifests(self._objects, root=folder).committed_at_nanos(1)
        except StoreUnavailable:
            raise
        except MemWalError:
            return self._clock.now_nanos()  # what is wrong with it shows when it is merged

    def _renew(
        self,
        shard_id: ShardId,
        read: Callable[[], ShardManifest | None],
        date: Callable[[Sequence[FlushedGeneration]], Mapping[str, int]],
    ) -> Found | None:
        """The shard by its present manifest; the same object as before if that is unchanged."""
        before = self._seen.get(shard_id)
        try:
            manifest = read()
        except StoreUnavailable:
            raise  # the others would wait as long
        except MemWalError as error:
            same = isinstance(before, BrokenShard) and str(before.error) == str(error)
            return before if same else BrokenShard(shard_id=shard_id, error=error)
        if manifest is None:
            return None
        flushed: Mapping[str, int] = {}
        if isinstance(before, SeenShard):
            if before.manifest is manifest:
                return before
            flushed = before.flushed
        listed = manifest.flushed_generations
        kept = {g.path: flushed[g.path] for g in listed if g.path in flushed}
        new = [g for g in listed if g.path not in kept]
        return SeenShard(manifest=manifest, flushed={**kept, **(date(new) if new else {})})


def find_flush_times(shard_id: ShardId, files: Iterable[StoredFile]) -> Mapping[str, int]:
    """When the generations with these files were flushed, by the names of their folders.

    That is when their first version was committed; if no version is listed, when their first file
    was written.
    """
    below = f"{layout.shard_folder(shard_id)}/"
    committed: dict[str, int] = {}
    written: dict[str, int] = {}
    for file in files:
        name, _, rest = file.path[len(below) :].partition("/")
        at = file.modified_at_nanos
        written[name] = min(at, written.get(name, at))
        if rest.startswith(f"{layout.VERSIONS}/"):
            committed[name] = min(at, committed.get(name, at))
    return written | committed
