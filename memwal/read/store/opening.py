"""Opens what a plan names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

import lance
import pyarrow as pa

from memwal.model import FlushedGeneration, ShardId, TableView
from memwal.read.plan.sources import ReadPlan, ShardRead
from memwal.read.store.newest_rows import NewestRows
from memwal.read.store.policy_read import FoldedRows
from memwal.read.store.sources import Base, Kept, OpenRead, Part
from memwal.read.store.threads import choose_threads, map_in_order
from memwal.read.store.winners import OpenShard
from memwal.rows.align import Alignment
from memwal.store.tables.blobs import BlobReader, read_schema
from memwal.store.tables.datasets import columns_of
from memwal.store.tables.generations import Generations, Source
from memwal.store.tables.policy_rows import read_policy

# What an opened generation takes in memory, about.
_SOURCE_BYTES = 32 * 1024


def open_read(
    generations: Generations,
    view: TableView,
    plan: ReadPlan,
    unflushed: Mapping[ShardId, pa.Table],
    now_nanos: Callable[[], int],
    kept: Kept[Source] | None = None,
) -> OpenRead:
    """Open every table that the plan names, lined up with the view's columns.

    `unflushed` are rows newer than any generation of their shard: the base's columns and
    `_tombstone` (bool). `now_nanos` gives the instant at which rows expire. `kept` are generations
    that reads before this one opened through the same `generations`. Raises Missing for a
    generation that is gone, Refused for schema drift that would drop or mix up data, Usage for a
    filter that Lance refuses.
    """
    tables = generations.tables
    dataset = tables.base(plan.version)
    limited = tables.memory.bytes_max is not None
    base = Base.of(view, dataset, tables.batch_rows(plan.version) if limited else None)
    policy = read_policy(view, generations.tables.base)
    if policy is not None:
        return FoldedRows(policy, plan, generations, view, base, unflushed, now_nanos)
    schema = read_schema(base.dataset)
    listed = [(shard, g) for shard in plan.shards for g in shard.generations]
    parts: dict[ShardId, list[Part]] = {shard.shard_id: [] for shard in plan.shards}
    for shard_id, found in parts.items():
        if len(rows := unflushed.get(shard_id, ())):
            found.append(open_rows(view.uri, shard_id, rows, schema))
    opened = _find_generations(generations, view, listed, Kept() if kept is None else kept)
    for (shard, generation), source in zip(listed, opened, strict=True):
        part = Part.of(view.uri, shard.shard_id, generation, source, schema)
        parts[shard.shard_id].append(part)
    shards = tuple(OpenShard(read=s, parts=tuple(parts[s.shard_id])) for s in plan.shards)
    return NewestRows(plan, base, schema, shards)


def _find_generations(
    generations: Generations,
    view: TableView,
    listed: Sequence[tuple[ShardRead, FlushedGeneration]],
    kept: Kept[Source],
) -> list[Source]:
    """Those that are kept, and the others opened: a flushed generation is never written again."""
    if not listed:
        return []
    told = f"{view.columns} {generations.field_ids.find_given(view.version)}"
    columns = sha256(told.encode()).hexdigest()
    names = [
        f"{view.uri} {shard.shard_id} {one.path} {one.physical_rows} {columns} "
        f"{generations.stamp(shard.shard_id, one)}"
        for shard, one in listed
    ]
    found = {name: source for name in names if (source := kept.find(name)) is not None}
    missing = [(n, one) for n, one in zip(names, listed, strict=True) if n not in found]
    opening = map_in_order(
        lambda one: generations.open(view, one[1][0].shard_id, one[1][1]),
        missing,
        choose_threads(view.uri),
    )
    for (name, _), source in opening:
        found[name] = source
        if source.blobs.bounds is None:  # these are of one version
            kept.keep(name, source, _SOURCE_BYTES)
    return [found[name] for name in names]


def open_rows(uri: str, shard_id: ShardId, rows: pa.Table, schema: pa.Schema) -> Part:
    """Rows with the base's columns and `_tombstone`, as a generation that is in no store."""
    fields = [pa.field(f.name, f.type) for f in rows.schema]
    dataset = lance.write_dataset(rows.cast(pa.schema(fields)), "memory://")
    source = Source(
        dataset=dataset,
        blobs=BlobReader(where=shard_id, dataset=dataset, columns=frozenset()),
        columns=columns_of(dataset),
        alignment=Alignment(),
        batch_rows=8192,
    )
    where = f"{uri}: shard {shard_id}: unflushed rows"
    return Part(where=where, source=source, base_schema=schema, in_memory_bytes=rows.nbytes)
