from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import Refused
from memwal.ingest.values.operations import Kind, encode_columns, make_operations

changes = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ab"), st.booleans()), max_size=40)


def table(script: list[tuple[int, str, bool]]) -> pa.Table:
    return pa.table(
        {
            "k": pa.array([k for k, _, _ in script], pa.int64()),
            "l": pa.array([m for _, m, _ in script], pa.string()),
            "place": pa.array(range(len(script)), pa.int64()),
        }
    )


@given(changes, st.integers(1, 7))
def test_each_key_keeps_its_order_and_no_row_is_lost(script, rows_max) -> None:
    deleted = pa.array([gone for _, _, gone in script], pa.bool_())
    found = make_operations(table(script), deleted, ["k", "l"], rows_max=rows_max)
    assert all(1 <= len(operation) <= rows_max for operation in found)
    played: dict[tuple[int, str], list[int | None]] = {}
    for operation in found:
        for row in operation.rows.to_pylist():
            kept = operation.kind is Kind.PUT
            assert kept == ("place" in row)
            played.setdefault((row["k"], row["l"]), []).append(row.get("place"))
    wanted: dict[tuple[int, str], list[int | None]] = {}
    for place, (k, m, gone) in enumerate(script):
        wanted.setdefault((k, m), []).append(None if gone else place)
    assert played == wanted


def test_deletes_of_different_keys_share_one_call() -> None:
    rows = pa.table({"k": range(6), "v": range(6)})
    deleted = pa.array([True, False] * 3)
    found = make_operations(rows, deleted, ["k"], rows_max=100)
    assert [(o.kind, o.rows["k"].to_pylist()) for o in found] == [
        (Kind.PUT, [1, 3, 5]),
        (Kind.DELETE, [0, 2, 4]),
    ]
    assert found[1].rows.column_names == ["k"]


def test_what_can_not_be_deleted() -> None:
    rows = pa.table({"k": [1, None]})
    with pytest.raises(Refused, match="no primary key"):
        make_operations(rows, pa.array([True, False]), [], rows_max=9)
    with pytest.raises(Refused, match=r"primary key \(k\) is NULL"):
        make_operations(rows, pa.array([True, False]), ["k"], rows_max=9)


@given(st.lists(st.tuples(st.none() | st.integers(0, 3), st.none() | st.sampled_from("xy"))))
def test_codes_are_equal_where_rows_are(pairs) -> None:
    columns = [
        pa.array([a for a, _ in pairs], pa.int64()),
        pa.array([b for _, b in pairs], pa.string()),
    ]
    codes = encode_columns(columns).tolist()
    by_pair = dict(zip(pairs, codes, strict=True))
    assert codes == [by_pair[pair] for pair in pairs]
    assert len(set(codes)) == len(set(pairs))
