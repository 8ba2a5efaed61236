"""Texts as the values of a column, as CSV has them. Pure.

Nested columns are JSON, as `memwal read --output rows.csv` writes them; durations are seconds.
Bytes are hexadecimal after 0x if every value of a batch is; otherwise they are taken as they are.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from memwal.rows.floats import read_floats, read_number
from memwal.rows.json_values import from_json, read_utc
from memwal.rows.pairs import Lenience, find_kind, is_bytes, is_nested, is_text

_HEX = re.compile(rb"0x(?:[0-9a-fA-F]{2})*")


def parse_texts(texts: pa.Array, kind: pa.DataType, lenience: Lenience) -> pa.Array:
    """Texts, or bytes, as values. Raises ValueError for an invalid one."""
    if is_bytes(kind):
        return _parse_bytes(texts.cast(pa.binary()).to_pylist()).cast(kind)
    texts = texts.cast(pa.string())
    if isinstance(kind, pa.BaseExtensionType):
        stored = parse_texts(texts, kind.storage_type, lenience)
        return pa.ExtensionArray.from_storage(kind, stored)
    if pa.types.is_dictionary(kind):
        return parse_texts(texts, kind.value_type, lenience).cast(kind)
    if is_text(kind):
        return texts.cast(kind)
    if is_nested(kind):
        return from_json([_parse_json(t, kind) for t in texts.to_pylist()], kind, lenience)
    if pa.types.is_duration(kind):
        return from_json(texts.to_pylist(), kind)
    if find_kind(kind) in ("int", "float", "decimal"):  # as Arrow's CSV reader does
        texts = pc.ascii_trim_whitespace(texts)
    if pa.types.is_floating(kind):
        rounds = "round" in lenience.conversions
        return read_floats(texts, kind, rounds=rounds)
    if pa.types.is_integer(kind):
        wrong = pc.index(pc.match_substring(texts, "x", ignore_case=True), True).as_py()
        if wrong >= 0:
            raise ValueError(f"{texts[wrong].as_py()!r} is no {kind}")
        return texts.cast(kind)
    if pa.types.is_time(kind):
        return from_json(texts.to_pylist(), kind)
    if pa.types.is_timestamp(kind) and "utc" in lenience.conversions:
        return read_utc(texts, kind)
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
        return json.loads(text, parse_float=read_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text[:80]!r} is no JSON, as {kind} needs: {error}") from None
