"""Rows -> shard values, by the rule that holds for the table. Pure.

The spec and pylance 14 agree on `identity`, and on nothing else. A table's rows are where its
writers put them, so pylance's values are the right ones for a spec that pylance can evaluate: its
writers' routers call `lance.mem_wal.evaluate_sharding_spec`. By pylance's rule

- a bucket is `(hash & 0x7fffffff) % N`, not `abs(hash) % N`, and NULL is in bucket 0, not NULL;
- numbers of up to 32 bits hash as 4 bytes: a promoted column changes its buckets (rule 3);
- after the last block of four bytes of a text, each byte is hashed as a block of its own;
- there is `unsharded`, which the spec does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import Refused, Unsupported, Usage
from memwal.sharding.encoding import (
    Hashed,
    hash_by_pylance,
    hash_by_spec,
    hash_several_by_spec,
    is_hashed_by_pylance,
    unwrap_type,
)
from memwal.sharding.expression import check_expression, check_repeatable, compute_expression
from memwal.sharding.spec import (
    TIME_PARTS,
    Source,
    Sources,
    Spec,
    SpecField,
    Transform,
    field_sources,
)
from memwal.sharding.values import is_number, is_text

_EVALUATED = frozenset({Transform.IDENTITY, Transform.BUCKET, Transform.UNSHARDED})


class Rule(StrEnum):
    """Whose definition of the transforms holds."""

    SPEC = "spec"
    PYLANCE = "pylance"


def rule_of(spec: Spec, sources: Sources) -> Rule:
    """The rule that a table with this spec is routed by: pylance's where it takes every field."""
    by_pylance = all(_pylance_evaluates(field, sources) for field in spec.fields)
    return Rule.PYLANCE if by_pylance else Rule.SPEC


def _pylance_evaluates(field: SpecField, sources: Sources) -> bool:
    hashed = field.transform is Transform.BUCKET
    return field.transform in _EVALUATED and all(
        source is not None and (not hashed or is_hashed_by_pylance(source.type))
        for source in field_sources(field, sources)
    )


def compute_values(
    rows: pa.RecordBatch, spec: Spec, sources: Sources, *, rule: Rule | None = None
) -> pa.RecordBatch:
    """One column per shard field, named by its id, one row per row of `rows`.

    `rows` needs the source columns only; a struct's member may also come as a column of its own,
    under its dotted name. Without `rule`, the table's own holds (`rule_of`). Raises Usage when a
    column is missing, Unsupported or Refused when a value can't be computed.
    """
    rule = rule or rule_of(spec, sources)
    arrays = []
    for field in spec.fields:
        columns = [_pick_column(rows, source) for source in field_sources(field, sources)]
        arrays.append(compute_field(field, columns, len(rows), rule))
    return pa.record_batch(arrays, names=[field.field_id for field in spec.fields])


def _pick_column(rows: pa.RecordBatch, source: Source | None) -> pa.Array | None:
    """The source column; None where the schema has no such column any more."""
    if source is None:
        return None
    if source.name in rows.schema.names:
        return rows.column(source.name)
    if source.path[0] not in rows.schema.names:
        raise Usage(f"the rows have no column {source.name!r}, which their shard depends on")
    column = rows.column(source.path[0])
    return pc.struct_field(column, list(source.path[1:])) if source.path[1:] else column


def compute_field(
    field: SpecField, columns: Sequence[pa.Array | None], rows: int, rule: Rule
) -> pa.Array:
    """One field's shard values. `columns` are its sources, None for a removed one (rule 4)."""
    result_type = field.result_type or pa.null()
    match field.transform:
        case Transform.UNSHARDED:
            return pa.array(np.zeros(rows, dtype=np.int32))
        case Transform.EXPRESSION:
            return compute_expression(str(field.expression), columns, rows, result_type)
        case Transform.MULTI_BUCKET:
            # A removed column is NULL, and NULL is left out of the hash.
            present = [column for column in columns if column is not None]
            if present:
                return _bucket_by_spec(hash_several_by_spec(present), field.num_buckets)
            return pa.nulls(rows, result_type)
    column = columns[0]
    if column is None:
        return pa.nulls(rows, result_type)
    match field.transform:
        case Transform.IDENTITY:
            return column if rule is Rule.PYLANCE else _as_recorded(column, field)
        case Transform.BUCKET if rule is Rule.PYLANCE:
            return _bucket_by_pylance(hash_by_pylance(column), field.num_buckets)
        case Transform.BUCKET:
            return _bucket_by_spec(hash_by_spec(column), field.num_buckets)
        case Transform.TRUNCATE:
            return _as_recorded(_truncate(column, field), field)
        case _:
            return _compute_time_part(column, field)


def _bucket_by_spec(hashed: Hashed, buckets: int) -> pa.Array:
    """`abs(h) % N`, NULL for NULL. In 64 bits: the smallest 32-bit number has no absolute there."""
    numbers = np.abs(hashed.hashes.astype(np.int64)) % buckets
    return pa.array(numbers.astype(np.int32), mask=hashed.nulls)


def _bucket_by_pylance(hashed: Hashed, buckets: int) -> pa.Array:
    """`(h & 0x7fffffff) % N`, bucket 0 for NULL."""
    numbers = (hashed.hashes & np.int32(2**31 - 1)) % np.int32(buckets)
    return pa.array(np.where(hashed.nulls, np.int32(0), numbers))


def _check_source(field: SpecField, kind: pa.DataType) -> None:
    """Raise Unsupported unless the field's transform takes a column of this type."""
    kind = unwrap_type(kind)
    if field.transform in TIME_PARTS and not (
        pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    ):
        raise Unsupported("MW-S01", f"{field.transform} takes dates and timestamps, not {kind}")
    if field.transform is Transform.TRUNCATE and not (is_text(kind) or is_number(kind)):
        raise Unsupported("MW-S01", f"truncate takes text and numbers, not {kind}")


def _compute_time_part(column: pa.Array, field: SpecField) -> pa.Array:
    _check_source(field, column.type)
    text = f"date_part('{field.transform}', col0)"
    return compute_expression(text, [column], len(column), pa.int32())


def _truncate(column: pa.Array, field: SpecField) -> pa.Array:
    _check_source(field, column.type)
    kind = unwrap_type(column.type)
    # Lance's planner widens the result of the subtraction; the spec says the type stays.
    text = f"left(col0, {field.width})" if is_text(kind) else f"col0 - (col0 % {field.width})"
    return compute_expression(text, [column], len(column), kind)


def _as_recorded(column: pa.Array, field: SpecField) -> pa.Array:
    """The column in the spec's result type: it may have been promoted since the spec was made."""
    if field.result_type is None or field.result_type == column.type:
        return column
    try:
        return column.cast(field.result_type)
    except pa.ArrowException as error:
        raise Refused(
            "MW-S03",
            f"shard field {field.field_id!r} is {field.result_type}, its column "
            f"{column.type}: {error}",
        ) from None


def check_routable(spec: Spec, sources: Sources) -> None:
    """Raise Refused for a spec that may send a row to one shard now and to another one later.

    An expression over a column that was removed is not judged before there are rows.
    """
    for field in spec.fields:
        found = field_sources(field, sources)
        kinds = tuple(source.type for source in found if source is not None)
        if field.transform is Transform.EXPRESSION and len(kinds) == len(found):
            check_repeatable(field, kinds)


def check_spec(spec: Spec, sources: Sources) -> None:
    """Check a spec that is about to be used for the first time: can every field be computed?

    Raises Usage for a column that does not exist, Unsupported for a type that a transform does not
    take, Refused for an expression that breaks one of the six rules.
    """
    rule = rule_of(spec, sources)
    for field in spec.fields:
        found = field_sources(field, sources)
        kinds = [source.type for source in found if source is not None]
        if len(kinds) < len(found):
            raise Usage(f"shard field {field.field_id!r} names a column that does not exist")
        for kind in kinds:
            _check_source(field, kind)
        if field.transform is Transform.EXPRESSION:
            check_expression(field, kinds)
        else:
            compute_field(field, [pa.nulls(1, kind) for kind in kinds], 1, rule)
