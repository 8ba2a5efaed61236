"""Finds fields whose id the base may have given out again after rows were written.

Lance gives out an id again that neither the schema nor a file has: of a column that was dropped,
and of which no file has values. Under a MemWAL it adds columns without values only. So a column
that is in the first file of the oldest fragment has had its id as long as that file is there. Of
any other the newest retained versions tell whether it was gone for a while, and a shard's manifests
whether the writer of its rows was opened after that. Where these don't tell, the rows may be older.

A writer that is opened later and replays a WAL with rows of the former column stores their values
under the new one itself; nothing that it leaves shows that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memwal.errors import Corruption, Missing
from memwal.format import layout
from memwal.model import ShardId
from memwal.rows.align import check_entry
from memwal.store.shards.manifests import ShardManifests
from memwal.store.tables.datasets import LanceTables, columns_of
from memwal.store.tables.manifests import TableManifests
from memwal.threads import side_by_side

_VERSIONS_MAX = 32
_READERS_MAX = 16


class FieldIds:
    """The fields of one table."""

    def __init__(
        self, tables: LanceTables, manifests: TableManifests, shards: ShardManifests
    ) -> None:
        self._tables = tables
        self._manifests = manifests
        self._shards = shards

    def find_reused(
        self,
        version: int,
        shard_id: ShardId,
        field_ids: Sequence[int],
        *,
        generation: int | None = None,
        epoch: int | None = None,
    ) -> frozenset[int]:
        """Of stored columns, the ids that the base may have given out since they were written.

        They are those of a generation of the shard, or of an entry of its WAL with that writer
        epoch. It takes requests only where a column is not in the oldest fragment.
        """
        given = self.find_given(version)
        return frozenset(
            field_id
            for field_id in field_ids
            if (at := given.get(field_id)) is not None
            and not self._is_opened_since(shard_id, at, generation, epoch)
        )

    def check_entry(
        self,
        version: int,
        shard_id: ShardId,
        path: str,
        epoch: int,
        fields: Sequence[tuple[int | None, str]],
    ) -> None:
        """Check the columns of a WAL entry before it is replayed. Raises Refused, Unsupported."""
        columns = self._tables.recall(
            version, "columns", lambda: columns_of(self._tables.seen(version))
        )
        ids = [field_id for field_id, _ in fields if field_id is not None]
        reused = self.find_reused(version, shard_id, ids, epoch=epoch)
        check_entry(fields, columns, f"entry {path}", reused)

    def find_given(self, version: int) -> Mapping[int, int]:
        """Of fields that were gone for a while, when each was given its id again.

        That is nanoseconds, by the store's clock, as the times of a shard's manifests are.
        """
        return self._tables.recall(version, "given", lambda: self._find_given(version))

    def _find_given(self, version: int) -> dict[int, int]:
        base = self._tables.seen(version)
        oldest = min(base.get_fragments(), key=lambda f: int(f.fragment_id), default=None)
        kept = set() if oldest is None else set(oldest.metadata.files[0].fields)
        doubted = _list_ids(base) - kept
        if not doubted:
            return {}
        times = self._manifests.list_times()
        attached = (v for v in times if v <= version and not layout.is_detached(v))
        newest = sorted(attached)[-_VERSIONS_MAX:]
        read = zip(newest, side_by_side(self._read_ids, newest, _READERS_MAX), strict=True)
        # One that expired meanwhile tells no more of a column than those that did before.
        there = {v: ids for v, ids in read if ids is not None}
        listed, given = [*there], {}
        for field_id in doubted:
            has = [field_id in ids for ids in there.values()]
            since = len(has) - has[::-1].index(False) if False in has else 0
            if any(has[:since]):
                given[field_id] = times[listed[since]]
        return given

    def _read_ids(self, version: int) -> set[int] | None:
        """The ids of a version's columns; None if it expired meanwhile."""
        try:
            return _list_ids(self._tables.base(version))
        except Missing:
            return None

    def _is_opened_since(
        self, shard_id: ShardId, nanos: int, generation: int | None, epoch: int | None
    ) -> bool:
        """Whether the writer of a generation or of an epoch claimed the shard after that time."""
        files = sorted(self._shards.list_files(shard_id))
        before = [version for version, file in files if file.modified_at_nanos < nanos]
        if not before:
            return bool(files) and files[0][0] == 1
        try:
            then = self._shards.read(shard_id, before[-1])
            if epoch is not None:
                return epoch > then.writer_epoch
            for version, _ in files:
                if version > before[-1]:
                    later = self._shards.read(shard_id, version)
                    if later.writer_epoch > then.writer_epoch:
                        return generation is not None and generation >= later.current_generation
        except (Corruption, Missing):
            pass
        return False


def _list_ids(dataset: Any) -> set[int]:
    return {int(field.id()) for field in dataset.lance_schema.fields()}
