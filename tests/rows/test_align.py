"""Lining up stored columns with the base's: by field id and name, never by one of them."""

from __future__ import annotations

import pytest

from memwal.errors import MemWalError
from memwal.model import ColumnInfo
from memwal.rows.align import align, check_entry


def column(
    field_id: int,
    name: str,
    type_text: str = "int64",
    *children: ColumnInfo,
    nullable: bool = True,
) -> ColumnInfo:
    return ColumnInfo(
        field_id=field_id, name=name, type_text=type_text, nullable=nullable, children=children
    )


ID = column(0, "id", nullable=False)
V = column(1, "v", "string")
X = column(2, "x")
# A generation gives `_tombstone` the next free id, and so does the base to its next column.
TOMBSTONE = column(2, "_tombstone", "bool", nullable=False)
S = column(1, "s", "struct<a: int64>", column(2, "a"))


@pytest.mark.parametrize(
    ("base", "stored", "lacking"),
    [
        ([ID, V], [ID, V], set()),
        ([ID, V], [V, ID], set()),
        ([ID, V, X], [ID, V], {"x"}),
        ([ID], [ID, V], set()),
        ([ID, V, column(2, "x", "bool")], [ID, V, TOMBSTONE], {"x"}),
        # Dropped and added again: a name brings no value back.
        ([ID, column(7, "v", "string")], [ID, V], {"v"}),
        ([S], [S], set()),
    ],
)
def test_columns_match_by_id_and_name(
    base: list[ColumnInfo], stored: list[ColumnInfo], lacking: set[str]
) -> None:
    found = align(base, stored, "generation")
    assert found.lacking == lacking
    assert found.stored(c.name for c in base) == [c.name for c in base if c.name not in lacking]


@pytest.mark.parametrize(
    ("base", "stored", "reused", "code"),
    [
        ([ID, column(1, "w", "string")], [ID, V], (), "MW-K06"),
        ([column(0, "b"), column(1, "a")], [column(0, "a"), column(1, "b")], (), "MW-K06"),
        ([ID, V, column(2, "x", nullable=False)], [ID, V], (), "MW-K07"),
        ([ID, column(1, "v", "large_string")], [ID, V], (), "MW-K08"),
        ([column(1, "s", "struct<a: int64>", column(5, "a"))], [S], (), "MW-K08"),
        ([column(1, "s", "struct<b: int64>", column(2, "b"))], [S], (), "MW-K08"),
        ([ID, V], [ID, V, column(9, "_row_created_at")], (), "MW-K11"),
        ([ID, V], [ID, V], {1}, "MW-K12"),
    ],
)
def test_what_nothing_tells_apart_is_refused(
    base: list[ColumnInfo], stored: list[ColumnInfo], reused: set[int], code: str
) -> None:
    with pytest.raises(MemWalError, match=code):
        align(base, stored, "generation", reused)


@pytest.mark.parametrize(
    ("fields", "reused", "code"),
    [
        ([(0, "id"), (1, "v")], (), None),
        ([(0, "id"), (9, "gone")], (), None),
        ([(None, "id"), (None, "w")], (), None),
        ([(0, "id"), (1, "w")], (), "MW-K06"),
        ([(1, "v")], {1}, "MW-K12"),
        ([(0, "id"), (9, "_row_created_at")], (), "MW-K11"),
    ],
)
def test_an_entry_is_checked_before_it_is_replayed(
    fields: list[tuple[int | None, str]], reused: set[int], code: str | None
) -> None:
    if code is None:
        check_entry(fields, [ID, V], "entry", reused)
    else:
        with pytest.raises(MemWalError, match=code):
            check_entry(fields, [ID, V], "entry", reused)
