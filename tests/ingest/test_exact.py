"""Arrays of every layout as plain ones, and members of nested ones."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from memwal.ingest.values.exact import convert, make_plain
from memwal.rows.json_values import from_json
from memwal.rows.pairs import STRICT


def views(*lists: list[Any] | None, kind: pa.DataType) -> pa.Array:
    """A view of lists, whose items lie in another order than the lists."""
    items: list[Any] = [item for one in reversed(lists) for item in one or [None]]
    starts, end = [], len(items)
    for one in lists:
        end -= len(one or [None])
        starts.append(end)
    large = pa.types.is_large_list_view(kind)
    array = pa.LargeListViewArray if large else pa.ListViewArray
    number = pa.int64() if large else pa.int32()
    return array.from_arrays(
        pa.array(starts, number),
        pa.array([len(one or []) for one in lists], number),
        pa.array(items, kind.value_type),
        mask=pa.array([one is None for one in lists]),
    )


def runs(values: pa.Array) -> pa.Array:
    ends = pa.array(range(2, 2 * len(values) + 2, 2), pa.int32())
    return pa.RunEndEncodedArray.from_arrays(ends, values)


WORDS = pa.array(["a", None, "long enough not to be inlined"])
LAYOUTS = {
    "text": (WORDS.cast(pa.string_view()), pa.string()),
    "bytes": (WORDS.cast(pa.binary()).cast(pa.binary_view()), pa.binary()),
    "lists": (views([1, 2], None, [], [3], kind=pa.list_view(pa.int8())), pa.list_(pa.int8())),
    "lists of text": (
        views(["a"], ["b", None], kind=pa.list_view(pa.string_view())),
        pa.list_(pa.string()),
    ),
    "large lists": (views([1], kind=pa.large_list_view(pa.int8())), pa.large_list(pa.int8())),
    "dictionary": (WORDS.dictionary_encode(), pa.string()),
    "dictionary of views": (
        pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 2]), WORDS.cast(pa.string_view())),
        pa.string(),
    ),
    "runs": (runs(WORDS), pa.string()),
    "runs of views": (runs(WORDS.cast(pa.string_view())), pa.string()),
    "runs of lists": (runs(pa.array([[1], None, []])), pa.list_(pa.int64())),
    "struct": (
        pa.StructArray.from_arrays(
            [WORDS.cast(pa.string_view()), WORDS.dictionary_encode()],
            ["v", "d"],
            mask=pa.array([False, True, False]),
        ),
        pa.struct([("v", pa.string()), ("d", pa.string())]),
    ),
    "vectors": (
        pa.FixedSizeListArray.from_arrays(
            pa.array(["a", "b", "c", "d", "e", "f"], pa.string_view()),
            2,
            mask=pa.array([False, True, False]),
        ),
        pa.list_(pa.string(), 2),
    ),
    "map": (
        pa.MapArray.from_arrays([0, 1, 1, 3], WORDS.fill_null("b"), WORDS.dictionary_encode()),
        pa.map_(pa.string(), pa.string()),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_made_plain(name: str) -> None:
    array, kind = LAYOUTS[name]
    for part in (array, array.slice(1), array.slice(0, 1), array.slice(0, 0)):
        rows = pa.table({"x": part, "n": pa.nulls(len(part))})
        found = make_plain(rows)
        found.validate(full=True)
        assert found.schema.field("x").type == kind
        assert found["x"].to_pylist() == part.to_pylist()
        kept = found.filter(pa.array([True] * len(part), pa.bool_()))  # views can't be filtered
        assert kept.num_rows == len(part)


def test_a_dictionary_is_made_of_plain_values() -> None:
    kind = pa.dictionary(pa.int16(), pa.string())
    assert convert(WORDS, kind, STRICT).cast(pa.string()).equals(WORDS)


FIELD = pa.field("a", pa.int8(), nullable=False)


@pytest.mark.parametrize(
    ("kind", "given", "good", "bad"),
    [
        (pa.struct([FIELD]), pa.struct([("a", pa.int64())]), [{"a": 1}, None], [{"a": None}]),
        (pa.list_(FIELD), pa.list_(pa.int64()), [[1], None, []], [[1, None]]),
        (pa.list_(FIELD, 1), pa.large_list(pa.int64()), [[1], None], [[None]]),
        (
            pa.map_(pa.string(), FIELD),
            pa.map_(pa.string(), pa.int64()),
            [[("k", 1)], None],
            [[("k", None)]],
        ),
    ],
    ids=["struct", "list", "vector", "map"],
)
def test_a_member_that_may_not_be_null_is_not(
    kind: pa.DataType, given: pa.DataType, good: list[Any], bad: list[Any]
) -> None:
    for values in (good, bad):
        plain = [[list(p) for p in v] if pa.types.is_map(kind) and v else v for v in values]
        for read in (
            lambda values=values: convert(pa.array(values, given), kind, STRICT),
            lambda plain=plain: from_json(plain, kind),
        ):
            if values is good:
                assert read().to_pylist() == good
                continue
            with pytest.raises(ValueError, match="may not be NULL"):
                read()
