"""Rows -> shard values. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import Refused, Unsupported, Usage
from memwal.sharding.encoding import (
    Hashed,
    plain_type,
    pylance_hash,
    spec_hash,
    spec_hash_multi,
)
from memwal.sharding.expression import (
    RuleHeld,
    check_expression,
    check_repeatable,
    expression_values,
)
from memwal.sharding.rules import Rule, rule_of
from memwal.sharding.spec import (
    TIME_PARTS,
    Source,
    Sources,
    Spec,
    SpecField,
    Transform,
    field_sources,
)
from memwal.sharding.values import is_text


def shard_values(
    rows: pa.RecordBatch, spec: Spec, sources: Sources, *, rule: Rule | None = None
) -> pa.RecordBatch:
    """One column per shard field, named by its id, one row per row of `rows`.

    `rows` needs the source columns only; a struct's member may also come as a column of its own,
    under its dotted name. Without `rule`, the table's own holds (`rule_of`). Raises Usage when a
    column is missing, Unsupported or Refused when a value can't be computed.
    """
    rule = rule or rule_of(spec, sources).rule
    arrays = [
        field_values(field, columns_of(rows, field_sources(field, sources)), len(rows), rule)
        for field in spec.fields
    ]
    return pa.record_batch(arrays, names=[field.field_id for field in spec.fields])


def columns_of(rows: pa.RecordBatch, sources: Sequence[Source | None]) -> list[pa.Array | None]:
    """The source columns; None where the schema has no such column any more."""
    return [None if source is None else _column(rows, source) for source in sources]


def _column(rows: pa.RecordBatch, source: Source) -> pa.Array:
    if source.name in rows.schema.names:
        return rows.column(source.name)
    if source.path[0] not in rows.schema.names:
        raise Usage(f"the rows have no column {source.name!r}, which their shard depends on")
    column = rows.column(source.path[0])
    return pc.struct_field(column, list(source.path[1:])) if source.path[1:] else column


def field_values(
    field: SpecField, columns: Sequence[pa.Array | None], rows: int, rule: Rule
) -> pa.Array:
    """One field's shard values. `columns` are its sources, None for a removed one (rule 4)."""
    match field.transform:
        case Transform.UNSHARDED:
            return pa.array(np.zeros(rows, dtype=np.int32))
        case Transform.EXPRESSION:
            return expression_values(
                str(field.expression), columns, rows, field.result_type or pa.null()
            )
        case Transform.MULTI_BUCKET:
            return _multi_bucket(columns, rows, field.num_buckets)
    column = columns[0]
    if column is None:
        return pa.nulls(rows, field.result_type or pa.null())
    match field.transform:
        case Transform.IDENTITY:
            return column if rule is Rule.PYLANCE else _as_said(column, field)
        case Transform.BUCKET if rule is Rule.PYLANCE:
            return pylance_bucket(pylance_hash(column), field.num_buckets)
        case Transform.BUCKET:
            return spec_bucket(spec_hash(column), field.num_buckets)
        case Transform.TRUNCATE:
            return _as_said(_truncated(column, field), field)
        case _:
            return _time_part(column, field)


def spec_bucket(hashed: Hashed, buckets: int) -> pa.Array:
    """`abs(h) % N`, NULL for NULL. In 64 bits: the smallest 32-bit number has no absolute there."""
    numbers = np.abs(hashed.hashes.astype(np.int64)) % buckets
    return pa.array(numbers.astype(np.int32), mask=hashed.nulls)


def pylance_bucket(hashed: Hashed, buckets: int) -> pa.Array:
    """`(h & 0x7fffffff) % N`, bucket 0 for NULL."""
    numbers = (hashed.hashes & np.int32(2**31 - 1)) % np.int32(buckets)
    return pa.array(np.where(hashed.nulls, np.int32(0), numbers))


def _multi_bucket(columns: Sequence[pa.Array | None], rows: int, buckets: int) -> pa.Array:
    # A removed column is NULL, and NULL is left out of the hash.
    present = [column for column in columns if column is not None]
    if not present:
        return pa.nulls(rows, pa.int32())
    return spec_bucket(spec_hash_multi(present), buckets)


def check_source(field: SpecField, kind: pa.DataType) -> None:
    """Whether a transform takes a column of this type. Raises Unsupported when it does not."""
    kind = plain_type(kind)
    if field.transform in TIME_PARTS and not (
        pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    ):
        raise Unsupported(f"{field.transform} takes dates and timestamps, not {kind}")
    if field.transform is Transform.TRUNCATE and not (is_text(kind) or _is_number(kind)):
        raise Unsupported(f"truncate takes text and numbers, not {kind}")


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _time_part(column: pa.Array, field: SpecField) -> pa.Array:
    check_source(field, column.type)
    text = f"date_part('{field.transform}', col0)"
    return expression_values(text, [column], len(column), pa.int32())


def _truncated(column: pa.Array, field: SpecField) -> pa.Array:
    check_source(field, column.type)
    kind = plain_type(column.type)
    # Lance's planner widens the result of the subtraction; the spec says the type stays.
    text = f"left(col0, {field.width})" if is_text(kind) else f"col0 - (col0 % {field.width})"
    return expression_values(text, [column], len(column), kind)


def _as_said(column: pa.Array, field: SpecField) -> pa.Array:
    """In the spec's result type: a column may have been promoted since."""
    if field.result_type is None or field.result_type == column.type:
        return column
    try:
        return column.cast(field.result_type)
    except pa.ArrowException as error:
        raise Refused(
            f"shard field {field.field_id!r} is {field.result_type}, its column {column.type}:"
            f" {error}"
        ) from None


def check_routable(spec: Spec, sources: Sources) -> None:
    """Raise Refused for a spec by which a row may not go to the same shard every time.

    Expressions over columns that were removed are left to the rows themselves.
    """
    for field in spec.fields:
        found = field_sources(field, sources)
        kinds = tuple(source.type for source in found if source is not None)
        if field.transform is Transform.EXPRESSION and len(kinds) == len(found):
            check_repeatable(field, kinds)


def check_spec(spec: Spec, sources: Sources) -> dict[str, tuple[RuleHeld, ...]]:
    """Whether every field can be computed over these columns, and how its expression's rules hold.

    For a spec that is about to be used for the first time. Raises Usage for a column that does not
    exist, Unsupported for a type that a transform does not take, Refused for a broken rule.
    """
    held: dict[str, tuple[RuleHeld, ...]] = {}
    rule = rule_of(spec, sources).rule
    for field in spec.fields:
        found = field_sources(field, sources)
        kinds = [source.type for source in found if source is not None]
        if len(kinds) < len(found):
            raise Usage(f"shard field {field.field_id!r} names a column that does not exist")
        for kind in kinds:
            check_source(field, kind)
        if field.transform is Transform.EXPRESSION:
            held[field.field_id] = check_expression(field, kinds)
        else:
            empty: list[pa.Array | None] = [pa.nulls(1, kind) for kind in kinds]
            field_values(field, empty, 1, rule)
    return held
