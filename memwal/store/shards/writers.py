"""Pylance's writers of a table's shards: which epoch and which WAL positions are whose.

pylance says neither. But a claim raises the shard's epoch by one, and from the second epoch on
leaves an empty entry, the sentinel, at the tip of the WAL; every put or delete takes the next
position, whole, and returns when it is durable (tests/ingest/test_shard_writers.py). When the reply
to that request is lost, pylance 14.0.2 takes what it finds there for somebody else's and writes the
entry again, at the next position; so after each call that one is checked. A manifest read before
and one read after opening prove the epoch, and counting starts at the sentinel. Shards are created
here with epoch 1, so that pylance's first writer has a sentinel too.

The next claim of the shard fences this writer: its next put fails, and its positions end below the
next sentinel.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa
from pydantic import Field

from memwal.errors import (
    Corruption,
    LostRace,
    MemWalError,
    Missing,
    Refused,
    StoreUnavailable,
    Unsupported,
)
from memwal.format import layout
from memwal.format.unknown import check_manifest
from memwal.model import ShardId, ShardManifest, ShardStatus
from memwal.ports import Objects
from memwal.rows.progress import check_claim
from memwal.store.shards.manifests import Fenced, ShardManifests
from memwal.store.shards.wal import WalEntries
from memwal.store.tables.datasets import LanceTables
from memwal.store.tables.field_ids import FieldIds
from memwal.store.tables.lance_calls import Says, is_panic, says, tidy_text
from memwal.store.tables.manifests import TableManifests

# pylance's own default, where neither the table nor the caller says otherwise.
MEMTABLE_ROWS_MAX = 100_000
_DURABLE = {"durable_write": True}
_WRITERS_PER_TICK_MS = 16
_NUMBERS = (
    "max_wal_buffer_size",
    "max_wal_flush_interval_ms",
    "max_memtable_size",
    "max_memtable_rows",
    "max_memtable_batches",
    "max_unflushed_memtable_bytes",
    "manifest_scan_batch_size",
    "backpressure_log_interval_ms",
    "stats_log_interval_ms",
)
_ONE_WRITER = "A shard takes one writer at a time"
_FLUSH = "`memwal rescue` flushes what the last writer left there; then run again"


def sentinel_bytes(writer_epoch: int) -> bytes:
    """A fence sentinel's file: a stream without columns or batches, marked in its schema."""
    schema = pa.schema([], metadata={"fence_sentinel": "true", "writer_epoch": str(writer_epoch)})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, schema):
        pass
    return out.getvalue()


def read_settings(defaults: Mapping[str, str]) -> dict[str, int]:
    """The writer settings that a table recorded, as pylance's writer takes them.

    `initialize_mem_wal` records them for every writer, but pylance 14.0.2's writers start from
    built-in ones all the same.
    """
    return {name: int(defaults[name]) for name in _NUMBERS if defaults.get(name, "").isdigit()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A writer's hold on a shard.

    Its first entry goes to `start_position` + 1, its first generation is `first_generation`.
    """

    shard_id: ShardId
    writer_epoch: int
    start_position: int
    first_generation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Tip:
    """How far a shard's WAL goes, as far as one of its writers knows; checked when read back.

    `calls` is how many calls led there, where somebody counts them.
    """

    writer_epoch: Annotated[int, Field(ge=1)]
    position: Annotated[int, Field(ge=1)]
    calls: Annotated[int, Field(ge=0)]


class ShardWriters:
    """The writers of one table's shards."""

    def __init__(
        self,
        objects: Objects,
        tables: LanceTables,
        settings: Mapping[str, Any] | None = None,
        *,
        merged: Mapping[ShardId, int],
        schema: pa.Schema | None = None,
    ) -> None:
        """`settings` go to pylance (`max_memtable_rows`, …); writes are durable in any case.

        `schema` is the table's by which rows are made for them.
        `merged` is the table's progress: no shard is claimed whose rows would count as merged.
        """
        self._merged = merged
        self._schema = schema
        self._objects = objects
        self._uri = objects.uri
        self._tables = tables
        self._settings = {**(settings or {}), **_DURABLE}
        self._opened: set[ShardId] = set()
        self.manifests = ShardManifests(objects)
        self.wal = WalEntries(objects)
        self._field_ids = FieldIds(tables, TableManifests(objects), self.manifests)

    def open(
        self,
        shard_id: ShardId,
        spec_id: int = 0,
        entries: tuple[tuple[str, bytes], ...] = (),
        after_epoch: int | None = None,
        batches_max: int | None = None,
    ) -> OpenShard:
        """Claim a shard for writing; one that does not exist is made, with these values.

        With `after_epoch`, that of a writer of ours that was closed, the claim has to be the next.
        A generation is made of `batches_max` batches, if not of fewer.

        Raises Fenced where it is not; Refused for a SEALED shard, and one below progress that isn't
        its own; Corruption for one that has files and no manifest, which a first one would hide for
        good; Unsupported where the writer would drop what a newer Lance has stored; LostRace when
        another writer claimed it meanwhile, StoreUnavailable.
        """
        latest = self.manifests.latest(shard_id)
        if latest is None and self._has_files(shard_id):
            latest = self._find_manifest(shard_id)  # made since, or lost
        if latest is not None and after_epoch not in (None, latest.writer_epoch):
            raise self._explain_fencing(shard_id, after_epoch or 0)
        check_claim(shard_id, latest, self._merged)
        before = latest or self._create(shard_id, spec_id, entries)
        if before.status is ShardStatus.SEALED:
            raise Refused(
                "MW-M05", f"{self._uri}: shard {shard_id} is SEALED: no writer may claim it"
            )
        self._check_known(before)
        try:
            writer = self._tables.shard_writer(
                shard_id, **self._choose_settings(shard_id, batches_max)
            )
        except BaseException as error:
            raise self._translate(shard_id, error) from None
        try:
            claim = self._claim(shard_id, before)
        except BaseException:
            _close_quietly(writer)
            raise
        return OpenShard(self, writer, claim)

    def _check_known(self, manifest: ShardManifest) -> None:
        try:
            check_manifest(manifest)
            heads = self.wal.read_heads(manifest)
            if heads := {p: head for p, head in heads.items() if not head.fence_sentinel}:
                version = int(self._tables.look().version)
                for path, head in heads.items():
                    self._field_ids.check_entry(
                        version, manifest.shard_id, path, head.writer_epoch, head.fields
                    )
        except (Refused, Unsupported) as error:
            raise error.at(self._uri) from None

    def _choose_settings(self, shard_id: ShardId, batches_max: int | None) -> dict[str, Any]:
        """What the writer of a shard starts from.

        A call waits for its writer's next tick, 100 ms apart by default, and nothing comes in
        between that could share its entry. A tick costs time as well, so many writers tick slower.
        """
        self._opened.add(shard_id)
        interval_ms = 1 + (len(self._opened) - 1) // _WRITERS_PER_TICK_MS
        settings = {"max_wal_flush_interval_ms": interval_ms, **self._settings}
        if batches_max is not None:
            most = settings.get("max_memtable_batches", batches_max)
            settings["max_memtable_batches"] = min(most, batches_max)
        return settings

    def _create(
        self, shard_id: ShardId, spec_id: int, entries: tuple[tuple[str, bytes], ...]
    ) -> ShardManifest:
        first = ShardManifest(
            shard_id=shard_id,
            version=1,
            writer_epoch=1,
            current_generation=1,
            shard_spec_id=spec_id,
            shard_field_entries=entries,
        )
        with suppress(LostRace):
            self.manifests.commit(None, first)
        # Read back: who created it with the very same bytes may have claimed it since.
        return self._find_manifest(shard_id)

    def _has_files(self, shard_id: ShardId) -> bool:
        """Whether the shard has a WAL or generations."""
        folder = f"{layout.shard_folder(shard_id)}/"
        names = (f.path.removeprefix(folder).partition("/")[0] for f in self._objects.list(folder))
        return any(n == "wal" or layout.parse_generation_folder(n) is not None for n in names)

    def _find_manifest(self, shard_id: ShardId) -> ShardManifest:
        found = self.manifests.latest(shard_id)
        if found is None:
            raise Corruption(
                "MW-M06",
                f"{self._uri}: shard {shard_id}: its manifests are gone: move the table aside "
                "and restore a backup before a writer opens it (`memwal verify` says what is left)",
            )
        return found

    def _claim(self, shard_id: ShardId, before: ShardManifest) -> Claim:
        after = self.manifests.latest(shard_id)
        epoch = 0 if after is None else after.writer_epoch
        if after is None or epoch != before.writer_epoch + 1:
            raise LostRace(
                f"{self._uri}: shard {shard_id}: another writer claimed it at the same time: epoch "
                f"{before.writer_epoch} became {epoch}. {_ONE_WRITER}"
            )
        if self._is_sentinel(shard_id, after.wal_entry_position_last_seen, epoch):
            position = after.wal_entry_position_last_seen
        else:
            position = self._find_sentinel(shard_id, epoch, before.wal_entry_position_last_seen)
        return Claim(
            shard_id=shard_id,
            writer_epoch=epoch,
            start_position=position,
            first_generation=after.current_generation,
        )

    def _is_sentinel(self, shard_id: ShardId, position: int, epoch: int) -> bool:
        if position < 1:
            return False
        try:
            found = self.wal.rows(shard_id, position).entry
        except Missing:
            return False
        return found.fence_sentinel and found.writer_epoch == epoch

    def _find_sentinel(self, shard_id: ShardId, epoch: int, seen_before: int) -> int:
        """Where the epoch's sentinel stands, by a listing: at the tip, or close below it.

        Above what was seen before the claim. One that was beaten may leave its own above ours.
        """
        for position, info in reversed(self.wal.list_entries(shard_id)):
            if position <= seen_before:
                break
            head = self.wal.head(info.path, info.size_bytes)
            if head.fence_sentinel and head.writer_epoch == epoch:
                return position
            if not head.fence_sentinel and head.writer_epoch < epoch:
                break
        latest = self.manifests.latest(shard_id)
        if latest is not None and latest.writer_epoch > epoch:
            raise self._explain_fencing(shard_id, epoch)
        raise Corruption(
            "MW-W09",
            f"{self._uri}: shard {shard_id}: the WAL has no sentinel of epoch {epoch}, which was "
            "just claimed",
        )

    def _translate(self, shard_id: ShardId, error: BaseException, epoch: int = 0) -> BaseException:
        """pylance's error as one of ours; any other error as it is."""
        where, text = f"{self._uri}: shard {shard_id}", tidy_text(error)
        if is_panic(error):
            return Corruption("MW-W10", f"{where}: {text}")
        if isinstance(error, MemWalError) or not isinstance(error, OSError | ValueError):
            return error
        if says(error, Says.FENCED):
            return self._explain_fencing(shard_id, epoch)
        if says(error, Says.CLAIMED):
            return LostRace(f"{where}: another writer claimed it at the same time. {_ONE_WRITER}")
        if says(error, Says.BAD_INPUT):
            if self._schema is not None and self._tables.base().schema != self._schema:
                return LostRace(f"{where}: the table's columns have changed meanwhile; run again")
            what_to_do = f". {_FLUSH}" if says(error, Says.FORMER_TYPE) else ""
            return Refused("MW-W11", f"{where}: {text}{what_to_do}")
        if says(error, Says.UNSUPPORTED):
            return Unsupported("MW-E02", f"{where}: {text}")
        return StoreUnavailable(f"{where}: {text}")

    def _explain_fencing(self, shard_id: ShardId, epoch: int) -> Fenced:
        """The error of a writer that was fenced; it says by whom, if that can be read."""
        found = f"{self._uri}: shard {shard_id}: our writer (epoch {epoch}) was fenced"
        try:
            latest = self.manifests.latest(shard_id)
        except MemWalError as error:
            return Fenced(f"{found}; by whom can't be read: {error}")
        if latest is None:
            return Fenced(f"{found}, and the shard's manifests are gone")
        if latest.writer_epoch - epoch >= layout.LEAP_MIN:
            return Fenced(
                f"{found}: the table was restored from a backup (epoch {latest.writer_epoch}), and "
                "what was put since that was made is not in it: open the shard again, and write "
                f"those rows again. {_ONE_WRITER}"
            )
        return Fenced(
            f"{found}: a writer with epoch {latest.writer_epoch} took over (manifest version "
            f"{latest.version}). Rows that were acknowledged are safe; an ingest that is run again "
            f"continues. {_ONE_WRITER}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MemTable:
    """What a writer holds that is in no generation, and the number of the one in the making."""

    generation: int
    batches: int
    is_empty: bool


class OpenShard:
    """One shard's writer. For one thread at a time."""

    def __init__(self, owner: ShardWriters, writer: Any, claim: Claim) -> None:
        self._owner = owner
        self._writer = writer
        self.claim = claim
        self.entries = 0
        self.position = claim.start_position
        """The WAL position of the last entry that was acknowledged."""

    @property
    def tip(self) -> Tip:
        """The last entry that was acknowledged."""
        return Tip(writer_epoch=self.claim.writer_epoch, position=self.position, calls=0)

    @property
    def memtable(self) -> MemTable:
        """What it holds now."""
        stats = self._writer.memtable_stats()
        return MemTable(
            generation=stats["generation"],
            batches=stats["batch_count"],
            is_empty=not stats["row_count"] and not stats["frozen_count"],
        )

    def put(self, rows: pa.Table) -> None:
        """Write rows, at least one, as one WAL entry; returns when it is durable.

        The entry has the batches that `rows` has.

        Raises Fenced, Refused, StoreUnavailable; after any of them nobody knows from here whether
        the rows are stored, so that the writer must not be used again.
        """
        self._write(self._writer.put, rows)

    def delete(self, keys: pa.Table) -> None:
        """Delete keys, at least one, as one WAL entry; as `put`."""
        self._write(self._writer.delete, keys)

    def _write(self, write: Any, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            raise ValueError("an empty write would leave no WAL entry, and counting would go wrong")
        with self._translating():
            write(_align_decimals(rows))
        self.entries += 1
        self.position += 1
        while self._owner.wal.exists(self.claim.shard_id, self.position + 1):
            self._check_ours(self.position + 1)
            self.position += 1

    def _check_ours(self, position: int) -> None:
        """Raise Fenced unless the entry was written in our epoch."""
        claim = self.claim
        found = self._owner.wal.rows(claim.shard_id, position).entry
        if found.writer_epoch != claim.writer_epoch:
            raise self._owner._explain_fencing(claim.shard_id, claim.writer_epoch)

    def check_position(self) -> None:
        """Compare our count with the WAL. Raises Fenced, or Corruption when it doesn't add up."""
        shard_id, wal = self.claim.shard_id, self._owner.wal
        if wal.exists(shard_id, self.position) and not wal.exists(shard_id, self.position + 1):
            return
        latest = self._owner.manifests.latest(shard_id)
        if latest is not None and latest.writer_epoch > self.claim.writer_epoch:
            raise self._owner._explain_fencing(shard_id, self.claim.writer_epoch)
        raise Corruption(
            "MW-W12",
            f"{self._owner._uri}: shard {shard_id}: the last of {self.entries} entries went to "
            f"position {self.position}, but the WAL does not end there",
        )

    def close(self) -> None:
        """Flush to a generation and close. Raises as `put`; acknowledged rows are safe anyway."""
        with self._translating():
            self._writer.close()

    def count_generations(self) -> int:
        """How many generations were flushed since our claim; asked for once it is closed."""
        latest = self._owner.manifests.latest(self.claim.shard_id)
        return 0 if latest is None else latest.current_generation - self.claim.first_generation

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            claim = self.claim
            raise self._owner._translate(claim.shard_id, error, claim.writer_epoch) from None

    def abandon(self) -> None:
        """Close, and ignore errors: the WAL has what was acknowledged."""
        _close_quietly(self._writer)


def _close_quietly(writer: Any) -> None:
    try:
        writer.close()
    except (OSError, ValueError, RuntimeError):
        return


def _align_decimals(rows: pa.Table) -> pa.Table:
    """Rows that Lance can take: it panics at decimals that are not aligned to 16 bytes.

    Those of Arrow's own files are aligned to 8.
    """
    buffers = (b for column in rows.columns for chunk in column.chunks for b in chunk.buffers())
    if "decimal" not in str(rows.schema) or all(b is None or b.address % 16 == 0 for b in buffers):
        return rows
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_table(rows)
    aligned = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)
    return pa.ipc.open_stream(out.getvalue(), options=aligned).read_all()
