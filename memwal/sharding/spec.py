"""What a shard spec says, checked. Pure.

`ShardSpec` in the model is what storage holds, unchecked. `read_spec` makes sense of it, or says
why it has none; `spec_of` takes a plain description instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from memwal.errors import Unsupported, Usage
from memwal.model import ColumnInfo, ShardField, ShardSpec
from memwal.sharding.values import parse_type

_I32_MAX = 2**31 - 1
_I64_MAX = 2**63 - 1


class Transform(StrEnum):
    """The well-known transforms, `unsharded` (pylance only), and `expression` for custom ones."""

    IDENTITY = "identity"
    YEAR = "year"
    MONTH = "month"
    DAY = "day"
    HOUR = "hour"
    BUCKET = "bucket"
    MULTI_BUCKET = "multi_bucket"
    TRUNCATE = "truncate"
    UNSHARDED = "unsharded"
    EXPRESSION = "expression"


TIME_PARTS = frozenset({Transform.YEAR, Transform.MONTH, Transform.DAY, Transform.HOUR})
_SAME_AS_SOURCE = frozenset({Transform.IDENTITY, Transform.TRUNCATE})


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecField:
    """One shard field, understood. `result_type` None is the type of the source column.

    `column` is a name that goes before the source id, as pylance's parameter `column` does.
    """

    field_id: str
    transform: Transform
    source_ids: tuple[int, ...] = ()
    result_type: pa.DataType | None = None
    expression: str | None = None
    num_buckets: int = 0
    width: int = 0
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
        """The path with dots, as filters and messages show it."""
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


def field_sources(field: SpecField, sources: Sources) -> list[Source | None]:
    """The columns that a field is computed from, in order; None for one that was removed."""
    if field.column:
        return [next((s for s in sources.values() if s.name == field.column), None)]
    return [sources.get(field_id) for field_id in field.source_ids]


# ---- specs


def spec_of(description: Mapping[str, Any]) -> ShardSpec:
    """A spec from plain Python, in the shape of `mem_wal_index_details()["sharding_specs"][i]`.

    Numbers are taken where storage has text. Raises Usage for anything that `read_spec` would not
    understand, unknown words included.
    """
    _check_words(description, {"spec_id", "fields"}, "a shard spec")
    try:
        spec = ShardSpec(
            spec_id=int(description["spec_id"]),
            fields=tuple(_parse_field(field) for field in description["fields"]),
        )
        read_spec(spec)
    except KeyError as error:
        raise Usage(f"a shard spec needs {error.args[0]!r}") from None
    except (TypeError, ValueError) as error:
        raise Usage(f"not a shard spec: {error}") from None
    except Unsupported as error:
        raise Usage(error.text) from None
    return spec


_FIELD_WORDS = set(ShardField.__dataclass_fields__)


def _parse_field(description: Mapping[str, Any]) -> ShardField:
    _check_words(description, _FIELD_WORDS, "a shard field")
    return ShardField(
        field_id=str(description["field_id"]),
        source_ids=tuple(int(number) for number in description.get("source_ids", ())),
        transform=description.get("transform"),
        expression=description.get("expression"),
        result_type=description.get("result_type") or "",
        parameters={k: str(v) for k, v in (description.get("parameters") or {}).items()},
    )


def _check_words(description: Mapping[str, Any], words: set[str], what: str) -> None:
    unknown = sorted(set(description) - words)
    if unknown:
        raise Usage(f"{what} has no {unknown[0]!r}, only {', '.join(sorted(words))}")


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
    column = field.parameters.get("column", "")
    column = column if column.strip() else ""
    count = len(field.source_ids) or (1 if column else 0)
    several = transform in (Transform.MULTI_BUCKET, Transform.EXPRESSION)
    wanted = 0 if transform is Transform.UNSHARDED else 1
    if count < wanted or (count > wanted and not several):
        raise Unsupported("MW-S06", f"{where}: {transform} does not take {count} source columns")
    hashing = transform in (Transform.BUCKET, Transform.MULTI_BUCKET)
    return SpecField(
        field_id=field.field_id,
        transform=transform,
        source_ids=field.source_ids,
        result_type=_read_result_type(field, transform, where),
        expression=field.expression if transform is Transform.EXPRESSION else None,
        num_buckets=_read_positive(field, "num_buckets", _I32_MAX, where) if hashing else 0,
        width=(
            _read_positive(field, "width", _I64_MAX, where)
            if transform is Transform.TRUNCATE
            else 0
        ),
        column=column if transform in (Transform.BUCKET, Transform.IDENTITY) else "",
    )


def _read_transform(field: ShardField, where: str) -> Transform:
    if (field.transform is None) == (field.expression is None):
        raise Unsupported("MW-S06", f"{where}: needs a transform or an expression, and not both")
    if field.transform is None:
        return Transform.EXPRESSION
    known = [t for t in Transform if t is not Transform.EXPRESSION]
    if field.transform not in known:
        raise Unsupported(
            "MW-S06",
            f"{where}: unknown transform {field.transform!r}, expected one of {', '.join(known)}",
        )
    return Transform(field.transform)


def _read_positive(field: ShardField, name: str, largest: int, where: str) -> int:
    text = field.parameters.get(name)
    if text is None or not re.fullmatch(r"\+?[0-9]{1,19}", text):
        raise Unsupported("MW-S06", f"{where}: {name} is {text!r} instead of a whole number")
    if not 1 <= int(text) <= largest:
        raise Unsupported("MW-S06", f"{where}: {name} {text} is not within 1 and {largest}")
    return int(text)


def _read_result_type(field: ShardField, transform: Transform, where: str) -> pa.DataType | None:
    said = parse_type(field.result_type, where) if field.result_type else None
    if transform is Transform.EXPRESSION:
        if said is None:
            raise Unsupported("MW-S06", f"{where}: an expression needs a result type")
        return said
    if transform in _SAME_AS_SOURCE:
        return said
    if said not in (None, pa.int32()):
        raise Unsupported("MW-S06", f"{where}: {transform} gives int32, the spec says {said}")
    return pa.int32()
