"""The heads of WAL entries, remembered from run to run.

Entries that stay (fence sentinels, mostly) would be read again by each run. So what was read is
cached in a small file, by path, size, time and etag. It spares a run its reads where there is
nothing to delete, and tells a run that deletes how far down it has to read. It does no more:
deletes rely only on what the run has read itself, since a forged head would let an entry go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import cached_property

from memwal.errors import MemWalError
from memwal.format import layout
from memwal.format.replay import SENTINEL_BYTES_MAX
from memwal.jobs.garbage.kinds.wal_entry import (
    find_coverable,
    find_earlier,
    find_sentinel_like,
    has_gone_between,
    infer_epochs,
    is_covered,
    must_be_read,
)
from memwal.jobs.garbage.model import Evidence, ShardEvidence, WalFile
from memwal.jobs.garbage.store.cache import CacheFile
from memwal.model import ShardId, ShardManifest, StoredFile
from memwal.ports import Objects
from memwal.store.shards.wal import WalEntries

_CACHED_ENTRIES_MAX = 20_000
# Below this many entries, reading them costs less than keeping a cache is worth.
_CACHED_ENTRIES_MIN = 16


class WalHeads:
    """The heads of one table's WAL entries."""

    def __init__(self, objects: Objects) -> None:
        self._wal = WalEntries(objects)
        self._read: dict[StoredFile, WalFile] = {}
        self._cache: CacheFile[list[WalFile]] = CacheFile(objects, "wal_heads", list[WalFile])
        self._known: dict[StoredFile, WalFile] = {}
        self._looked_at: set[str] = set()
        self._lock = threading.Lock()

    def add(
        self,
        pool: Executor,
        shards: list[ShardEvidence],
        manifests: Mapping[ShardId, ShardManifest],
        cutoff_nanos: int,
        reads_max: int,
        stored: bool,
    ) -> list[ShardEvidence]:
        """The shards, with the heads of those entries that could go by everything else known.

        Entries as small as a sentinel are read first; those that they tell of need not be read.
        `reads_max` bounds how many unknown ones are read of a shard, each time. With `stored`,
        those that former runs remembered count as known.
        """
        self._known = {}
        self._looked_at = {layout.wal_folder(s.shard_id) for s in shards}
        small: dict[ShardId, Sequence[WalFile]] = {}
        coverable: dict[ShardId, Sequence[WalFile]] = {}
        for shard in shards:
            manifest = manifests.get(shard.shard_id)
            if manifest is None or shard.problem is not None:
                continue
            entries = {w.position: w for w in shard.wal if w.file.modified_at_nanos <= cutoff_nanos}
            chosen = find_coverable([w.position for w in shard.wal], manifest, shard.past)
            each = has_gone_between(shard, manifest)
            old = (entries[p] for p in chosen if p in entries)
            coverable[shard.shard_id] = [e for e in old if each or is_covered(shard, e)]
            if any(e.file.size_bytes > SENTINEL_BYTES_MAX for e in coverable[shard.shard_id]):
                small[shard.shard_id] = find_sentinel_like(shard.wal)
        shards = _with_heads(shards, self._look_up(pool, list(small.values()), reads_max, stored))
        for place, shard in enumerate(shards):
            if shard.shard_id in small:
                latest = manifests[shard.shard_id]
                wal = {e.position: e for e in infer_epochs(shard.wal, latest.writer_epoch)}
                shards[place] = replace(shard, wal=tuple(wal.values()))
                wanted = coverable[shard.shard_id]
                coverable[shard.shard_id] = [
                    e for e in wanted if must_be_read(shard, latest, wal[e.position])
                ]
        found = self._look_up(pool, list(coverable.values()), reads_max, stored)
        return _with_heads(shards, found)

    def _look_up(
        self, pool: Executor, entries: Sequence[Sequence[WalFile]], reads_max: int, stored: bool
    ) -> dict[str, WalFile]:
        """Entries with their heads, by path: the known ones, and up to `reads_max` more a group."""
        worth_it = stored and sum(map(len, entries)) >= _CACHED_ENTRIES_MIN
        known = {**(self._stored if worth_it else {}), **self._read}
        unknown = [
            entry
            for group in entries
            for entry in [e for e in group if e.file not in known][:reads_max]
        ]
        found = {entry.file.path: entry for entry in pool.map(self._read_head, unknown)}
        for entry in (e for group in entries for e in group if e.file in known):
            found[entry.file.path] = known[entry.file]
        self._known |= {e.file: e for e in found.values() if e.problem is None}
        return found

    def confirm(
        self,
        pool: Executor,
        evidence: Evidence,
        needed: Mapping[ShardId, int],
        epochs: Mapping[ShardId, int],
    ) -> Evidence:
        """The evidence with only those heads that this process has read itself.

        From the `needed` positions on, it reads the missing heads, or the sentinels that tell of
        them. All other heads count as not looked at.
        """
        wal = {
            entry.file.path: replace(entry, read=False, inferred=False)
            for shard in evidence.shards.values()
            for entry in shard.wal
            if entry.inferred or (entry.read and not self._is_confirmed(entry))
        }
        wanted = [
            wal[entry.file.path]
            for shard_id, lowest in needed.items()
            for entry in evidence.shards[shard_id].wal
            if entry.position >= lowest and not entry.inferred and entry.file.path in wal
        ]
        wal.update((entry.file.path, entry) for entry in pool.map(self._read_head, wanted))
        shards = {s.shard_id: s for s in _with_heads(evidence.shards.values(), wal)}
        for shard_id, lowest in needed.items():
            before = evidence.shards[shard_id].wal
            if any(e.inferred for e in before):
                earlier = find_earlier(before, lowest)
                inferred = infer_epochs(shards[shard_id].wal, epochs[shard_id], lowest, earlier)
                shards[shard_id] = replace(shards[shard_id], wal=inferred)
        return replace(evidence, shards=shards)

    def _is_confirmed(self, entry: WalFile) -> bool:
        """Whether this process has read the entry's head itself, or has failed to."""
        return entry.problem is not None or entry.file in self._read

    def _read_head(self, entry: WalFile) -> WalFile:
        known = self._read.get(entry.file)
        if known is not None:
            return known
        try:
            head = self._wal.head(entry.file.path, entry.file.size_bytes)
        except MemWalError as error:
            return replace(entry, problem=str(error))
        found = replace(
            entry,
            read=True,
            inferred=False,
            generation=head.generation,
            writer_epoch=head.writer_epoch,
            fence_sentinel=head.fence_sentinel,
        )
        with self._lock:
            self._read[entry.file] = found
        return found

    def remember(self, before_write: Callable[[], None]) -> None:
        """Cache the heads of entries for the next run, if any of them is new."""
        if not self._known:
            return
        known = {
            file: entry
            for file, entry in self._stored.items()
            if file.path.rpartition("/")[0] not in self._looked_at
        }
        known |= {key: self._read.get(key, entry) for key, entry in self._known.items()}
        if len(known) < _CACHED_ENTRIES_MIN or known.items() <= self._stored.items():
            return
        # Where there are too many, sentinels come first: they stay for good.
        lasting = sorted(known.values(), key=lambda e: (not e.fence_sentinel, e.file.path))
        self._cache.write(lasting[:_CACHED_ENTRIES_MAX], before_write)

    @cached_property
    def _stored(self) -> Mapping[StoredFile, WalFile]:
        return {
            entry.file: entry
            for entry in self._cache.stored or ()
            if layout.parse_wal_entry_name(entry.file.path.rpartition("/")[2]) == entry.position
        }


def _with_heads(
    shards: Iterable[ShardEvidence], heads: Mapping[str, WalFile]
) -> list[ShardEvidence]:
    return [
        replace(shard, wal=tuple(heads.get(w.file.path, w) for w in shard.wal)) for shard in shards
    ]
