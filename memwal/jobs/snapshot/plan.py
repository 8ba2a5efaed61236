"""Decides whether the shard snapshot in the MemWAL index is stale, and what replaces it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

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
from memwal.report import TableReport

_SAME_AS_SOURCE = ("identity", "truncate")
"""Transforms whose result has the type of their column (spec: Shard Transform)."""


class Storage(Enum):
    """Where a snapshot is stored (spec: Shard Snapshot Storage)."""

    INLINE = "inline"
    EXTERNAL = "external"


class Stored(Enum):
    """How the table's stored snapshot compares with the one made from its shard manifests."""

    NONE = "there is no snapshot"
    SAME = "the snapshot is what the shard manifests say"
    OTHER = "the snapshot is not what the shard manifests say"
    UNCONFIRMED = "no run has confirmed the snapshot, so that no reader goes by it"


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotLimits:
    """Bounds of a refresh. The inline threshold is the spec's example."""

    inline_shards_max: int = 100
    attempts_max: int = 10
    repairs_max: int = 10


def collect_manifests(view: TableView) -> tuple[ShardManifest, ...]:
    """What a snapshot of the view holds, sorted by shard.

    Raises Refused when a shard's manifest is broken: a snapshot without it would hide the shard.
    """
    if view.broken:
        names = ", ".join(b.shard_id for b in view.broken)
        raise Refused(
            "MW-N02",
            f"{view.uri}: shards {names} have broken manifests; a snapshot without them would "
            "hide them from readers",
        )
    return tuple(s.manifest for s in sorted(view.shards, key=lambda s: s.shard_id))


def resolve_specs(view: TableView) -> tuple[ShardSpec, ...]:
    """The table's shard specs, with the result types that the spec leaves to the transform."""
    return tuple(
        replace(spec, fields=tuple(_add_result_type(f, view.columns) for f in spec.fields))
        for spec in view.mem_wal.shard_specs
    )


def _add_result_type(field: ShardField, columns: Sequence[ColumnInfo]) -> ShardField:
    if field.result_type or field.transform is None:
        return field
    if field.transform not in _SAME_AS_SOURCE:
        return replace(field, result_type="int32")
    return replace(field, result_type=_find_type(field.source_ids, columns))


def _find_type(source_ids: Sequence[int], columns: Sequence[ColumnInfo]) -> str:
    for column in columns:
        if source_ids[:1] == (column.field_id,):
            return column.type_text
        if found := _find_type(source_ids, column.children):
            return found
    return ""


def is_fresh(state: MemWalState, num_shards: int, stored: Stored) -> bool:
    """Whether the stored snapshot is up to date for that many shards."""
    if state.num_shards != num_shards:
        return False
    return stored is Stored.SAME or (stored is Stored.NONE and not num_shards)


def choose_storage(num_shards: int, limits: SnapshotLimits) -> Storage:
    """Where to store a snapshot of that many shards."""
    return Storage.INLINE if num_shards <= limits.inline_shards_max else Storage.EXTERNAL


def find_lowered(before: Sequence[MemWalState], landed: MemWalState) -> dict[ShardId, int]:
    """Progress that a refresh lowered: for each such shard, what its progress has to be.

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


# ---- what is reported


class SnapshotTableReport(TableReport):
    """One table of a snapshot refresh. `storage` is None where there is no snapshot.

    `columns` are the types of its columns, by their names.
    """

    columns: dict[str, str] = {}
    num_shards: int | None = None
    storage: str | None = None
    repairs: int = 0
    reason: str | None = None
    warnings: tuple[str, ...] = ()

    SUMMARISED: ClassVar = ("num_shards", "repairs")
