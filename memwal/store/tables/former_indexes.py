"""Finds in the retained versions what a table's former MemWAL indexes had merged.

The versions are walked one by one, from the viewed one down. Each has to exist, and to come from a
commit that builds on the version before it: a restore, an overwrite or an unknown commit ends the
walk. So what any of these versions had merged is in the viewed one as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memwal.errors import MemWalError
from memwal.format import layout
from memwal.format.replay import replay
from memwal.model import ShardId, ShardManifest, ShardView, TableView
from memwal.ports import Objects
from memwal.store.shards.manifests import ShardManifests
from memwal.store.shards.wal import WalEntries
from memwal.store.tables.datasets import LanceTables
from memwal.store.tables.manifests import TableManifests

# Each step costs two requests; the walk is made only for tables whose shards lack generations.
_WALKED_MAX = 50
_ADDING = frozenset(
    {"Append", "CreateIndex", "Delete", "Merge", "Project", "Rewrite", "Update", "UpdateConfig"}
)


Merged = Mapping[ShardId, tuple[int, int]]
"""By shard: what the last index that knew it had merged, and when the next index was made."""


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
        times = self._list_times() if merged else {}
        return {s: (g, times.get(version, 0)) for s, (g, version) in merged.items()}

    def _adds(self, version: int) -> bool:
        return self._tables.read_operation(version) in _ADDING

    def _list_times(self) -> dict[int, int]:
        files = ((f, f.path.rsplit("/", 1)[-1]) for f in self._objects.list(layout.VERSIONS))
        found = ((layout.parse_table_manifest_name(name), f.modified_at_nanos) for f, name in files)
        return {version: at for version, at in found if version is not None}

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
