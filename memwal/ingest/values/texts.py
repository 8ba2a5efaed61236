"""Parses text as values of a table's types: fields of CSV, and the values of `--default`.

Nested columns are JSON, as `memwal read --output rows.csv` writes them; durations are seconds.
Bytes are hexadecimal after 0x if every value of a batch is; otherwise they are taken as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from memwal.rows.json_values import Lenience, from_json, is_bytes

_HEX = re.compile(rb"0x(?:[0-9a-f]{2})*")


def find_csv_types(types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The types to ask Arrow's CSV reader for: text or bytes for types that it can't read."""
    return {name: _find_csv_type(kind) for name, kind in types.items()}


def _find_csv_type(kind: pa.DataType) -> pa.DataType:
    if is_bytes(kind):
        return pa.binary()
    tests = (
        pa.types.is_nested,
        pa.types.is_duration,
        pa.types.is_float16,
        pa.types.is_decimal256,
        pa.types.is_dictionary,
    )
    return pa.string() if any(test(kind) for test in tests) else kind


def parse_columns(
    batch: pa.RecordBatch, types: Mapping[str, pa.DataType], lenience: Lenience
) -> pa.RecordBatch:
    """The batch with its text columns parsed. Raises ValueError, which names the column."""
    arrays = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = types.get(name, column.type)
        if is_bytes(kind) or _find_csv_type(kind) != kind:
            try:
                column = parse_texts(column, kind, lenience)
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}") from None
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def parse_texts(texts: pa.Array, kind: pa.DataType, lenience: Lenience) -> pa.Array:
    """Texts (bytes for a binary type) as values. Raises ValueError for an invalid one."""
    if is_bytes(kind):
        return _parse_bytes(texts.cast(pa.binary()).to_pylist()).cast(kind)
    if pa.types.is_nested(kind):
        return from_json([_parse_json(t, kind) for t in texts.to_pylist()], kind, lenience)
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        return from_json(texts.to_pylist(), kind)
    if pa.types.is_dictionary(kind):
        return parse_texts(texts, kind.value_type, lenience).cast(kind)
    return texts.cast(kind)


def _parse_bytes(values: list[bytes | None]) -> pa.Array:
    there = [value for value in values if value is not None]
    in_hex = sum(_HEX.fullmatch(value) is not None for value in there)
    if 0 < in_hex < len(there):
        raise ValueError("some bytes are in hexadecimal after 0x, and others are not")
    if not in_hex:
        return pa.array(values, pa.binary())
    return pa.array([v and bytes.fromhex(v[2:].decode()) for v in values], pa.binary())


def _parse_json(text: str | None, kind: pa.DataType) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text[:80]!r} is no JSON, as {kind} needs: {error}") from None
