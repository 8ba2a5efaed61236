from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from memwal.errors import Usage
from memwal.ingest.values.shape import Shape

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int32()),
        pa.field("must", pa.string(), nullable=False),
    ]
)
SHAPE = Shape(schema=SCHEMA, key=("id",), delete_column="gone", missing_as_null=True)


def source(**columns: object) -> pa.Table:
    return pa.table({"gone": [False, True], "must": ["a", "b"], "id": [1, 2], **columns})


def test_columns_are_put_in_order_cast_and_filled() -> None:
    rows, gone = SHAPE.conform(source(n=pa.array([7, 8], pa.int64())), "here")
    assert rows.schema == SCHEMA
    assert rows.to_pylist()[0] == {"id": 1, "n": 7, "must": "a"}
    assert gone is not None and gone.to_pylist() == [False, True]
    rows, _ = SHAPE.conform(source(), "here")
    assert rows["n"].null_count == 2


def test_a_deleted_row_needs_its_key_only() -> None:
    rows, _ = SHAPE.conform(source(must=["a", None]), "here")
    assert rows["must"].to_pylist() == ["a", None]
    with pytest.raises(Usage, match="here: column 'must' may not be NULL"):
        SHAPE.conform(source(must=[None, "b"]), "here")
    with pytest.raises(Usage, match="column 'id' may not be NULL"):
        SHAPE.conform(source(id=[1, None]), "here")


def test_nobody_deletes() -> None:
    _, gone = SHAPE.conform(source(gone=pa.array([None, False])), "here")
    assert gone is None
    _, gone = SHAPE.conform(source(gone=pa.nulls(2)), "here")
    assert gone is None


def test_values_that_do_not_fit() -> None:
    with pytest.raises(Usage, match=r"here: column 'n' is int64, the table's int32"):
        SHAPE.conform(source(n=pa.array([2**40, 0])), "here")


def test_a_type_that_does_not_fit_is_told_without_a_row() -> None:
    schema = typed("id", "must", "gone").append(pa.field("n", pa.string()))
    with pytest.raises(Usage, match="column 'n' is string, the table's int32: --convert=text"):
        SHAPE.check(schema, "here")
    converting = replace(SHAPE, conversions=frozenset({"text"}))
    converting.check(schema, "here")
    assert converting.conform(source(n=["7", "8"]), "here")[0]["n"].to_pylist() == [7, 8]
    with pytest.raises(Usage, match=r"here: column 'n' is string, the table's int32: .*'x'"):
        converting.conform(source(n=["7", "x"]), "here")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["id", "must", "gone", "other", "more"], "no column 'other', 'more'"),
        (["id", "must"], "no column 'gone' to delete by"),
        (["id", "must", "Gone"], r"no column 'gone' \(there is 'Gone'\) to delete by"),
        (["must", "gone"], "column 'id' is missing"),
        (["id", "id", "must", "gone"], "column 'id' is there twice"),
        (["id", "must", "gone", "_tombstone"], "_tombstone is Lance's own"),
    ],
)
def test_columns_that_do_not_fit(names, text) -> None:
    with pytest.raises(Usage, match=text):
        SHAPE.check(typed(*names), "here")


def typed(*names: str) -> pa.Schema:
    kinds = {"gone": pa.bool_(), "id": pa.int64()}
    return pa.schema([(n, kinds.get(n, pa.string())) for n in names])


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.float64()], ids=str)
def test_only_a_boolean_column_deletes(kind) -> None:
    """Arrow casts numbers to booleans: every row of a column of numbers would delete its key."""
    schema = typed("id", "must", "gone").set(2, pa.field("gone", kind))
    with pytest.raises(Usage, match=f"here: column 'gone' to delete by is {kind}"):
        SHAPE.check(schema, "here")
    rows = source(gone=pa.array([1, 1]).cast(kind))
    with pytest.raises(Usage, match=f"here: column 'gone' to delete by is {kind}"):
        SHAPE.conform(rows, "here")


def test_a_key_column_deletes_nothing() -> None:
    schema = SCHEMA.set(0, pa.field("id", pa.bool_(), nullable=False))
    shape = Shape(schema=schema, key=("id",), delete_column="id", missing_as_null=True)
    with pytest.raises(Usage, match="column 'id' is the table's key"):
        shape.check(schema, "here")


NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("where", pa.struct([("city", pa.string()), ("zip", pa.int64())])),
        pa.field("tags", pa.list_(pa.struct([("name", pa.string()), ("n", pa.int64())]))),
    ]
)


def nested(place: int, kind: pa.DataType) -> pa.Schema:
    return NESTED.set(place, NESTED.field(place).with_type(kind))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (NESTED.remove(2), "without column 'tags', NULL"),
        (nested(1, pa.struct([("city", pa.string())])), "without column 'where.zip', NULL"),
        (nested(2, pa.list_(pa.struct([("name", pa.string())]))), "without column 'tags.n', NULL"),
    ],
    ids=str,
)
def test_a_missing_column_is_refused_unless_null_is_meant(given, text) -> None:
    shape = Shape(schema=NESTED, key=("id",))
    rows = pa.Table.from_pylist([{"id": 1, "where": {"city": "Rom"}}], schema=given)
    for refused in (lambda: shape.check(given, "here"), lambda: shape.conform(rows, "here")):
        with pytest.raises(Usage, match=f"here: .*{text}.*--missing-as-null allows that"):
            refused()
    nulls = replace(shape, missing_as_null=True)
    nulls.check(given, "here")
    assert nulls.conform(rows, "here")[0].schema == NESTED


def test_a_deleted_row_brings_no_null() -> None:
    """So a source of deletes needs its keys only; the first row that is none needs all columns.

    That is so, too, of columns without NULL, and where NULL is meant.
    """
    shape = Shape(schema=NESTED, key=("id",), delete_column="gone")
    rows = pa.table({"id": pa.array([1, 2]), "gone": [True, True]})
    must = "here: column 'must' is missing, and may not be NULL"
    for one, told in (
        (shape, "without columns 'where', 'tags', NULL"),
        (replace(SHAPE, missing_as_null=False), must),
        (SHAPE, must),
    ):
        one.check(rows.schema, "here")
        assert one.conform(rows, "here")[1] is not None
        for gone in ([True, False], [False, None]):
            with pytest.raises(Usage, match=told):
                one.conform(rows.set_column(1, "gone", pa.array(gone)), "here")
    with pytest.raises(Usage, match=must):  # nobody says which row deletes
        replace(SHAPE, delete_column=None).check(typed("id"), "here")


def test_unknown_members_are_not_dropped_unasked() -> None:
    given = nested(1, pa.struct([("city", pa.string()), ("zip", pa.int64()), ("x", pa.int64())]))
    with pytest.raises(Usage, match=r"no column 'where\.x'"):
        Shape(schema=NESTED, key=("id",)).check(given, "here")
    with pytest.raises(Usage, match=r"no column 'Tags' \(there is 'tags'\)"):
        Shape(schema=NESTED, key=("id",)).check(
            NESTED.remove(2).append(pa.field("Tags", pa.string())), "here"
        )
    with pytest.raises(Usage, match=r"no column 'iD' \(there is 'id'\)"):
        Shape(schema=NESTED, key=()).check(NESTED.set(0, pa.field("iD", pa.int64())), "here")
