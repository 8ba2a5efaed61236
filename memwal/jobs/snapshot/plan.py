"""Decides whether the shard snapshot in the MemWAL index is stale, and what replaces it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from memwal.errors import Refused
from memwal.model import (
    ColumnInfo,
    MemWalState,
    ShardField,
    ShardId,
    ShardManifest,
    ShardSpec,
    TableView,
)

_SAME_AS_SOURCE = ("identity", "truncate")
"""Transforms whose result has the type of their column (spec: Shard Transform)."""


class Storage(Enum):
    """Where the rows go (spec: Shard Snapshot Storage)."""

    INLINE = "inline"
    EXTERNAL = "external"


class Stored(Enum):
    """What the table has in place of a snapshot, beside the one that its manifests make."""

    NONE = "there is no snapshot"
    SAME = "the snapshot is what the shard manifests say"
    OTHER = "the snapshot is not what the shard manifests say"


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotLimits:
    """Bounds of a refresh. The inline threshold is the spec's example.

    From `fanned_out_shards_min` shards on, their manifests are read on the engine.
    """

    inline_shards_max: int = 100
    attempts_max: int = 10
    repairs_max: int = 10
    fanned_out_shards_min: int = 2000
    shards_per_unit_max: int = 250


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotRow:
    """One shard as the snapshot holds it: the spec's columns."""

    shard_id: ShardId
    version: int
    shard_spec_id: int
    writer_epoch: int
    replay_after_wal_entry_position: int
    wal_entry_position_last_seen: int
    current_generation: int
    flushed_generations: tuple[tuple[int, str], ...]
    shard_fields: Mapping[str, bytes]


def row_of(manifest: ShardManifest) -> SnapshotRow:
    """A shard manifest as a snapshot row."""
    return SnapshotRow(
        shard_id=manifest.shard_id,
        version=manifest.version,
        shard_spec_id=manifest.shard_spec_id,
        writer_epoch=manifest.writer_epoch,
        replay_after_wal_entry_position=manifest.replay_after_wal_entry_position,
        wal_entry_position_last_seen=manifest.wal_entry_position_last_seen,
        current_generation=manifest.current_generation,
        flushed_generations=tuple((g.generation, g.path) for g in manifest.flushed_generations),
        shard_fields=dict(manifest.shard_field_entries),
    )


def snapshot_rows(view: TableView) -> tuple[SnapshotRow, ...]:
    """What a snapshot of the view holds, sorted by shard.

    Raises Refused when a shard's manifest is broken: a snapshot without it would hide the shard.
    """
    if view.broken:
        names = ", ".join(b.shard_id for b in view.broken)
        raise Refused(
            f"{view.uri}: shards {names} have broken manifests; a snapshot without them would "
            "hide them from readers"
        )
    return tuple(row_of(shard.manifest) for shard in sorted(view.shards, key=lambda s: s.shard_id))


def snapshot_specs(view: TableView) -> tuple[ShardSpec, ...]:
    """The table's shard specs, with the result types that the spec leaves to the transform."""
    return tuple(
        replace(spec, fields=tuple(_with_result_type(f, view.columns) for f in spec.fields))
        for spec in view.mem_wal.shard_specs
    )


def _with_result_type(field: ShardField, columns: Sequence[ColumnInfo]) -> ShardField:
    if field.result_type or field.transform is None:
        return field
    if field.transform not in _SAME_AS_SOURCE:
        return replace(field, result_type="int32")
    return replace(field, result_type=_type_of(field.source_ids, columns))


def _type_of(source_ids: Sequence[int], columns: Sequence[ColumnInfo]) -> str:
    for column in columns:
        if source_ids[:1] == (column.field_id,):
            return column.type_text
        if found := _type_of(source_ids, column.children):
            return found
    return ""


def is_fresh(view: TableView, rows: Sequence[SnapshotRow], stored: Stored) -> bool:
    """Whether nothing has to be written for the view's `rows`."""
    if view.mem_wal.num_shards != len(rows):
        return False
    return stored is Stored.SAME or (stored is Stored.NONE and not rows)


def choose_storage(rows: Sequence[SnapshotRow], limits: SnapshotLimits) -> Storage:
    """Where a snapshot of these rows goes."""
    return Storage.INLINE if len(rows) <= limits.inline_shards_max else Storage.EXTERNAL


def group_shards(shards: Sequence[ShardId], limits: SnapshotLimits) -> list[Sequence[ShardId]]:
    """Shards in groups whose manifests are read side by side, in order; none for a few shards."""
    if len(shards) < limits.fanned_out_shards_min:
        return []
    size = limits.shards_per_unit_max
    return [shards[start : start + size] for start in range(0, len(shards), size)]


def find_lowered(before: Sequence[MemWalState], landed: MemWalState) -> dict[ShardId, int]:
    """Progress that a refresh overwrote: for each shard whose entry fell, what it has to be.

    `before` are the states of the version that the refresh was read from and of those between it
    and the one that landed (invariant 3).
    """
    highest: dict[ShardId, int] = {}
    for state in before:
        for shard, generation in state.merged.items():
            highest[shard] = max(highest.get(shard, 0), generation)
    return {
        shard: generation
        for shard, generation in highest.items()
        if landed.merged.get(shard, -1) < generation
    }
