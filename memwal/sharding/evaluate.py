"""Rows -> shard values, as pylance computes them; keys -> shards that don't have them.

The spec and pylance 14 agree on `identity`, and on nothing else. A table's rows are where its
writers put them, and writers route by what pylance says, so pylance is asked. By its rule

- a bucket is `(hash & 0x7fffffff) % N`, not `abs(hash) % N`, and NULL is in bucket 0, not NULL;
- numbers of up to 32 bits hash as 4 bytes: a promoted column changes its buckets;
- after the last block of four bytes of a text, each byte is hashed as a block of its own;
- there is `unsharded`, which the spec does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import Unsupported, Usage
from memwal.model import ShardId, TableView
from memwal.sharding.spec import (
    Source,
    Sources,
    Spec,
    SpecField,
    Transform,
    decode_value,
    encode_value,
    find_source,
    is_bytes,
    is_text,
    read_spec,
    sources_of,
)


def compute_values(rows: pa.RecordBatch, spec: Spec, sources: Sources) -> pa.RecordBatch:
    """One column per shard field, named by its id, one row per row of `rows`.

    `rows` needs the source columns only. Raises Usage when one is missing, Unsupported for a source
    that the table does not have any more, or of a type that pylance refuses.
    """
    arrays = [_compute_field(field, rows, sources) for field in spec.fields]
    return pa.record_batch(arrays, names=[field.field_id for field in spec.fields])


def check_spec(spec: Spec, sources: Sources) -> None:
    """Check a spec that is about to be used for the first time. Raises Unsupported."""
    for field in spec.fields:
        source = _get_source(field, sources)
        if source is not None and field.transform is Transform.BUCKET:
            check_hashed(source.type)


def _compute_field(field: SpecField, rows: pa.RecordBatch, sources: Sources) -> pa.Array:
    source = _get_source(field, sources)
    if source is None:
        return pa.array(np.zeros(len(rows), dtype=np.int32))
    column = _pick_column(rows, source)
    if field.transform is Transform.IDENTITY:
        return column
    check_hashed(column.type)
    return _find_buckets(column, field.num_buckets)


def _get_source(field: SpecField, sources: Sources) -> Source | None:
    """The field's source; None for `unsharded`. Raises Unsupported if the column was removed."""
    if field.transform is Transform.UNSHARDED:
        return None
    source = find_source(field, sources)
    if source is None:
        raise Unsupported(
            "MW-S06", f"shard field {field.field_id!r} names a column that does not exist"
        )
    return source


def _pick_column(rows: pa.RecordBatch, source: Source) -> pa.Array:
    if source.path[0] not in rows.schema.names:
        raise Usage(f"the rows have no column {source.name!r}, which their shard depends on")
    column = rows.column(source.path[0])
    return pc.struct_field(column, list(source.path[1:])) if source.path[1:] else column


def check_hashed(kind: pa.DataType) -> None:
    """Raise Unsupported for a type that pylance does not take as a bucket column."""
    if not (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or kind in (pa.float32(), pa.float64(), pa.date32(), pa.string(), pa.large_string())
        or pa.types.is_time(kind)
        or pa.types.is_timestamp(kind)
    ):
        raise Unsupported("MW-S01", f"pylance refuses {kind} as a bucket column")


def _find_buckets(column: pa.Array, num_buckets: int) -> pa.Array:
    # Only here, since few reads need it.
    from lance.mem_wal import evaluate_sharding_spec
    from lance.schema import LanceSchema

    batch = pa.record_batch({"value": column})
    field = {
        "field_id": "bucket",
        "source_ids": [0],
        "transform": str(Transform.BUCKET),
        "expression": None,
        "result_type": "int32",
        "parameters": {"num_buckets": str(num_buckets)},
    }
    described = {"spec_id": 1, "fields": [field]}
    found = evaluate_sharding_spec(batch, described, LanceSchema.from_pyarrow(batch.schema))
    return found.column(0)


# ---- keys


def rule_out_shards(
    view: TableView, keys: Sequence[Sequence[object]], schema: pa.Schema
) -> dict[ShardId, str]:
    """Shards whose recorded values none of these keys has, and why.

    A shard is left out only on proof. pylance 14 records no values, so none of its own ever is.
    Fields over columns outside the primary key prove nothing: an older version of a row may be
    where another value of them led.
    """
    possible = _find_possible(view, keys, schema)
    found: dict[ShardId, str] = {}
    for manifest in (shard.manifest for shard in view.shards):
        names = Counter(name for name, _ in manifest.shard_field_entries)
        fields = possible.get(manifest.shard_spec_id, {})
        for name, data in manifest.shard_field_entries:
            # No bytes can be an empty text as well as NULL.
            if name in fields and names[name] == 1 and data and not _may_be(data, *fields[name]):
                found[manifest.shard_id] = f"its {name} is 0x{data.hex()}, which no key has"
    return found


def _may_be(data: bytes, kind: pa.DataType, values: Container[bytes | None]) -> bool:
    try:
        decode_value(data, kind)
    except Unsupported:
        return True  # written by a rule that is not known here, so it proves nothing
    return data in values


def _find_possible(
    view: TableView, keys: Sequence[Sequence[object]], schema: pa.Schema
) -> dict[int, dict[str, tuple[pa.DataType, set[bytes | None]]]]:
    """By spec and field, its type and the values that the keys have, where that can be told."""
    key = view.primary_key
    sources = sources_of(view.columns, schema)
    given = zip(*keys, strict=True)
    columns = [pa.array(v, schema.field(n).type) for n, v in zip(key, given, strict=False)]
    ids = Counter(spec.spec_id for spec in view.mem_wal.shard_specs)
    found: dict[int, dict[str, tuple[pa.DataType, set[bytes | None]]]] = {}
    for stored in view.mem_wal.shard_specs if columns else ():
        if ids[stored.spec_id] > 1:  # nothing says which of them a shard means
            continue
        try:
            rows = pa.record_batch(columns, names=list(key))
            spec = read_spec(stored)
            check_spec(spec, sources)  # what pylance can't route by was routed by another rule
            for f in spec.fields:
                if _is_of_key(f, key, sources):
                    made = _compute_field(f, rows, sources)
                    values = {encode_value(v) for v in made}
                    found.setdefault(stored.spec_id, {})[f.field_id] = made.type, values
        except Unsupported:
            continue
    return found


def _is_of_key(field: SpecField, key: Sequence[str], sources: Sources) -> bool:
    """Whether the key alone tells the field's value, in the type in which shards record it."""
    source = find_source(field, sources)
    if source is None or source.name not in key:
        return False
    both = (field.result_type or source.type, source.type)
    same = both[0] == both[1] or all(map(is_text, both)) or all(map(is_bytes, both))
    return same or field.transform is Transform.BUCKET
