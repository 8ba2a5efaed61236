"""Types by name, and shard values as bytes. Pure."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import pyarrow as pa

from memwal.errors import Unsupported

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
