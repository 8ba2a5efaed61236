"""What a shard spec says, checked. Pure.

`ShardSpec` in the model is what storage holds, unchecked. `read_spec` makes sense of it, or says
why it has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from memwal.errors import Unsupported
from memwal.model import ColumnInfo, ShardField, ShardSpec
from memwal.sharding.values import parse_type

_I32_MAX = 2**31 - 1


class Transform(StrEnum):
    """The transforms that pylance has: two of the spec's, and `unsharded`."""

    IDENTITY = "identity"
    BUCKET = "bucket"
    UNSHARDED = "unsharded"


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecField:
    """One shard field, understood. `result_type` None is the type of the source column.

    `column` is a name that goes before the source id, as pylance's parameter `column` does.
    """

    field_id: str
    transform: Transform
    source_id: int | None = None
    result_type: pa.DataType | None = None
    num_buckets: int = 0
    column: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """A shard spec, understood."""

    spec_id: int
    fields: tuple[SpecField, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A column of the table that a spec may name by `field_id`; `path` leads to it."""

    field_id: int
    path: tuple[str, ...]
    type: pa.DataType

    @property
    def name(self) -> str:
        """The path with dots, as messages show it."""
        return ".".join(self.path)


Sources = Mapping[int, Source]


def sources_of(columns: Sequence[ColumnInfo], schema: pa.Schema) -> dict[int, Source]:
    """Every column, struct members included, by field id. `schema` gives the Arrow types."""
    found: dict[int, Source] = {}

    def visit(column: ColumnInfo, kind: pa.DataType, path: tuple[str, ...]) -> None:
        found[column.field_id] = Source(field_id=column.field_id, path=path, type=kind)
        if pa.types.is_struct(kind):
            for child in column.children:
                visit(child, kind.field(child.name).type, (*path, child.name))

    for column in columns:
        visit(column, schema.field(column.name).type, (column.name,))
    return found


def find_source(field: SpecField, sources: Sources) -> Source | None:
    """The column that a field is computed from; None if it has none, or it was removed."""
    if field.column:
        return next((s for s in sources.values() if s.name == field.column), None)
    return None if field.source_id is None else sources.get(field.source_id)


# ---- specs


def read_spec(spec: ShardSpec) -> Spec:
    """The spec, understood. Raises Unsupported with the field that can't be, and why."""
    if spec.spec_id < 1:
        raise Unsupported("MW-S06", f"shard spec id {spec.spec_id} is not positive")
    if not spec.fields:
        raise Unsupported("MW-S06", f"shard spec {spec.spec_id} has no fields")
    names = [field.field_id for field in spec.fields]
    for name in names:
        if not name or names.count(name) > 1:
            raise Unsupported(
                "MW-S06", f"shard spec {spec.spec_id}: field id {name!r} is empty or twice"
            )
    return Spec(
        spec_id=spec.spec_id, fields=tuple(_read_field(spec, field) for field in spec.fields)
    )


def _read_field(spec: ShardSpec, field: ShardField) -> SpecField:
    where = f"shard spec {spec.spec_id}, field {field.field_id!r}"
    transform = _read_transform(field, where)
    column = field.parameters.get("column", "").strip() and field.parameters["column"]
    count = len(field.source_ids) or (1 if column else 0)
    if count != (transform is not Transform.UNSHARDED):
        raise Unsupported("MW-S06", f"{where}: {transform} does not take {count} source columns")
    return SpecField(
        field_id=field.field_id,
        transform=transform,
        source_id=next(iter(field.source_ids), None),
        result_type=_read_result_type(field, transform, where),
        num_buckets=_read_buckets(field, where) if transform is Transform.BUCKET else 0,
        column="" if transform is Transform.UNSHARDED else column,
    )


def _read_transform(field: ShardField, where: str) -> Transform:
    try:
        return Transform(field.transform or "")
    except ValueError:
        said = field.expression if field.transform is None else field.transform
        raise Unsupported(
            "MW-S06", f"{where}: pylance has no {said!r}, only {', '.join(Transform)}"
        ) from None


def _read_buckets(field: ShardField, where: str) -> int:
    text = field.parameters.get("num_buckets")
    if text is None or not re.fullmatch(r"\+?[0-9]{1,19}", text):
        raise Unsupported("MW-S06", f"{where}: num_buckets is {text!r} instead of a whole number")
    if not 1 <= int(text) <= _I32_MAX:
        raise Unsupported("MW-S06", f"{where}: num_buckets {text} is not within 1 and {_I32_MAX}")
    return int(text)


def _read_result_type(field: ShardField, transform: Transform, where: str) -> pa.DataType | None:
    said = parse_type(field.result_type, where) if field.result_type else None
    if transform is Transform.IDENTITY:
        return said
    if said not in (None, pa.int32()):
        raise Unsupported("MW-S06", f"{where}: {transform} gives int32, the spec says {said}")
    return pa.int32()
