"""Lining up a generation's columns with the base's: by field id and name, never by one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memwal.rows.convert import Change

from memwal.errors import Refused
from memwal.model import ColumnInfo
from memwal.rows.align import Alignment, Recast, Rename, align


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


def test_the_base_gives_the_order_and_decides_what_is_there() -> None:
    assert align([ID, V], [ID, V]) == Alignment(columns={"id": "id", "v": "v"})
    assert sources(align([column(0, "id"), V], [V, ID])) == [("id", "id"), ("v", "v")]
    added = align([ID, V, column(2, "x")], [ID, V])
    assert sources(added) == [("id", "id"), ("v", "v"), ("x", None)]
    assert added.sources == ("id", "v")
    assert sources(align([ID], [ID, V])) == [("id", "id")]
    with pytest.raises(Refused, match="'x' was added"):
        align([ID, column(2, "x", nullable=False)], [ID])


def test_a_column_that_was_dropped_and_added_again_gets_no_old_values() -> None:
    again = align([ID, column(7, "v", "string")], [ID, V])
    assert sources(again) == [("id", "id"), ("v", None)]
    assert sources(again.settle(lambda _: False, "entry", ["id"]))[1] == ("v", None)


def test_a_column_that_lance_has_cast_is_read_where_history_shows_it() -> None:
    cast = align([ID, column(7, "v", "large_string")], [ID, V])
    told = Recast(before=1, after=7, name="v", old="string", new="large_string")
    assert cast.recasts == (told,)
    settled = cast.settle(lambda one: one == told, "entry", ["id"])
    assert (sources(settled)[1], settled.changes) == (("v", "v"), {"v": Change()})
    with pytest.raises(Refused, match="'v' changed its type"):
        align([ID, column(7, "v", "int8")], [ID, V]).settle(lambda _: True, "entry", ["id"])
    # A rename that left its name to another column is no cast, and needs no walk.
    renamed = [ID, column(1, "w", "string"), column(7, "v", "string")]
    assert align(renamed, [ID, V]).recasts == ()
    required = align([ID, column(7, "v", "string", nullable=False)], [ID, V])
    with pytest.raises(Refused, match="'v' was added"):
        required.settle(lambda _: False, "entry", ["id"])


def test_the_tombstone_lends_its_id_to_nobody_and_is_no_row_s_value() -> None:
    # A generation gives `_tombstone` the next free id, and so does the base to its next column.
    base = [ID, V, column(2, "x", "bool")]
    tombstone = column(2, "_tombstone", "bool", nullable=False)
    assert sources(align(base, [ID, V, tombstone]))[2] == ("x", None)
    assert "_tombstone" not in align([ID, V], [ID, V, tombstone]).sources


def test_a_rename_is_read_by_id_and_waits_to_be_confirmed() -> None:
    alignment = align([ID, column(1, "w", "string")], [ID, V])
    assert sources(alignment) == [("id", "id"), ("w", "v")]
    assert alignment.renames == (Rename(field_id=1, before="v", after="w"),)


def test_two_columns_that_swapped_names_are_two_renames() -> None:
    alignment = align([column(0, "b"), column(1, "a")], [column(0, "a"), column(1, "b")])
    assert sources(alignment) == [("b", "a"), ("a", "b")]
    assert len(alignment.renames) == 2


@pytest.mark.parametrize(("before", "after"), [("int32", "int64"), ("int64", "string")])
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
        align([wide], [old]).settle(lambda _: True, "generation", ["v"])


def test_a_default_is_for_what_is_missing_and_for_null() -> None:
    required = replace(column(2, "x", nullable=False), default="7")
    assert align([ID, required], [ID]) == Alignment(
        columns={"id": "id", "x": None}, defaults={"x": "7"}
    )
    found = align([ID, required], [ID, column(2, "x")])
    assert (found.columns["x"], found.drifted) == ("x", {"x"})
    # Of a column that may be NULL again, somebody may have written NULL.
    assert align([replace(required, nullable=True)], [column(2, "x")]).defaults == {}
