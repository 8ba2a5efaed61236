"""Keys that a caller gives, checked against the table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa

from memwal.errors import Usage

Key = Mapping[str, object]

_HEX = re.compile(r"0x((?:[0-9a-fA-F]{2})*)")
_BOOLEANS = {"true": True, "false": False}


def check_keys(
    key: Key | Sequence[Key], primary_key: Sequence[str], schema: pa.Schema
) -> tuple[tuple[object, ...], ...]:
    """One key or several, each as its values in the order of the key columns. Raises Usage."""
    keys = [key] if isinstance(key, Mapping) else key
    return tuple(_check_key(one, primary_key, schema) for one in keys)


def _check_key(key: Key, primary_key: Sequence[str], schema: pa.Schema) -> tuple[object, ...]:
    if set(key) != set(primary_key):
        expected = ", ".join(primary_key) or "none: the table has no primary key"
        raise Usage(f"a key names the key columns ({expected}), not {', '.join(map(str, key))}")
    return tuple(_convert(key[name], name, schema.field(name).type) for name in primary_key)


def _convert(value: object, name: str, kind: pa.DataType) -> object:
    try:
        found: object = pa.scalar(value, kind).as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Usage(f"{value!r} is no value of the key column {name!r} ({kind}): {error}") from None
    if found is None:
        raise Usage(f"the key column {name!r} is never NULL")
    return found


def parse_keys(texts: Sequence[str], schema: pa.Schema) -> dict[str, object]:
    """`COLUMN=VALUE` texts as one key: numbers, true or false, 0x… for bytes. Raises Usage."""
    key: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in schema.names:
            raise Usage(f"--key {text!r}: expected COLUMN=VALUE with one of the key's columns")
        if name in key:
            raise Usage(f"--key {name!r} is given twice")
        key[name] = _parse_value(text, value, schema.field(name).type)
    return key


def _parse_value(text: str, value: str, kind: pa.DataType) -> object:
    if pa.types.is_integer(kind):
        try:
            return int(value)
        except ValueError:
            raise Usage(f"--key {text!r}: expected a whole number") from None
    if pa.types.is_boolean(kind):
        if value.lower() not in _BOOLEANS:
            raise Usage(f"--key {text!r}: expected true or false")
        return _BOOLEANS[value.lower()]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        match = _HEX.fullmatch(value)
        if match is None:
            raise Usage(f"--key {text!r}: expected bytes as 0x and hexadecimal digits")
        return bytes.fromhex(match[1])
    return value
