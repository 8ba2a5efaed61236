"""Lining up a generation's columns with the base's: by field id and name, never by one of them."""

from __future__ import annotations

import pytest

from memwal.errors import Refused, Unsupported
from memwal.model import ColumnInfo
from memwal.rows import align as room
from memwal.rows.align import Alignment, Recast, Rename
from memwal.rows.widen import Conversion


def column(
    field_id: int,
    name: str,
    type_text: str = "int64",
    *children: ColumnInfo,
    nullable: bool = True,
    default: str | None = None,
) -> ColumnInfo:
    return ColumnInfo(
        field_id=field_id,
        name=name,
        type_text=type_text,
        nullable=nullable,
        children=children,
        default=default,
    )


class History:
    """Proves what it is told to, and remembers what it was asked."""

    def __init__(self, *proven: Rename | Recast) -> None:
        self.proven = proven
        self.asked: list[Rename | Recast] = []

    def __call__(self, change: Rename | Recast) -> bool:
        self.asked.append(change)
        return change in self.proven


def align(
    base: list[ColumnInfo],
    generation: list[ColumnInfo],
    history: History | None = None,
    keys: tuple[str, ...] = (),
) -> Alignment:
    return room.align(base, generation, history or History(), keys=keys)


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


def test_a_column_that_lance_has_cast_is_read_where_history_shows_it() -> None:
    cast = Recast(before=1, after=7, name="v")
    base = [ID, column(7, "v", "large_string")]
    alignment = align(base, [ID, V], History(cast))
    assert sources(alignment) == [("id", "id"), ("v", "v")]
    assert alignment.conversions == {"v": Conversion()}
    with pytest.raises(Refused) as refused:
        align([ID, column(7, "v", "int8")], [ID, V], History(cast))
    assert refused.value.code == "MW-K08"
    # A rename that left its name to another column is no cast, and needs no walk.
    history = History(Rename(field_id=1, before="v", after="w"))
    renamed = [ID, column(1, "w", "string"), column(7, "v", "string")]
    assert sources(align(renamed, [ID, V], history))[1:] == [("w", "v"), ("v", None)]
    assert history.asked == list(history.proven)


def test_below_a_cast_column_all_ids_are_new() -> None:
    old = column(1, "s", "struct<a: int32, b: string>", column(2, "a", "int32"), column(3, "b"))
    new = column(7, "s", "struct<a: int64, b: string>", column(8, "a", "int64"), column(9, "b"))
    alignment = align([new], [old], History(Recast(before=1, after=7, name="s")))
    assert alignment.conversions == {
        "s": Conversion(members=((0, Conversion()), (1, None)), default=None)
    }


def test_a_rename_is_read_by_id_once_it_is_proven() -> None:
    base = [ID, column(1, "w", "string")]
    alignment = align(base, [ID, V], History(Rename(field_id=1, before="v", after="w")))
    assert sources(alignment) == [("id", "id"), ("w", "v")]
    with pytest.raises(Refused) as refused:
        align(base, [ID, V])
    assert refused.value.code == "MW-K06"


def test_two_columns_that_swapped_names_are_two_renames() -> None:
    base = [column(0, "b"), column(1, "a")]
    renames = [
        Rename(field_id=0, before="a", after="b"),
        Rename(field_id=1, before="b", after="a"),
    ]
    history = History(*renames)
    alignment = align(base, [column(0, "a"), column(1, "b")], history)
    assert sources(alignment) == [("b", "a"), ("a", "b")]
    assert history.asked == renames


def test_a_column_with_a_name_of_lance_s_own_was_dropped_or_is_unknown() -> None:
    own = column(5, "_own")
    assert sources(align([ID], [ID, own], History(Rename(field_id=5, before="_own", after=None))))
    with pytest.raises(Unsupported):
        align([ID], [ID, own])


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        ("int64", "int32", "--widen v=int64"),
        ("large_string", "string", "--widen v=large_string"),
        ("int64", "string", "restored"),
        ("dictionary<values=string, indices=int32, ordered=0>", "string", "restored"),
        ("struct<a: int64>", "int64", "restored"),
        ("large_list<item: int8>", "list<item: int8>", "restored"),
        ("fixed_size_list<item: float>[2]", "fixed_size_list<item: float>[3]", "restored"),
    ],
)
def test_a_type_that_does_not_widen_is_refused(before: str, after: str, word: str) -> None:
    with pytest.raises(Refused) as refused:
        align([ID, column(1, "v", after)], [ID, column(1, "v", before)])
    assert refused.value.code == "MW-K08"
    for part in ("'v'", before, after, word):
        assert part in str(refused.value)


def test_a_type_that_widens_is_converted_but_never_a_key() -> None:
    alignment = align([column(0, "id"), V], [column(0, "id", "int32"), V])
    assert alignment.conversions == {"id": Conversion()}
    assert alignment.drifted == ["id"]
    with pytest.raises(Refused, match="'id' changed its type"):
        align([column(0, "id"), V], [column(0, "id", "int32"), V], keys=("id",))


def test_lists_and_vectors_widen_with_their_items() -> None:
    lists = column(1, "l", "large_list<item: int64>", column(2, "item"))
    was = column(1, "l", "list<item: int32>", column(2, "item", "int32"))
    vectors = column(3, "v", "fixed_size_list<item: double>[2]")
    before = column(3, "v", "fixed_size_list<item: float>[2]")
    items = Conversion(members=((0, Conversion()),))
    assert align([lists, vectors], [was, before]).conversions == {"l": items, "v": items}
    with pytest.raises(Refused, match="'l' changed its type"):
        align([column(1, "l", "list<item: int32>", column(9, "item", "int32"))], [was])


STRUCT = column(1, "s", "struct<a: int64, b: string>", column(2, "a"), column(3, "b", "string"))


def test_members_are_matched_like_columns() -> None:
    new = column(
        1,
        "s",
        "struct<c: string, x: int8, d: int8, a: int64>",
        column(3, "c", "string"),
        column(4, "x", "int8"),
        column(5, "d", "int8", nullable=False, default="7"),
        column(6, "a"),
    )
    renamed = Rename(field_id=3, before="b", after="c")
    again = Recast(before=2, after=6, name="a")
    history = History(renamed)
    alignment = align([new], [STRUCT], history)
    assert alignment.conversions == {
        "s": Conversion(
            members=((1, None), (None, None), (None, Conversion(default="7")), (None, None))
        )
    }
    assert history.asked == [renamed, again]
    with pytest.raises(Refused) as refused:
        align([new], [STRUCT])
    assert refused.value.code == "MW-K06"


def test_a_member_that_was_dropped_and_added_again_gets_no_old_values() -> None:
    text = STRUCT.type_text
    again = column(1, "s", text, column(5, "a"), column(3, "b", "string"))
    assert align([STRUCT], [STRUCT]) == Alignment(columns={"s": "s"})
    expected = {"s": Conversion(members=((None, None), (1, None)))}
    assert align([again], [STRUCT]).conversions == expected


def test_a_member_that_may_not_be_null_is_refused_by_its_path() -> None:
    gained = column(1, "s", "struct<n: int8 not null>", column(5, "n", "int8", nullable=False))
    with pytest.raises(Refused, match=r"'s\.n' was added"):
        align([gained], [STRUCT])


def test_a_default_takes_the_place_of_null() -> None:
    base = [ID, column(2, "x", nullable=False, default="5")]
    told = {"x": Conversion(default="5")}
    missing = align(base, [ID])
    assert (sources(missing)[1], missing.conversions) == (("x", None), told)
    # A generation's columns may always be NULL: an old WAL that was replayed has no value for it.
    nulls = align(base, [ID, column(2, "x")])
    assert (sources(nulls)[1], nulls.conversions) == (("x", "x"), told)
    assert nulls.drifted == ["x"]
    assert nulls.without_defaults().conversions == {"x": Conversion()}
    # A column that may be NULL again has NULLs that somebody wrote.
    assert align([ID, column(2, "x", default="5")], [ID, column(2, "x")]).conversions == {}


def test_becoming_nullable_is_no_change_of_type() -> None:
    assert sources(align([column(0, "id")], [ID])) == [("id", "id")]
