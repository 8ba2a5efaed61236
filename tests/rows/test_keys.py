"""Key predicates as text, and the rows that Lance makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import Unsupported
from memwal.rows.keys import keys_in, quote_name, quote_value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-5, "-5"),
        (2**64 - 1, "18446744073709551615"),
        (-(2**63), "cast('-9223372036854775808' as bigint)"),
        (-(2**63) + 1, "-9223372036854775807"),
        (False, "false"),
        ("", "''"),
        ("'; drop", "'''; drop'"),
        ('say "x"', "'say \"x\"'"),
        ("back\\slash\n`", "'back\\slash\n`'"),
        (b"", "X''"),
        (b"\x02\x00\xff", "X'0200ff'"),
    ],
)
def test_literals(value: object, text: str) -> None:
    assert quote_value(value) == text


@pytest.mark.parametrize("value", [None, 1.5, [1], {"a": 1}, object()])
def test_what_no_key_holds_has_no_literal(value: object) -> None:
    with pytest.raises(Unsupported, match=type(value).__name__):
        quote_value(value)


@given(st.text())
def test_a_string_literal_ends_where_it_should(text: str) -> None:
    found = quote_value(text)
    assert found[0] == found[-1] == "'"
    assert "'" not in found[1:-1].replace("''", "")
    assert found[1:-1].replace("''", "'") == text


def test_identifiers_stand_in_backticks_and_have_none() -> None:
    for name in ("userId", "a b", "select", "é", "'", '"', "a.b"):
        assert quote_name(name) == f"`{name}`"
    with pytest.raises(Unsupported, match="backtick"):
        quote_name("a`b")


def test_a_predicate_names_one_key_column_or_several() -> None:
    assert keys_in(["userId"], [("a",), ("b",)]) == "`userId` IN ('a', 'b')"
    assert keys_in(["a", "b"], [(1, "x"), (2, b"y")]) == (
        "struct(`a`, `b`) IN (struct(1, 'x'), struct(2, X'79'))"
    )
    with pytest.raises(ValueError, match="must not be empty"):
        keys_in(["a"], iter(()))


INTS = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1]
TEXTS = ["", "'", "''", '"', "`", "a\\", "\n", "\0", "ü", "🙂", "a'; --", "null"]
KEYS: dict[str, tuple[list[pa.DataType], list[tuple[Any, ...]]]] = {
    "int64": ([pa.int64()], [(value,) for value in INTS]),
    "int8": ([pa.int8()], [(-128,), (0,), (127,)]),
    "uint64": ([pa.uint64()], [(0,), (2**63,), (2**64 - 1,)]),
    "bool": ([pa.bool_()], [(True,), (False,)]),
    "string": ([pa.string()], [(text,) for text in TEXTS]),
    "large_string": ([pa.large_string()], [(text,) for text in TEXTS]),
    "binary": ([pa.binary()], [(b"",), (b"\0",), (b"\xff'",), (b"a",)]),
    "large_binary": ([pa.large_binary()], [(b"",), (b"\0",), (b"\xff'",)]),
    "string-int64": ([pa.string(), pa.int64()], [("a", INTS[0]), ("it's", -1), ("", 2**63 - 1)]),
    "binary-uint64": ([pa.binary(), pa.uint64()], [(b"\0", 2**64 - 1), (b"", 0)]),
    "bool-int8": ([pa.bool_(), pa.int8()], [(True, -128), (False, 0), (True, 0)]),
}


@pytest.mark.integration
@pytest.mark.parametrize("kind", KEYS)
def test_lance_finds_exactly_these_keys(tmp_path: Path, kind: str) -> None:
    types, rows = KEYS[kind]
    names = ["the Key", "select"][: len(types)]
    schema = pa.schema([*zip(names, types, strict=True), ("at", pa.int64())])
    columns = [*zip(*rows, strict=True), range(len(rows))]
    arrays = [pa.array(list(column), f.type) for column, f in zip(columns, schema, strict=True)]
    dataset = lance.write_dataset(pa.table(arrays, schema=schema), str(tmp_path / "table"))

    def found(keys: list[tuple[Any, ...]]) -> list[int]:
        return dataset.to_table(columns=["at"], filter=keys_in(names, keys))["at"].to_pylist()

    for at, row in enumerate(rows):
        assert found([row]) == [at]
    assert found(rows) == list(range(len(rows)))
    assert found(rows[1:]) == list(range(1, len(rows)))
