"""What WAL entries say of themselves, remembered from run to run.

Entries that stay (fence sentinels, mostly) would be read again by each run. So what was read is
kept in a small file, by path, size and time of change. It spares a run its reads where there is
nothing to delete, and tells one that deletes how far down it has to read. No more: nothing is
deleted but by what the run itself has read, since a forged head would let an entry go.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from memwal.errors import Corruption, MemWalError, Missing
from memwal.format import layout
from memwal.jobs.garbage.model import WalFile
from memwal.model import ShardId, StoredFile
from memwal.ports import Objects
from memwal.store.wal import WalEntries

CACHE_PATH = f"{layout.MAINTENANCE}/cache/wal_heads.json"
_CACHE_FORMAT = 1
_CACHE_BYTES_MAX = 8 * 1024 * 1024
_CACHED_ENTRIES_MAX = 100_000
# Below this many entries, reading them costs less than keeping a cache is worth.
_CACHED_ENTRIES_MIN = 64

_Key = tuple[str, int, int]
_SideBySide = Callable[[Callable[[WalFile], WalFile], Sequence[WalFile]], list[WalFile]]


class WalHeads:
    """The heads of one table's WAL entries."""

    def __init__(self, objects: Objects, side_by_side: _SideBySide) -> None:
        self._objects = objects
        self._wal = WalEntries(objects)
        self._side_by_side = side_by_side
        self._read: dict[_Key, WalFile] = {}
        self._stored: Mapping[_Key, WalFile] | None = None
        self._known: dict[_Key, WalFile] = {}
        self._lock = threading.Lock()

    def looked_up(
        self, entries: Sequence[Sequence[WalFile]], *, reads_max: int, stored: bool
    ) -> dict[str, WalFile]:
        """Entries with their heads, by path: those that are known, and of each group some more.

        `reads_max` is how many are read of a group, from its begin. `stored` takes what former
        runs remembered for known.
        """
        worth_it = stored and sum(map(len, entries)) >= _CACHED_ENTRIES_MIN
        known = {**(self._cached() if worth_it else {}), **self._read}
        unknown = [
            entry
            for group in entries
            for entry in [e for e in group if _key(e) not in known][:reads_max]
        ]
        found = {entry.file.path: entry for entry in self.read(unknown)}
        for entry in (e for group in entries for e in group if _key(e) in known):
            found[entry.file.path] = known[_key(entry)]
        self._known = {_key(e): e for e in found.values() if e.problem is None}
        return found

    def read(self, entries: Sequence[WalFile]) -> list[WalFile]:
        """The entries with heads that this process has read, now or before."""
        return self._side_by_side(self._head, entries)

    def is_confirmed(self, entry: WalFile) -> bool:
        """Whether this process has read the entry's head itself, or could not."""
        return entry.problem is not None or _key(entry) in self._read

    def _head(self, entry: WalFile) -> WalFile:
        known = self._read.get(_key(entry))
        if known is not None:
            return known
        try:
            head = self._wal.head(entry.file.path, entry.file.size_bytes)
        except MemWalError as error:
            return replace(entry, problem=str(error))
        found = replace(
            entry,
            read=True,
            generation=head.generation,
            writer_epoch=head.writer_epoch,
            fence_sentinel=head.fence_sentinel,
        )
        with self._lock:
            self._read[_key(entry)] = found
        return found

    def remember(self, before_write: Callable[[], None]) -> None:
        """Store the heads of the entries that are there, for the next run."""
        known = {key: self._read.get(key, entry) for key, entry in self._known.items()}
        if len(known) < _CACHED_ENTRIES_MIN or known.items() <= self._cached().items():
            return
        # Where there are too many, those that stay for good are worth most.
        lasting = sorted(known.values(), key=lambda e: (not e.fence_sentinel, e.file.path))
        data = _encode(lasting[:_CACHED_ENTRIES_MAX])
        if len(data) <= _CACHE_BYTES_MAX:
            with suppress(MemWalError):
                before_write()
                self._objects.put(CACHE_PATH, data)

    def _cached(self) -> Mapping[_Key, WalFile]:
        if self._stored is None:
            self._stored = {}
            with suppress(Missing, Corruption):  # Corruption: it is too large
                self._stored = _decode(self._objects.get(CACHE_PATH, _CACHE_BYTES_MAX))
        return self._stored


def _key(entry: WalFile) -> _Key:
    return (entry.file.path, entry.file.size_bytes, entry.file.modified_at_nanos)


# ---- the cache file


def _encode(entries: Iterable[WalFile]) -> bytes:
    shards: dict[str, list[list[int | None]]] = {}
    for entry in entries:
        shard = entry.file.path.split("/")[1]
        facts = [entry.position, entry.file.size_bytes, entry.file.modified_at_nanos]
        head = [entry.writer_epoch, entry.generation, int(entry.fence_sentinel)]
        shards.setdefault(shard, []).append([*facts, *head])
    return json.dumps({"format": _CACHE_FORMAT, "shards": shards}, separators=(",", ":")).encode()


def _decode(data: bytes) -> dict[_Key, WalFile]:
    """The heads in a cache file; none when anything about it is odd."""
    try:
        document = json.loads(data)
        if document["format"] != _CACHE_FORMAT:
            return {}
        found = (
            _of_facts(ShardId(shard), *facts)
            for shard, entries in document["shards"].items()
            for facts in entries
        )
        return {_key(entry): entry for entry in found}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _of_facts(
    shard: ShardId,
    position: int,
    size: int,
    modified: int,
    epoch: int,
    generation: int | None,
    sentinel: int,
) -> WalFile:
    facts = (position, size, modified, epoch, sentinel, 0 if generation is None else generation)
    if any(type(fact) is not int for fact in facts):
        raise ValueError("not as it is written here")
    path = layout.wal_entry_path(shard, position)
    return WalFile(
        position=position,
        file=StoredFile(path=path, size_bytes=size, modified_at_nanos=modified),
        read=True,
        generation=generation,
        writer_epoch=epoch,
        fence_sentinel=bool(sentinel),
    )
