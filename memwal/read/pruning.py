"""Which shards a read can leave out: its filter and keys, against the shards' recorded values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from memwal.model import ShardId, TableView
from memwal.read.plan.request import ReadRequest
from memwal.sharding.predicate import And, Comparison, Op, Or, Predicate, predicate_of
from memwal.sharding.pruning import prune
from memwal.sharding.spec import sources_of


def prune_shards(
    view: TableView, request: ReadRequest, read_schema: Callable[[], pa.Schema]
) -> dict[ShardId, str]:
    """Shards that hold no version of any row that can match, and why.

    `read_schema` gives the table's at the view's version. Shard fields over columns that are not in
    the key are not used: an older version of a row might match in the base, and nothing would hide
    it.
    """
    recorded = any(s.manifest.shard_spec_id and s.manifest.shard_field_entries for s in view.shards)
    if not recorded or (request.filter is None and request.keys is None):
        return {}
    schema = read_schema()
    parts: list[Predicate] = []
    if request.filter is not None:
        parts.append(predicate_of(request.filter, schema))
    if request.keys is not None:
        parts.append(_any_key(view.primary_key, request.keys, schema))
    found = prune(
        And(parts=tuple(parts)),
        [shard.manifest for shard in view.shards],
        view.mem_wal.shard_specs,
        sources_of(view.columns, schema),
        key=view.primary_key,
    )
    return {verdict.shard_id: verdict.reason for verdict in found if not verdict.can_match}


def _any_key(names: Sequence[str], keys: Sequence[Sequence[object]], schema: pa.Schema) -> Or:
    kinds = [schema.field(name).type for name in names]
    alternatives = []
    for key in keys:
        values = map(pa.scalar, key, kinds)
        equal = [
            Comparison(column=n, op=Op.EQ, value=v) for n, v in zip(names, values, strict=True)
        ]
        alternatives.append(And(parts=tuple(equal)))
    return Or(parts=tuple(alternatives))
