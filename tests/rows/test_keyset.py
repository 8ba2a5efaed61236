"""Key sets, against Python's own sets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.rows.keyset import KeySet, find_repeated
from tests.support.builders import KINDS, KeyKind
from tests.support.sampling import many

NUMBERS = st.lists(st.integers(0, 40), max_size=30)


def columns_of(kind: KeyKind, numbers: list[int]) -> list[pa.ChunkedArray]:
    """Keys as columns, in two chunks."""
    keys = [kind.key(number % kind.keys_max) for number in numbers]
    middle = len(keys) // 2
    return [
        pa.chunked_array(
            [[k[place] for k in keys[:middle]], [k[place] for k in keys[middle:]]], type=arrow
        )
        for place, (_, arrow) in enumerate(kind.columns)
    ]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
@settings(max_examples=many(100, 20))
@given(known=NUMBERS, asked=NUMBERS)
def test_a_set_holds_counts_and_numbers_exactly_its_keys(
    kind: KeyKind, known: list[int], asked: list[int]
) -> None:
    found = KeySet(columns_of(kind, known))
    keys = {kind.key(number % kind.keys_max) for number in known}
    assert found.count == len(keys)
    holds = [kind.key(number % kind.keys_max) in keys for number in asked]
    assert found.contains(columns_of(kind, asked)).tolist() == holds
    once = columns_of(kind, list(dict.fromkeys(n % kind.keys_max for n in known)))
    made = KeySet(once)
    assert made.number(once)[made.sort_rows(once)].tolist() == list(range(made.count))


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
@settings(max_examples=many(100, 20))
@given(numbers=NUMBERS)
def test_repeated_keys_are_those_of_several_rows(kind: KeyKind, numbers: list[int]) -> None:
    table = pa.table(columns_of(kind, numbers), names=list(kind.names))
    counts = Counter(kind.key(number % kind.keys_max) for number in numbers)
    found = find_repeated(table, kind.names)
    keys = [tuple(row.values()) for row in found.to_pylist()]
    assert sorted(keys, key=repr) == sorted((k for k, n in counts.items() if n > 1), key=repr)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.bool_()])
def test_a_null_is_in_no_set(kind: pa.DataType) -> None:
    values = pa.chunked_array([pa.array([None, None], kind)])
    some: dict[Any, Any] = {pa.int64(): 1, pa.string(): "a", pa.bool_(): True}
    for known in ([None], [some[kind]], [some[kind], None]):
        keys = KeySet([pa.chunked_array([pa.array(known, kind)])])
        assert not keys.contains([values]).any()


def test_three_columns_make_one_key() -> None:
    def chunked(*columns: list[int]) -> list[pa.ChunkedArray]:
        return [pa.chunked_array([column]) for column in columns]

    keys = KeySet(chunked([1, 1, 2], [7, 8, 8], [1, 1, 2]))
    asked = chunked([1, 1, 2, 2], [7, 8, 8, 7], [1, 1, 1, 2])
    assert keys.contains(asked).tolist() == [True, True, False, False]
