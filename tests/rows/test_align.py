"""Lining up a generation's columns with the base's: by field id and name, never by one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memwal.errors import Refused
from memwal.model import ColumnInfo
from memwal.rows.align import Alignment, Rename, align
from memwal.rows.convert import Change


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


def sources(alignment: Alignment) -> list[tuple[str, str | None]]:
    return list(alignment.columns.items())


def test_the_same_schema_is_read_as_it_is() -> None:
    assert align([ID, V], [ID, V]) == Alignment(columns={"id": "id", "v": "v"})


def test_the_base_gives_the_order() -> None:
    assert sources(align([ID, V], [V, ID])) == [("id", "id"), ("v", "v")]


def test_an_added_column_is_null() -> None:
    alignment = align([ID, V, column(2, "x")], [ID, V])
    assert sources(alignment) == [("id", "id"), ("v", "v"), ("x", None)]
    assert alignment.sources == ("id", "v")


def test_an_added_column_that_may_not_be_null_is_refused() -> None:
    with pytest.raises(Refused, match="'x' was added"):
        align([ID, column(2, "x", nullable=False)], [ID])


def test_a_dropped_column_is_left_out() -> None:
    assert sources(align([ID], [ID, V])) == [("id", "id")]


def test_a_column_that_was_dropped_and_added_again_gets_no_old_values() -> None:
    assert sources(align([ID, column(7, "v", "string")], [ID, V])) == [("id", "id"), ("v", None)]


def test_the_tombstone_lends_its_id_to_nobody() -> None:
    # A generation gives `_tombstone` the next free id, and so does the base to its next column.
    base = [ID, V, column(2, "x", "bool")]
    assert sources(align(base, [ID, V, column(2, "_tombstone", "bool")]))[2] == ("x", None)


def test_the_tombstone_is_never_read_as_a_row_s_value() -> None:
    alignment = align([ID, V], [ID, V, column(2, "_tombstone", "bool", nullable=False)])
    assert "_tombstone" not in alignment.sources


def test_a_rename_is_read_by_id_and_waits_to_be_confirmed() -> None:
    alignment = align([ID, column(1, "w", "string")], [ID, V])
    assert sources(alignment) == [("id", "id"), ("w", "v")]
    assert alignment.renames == (Rename(field_id=1, before="v", after="w"),)


def test_two_columns_that_swapped_names_are_two_renames() -> None:
    base = [column(0, "b"), column(1, "a")]
    alignment = align(base, [column(0, "a"), column(1, "b")])
    assert sources(alignment) == [("b", "a"), ("a", "b")]
    assert len(alignment.renames) == 2


@pytest.mark.parametrize(
    ("before", "after"), [("int32", "int64"), ("string", "large_string"), ("int64", "string")]
)
def test_a_changed_type_is_refused(before: str, after: str) -> None:
    with pytest.raises(Refused) as refused:
        align([ID, column(1, "v", after)], [ID, column(1, "v", before)])
    for part in ("'v'", before, after):
        assert part in str(refused.value)


def test_members_match_by_id_and_name_as_columns_do() -> None:
    old = column(1, "s", "struct<a: int64>", column(2, "a"))
    again = column(1, "s", "struct<a: int64>", column(5, "a"))
    renamed = column(1, "s", "struct<b: int64>", column(2, "b"))
    gained = column(1, "s", "struct<b: int64, a: int64>", column(3, "b"), column(2, "a"))

    assert align([old], [old]) == Alignment(columns={"s": "s"})
    assert align([again], [old]).changes == {"s": Change(members=((None, None),))}
    assert align([gained], [old]).changes == {"s": Change(members=((None, None), (0, None)))}
    found = align([renamed], [old])
    assert found.renames == (Rename(field_id=2, before="a", after="b"),)
    assert found.changes == {"s": Change(members=((0, None),))}


def test_another_type_is_converted_where_the_column_says_that_it_had_it() -> None:
    old = column(1, "v", "int32")
    wide = replace(column(1, "v", "int64"), former_types=("int16", "int32"))
    assert align([wide], [old]).changes == {"v": Change()}
    assert align([wide], [column(1, "v", "int16")]).changes == {"v": Change()}
    for other in ("int8", "double"):
        with pytest.raises(Refused, match="'v' changed its type"):
            align([wide], [column(1, "v", other)])
    with pytest.raises(Refused, match="'v' changed its type"):  # narrower, whatever it says
        align([replace(column(1, "v", "int16"), former_types=("int32",))], [old])
    with pytest.raises(Refused, match="of the key"):
        align([wide], [old]).check_keys(["v"])


def test_a_default_is_for_what_is_missing_and_for_null() -> None:
    required = replace(column(2, "x", nullable=False), default="7")
    assert align([ID, required], [ID]) == Alignment(
        columns={"id": "id", "x": None}, defaults={"x": "7"}
    )
    found = align([ID, required], [ID, column(2, "x")])
    assert (found.columns["x"], found.drifted) == ("x", {"x"})


def test_becoming_nullable_is_no_change_of_type() -> None:
    assert sources(align([column(0, "id")], [ID])) == [("id", "id")]
