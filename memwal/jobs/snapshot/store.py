"""Shard snapshots as Lance file bytes, and the commit that puts them into the MemWAL index."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pyarrow as pa
from lance.file import LanceFileWriter

from memwal.errors import Missing, Unsupported
from memwal.format import codec
from memwal.jobs.snapshot.plan import Storage, Stored
from memwal.model import MemWalState, ShardField, ShardId, ShardManifest, ShardSpec
from memwal.ports import Objects
from memwal.sharding.spec import decode_value, parse_type
from memwal.store.shards.snapshots import FIELD_PREFIX, ShardSnapshots, external_path
from memwal.store.tables.datasets import REWINDING, LanceTables
from memwal.store.tables.indexes import replace_mem_wal_entry

_GENERATION = pa.struct([pa.field("generation", pa.uint64()), pa.field("path", pa.string())])
_BASE_COLUMNS = (
    pa.field("shard_id", pa.binary(16)),
    pa.field("version", pa.uint64()),
    pa.field("shard_spec_id", pa.uint32()),
    pa.field("writer_epoch", pa.uint64()),
    pa.field("replay_after_wal_entry_position", pa.uint64()),
    pa.field("wal_entry_position_last_seen", pa.uint64()),
    pa.field("current_generation", pa.uint64()),
    pa.field("flushed_generations", pa.list_(_GENERATION)),
)
_COUNTERS = tuple(f.name for f in _BASE_COLUMNS[1:-1])


def snapshot_schema(specs: Sequence[ShardSpec]) -> pa.Schema:
    """The spec's Shard Snapshot Arrow Schema, with a column for each field of the shard specs.

    A result type that is not known is kept as the bytes that the manifest holds.
    """
    fields: dict[str, ShardField] = {}
    for spec in specs:
        for field in spec.fields:
            fields.setdefault(field.field_id, field)
    extra = [pa.field(FIELD_PREFIX + name, _result_type(field)) for name, field in fields.items()]
    return pa.schema([*_BASE_COLUMNS, *extra])


def to_table(manifests: Sequence[ShardManifest], specs: Sequence[ShardSpec]) -> pa.Table:
    """One row per shard."""
    schema = snapshot_schema(specs)
    columns: list[pa.Array] = [pa.array([UUID(m.shard_id).bytes for m in manifests], pa.binary(16))]
    columns += [
        pa.array([getattr(m, n) for m in manifests], schema.field(n).type) for n in _COUNTERS
    ]
    columns.append(
        pa.array(
            [
                [{"generation": g.generation, "path": g.path} for g in m.flushed_generations]
                for m in manifests
            ],
            pa.list_(_GENERATION),
        )
    )
    for field in schema:
        if field.name.startswith(FIELD_PREFIX):
            name = field.name.removeprefix(FIELD_PREFIX)
            stored = [dict(m.shard_field_entries).get(name) for m in manifests]
            values = [_decode_field(value, field.type) for value in stored]
            columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _result_type(field: ShardField) -> pa.DataType:
    try:
        return parse_type(field.result_type, field.field_id)
    except Unsupported:
        return pa.binary()


def _decode_field(value: bytes | None, kind: pa.DataType) -> pa.Scalar | None:
    """A manifest's shard field value. pylance 14.0.2 writes none, so most are null."""
    if value is None:
        return None
    try:
        return decode_value(value, kind)
    except Unsupported:
        return None


def to_lance_bytes(table: pa.Table) -> bytes:
    """The table as the bytes of a Lance file (through a local temporary file).

    Lance writes the same bytes for the same table.
    """
    with tempfile.TemporaryDirectory(prefix="memwal-") as folder:
        path = Path(folder) / "snapshot.lance"
        with LanceFileWriter(str(path), table.schema) as writer:
            for batch in table.to_batches():
                writer.write_batch(batch)
        return path.read_bytes()


class StoredSnapshots:
    """The Snapshots port over an object store and Lance."""

    def __init__(self, objects: Objects, tables: LanceTables) -> None:
        self._objects = objects
        self._tables = tables
        self._stored = ShardSnapshots(objects)

    def encode(self, manifests: Sequence[ShardManifest], specs: Sequence[ShardSpec]) -> bytes:
        """The manifests as Lance file bytes."""
        return to_lance_bytes(to_table(manifests, specs))

    def compare(self, state: MemWalState, data: bytes) -> Stored:
        """How the stored snapshot differs from `data`, byte by byte.

        It is never parsed: Lance's reader ends the process on some forged bytes, and the shard
        manifests are the better source. Bytes that are no snapshot, or another writer's, differ and
        are replaced. Merging gives the entry a new uuid, under which an external file is not found
        (seen on pylance 14).
        """
        if state.inline_snapshots is not None:
            is_same = state.inline_snapshots == data
        else:
            try:
                tail, size = self._objects.get_tail(external_path(state.index_uuid), len(data))
            except Missing:
                return Stored.NONE
            is_same = size == len(data) and tail == data
        if not is_same:
            return Stored.OTHER
        return Stored.SAME if self._stored.is_confirmed(state, data) else Stored.UNCONFIRMED

    def commit(
        self,
        *,
        version: int,
        state: MemWalState,
        index_uuid: str,
        data: bytes,
        storage: Storage,
        num_shards: int,
        taken_at_millis: int,
        merged: Mapping[ShardId, int],
    ) -> int:
        """Replace the MemWAL index entry that `version` has; returns the version that landed.

        An external file is written first. Raises LostRace for a conflict, StoreUnavailable for an
        error with an open outcome.
        """
        if storage is Storage.EXTERNAL:
            self._objects.put(external_path(index_uuid), data)
        details = codec.encode_snapshot(
            state,
            taken_at_millis=taken_at_millis,
            num_shards=num_shards,
            inline=data if storage is Storage.INLINE else None,
            merged=merged,
        )
        return replace_mem_wal_entry(
            self._tables,
            version=version,
            index_uuid=index_uuid,
            created_at_millis=state.created_at_millis or taken_at_millis,
            details=details,
        )

    def is_turned_back(self, version: int) -> bool | None:
        """Whether the version is a restore or an overwrite, by its transaction (see the port)."""
        operation = self._tables.read_operation(version)
        return None if operation is None else operation in REWINDING

    def confirm(self, *, taken_at_millis: int, index_uuid: str, data: bytes) -> None:
        """Let readers use the snapshot (see the port)."""
        self._stored.confirm(taken_at_millis=taken_at_millis, index_uuid=index_uuid, data=data)

    def fragments_and_rows(self, version: int) -> tuple[int, int]:
        """How many fragments and rows a version has (a refresh must not change either)."""
        base = self._tables.base(version)
        return len(base.get_fragments()), int(base.count_rows())
