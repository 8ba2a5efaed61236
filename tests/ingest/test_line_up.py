from __future__ import annotations

import pyarrow as pa
import pytest

from memwal.errors import Usage
from memwal.ingest.line_up import Shape

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int32()),
        pa.field("must", pa.string(), nullable=False),
    ]
)
SHAPE = Shape(schema=SCHEMA, key=("id",), delete_column="gone")


def source(**columns: object) -> pa.Table:
    return pa.table({"gone": [False, True], "must": ["a", "b"], "id": [1, 2], **columns})


def test_columns_are_put_in_order_cast_and_filled() -> None:
    rows, gone = SHAPE.lined_up(source(n=pa.array([7, 8], pa.int64())), "here")
    assert rows.schema == SCHEMA
    assert rows.to_pylist()[0] == {"id": 1, "n": 7, "must": "a"}
    assert gone is not None and gone.to_pylist() == [False, True]
    rows, _ = SHAPE.lined_up(source(), "here")
    assert rows["n"].null_count == 2


def test_a_deleted_row_needs_its_key_only() -> None:
    rows, _ = SHAPE.lined_up(source(must=["a", None]), "here")
    assert rows["must"].to_pylist() == ["a", None]
    with pytest.raises(Usage, match="here: column 'must' may not be NULL"):
        SHAPE.lined_up(source(must=[None, "b"]), "here")
    with pytest.raises(Usage, match="column 'id' may not be NULL"):
        SHAPE.lined_up(source(id=[1, None]), "here")


def test_nobody_deletes() -> None:
    _, gone = SHAPE.lined_up(source(gone=pa.array([None, False])), "here")
    assert gone is None
    _, gone = SHAPE.lined_up(source(gone=[0, 1]), "here")
    assert gone is not None and gone.to_pylist() == [False, True]


def test_values_that_do_not_fit() -> None:
    with pytest.raises(Usage, match=r"here: column 'n' is int64, the table's int32"):
        SHAPE.lined_up(source(n=pa.array([2**40, 0])), "here")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["id", "must", "gone", "other", "more"], "no column 'other', 'more'"),
        (["id", "must"], "no column 'gone' to delete by"),
        (["must", "gone"], "column 'id' is missing"),
        (["id", "gone"], "column 'must' is missing"),
        (["id", "id", "must", "gone"], "column 'id' is there twice"),
        (["id", "must", "gone", "_tombstone"], "_tombstone is Lance's own"),
    ],
)
def test_columns_that_do_not_fit(names, text) -> None:
    with pytest.raises(Usage, match=text):
        SHAPE.check(pa.schema([(name, pa.string()) for name in names]), "here")


def test_unknown_columns_can_be_left_out() -> None:
    shape = Shape(schema=SCHEMA, key=("id",), skips_unknown_columns=True)
    schema = pa.schema([(name, pa.string()) for name in ("other", "id", "must")])
    shape.check(schema, "here")
    assert shape.columns(schema) == ["id", "must"]
