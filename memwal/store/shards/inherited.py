"""Finds shards that are strangers to the table's merge progress (`memwal.rows.progress`).

A shard below its progress is one for its manifest alone. Where the rows that hide go further than
the progress, its first generation tells: it may not be younger than the version that first called
it merged. That version is found by tracing the progress back through the retained ones, and through
restores; but only where the entry's own time, or the oldest version, leave a doubt. One that a
clone made had no shards beside it.

A sound table pays for that only while a shard lists a generation 1 that is merged: for each such
shard the time of its flush, and a listing and a manifest. What a process has read it remembers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from typing import Any, Protocol

from memwal.errors import Corruption, MemWalError, Missing
from memwal.format import layout
from memwal.model import (
    BrokenShard,
    FlushedGeneration,
    ShardId,
    ShardView,
    TableView,
    VersionManifest,
)
from memwal.ports import Objects
from memwal.rows.progress import (
    Origin,
    StrangerShard,
    is_below,
    is_doubtful,
    is_sure,
    is_younger,
    may_hide,
    refuse_inherited,
)
from memwal.store.objects.base import count_readers
from memwal.store.tables.manifests import TableManifests
from memwal.threads import side_by_side

_FORMAT = 1
_VERSIONS_MAX = 10_000
_TABLES_MAX = 256
_SOUND_MAX = 100_000


@lru_cache(maxsize=_TABLES_MAX)
def _recall_flushed(store: str, uri: str) -> dict[str, int]:
    """When first generations were flushed, by their paths, which are random."""
    return {}


@lru_cache(maxsize=_TABLES_MAX)
def _recall_sound(store: str, uri: str) -> set[tuple[str, str]]:
    """First generations that were seen to be sound below the entry with that uuid."""
    return set()


def put_adopted(objects: Objects, adoption_id: str, ranges: Mapping[ShardId, range]) -> None:
    """Record what progress an adoption lets go of, by shard: no version's proves a merge.

    It stays for good: a version from before may be restored at any time.
    """
    said = {shard_id: [r.start, r.stop - 1] for shard_id, r in sorted(ranges.items())}
    data = json.dumps({"format": _FORMAT, "shards": said}).encode()
    objects.put_if_absent(f"{layout.ADOPTED}/{adoption_id}.json", data)


def read_adopted(objects: Objects) -> dict[ShardId, list[range]]:
    """What all adoptions let go of. Raises Corruption for what can't be understood."""
    found: dict[ShardId, list[range]] = {}
    for file in objects.list(layout.ADOPTED):
        try:
            document = json.loads(objects.get(file.path))
            if document["format"] != _FORMAT:
                raise ValueError(f"its format is {document['format']!r}")
            for shard_id, (first, last) in document["shards"].items():
                found.setdefault(ShardId(shard_id), []).append(range(first, last + 1))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Corruption(
                "MW-M09", f"{objects.uri}: {file.path} can't be understood: {error}"
            ) from None
    return found


class Transactions(Protocol):
    """What made the versions of a table."""

    def transaction(self, version: int) -> Any | None:
        """Lance's record of the commit that made a version; None where it can't be read."""
        ...


@dataclass(frozen=True, slots=True)
class InheritedProgress:
    """Finds, for one table, shards whose merge progress is not their own."""

    _objects: Objects
    _tables: Transactions
    _manifests: TableManifests
    readers_max: int | None = None

    def part(self, view: TableView) -> TableView:
        """The view with stranger shards, and shards that can't be judged, moved to the broken ones.

        A view from a snapshot is returned as it is: its shards are older than the base, so progress
        may well be ahead of them.
        """
        if view.taken_at_millis is not None:
            return view
        found: dict[str, int] = {
            s.shard_id: s.merged_generation
            for s in view.shards
            if is_below(s.manifest, s.merged_generation)
        }
        unread: dict[ShardId, MemWalError] = {}
        sound = _recall_sound(self._objects.store, self._objects.uri)
        suspects = [
            shard
            for shard in view.shards
            if shard.shard_id not in found
            and may_hide(shard)
            and (_first(shard).path, view.mem_wal.index_uuid) not in sound
        ]
        if suspects:
            flushed, unread = self._read_flushed(suspects)
            hidden = self._find_hidden(view, suspects, flushed)
            found |= hidden
            if len(sound) > _SOUND_MAX:
                sound.clear()
            uuid = view.mem_wal.index_uuid
            sound |= {(_first(s).path, uuid) for s in suspects if s.shard_id not in hidden | unread}
        if not (found or unread):
            return view
        broken = (BrokenShard(shard_id=s, error=error) for s, error in unread.items())
        strangers = (
            StrangerShard(
                shard_id=s.shard_id,
                error=refuse_inherited(s.shard_id, s.merged_generation),
                inherited_generation=found[s.shard_id],
            )
            for s in view.shards
            if s.shard_id in found
        )
        return replace(
            view,
            shards=tuple(s for s in view.shards if s.shard_id not in found | unread),
            broken=(*view.broken, *strangers, *broken),
        )

    def _find_hidden(
        self, view: TableView, shards: Sequence[ShardView], flushed: Mapping[ShardId, int]
    ) -> dict[str, int]:
        """The shards with rows hidden below progress that is not theirs, and how far that goes."""
        versions = self._manifests.attached_versions(view.version)
        oldest = self._read(versions[0]) if versions else None
        doubtful = [
            shard
            for shard in shards
            if shard.shard_id in flushed
            and is_doubtful(shard.shard_id, flushed[shard.shard_id], view.mem_wal, oldest)
        ]
        if not doubtful:
            return {}
        traced, found = self._trace(view, versions), dict[str, int]()
        adopted = read_adopted(self._objects)
        for shard in doubtful:
            came_by = _follow(shard.shard_id, traced)
            origin, is_whole = came_by[-1], len(came_by) < len(traced)
            created = None if is_whole else view.mem_wal.created_at_millis
            flushed_at = flushed[shard.shard_id]
            # What it came by before may have been expired: a version from before an adoption. Not
            # where a merge has made the entry since the flush.
            unsure = not is_whole and is_younger(flushed_at, view.mem_wal)
            let_go = adopted.get(shard.shard_id, ()) if unsure else ()
            is_inherited = any(origin.merged[shard.shard_id] in r for r in let_go)
            if is_inherited or self._is_hidden(shard, flushed_at, origin, created):
                found[shard.shard_id] = origin.merged[shard.shard_id]
        return found

    def _read_flushed(
        self, shards: Sequence[ShardView]
    ) -> tuple[dict[ShardId, int], dict[ShardId, MemWalError]]:
        """When the shards' first generations were flushed, and the errors of unreadable ones."""
        known = _recall_flushed(self._objects.store, self._objects.uri)
        new = [shard for shard in shards if _first(shard).path not in known]
        if len(known) > _SOUND_MAX:
            known.clear()

        def read(shard: ShardView) -> int | MemWalError:
            try:
                return TableManifests(self._objects, root=_folder(shard)).committed_at_nanos(1)
            except MemWalError as error:
                return error

        unread: dict[ShardId, MemWalError] = {}
        readers = self.readers_max or count_readers(self._objects)
        for shard, at in zip(new, side_by_side(read, new, readers), strict=True):
            if isinstance(at, int):
                known[_first(shard).path] = at
            elif not isinstance(at, Missing):  # collected: what hid in it is gone
                unread[shard.shard_id] = at
        read_ones = (s for s in shards if _first(s).path in known)
        return {s.shard_id: known[_first(s).path] for s in read_ones}, unread

    def _trace(self, view: TableView, versions: Sequence[int]) -> list[Origin]:
        """The versions that the view's progress came by, newest first, as far as they are there."""
        now, came_by = view.manifest, list[Origin]()
        for _ in range(_VERSIONS_MAX):
            older = self._older(now.version, versions)
            source: int | None = None
            cloned = False
            if older is None or _entry(older) != _entry(now):
                cloned, source = self._read_origin(now.version)
            came_by.append(_make_origin(now, cloned=cloned))
            if cloned or now.mem_wal is None:
                break
            if source is not None:
                older = self._read(source) if source < now.version else None
            if older is None:
                break
            now = older
        return came_by

    def _older(self, version: int, versions: Sequence[int]) -> VersionManifest | None:
        older = [v for v in versions if v < version]
        return self._read(older[-1]) if older else None

    def _read(self, version: int) -> VersionManifest | None:
        try:
            return self._manifests.read(version)
        except Missing:
            return None

    def _read_origin(self, version: int) -> tuple[bool, int | None]:
        """Whether a version was made by a clone; which one it restored, if it did that."""
        transaction = self._tables.transaction(version)
        operation: Any = None if transaction is None else transaction.operation
        name = type(operation).__name__
        restored = int(operation.version) if name == "Restore" else None
        return name == "Clone", restored

    def _is_hidden(
        self, shard: ShardView, flushed_at: int, origin: Origin, created_at_millis: int | None
    ) -> bool:
        """By the times; a clone is believed unless `_mem_wal/` was clearly copied along with it."""
        if origin.cloned:
            return not is_sure(origin.at_nanos, flushed_at)
        created = [] if created_at_millis is None else [created_at_millis * 10**6]
        if is_sure(flushed_at, min([origin.at_nanos, *created])):
            return True
        # Within what clocks are apart, the store has to say so as well.
        is_later = flushed_at > origin.at_nanos
        return is_later and self._is_stored_later(_folder(shard), origin.version)

    def _is_stored_later(self, folder: str, version: int) -> bool:
        def date(root: str, number: int) -> int | None:
            names = layout.table_manifest_names(number)
            paths = {f"{root}{layout.VERSIONS}/{name}" for name in names}
            files = self._objects.list(f"{root}{layout.VERSIONS}")
            return next((f.modified_at_nanos for f in files if f.path in paths), None)

        generation, table = date(f"{folder}/", 1), date("", version)
        return generation is not None and table is not None and generation > table


def _follow(shard_id: ShardId, traced: Sequence[Origin]) -> list[Origin]:
    """The versions that had the shard's progress, newest first, up to the first that had none."""
    return [*takewhile(lambda version: version.merged.get(shard_id, 0) > 0, traced)]


def _folder(shard: ShardView) -> str:
    first = _first(shard)
    return layout.generation_folder(shard.shard_id, first.path, first.generation)


def _first(shard: ShardView) -> FlushedGeneration:
    return min(shard.manifest.flushed_generations, key=lambda g: g.generation)


def _entry(manifest: VersionManifest) -> str | None:
    return None if manifest.mem_wal is None else manifest.mem_wal.index_uuid


def _make_origin(manifest: VersionManifest, *, cloned: bool) -> Origin:
    return Origin(
        merged={} if manifest.mem_wal is None else manifest.mem_wal.merged,
        at_nanos=manifest.timestamp_nanos,
        version=manifest.version,
        cloned=cloned,
    )
