"""A table's shards: their newest manifests, and when the generations in them were flushed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from memwal.errors import MemWalError, StoreUnavailable
from memwal.format import layout
from memwal.jobs.status.plan import AbandonedLimits
from memwal.jobs.watch.store.abandoned import AbandonedShards
from memwal.model import BrokenShard, FlushedGeneration, ShardId, ShardManifest, StoredFile
from memwal.ports import Clock, Objects
from memwal.store.shards.listing import ShardListing, list_shards, newest_manifest
from memwal.store.shards.manifest_memory import ManifestMemory
from memwal.store.shards.manifests import ShardManifests
from memwal.store.tables.manifests import TableManifests
from memwal.threads import side_by_side

_READERS_MAX = 16
# A listing of all files may take this many pages, or as many as there are shards if that is more:
# asking each shard would cost more than that.
_PAGES_MIN = 16
# A listing that was found to be longer is tried again after this many looks.
_LOOKS_UNLISTED = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenShard:
    """A shard's newest manifest, and when its listed generations were flushed, by their paths."""

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

    def __init__(self, objects: Objects, clock: Clock, limits: AbandonedLimits) -> None:
        self.abandoned = AbandonedShards(objects, clock, limits)
        self._objects = objects
        self._clock = clock
        self._manifests = ShardManifests(objects)
        self._memory = ManifestMemory()
        self._seen: dict[ShardId, Found] = {}
        self._unlisted = 0

    def look(self) -> SeenShards:
        """Look at all shards. An error of one makes it a BrokenShard; raises StoreUnavailable."""
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
                return self._ask(shard_id)
            return self._read(shard_id, newest[shard_id], files[shard_id])

        new = [shard_id for shard_id in listing.shards if shard_id not in kept]
        readers = _READERS_MAX if self._objects.page_objects else 1
        found = dict(zip(new, side_by_side(read, new, readers), strict=True))
        both = ((shard, kept.get(shard) or found[shard]) for shard in listing.shards)
        self._seen = {shard_id: seen for shard_id, seen in both if seen is not None}
        self._memory.forget_others(self._seen)
        # On a local disk, listing each shard's WAL costs little even if not all files were listed.
        if self.abandoned.is_due and (listing.is_whole or not self._objects.page_objects):
            there = {k: s.manifest for k, s in self._seen.items() if isinstance(s, SeenShard)}
            self.abandoned.count_anew(there, listing)
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
        times: dict[str, int] = {}

        def date(generation: FlushedGeneration) -> int:
            if not times:
                times.update(find_flush_times(shard_id, files))
            return times.get(generation.path, listed)

        return self._renew(
            shard_id, lambda: self._manifests.newest(shard_id, file, self._memory), date
        )

    def _ask(self, shard_id: ShardId) -> Found | None:
        """The shard, by asking the store, as none of its files were listed."""
        before = self._seen.get(shard_id)
        known = before.manifest if isinstance(before, SeenShard) else None

        def date(generation: FlushedGeneration) -> int:
            folder = layout.generation_folder(shard_id, generation.path, generation.generation)
            try:
                return TableManifests(self._objects, root=folder).committed_at_nanos(1)
            except StoreUnavailable:
                raise
            except MemWalError:
                return self._clock.now_nanos()  # what is wrong with it shows when it is merged

        return self._renew(shard_id, lambda: self._manifests.latest(shard_id, known), date)

    def _renew(
        self,
        shard_id: ShardId,
        read: Callable[[], ShardManifest | None],
        date: Callable[[FlushedGeneration], int],
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
        dates = {g.path: flushed[g.path] if g.path in flushed else date(g) for g in listed}
        return SeenShard(manifest=manifest, flushed=dates)


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
