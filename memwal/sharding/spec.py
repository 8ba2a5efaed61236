"""What a shard spec says, checked; types by name, and shard values as bytes. Pure.

`ShardSpec` in the model is what storage holds, unchecked. `read_spec` makes sense of it, or says
why it has none.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from memwal.errors import Unsupported
from memwal.model import ColumnInfo, ShardField, ShardSpec

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
    if field.transform and field.expression:
        raise Unsupported("MW-S06", f"{where}: it has a transform and an expression")
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


_NAMES = {
    "bool": pa.bool_(),
    "boolean": pa.bool_(),
    "utf8": pa.string(),
    "large_utf8": pa.large_string(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
}
_ALIASES = re.compile(
    r"u?int(8|16|32|64)|halffloat|float|double|(large_)?(string|binary)|(string|binary)_view"
    r"|date32(\[day\])?|date64(\[ms\])?|null"
)
_TIMESTAMP = re.compile(r"timestamp(?:\[(s|ms|us|ns)(?:, tz=(.+))?\]|:(s|ms|us|ns):(.+))")
_CLOCK = re.compile(r"(time32|time64|duration)(?:\[(s|ms|us|ns)\]|:(s|ms|us|ns))")
_DECIMAL = re.compile(r"decimal(128|256)\((\d+), ?(-?\d+)\)|decimal:(128|256):(\d+):(-?\d+)")
_FIXED = re.compile(r"fixed_size_binary(?:\[(\d+)\]|:(\d+))")


def parse_type(name: str, where: str) -> pa.DataType:
    """A type by the name that Arrow or Lance gives it. Raises Unsupported for an unknown one."""
    try:
        found = _parse_type(name.strip())
    except (ValueError, pa.ArrowException):
        found = None
    if found is None:
        raise Unsupported("MW-S06", f"{where}: unknown result type {name!r}")
    return found


def _parse_type(name: str) -> pa.DataType | None:
    if name in _NAMES:
        return _NAMES[name]
    if _ALIASES.fullmatch(name):
        return pa.type_for_alias(name)
    if match := _TIMESTAMP.fullmatch(name):
        unit, zone = match[1] or match[3], match[2] or match[4]
        return pa.timestamp(unit, None if zone == "-" else zone)
    if match := _CLOCK.fullmatch(name):
        makers: dict[str, Callable[[str], pa.DataType]] = {
            "time32": pa.time32,
            "time64": pa.time64,
            "duration": pa.duration,
        }
        return makers[match[1]](match[2] or match[3])
    if match := _DECIMAL.fullmatch(name):
        wide = (match[1] or match[4]) == "256"
        make = pa.decimal256 if wide else pa.decimal128
        return make(int(match[2] or match[5]), int(match[3] or match[6]))
    if match := _FIXED.fullmatch(name):
        return pa.binary(int(match[1] or match[2]))
    return None


def is_text(kind: pa.DataType) -> bool:
    """Whether the type holds text, in any of its layouts."""
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def is_bytes(kind: pa.DataType) -> bool:
    """Whether the type holds binary data of any length, in any of its layouts."""
    return kind in (pa.binary(), pa.large_binary(), pa.binary_view())


def encode_value(value: pa.Scalar) -> bytes | None:
    """A shard value as a manifest's `shard_field_entries` keep it: the Arrow value's own bytes.

    None for NULL, for which there are no bytes: such a field gets no entry.
    """
    if not value.is_valid:
        return None
    kind = value.type
    if is_text(kind):
        return str(value.as_py()).encode()
    if is_bytes(kind):
        return bytes(value.as_py())
    if pa.types.is_boolean(kind):
        return struct.pack("<?", value.as_py())
    return bytes(pa.array([value], kind).buffers()[1])[: _width_of(kind)]


def decode_value(data: bytes, kind: pa.DataType) -> pa.Scalar:
    """The shard value that an entry holds. Raises Unsupported when the bytes don't fit the type."""
    if is_text(kind):
        try:
            return pa.scalar(data.decode(), kind)
        except UnicodeDecodeError:
            raise Unsupported("MW-S07", f"a shard value of type {kind} is not UTF-8") from None
    if is_bytes(kind):
        return pa.scalar(data, kind)
    if pa.types.is_boolean(kind):
        if data not in (b"\0", b"\1"):
            raise Unsupported("MW-S07", f"a shard value of type {kind} is {data!r}")
        return pa.scalar(data == b"\1")
    width = _width_of(kind)
    if len(data) != width:
        raise Unsupported(
            "MW-S07", f"a shard value of type {kind} has {len(data)} bytes instead of {width}"
        )
    buffer = pa.py_buffer(data.ljust(8, b"\0"))
    return pa.Array.from_buffers(kind, 1, [None, buffer])[0]


def _width_of(kind: pa.DataType) -> int:
    """Bytes of a value of a fixed width."""
    fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    if not fixed and not pa.types.is_fixed_size_binary(kind):
        raise Unsupported("MW-S07", f"a shard value cannot have the type {kind}")
    return int(kind.bit_width) // 8
