"""The Lance and object side of a rescue: a shard's WAL, its files and marks, and its writer.

Here alone memwal takes a writer's epoch, for a rescue and for a repair.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from memwal.errors import (
    AlreadyExists,
    Corruption,
    LostRace,
    MemWalError,
    Missing,
    Refused,
    StoreUnavailable,
    Unsupported,
)
from memwal.format import layout
from memwal.format.replay import WalEntry
from memwal.jobs.rescue.plan import RescueEvidence, RescueMark, SignOfLife
from memwal.model import ShardId, StoredFile
from memwal.ports import Objects
from memwal.store.shards.manifests import ShardManifests
from memwal.store.shards.wal import WalEntries, WalLimits, is_cut_off
from memwal.store.shards.writers import sentinel_bytes
from memwal.store.tables.datasets import LanceTables
from memwal.store.tables.lance_calls import Says, says, tidy_text, translated

_FORMAT = 1
Fields = Sequence[tuple[int | None, str]]


class StoredShardWal:
    """What is stored of a shard, and the mark of an unfinished rescue."""

    def __init__(
        self,
        objects: Objects,
        limits: WalLimits | None = None,
        *,
        check: Callable[[ShardId, str, int, Fields], None] = lambda *entry: None,
    ) -> None:
        """`check` raises for an entry whose columns are not the table's: by path and epoch."""
        self._objects = objects
        self._check = check
        self._manifests = ShardManifests(objects)
        self._wal = WalEntries(objects, limits)

    def read(self, shard_id: ShardId) -> RescueEvidence | None:
        """The shard as it is now; None when no writer ever claimed it.

        What is wrong with an entry is in its `problem`. Raises Corruption for a torn manifest or
        mark, StoreUnavailable.

        The manifest is read first, so that anything flushed or put later counts as unflushed or as
        a sign of life.
        """
        mark = self._mark(shard_id)
        manifest = self._manifests.latest(shard_id)
        if manifest is None:
            return None
        above = manifest.replay_after_wal_entry_position
        if mark is not None:
            above = min(above, mark.highest_position)
        listed = [pair for pair in self._wal.list_settled(manifest) if pair[0] > above]
        entries = self._wal.describe(shard_id, listed)
        return RescueEvidence(
            manifest=manifest,
            entries=tuple(entries),
            files=tuple(self._objects.list(layout.shard_folder(shard_id))),
            mark=mark,
            unfit=self.judge(shard_id, entries),
        )

    def judge(self, shard_id: ShardId, entries: Sequence[WalEntry]) -> dict[int, MemWalError]:
        """The entries, by position, whose columns are not the table's, or may not be."""
        return {e.position: error for e in entries if (error := self._judge(shard_id, e))}

    def _judge(self, shard_id: ShardId, entry: WalEntry) -> MemWalError | None:
        if entry.writer_epoch is None or entry.fence_sentinel:
            return None
        path = layout.wal_entry_path(shard_id, entry.position)
        try:
            self._check(shard_id, path, entry.writer_epoch, entry.fields)
        except (Corruption, Refused, Unsupported) as error:
            return error
        return None

    def mark(self, shard_id: ShardId, mark: RescueMark) -> int:
        """Store the mark; returns the time by the store's clock."""
        document = {
            "format": _FORMAT,
            "writer_epoch": mark.writer_epoch,
            "highest_position": mark.highest_position,
            "sign": mark.sign.what,
            "sign_at_nanos": mark.sign.at_nanos,
        }
        path = layout.rescue_mark_path(shard_id)
        self._objects.put(path, json.dumps(document, indent=1).encode())
        info = self._listed_mark(shard_id)
        if info is None:
            raise StoreUnavailable(f"{self._objects.uri}: {path} was written and is not listed")
        return info.modified_at_nanos

    def keep_torn(self, shard_id: ShardId, entry: WalEntry) -> None:
        """Copy a torn entry's bytes to the place where they are kept.

        Raises LostRace when the entry has changed, Refused when other bytes are kept there already.
        """
        path = layout.wal_entry_path(shard_id, entry.position)
        size_max = self._wal.limits.entry_bytes_max
        data = self._objects.get(path, size_max)
        if len(data) != entry.size_bytes or not is_cut_off(data):
            raise LostRace(f"{self._objects.uri}: {path} changed meanwhile; nothing was dropped")
        kept = layout.torn_entry_path(shard_id, entry.position)
        try:
            self._objects.put_if_absent(kept, data)
        except AlreadyExists:
            # An earlier rescue that was killed may have kept the same bytes.
            if self._objects.get(kept, size_max) != data:
                raise Refused(
                    "MW-R04", f"{self._objects.uri}: {kept} has other bytes; move it away"
                ) from None

    def drop_torn(self, shard_id: ShardId, position: int, sentinel_epoch: int) -> None:
        """Replace the entry with a sentinel in one put, so that the position is never free."""
        path = layout.wal_entry_path(shard_id, position)
        self._objects.put(path, sentinel_bytes(sentinel_epoch))

    def unmark(self, shard_id: ShardId) -> None:
        """Remove the mark. Best effort, as an old mark is not believed anyway."""
        with suppress(MemWalError):
            self._objects.delete([layout.rescue_mark_path(shard_id)])

    def _mark(self, shard_id: ShardId) -> RescueMark | None:
        info = self._listed_mark(shard_id)
        if info is None:
            return None
        try:
            document = json.loads(self._objects.get(info.path))
            if document["format"] != _FORMAT:
                raise ValueError(f"format {document['format']}")
            return RescueMark(
                writer_epoch=_count(document, "writer_epoch"),
                highest_position=_count(document, "highest_position"),
                sign=SignOfLife(
                    what=str(document["sign"])[:200], at_nanos=_count(document, "sign_at_nanos")
                ),
                made_at_nanos=info.modified_at_nanos,
            )
        except Missing:
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Corruption(
                "MW-R05",
                f"{self._objects.uri}: {info.path} is not the mark of a rescue ({error}); move it "
                "away",
            ) from None

    def _listed_mark(self, shard_id: ShardId) -> StoredFile | None:
        path = layout.rescue_mark_path(shard_id)
        return next((i for i in self._objects.list(layout.RESCUES) if i.path == path), None)


def _count(document: dict[str, object], name: str) -> int:
    value = document[name]
    if type(value) is not int or not 0 <= value <= layout.U64_MAX:
        raise ValueError(f"{name} is {value!r}")
    return value


class LanceShardWriters:
    """Opens shards for writing. Each claim fences the shard's writer (invariant 4: on request)."""

    def __init__(self, tables: LanceTables) -> None:
        self._tables = tables

    def claim(
        self, shard_id: ShardId, *, memtable_rows_max: int, memtable_batches_max: int
    ) -> Callable[[], None]:
        """Open a writer, which takes the next epoch and replays the WAL; returns what flushes it.

        Raises Refused for a SEALED shard, LostRace, Corruption for a WAL that can't be replayed,
        StoreUnavailable. The flush writes the rows as generations, and closes the writer. It raises
        LostRace when another writer has claimed the shard meanwhile, which replays the same
        entries, and StoreUnavailable when it failed; the rows are in the WAL as before.
        """
        where = f"{self._tables.uri}: shard {shard_id}"
        with translated(partial(_name_error, where)):
            writer = self._tables.shard_writer(
                shard_id,
                max_memtable_rows=memtable_rows_max,
                max_memtable_batches=memtable_batches_max,
            )

        def flush() -> None:
            with translated(partial(_name_error, where)):
                writer.close()

        return flush


def _name_error(where: str, error: BaseException) -> MemWalError:
    text = tidy_text(error)
    if says(error, Says.SEALED):
        return Refused("MW-M05", f"{where} is SEALED: no writer may claim it")
    if says(error, Says.FENCED, Says.CLAIMED):
        return LostRace(
            f"{where}: another writer claimed it meanwhile, and has replayed the same rows ({text})"
        )
    if says(error, Says.BAD_WAL):  # a fenced replay names the WAL, too
        return Corruption("MW-W01", f"{where}: its WAL can't be replayed: {text}")
    if says(error, Says.FORMER_TYPE):
        return Refused("MW-K08", f"{where}: its WAL has rows of another type: {text}")
    if says(error, Says.UNSUPPORTED):
        return Unsupported("MW-E02", f"{where}: {text}")
    return StoreUnavailable(f"{where}: {text}; its rows are in the WAL as before")
