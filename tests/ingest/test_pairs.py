"""Each value of each kind, into each column: exactly as it is, or refused.

What a value is, is told here without the code under test: by Python's and numpy's own arithmetic.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memwal.errors import Usage
from memwal.ingest.values.exact import convert, parse_texts
from memwal.ingest.values.python_rows import read_rows
from memwal.rows.conversions import MEANINGS, read_conversions
from memwal.rows.floats import read_number
from memwal.rows.json_values import from_json
from memwal.rows.pairs import PAIRS, STRICT, Lenience, find_kind

MAP = pa.map_(pa.string(), pa.int8())
STRUCT = pa.struct([("a", pa.int8()), ("b", pa.float32())])
COLUMNS: dict[str, list[pa.DataType]] = {
    "bool": [pa.bool_()],
    "int": [pa.int8(), pa.int64(), pa.uint64()],
    "float": [pa.float16(), pa.float32(), pa.float64()],
    "decimal": [pa.decimal128(5, 2), pa.decimal256(70, 30)],
    "text": [pa.large_string()],
    "bytes": [pa.large_binary(), pa.binary(2)],
    "date": [pa.date32(), pa.date64()],
    "time": [pa.time32("ms"), pa.time64("ns")],
    "timestamp": [pa.timestamp("us"), pa.timestamp("ns")],
    "zoned": [pa.timestamp("s", "Asia/Tokyo"), pa.timestamp("ns", "UTC")],
    "duration": [pa.duration("s"), pa.duration("ns")],
    "list": [pa.list_(pa.int8()), pa.large_list(pa.float32()), pa.list_(pa.int64(), 2)],
    "struct": [STRUCT],
    "map": [MAP],
}
NUMBERS = (0, 1, -1, 127, 128, 255, 256, 2049, 2**24 + 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 0.1, 0.5, 3.0, 1e300, 5e-324, 2.0**53, math.nan, math.inf, -math.inf)
INSTANTS = (0, -1, 1_000, 86_400_000, 1_500_000_000, 2**62, 2**63 - 1)
ARROW: dict[str, list[tuple[pa.DataType, Any]]] = {
    "null": [(pa.null(), [])],
    "bool": [(pa.bool_(), [True, False])],
    "int": [(pa.int64(), NUMBERS), (pa.uint64(), [0, 2**64 - 1]), (pa.int8(), [-128, 127])],
    "float": [
        (pa.float64(), FLOATS),
        (pa.float32(), [0.1, 65520.0, 3.4e38, math.nan]),
        (pa.float16(), [np.float16(0.1)]),
    ],
    "decimal": [
        (pa.decimal128(38, 3), [Decimal(n) for n in ("0.1", "3", "1.239", "9007199254740993")]),
        (pa.decimal256(70, 0), [Decimal(10) ** 69, Decimal(-1)]),
    ],
    "text": [
        (pa.string(), ["", "7", "3.0", "true", "abc", "2026-01-01", "[1, 2]", "0x6162"]),
        (pa.large_string(), ["2026-01-01T00:00:00", "2026-01-01T00:00:00Z", "[1.5]"]),
        (pa.string(), ['{"a": 1, "b": 0.5}', '[["a", 1]]', "12:00:00", "1e400", "nan"]),
    ],
    "bytes": [(pa.binary(), [b"", b"ab", b"abc", b"\xff\xff"]), (pa.binary(2), [b"ab"])],
    "date": [(pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]), (pa.date64(), [86_400_001, 0])],
    "time": [(pa.time64("ns"), [0, 1, 10**9, 86_399_999_999_999]), (pa.time32("ms"), [1, 1000])],
    "timestamp": [(pa.timestamp(unit), INSTANTS) for unit in ("s", "ns")],
    "zoned": [(pa.timestamp(u, "Europe/Rome"), INSTANTS) for u in ("s", "ns")],
    "duration": [(pa.duration(unit), INSTANTS) for unit in ("s", "ns")],
    "list": [
        (pa.list_(pa.int64()), [[], [1, 2], [1, 300], [None, 1]]),
        (pa.list_(pa.float64(), 2), [[0.5, 0.1], [1.0, 2.0]]),
        (pa.list_(pa.null()), [[]]),
    ],
    "struct": [
        (pa.struct([("b", pa.float64()), ("a", pa.int64())]), [{"a": 1, "b": 0.5}, {"a": 300}]),
    ],
    "map": [(pa.map_(pa.large_string(), pa.int64()), [[], [("a", 1)], [("a", 300)]])],
}
TEXTS = (
    *("true", "False", "1", "0", "7", " 7 ", "-128", "128", "0x10", "0xFF", "7.0", "1e5", "+7"),
    *("18446744073709551615", "9007199254740993", "9007199254740992", "16777217", "2049", "1e400"),
    *("-1e400", "1e-400", "5e-324", "0.1", "0.5", "3.00", "3.0000000000000000001", "nan", "-inf"),
    *("0.10000000149011612", "1.000000000000000056e-01", "123456789012345678", "65520", "1.239"),
    *(
        "abc",
        "0x6162",
        "0xf",
        "2026-01-01",
        "2026-02-30",
        "0001-01-01",
        "12:00:00",
        "23:59:60",
        "9:5",
        "12:00",
    ),
    *("TRUE", " true", " 1.5 ", " 2026-01-01 ", " 12:00:00 ", "2026-01-01T00:00:00 "),
    *("12:00:00.123", "12:00:00.123456789", "2026-01-01T00:00:00", "2026-01-01 00:00:00.000001"),
    *("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000000001+02:00", "1600-01-01T00:00:00"),
    *("[1, 2]", "[1.5]", "[16777217.0, 1]", '[["a", 1]]', '[["a", 300]]', '{"a": 1, "b": 0.5}'),
    *('{"a": 1}', '{"a": 1, "b": 0.123456789}', '{"a": 1, "b": 1, "c": 1}', "[null, 1]", "[]"),
)
JSON = {
    "json_int": ("0", "7", "128", "255", "16777217", "9007199254740993", "1" + "0" * 400, "-1"),
    "json_float": tuple(t for t in TEXTS if re.fullmatch(r"-?\d+(\.\d+|(\.\d+)?e[-+]?\d+)", t)),
    "json_text": (*(json.dumps(text) for text in TEXTS), '"YWI="', '"\\ud800"', '"inf"'),
    "json_list": tuple(text for text in TEXTS if text.startswith("[")),
    "json_object": tuple(text for text in TEXTS if text.startswith("{")),
}
PYTHON: dict[str, tuple[Any, ...]] = {
    "python_float": (*FLOATS, 0.10000000149011612, 1.239, 16777217.0),
    "python_dict": ({"a": 1, "b": 0.5}, {"a": 1}, {"a": 300, "b": 1}, {"k": 1}, {}),
}
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Value = tuple[str, Any]


def tell(scalar: pa.Scalar) -> Value:
    """What an Arrow value is, whatever its type's width, unit or layout."""
    kind, value = scalar.type, None
    name = find_kind(kind)
    if name in ("int", "float", "decimal"):
        value = scalar.as_py()
        special = name == "float" and not math.isfinite(value)
        return "number", str(value) if special else Fraction(value)
    match name:
        case "text" | "bytes" | "bool":
            value = scalar.as_py()
        case "date":
            value = Fraction(scalar.value, 86_400_000 if kind == pa.date64() else 1)
        case "time" | "timestamp" | "zoned" | "duration":
            value = Fraction(scalar.value, PER_SECOND[kind.unit])
        case "list":
            value = [tell_or_none(item) for item in scalar.values]
        case "struct":
            value = {key: tell_or_none(item) for key, item in scalar.items()}
        case "map":
            pairs = ((pair["key"], pair["value"]) for pair in scalar.values)
            value = [(tell_or_none(key), tell_or_none(item)) for key, item in pairs]
    return name, value


def tell_or_none(scalar: pa.Scalar) -> Value | None:
    return tell(scalar) if scalar.is_valid else None


def tell_text(text: str, column: str) -> Any:
    """What CSV's text is for a column. Raises ValueError or ArithmeticError if it is nothing."""
    match column:
        case "bool":
            return column, {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        case "int" | "float" | "decimal":
            number = Decimal(text)
            return "number", number if number.is_finite() else str(float(number))
        case "text":
            return column, text
        case "bytes":
            return column, bytes.fromhex(text[2:]) if re.match("0x(..)*$", text) else text.encode()
        case "date":
            return column, Fraction((date.fromisoformat(text) - EPOCH.date()).days)
        case "time" | "timestamp" | "zoned":
            given = f"1970-01-01T{text}" if column == "time" else text
            given = f"{text}T00:00:00" if len(text) == 10 else given
            found = re.fullmatch(r"(.*?)(\.\d+)?(Z|[-+]\d\d:\d\d)?", given)
            assert found is not None
            name = "zoned" if found[3] else column if column == "time" else "timestamp"
            at = datetime.fromisoformat(found[1] + (found[3] or "Z")) - EPOCH
            return name, at // timedelta(seconds=1) + Fraction(found[2] or 0)
        case "duration":
            return column, Fraction(Decimal(text))
    return tell_json(json.loads(text, parse_float=Decimal, parse_int=Decimal), column)


def tell_json(value: Any, column: str) -> Any:
    """What JSON's value is for a column."""
    match value:
        case None:
            return None
        case str() if column == "bytes":
            return column, b64decode(value, validate=True)
        case str():
            return tell_text(value, column)
        case Decimal() if column == "duration":
            return column, Fraction(value)
        case Decimal():
            return "number", value
        case dict():
            return column, {key: tell_json(item, "") for key, item in value.items()}
        case list() if column == "map":
            return column, [(("text", key), tell_json(item, "")) for key, item in value]
        case list():
            return column, [tell_json(item, "") for item in value]
    return column, value


def is_same(given: Any, found: Any, kind: pa.DataType, *, rounds: bool) -> bool:
    """Whether they are one value; a number as text and a float are, if as many digits are."""
    match given, found:
        case ("number", Decimal() as number), ("number", Fraction() as other):
            if not pa.types.is_floating(kind):
                return Fraction(number) == other
            width = np.dtype(kind.to_pandas_dtype()).type
            if rounds:
                return bool(np.isclose(float(width(str(number))), float(other), rtol=2**-10))
            digits = len(str(number.as_tuple().digits)) // 3 + 1
            shown = (
                np.format_float_scientific(width(float(other)), unique=False, precision=n)
                for n in range(digits)
            )
            return any(Decimal(text) == number for text in shown)
        case ("number", Fraction() as number), ("number", Fraction() as other) if rounds:
            return math.isclose(float(number), float(other), rel_tol=2**-10, abs_tol=1e-7)
        case (str() as name, list() as items), (str() as other, list() as inner):
            # An item of a map is a pair.
            item = kind.item_type if name == "map" else kind.value_type
            if name == "map":
                if [key for key, _ in items] != [key for key, _ in inner]:
                    return False
                items, inner = [i for _, i in items], [i for _, i in inner]
            pairs = zip(items, inner, strict=True)
            return name == other and all(is_same(a, b, item, rounds=rounds) for a, b in pairs)
        case (str(), dict() as members), (str(), dict() as inner):
            return members.keys() | inner.keys() == inner.keys() and all(
                is_same(members.get(f.name), inner[f.name], f.type, rounds=rounds) for f in kind
            )
    return bool(given == found)


Try = tuple[str, Any, Callable[[pa.DataType, Lenience], pa.Array], Callable[[str], Any]]
"""The kind of a value, the value, how it goes in, and what it is for a kind of column."""


def list_values() -> Iterator[Try]:
    for name, arrays in ARROW.items():
        for kind, values in arrays:
            whole = pa.array(values, kind)
            for place, value in enumerate(whole):
                array = pa.concat_arrays([whole.slice(place, 1), pa.nulls(1, kind)])
                yield name, array, partial(convert, array), partial(tell_arrow, value)
    for text in TEXTS:
        yield "csv_text", text, partial(read_csv, text), partial(tell_text, text)
    for name, texts in JSON.items():
        for text in texts:
            value = json.loads(text, parse_float=read_number)
            given = json.loads(text, parse_float=Decimal, parse_int=Decimal)
            yield name, text, partial(from_json, [value, None]), partial(tell_json, given)
    for name, values in PYTHON.items():
        for value in values:
            yield name, value, partial(read_python, value), partial(tell_python, value)


def tell_arrow(scalar: pa.Scalar, column: str) -> Any:
    """What it is for a column, where it has to be read for that."""
    match find_kind(scalar.type):
        case "text" if column != "text":
            return tell_text(scalar.as_py(), column)
        case "bytes" if column == "text":
            return column, scalar.as_py().decode()
        case "decimal":
            return "number", scalar.as_py()
    return tell(scalar)


def tell_python(value: Any, column: str) -> Any:
    if isinstance(value, float):
        return tell_text(repr(value), column)
    if column == "map":
        return column, [(("text", key), ("number", Decimal(v))) for key, v in value.items()]
    return column, {key: ("number", Decimal(str(v))) for key, v in value.items()}


def read_csv(text: str, kind: pa.DataType, lenience: Lenience) -> pa.Array:
    return parse_texts(pa.array([text, None]), kind, lenience)


def read_python(value: Any, kind: pa.DataType, lenience: Lenience) -> pa.Array:
    try:
        rows = read_rows([{"x": value}, {"x": None}], pa.schema([("x", kind)]), None, lenience)
    except Usage as error:
        raise ValueError(str(error)) from None
    return rows["x"].combine_chunks()


VALUES = [*list_values()]


@pytest.mark.parametrize("source", PAIRS)
def test_a_value_goes_in_exactly_as_it_is_or_is_refused(source: str) -> None:
    values = [value for value in VALUES if value[0] == source]
    for column, rule in PAIRS[source].items():
        left = [(kind, value) for kind in COLUMNS[column] for value in values]
        pairs = [(kind, value) for kind in COLUMNS[column] for value in values]
        left = [pair for pair in pairs if not goes_in(*pair, column, STRICT)]
        # Without any value, it is NULL.
        assert (len(left) < len(pairs)) == rule.is_exact or not values, (source, column)
        if column in ("list", "struct", "map"):
            continue  # what is in them has its own rule
        own = {rule.conversion} - {None}
        for conversions in filter(None, (own, MEANINGS.keys() - own)):
            lenience = Lenience(conversions=read_conversions(conversions))
            taken = [pair for pair in left if goes_in(*pair, column, lenience)]
            assert bool(taken) == (conversions == own), (source, column)


def goes_in(kind: pa.DataType, value: Try, column: str, lenience: Lenience) -> bool:
    _, given, read, tell_value = value
    try:
        found = read(kind, lenience)
        found.validate(full=True)
    except ValueError:
        return False
    where = f"{given!r} -> {kind} {lenience}"
    assert found.type == kind and not found[1].is_valid, where
    wanted, told = tell_value(column), tell(found[0])
    if "utc" in lenience.conversions and {wanted[0], told[0]} == {"timestamp", "zoned"}:
        told = wanted[0], told[1]
    assert is_same(wanted, told, kind, rounds="round" in lenience.conversions), where
    return True


def test_null_goes_into_every_column_and_every_kind_is_tried() -> None:
    assert {*ARROW, "csv_text", *JSON, *PYTHON} == PAIRS.keys()
    for rules in PAIRS.values():
        assert rules.keys() == COLUMNS.keys()
    for name, kinds in COLUMNS.items():
        for kind in kinds:
            assert find_kind(kind) == name
            assert convert(pa.nulls(2), kind, STRICT).equals(pa.nulls(2, kind))
