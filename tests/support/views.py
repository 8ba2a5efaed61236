"""Views of tables that are not there, for what only plans: each fact that a test names is given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memwal.jobs.merge.plan import FoldFacts
from memwal.model import (
    FlushedGeneration,
    IndexEntry,
    MemWalState,
    ShardId,
    ShardManifest,
    ShardView,
    TableView,
    VersionManifest,
)

FACTS = FoldFacts(
    generations=1,
    live_rows=10,
    tombstones=0,
    anchored=True,
    anchored_in_base=False,
    key_types=("int64",),
)
"""A fold whose commit is guarded, and cheaper with the index."""


def make_generation(
    number: int, in_memory_bytes: int | None = None, physical_rows: int | None = None
) -> FlushedGeneration:
    return FlushedGeneration(
        generation=number,
        path=f"0a1b2c3d_gen_{number}",
        in_memory_bytes=in_memory_bytes,
        physical_rows=physical_rows,
    )


def make_manifest(
    shard_id: ShardId, listed: Iterable[FlushedGeneration | int] = (), **facts: Any
) -> ShardManifest:
    """It flushes the generation after the last of those it lists."""
    generations = tuple(make_generation(g) if isinstance(g, int) else g for g in listed)
    last = max((g.generation for g in generations), default=0)
    given = {"version": 9, "writer_epoch": 1, "current_generation": last + 1, **facts}
    return ShardManifest(shard_id=shard_id, flushed_generations=generations, **given)


def make_shard(
    shard_id: ShardId,
    listed: Iterable[FlushedGeneration | int] = (),
    *,
    merged: int = 0,
    **facts: Any,
) -> ShardView:
    """`facts` are the manifest's."""
    return ShardView(manifest=make_manifest(shard_id, listed, **facts), merged_generation=merged)


def make_state(**facts: Any) -> MemWalState:
    nothing = {"index_uuid": "made", "created_at_millis": None, "merged": {}, "index_catchup": {}}
    return MemWalState(**{**nothing, **facts})


def make_indexes(*names: str) -> tuple[IndexEntry, ...]:
    return tuple(
        IndexEntry(
            uuid=name, name=name, field_ids=(0,), type_url="", dataset_version=1,
            created_at_millis=None,
        )
        for name in names
    )  # fmt: skip


def make_version(state: MemWalState | None, *indexes: str, version: int = 1) -> VersionManifest:
    return VersionManifest(
        version=version, timestamp_nanos=0, mem_wal=state, indexes=make_indexes(*indexes)
    )


def make_view(*shards: ShardView, state: MemWalState | None = None, **facts: Any) -> TableView:
    """A table whose progress is that of its shards, unless its `state` is given."""
    if state is None:
        state = make_state(merged={s.shard_id: s.merged_generation for s in shards})
    version = facts.get("version", 1)
    given = {
        "uri": "memory://t",
        "version": version,
        "primary_key": ("k",),
        "columns": (),
        "rows": 100,
        "manifest": make_version(state, version=version),
        **facts,
    }
    return TableView(mem_wal=state, shards=shards, **given)
