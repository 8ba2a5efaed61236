"""Digests tell rows by their values only."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from memwal.ingest.progress.identity import digest_each, sum_digests

COLUMNS = {
    "integers": pa.array([1, None, 3, 4], pa.int32()),
    "booleans": pa.array([True, None, False, True]),
    "texts": pa.array(["a", None, "", "ccc"]),
    "lists": pa.array([[1], None, [], [2, None]], pa.list_(pa.int64())),
    "vectors": pa.array([[1.0, 2.0], None, [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
    "structs": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}, {"x": 3, "y": None}]),
    "maps": pa.array([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int64())),
    "decimals": pa.array([Decimal("1.5"), None, Decimal(2), Decimal(3)], pa.decimal128(10, 2)),
    "times": pa.array([1, None, 3, 4], pa.timestamp("us", "UTC")),
    "nulls": pa.nulls(4),
    "bytes": pa.array([b"ab", None, b"cd", b"ef"], pa.binary(2)),
    "words": pa.array(["x", None, "y", "x"]).dictionary_encode(),
    "nested": pa.array([[{"x": 1}], None, [], [{"x": None}, None]]),
}


def test_rows_in_any_order_and_parts_have_one_digest() -> None:
    rows = pa.table(COLUMNS)
    whole = digest_each(rows)
    parts = [pa.concat_tables([rows.slice(n, 1)]) for n in (2, 0, 3, 1)]
    assert digest_each(pa.concat_tables(parts)) == whole
    assert sum_digests(digest_each(part.combine_chunks()) for part in parts) == whole
    assert digest_each(rows.append_column("new", pa.nulls(4, pa.int64()))) == whole


@pytest.mark.parametrize("name", sorted(COLUMNS.keys() - {"nulls"}))
def test_rows_that_differ_in_one_value_have_other_digests(name: str) -> None:
    rows = pa.table({"id": range(4), name: COLUMNS[name]})
    swapped = pa.table({"id": range(4), name: COLUMNS[name].take(pa.array([2, 1, 0, 3]))})
    assert digest_each(rows) != digest_each(swapped)
