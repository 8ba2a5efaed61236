"""What a table's former MemWAL indexes had merged: by the retained versions, and by records.

The versions are walked one by one, from the viewed one down. Each has to exist, and to come from a
commit that builds on the version before it: a restore, an overwrite or an unknown commit ends the
walk. So what any of these versions had merged is in the viewed one as well.

A record says what a table at rest had merged, for when its MemWAL is initialised again. A quiesce
commits its name to the base table's configuration, and stores the record once
that commit is seen to be the one right after the version that was at rest. So a version that names
a record descends from one that has all of those generations: a restore or a checkout of an older
version takes the name away with the rows. Branches and clones inherit the name, and don't have the
record. A name without its record proves nothing, nor does what can't be read. Each record has a key
of its own: a commit that lands on top of a restore brings no name back that went with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from memwal.errors import AlreadyExists, Corruption, MemWalError, Missing
from memwal.format import layout
from memwal.format.replay import replay
from memwal.model import ShardId, ShardManifest, ShardView, TableView
from memwal.ports import DOCUMENT_BYTES_MAX, Objects
from memwal.rows.progress import SettledRecord, SettledShard, find_proven, needs_proof, settle
from memwal.store.shards.manifests import ShardManifests
from memwal.store.shards.wal import WalEntries
from memwal.store.tables.datasets import LanceTables
from memwal.store.tables.lance_calls import call_lance
from memwal.store.tables.manifests import TableManifests
from memwal.threads import side_by_side

# Each step costs two requests; the walk is made only for tables whose shards lack generations.
_WALKED_MAX = 50
_ADDING = frozenset(
    {"Append", "CreateIndex", "Delete", "Merge", "Project", "Rewrite", "Update", "UpdateConfig"}
)


Merged = Mapping[ShardId, tuple[int, int]]
"""By shard: what the last index that knew it had merged, and when the next index was made."""

_KEY = "memwal.settled."
_FORMAT = 1
# memwal names two at most, and another for each race that it lost.
_NAMED_MAX = 64
_NO_RECORD = (Corruption, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class TableHistory:
    """The former indexes of one table. The last walk is remembered."""

    _objects: Objects
    _tables: LanceTables
    _manifests: TableManifests
    _shards: ShardManifests
    _known: dict[tuple[int, int], Merged] = field(init=False, default_factory=dict)

    def find_merged(self, view: TableView, shard: ShardView) -> int:
        """The generation up to which a former index had merged the present shard; 0 for none.

        A shard whose folder was deleted starts again at 1. So the generation counts only if it was
        flushed, by the store's clock, before the next index was made. The same goes for everything
        in the shard's WAL: under the next index's spec, newer rows of the same keys may be in
        another shard.
        """
        try:
            generation, made_at_nanos = self._recall(view).get(shard.shard_id, (0, 0))
            if generation and self._is_past(shard.shard_id, generation, made_at_nanos):
                return generation
        except MemWalError:
            pass
        return 0

    def _recall(self, view: TableView) -> Merged:
        key = (view.version, view.manifest.timestamp_nanos)
        if key not in self._known:
            found = self._walk(view)
            self._known.clear()
            self._known[key] = found
        return self._known[key]

    def _walk(self, view: TableView) -> Merged:
        manifest, made_at = view.manifest, 0
        has_index, merged = True, dict[ShardId, tuple[int, int]]()
        for _ in range(_WALKED_MAX):
            if manifest.mem_wal is None:
                made_at = manifest.version + 1 if has_index else made_at
            elif made_at:
                for shard_id, generation in manifest.mem_wal.merged.items():
                    merged.setdefault(shard_id, (generation, made_at))
            has_index = manifest.mem_wal is not None
            if manifest.version <= 1 or not self._adds(manifest.version):
                break
            try:
                manifest = self._manifests.read(manifest.version - 1)
            except MemWalError:
                break
        times = self._manifests.list_times() if merged else {}
        return {s: (g, times.get(version, 0)) for s, (g, version) in merged.items()}

    def _adds(self, version: int) -> bool:
        return self._tables.read_operation(version) in _ADDING

    def _is_past(self, shard_id: ShardId, generation: int, before_nanos: int) -> bool:
        files = dict(self._shards.list_files(shard_id))
        older = [v for v, file in files.items() if file.modified_at_nanos < before_nanos]
        then = self._shards.read(shard_id, max(older)) if older else None
        return (
            then is not None
            and then.current_generation > generation
            and self._is_flushed(then, self._shards.read(shard_id, max(files)), before_nanos)
        )

    def _is_flushed(self, then: ShardManifest, now: ShardManifest, before_nanos: int) -> bool:
        wal = WalEntries(self._objects)
        covered = then.replay_after_wal_entry_position
        above = [pair for pair in wal.list_settled(then) if pair[0] > covered]
        since = now.replay_after_wal_entry_position
        if sum(position <= since for position, _ in above) < since - covered:
            return False  # collected, so nothing tells any more when they were put
        old = [(p, file) for p, file in above if file.modified_at_nanos < before_nanos]
        found = replay(then, wal.describe(then.shard_id, old))
        return not (found.unflushed or found.problems or found.refused)


def list_named(config: Mapping[str, str]) -> tuple[str, ...]:
    """The ids of the records that a version's configuration names."""
    ids = (key.removeprefix(_KEY) for key in config if key.startswith(_KEY))
    return tuple(sorted(filter(layout.is_shard_folder, ids)))


def name_in_config(record_id: str, forgotten: Iterable[str]) -> dict[str, str | None]:
    """The change of configuration that names a record and removes the names of `forgotten` ones."""
    return {**dict.fromkeys(map(_KEY.__add__, forgotten)), _KEY + record_id: ""}


def read_record(objects: Objects, record_id: str) -> SettledRecord | None:
    """A record; None for one that this build doesn't understand. Raises Missing."""
    try:
        data = objects.get(layout.settled_path(record_id), DOCUMENT_BYTES_MAX)
        document = json.loads(data)
        if document["format"] != _FORMAT:
            return None
        shards = {
            ShardId(shard): SettledShard(
                generation=_count(entry["generation"]),
                manifest_version=_count(entry["manifest_version"]),
                manifest_digest=str(entry["manifest_digest"]),
            )
            for shard, entry in document["shards"].items()
        }
        version = _count(document["version"])
    except _NO_RECORD:
        return None
    return SettledRecord(record_id=record_id, version=version, shards=shards)


@dataclass(frozen=True, slots=True)
class SettledRecords:
    """The records of one table. They never change, and are read once."""

    _objects: Objects
    _manifests: ShardManifests
    _readers_max: int
    _history: TableHistory | None = None
    _known: dict[str, SettledRecord] = field(init=False, default_factory=dict)
    _unread: set[str] = field(init=False, default_factory=set)

    def find(self, view: TableView) -> list[SettledRecord]:
        """The records that the view's version names and that exist, newest first."""
        named = view.settled_ids[:_NAMED_MAX]
        for record_id in named:
            if record_id not in self._known and (found := self._read(record_id)) is not None:
                self._known[record_id] = found
        records = (self._known[i] for i in named if i in self._known)
        return sorted(records, key=lambda record: -record.version)

    def mark(self, view: TableView) -> TableView:
        """The view with settled generations filled in for shards that seem to lack some.

        They are taken from the records, or else from the retained versions.
        """
        if not any(needs_proof(shard) for shard in view.shards):
            return view
        records = self.find(view)
        shards = side_by_side(lambda s: self._mark(s, records), view.shards, self._readers_max)
        for n, shard in enumerate(shards):
            if self._history is not None and needs_proof(shard):
                shown = self._history.find_merged(view, shard)
                if shown > shard.settled_generation:
                    shards[n] = settle(shard, shown)
        unread = tuple(layout.settled_path(i) for i in view.settled_ids if i in self._unread)
        return replace(view, shards=tuple(shards), settled_unread=unread)

    def put(self, record: SettledRecord) -> None:
        """Store a record: from then on every version that names it counts on it."""
        shown = {shard: asdict(found) for shard, found in record.shards.items()}
        document = {"format": _FORMAT, "version": record.version, "shards": shown}
        data = json.dumps(document, indent=1).encode()
        path = layout.settled_path(record.record_id)
        try:
            self._objects.put_if_absent(path, data)
        except AlreadyExists:
            if self._objects.get(path, DOCUMENT_BYTES_MAX) != data:
                raise

    def _mark(self, shard: ShardView, records: list[SettledRecord]) -> ShardView:
        for record in records if needs_proof(shard) else ():
            proven = find_proven(shard.manifest, record, self._manifests.digest)
            if proven:
                cited = record.shards[shard.shard_id].manifest_version
                return settle(shard, proven, cited)
        return shard

    def _read(self, record_id: str) -> SettledRecord | None:
        with suppress(Missing):
            found = read_record(self._objects, record_id)
            if found is None:
                self._unread.add(record_id)
            return found
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredProofs:
    """Names records in the base table's configuration (the Proofs port)."""

    records: SettledRecords
    tables: LanceTables
    manifests: TableManifests

    def find(self, view: TableView) -> list[SettledRecord]:
        """The records that the view's version names and that exist, newest first."""
        return self.records.find(view)

    def name(self, view: TableView, record_id: str, kept: Iterable[SettledRecord]) -> None:
        """Commit the name from the view's version."""
        kept_ids = {record.record_id for record in kept}
        change = name_in_config(record_id, (i for i in view.settled_ids if i not in kept_ids))
        dataset = self.tables.at(view.version)
        call_lance(lambda: dataset.update_config(change))

    def follows(self, view: TableView, record_id: str) -> bool:
        """Whether the next version names the record, and the view's own is still the same one."""
        try:
            stood = self.manifests.read(view.version).timestamp_nanos
            named = list_named(self.tables.base(view.version + 1).config())
        except Missing:
            return False
        return stood == view.manifest.timestamp_nanos and record_id in named

    def put(self, record: SettledRecord) -> None:
        """Store the record."""
        self.records.put(record)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= layout.U64_MAX:
        raise ValueError(f"{value!r} is no count")
    return value
