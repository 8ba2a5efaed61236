"""Which values go into which columns: one table for every way in. Pure.

A value goes in exactly as it is, or is refused. Where a pair is exact, each value is checked too: a
number may be out of range, or no number that a float is. Views, dictionaries and run-end-encoded
columns count as what they hold, and a `large_list` as a list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from memwal.rows.conversions import MEANINGS, Conversion


@dataclass(frozen=True, kw_only=True, slots=True)
class Lenience:
    """What goes in though it is not exact. Structs may lack members, which become NULL."""

    missing: bool = False
    conversions: frozenset[Conversion] = frozenset()


STRICT = Lenience()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What becomes of a pair; refused if it is neither exact nor allowed by a conversion."""

    is_exact: bool
    conversion: Conversion | None


_REFUSED = Rule(is_exact=False, conversion=None)
# The rows are what sources have, the columns what tables have: "=" is exact, "." refused, and a
# letter an option's. A decimal is an int if its type has no places behind the point.
_TABLE = """
             bool int float decimal text bytes date time timestamp zoned duration list struct map
null         =    =   =     =       =    =     =    =    =         =     =        =    =      =
bool         =    .   .     .       .    .     .    .    .         .     .        .    .      .
int          .    =   =r    =       .    .     .    .    .         .     .        .    .      .
float        .    .   =r    .       .    .     .    .    .         .     .        .    .      .
decimal      .    =   =r    =       .    .     .    .    .         .     .        .    .      .
text         t    t   t     t       =    t     t    t    t         t     t        t    t      t
bytes        .    .   .     .       t    =     .    .    .         .     .        .    .      .
date         .    .   .     .       .    .     =    .    .         .     .        .    .      .
time         .    .   .     .       .    .     .    =    .         .     .        .    .      .
timestamp    .    .   .     .       .    .     .    .    =         u     .        .    .      .
zoned        .    .   .     .       .    .     .    .    u         =     .        .    .      .
duration     .    .   .     .       .    .     .    .    .         .     =        .    .      .
list         .    .   .     .       .    .     .    .    .         .     .        =    .      .
struct       .    .   .     .       .    .     .    .    .         .     .        .    =      .
map          .    .   .     .       .    .     .    .    .         .     .        .    .      =
python_float .    .   =r    =       .    .     .    .    .         .     .        .    .      .
python_dict  .    .   .     .       .    .     .    .    .         .     .        .    =      =
csv_text     =    =   =r    =       =    =     =    =    =u        =u    =        =    =      =
json_int     .    =   =r    =       .    .     .    .    .         .     =        .    .      .
json_float   .    .   =r    =       .    .     .    .    .         .     =        .    .      .
json_text    .    .   =     =       =    =     =    =    =u        =u    =        .    .      .
json_list    .    .   .     .       .    .     .    .    .         .     .        =    .      =
json_object  .    .   .     .       .    .     .    .    .         .     .        .    =      .
"""
_LETTERS = {conversion[0]: conversion for conversion in MEANINGS}


def _read_table() -> dict[str, dict[str, Rule]]:
    head, *lines = _TABLE.strip().splitlines()
    return {
        source: {
            column: Rule(is_exact=cell.startswith("="), conversion=_LETTERS.get(cell[-1]))
            for column, cell in zip(head.split(), cells, strict=True)
        }
        for source, *cells in map(str.split, lines)
    }


PAIRS = _read_table()
"""By the kind of the source's value, and then of the column."""


def is_bytes(kind: pa.DataType) -> bool:
    """Whether it is one of the binary types."""
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def is_text(kind: pa.DataType) -> bool:
    """Whether it is one of the types of text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether it is one of the list types, vectors among them."""
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def is_nested(kind: pa.DataType) -> bool:
    """Whether it is a list, struct or map."""
    return is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind)


_KINDS: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
    ("null", pa.types.is_null),
    ("bool", pa.types.is_boolean),
    ("int", pa.types.is_integer),
    ("float", pa.types.is_floating),
    ("decimal", pa.types.is_decimal),
    ("text", is_text),
    ("bytes", is_bytes),
    ("date", pa.types.is_date),
    ("time", pa.types.is_time),
    ("zoned", lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None),
    ("timestamp", pa.types.is_timestamp),
    ("duration", pa.types.is_duration),
    ("map", pa.types.is_map),
    ("struct", pa.types.is_struct),
    ("list", is_list),
)


def find_kind(kind: pa.DataType) -> str:
    """The name of a plain Arrow type's kind in `PAIRS`; others have their own."""
    return next((name for name, test in _KINDS if test(kind)), str(kind))


def check_pair(source: str, kind: pa.DataType, lenience: Lenience, shown: object) -> None:
    """Raise ValueError where a source's kind does not go into a column's type.

    `shown` is the value, or type, that the error names.
    """
    rule = PAIRS.get(source, {}).get(find_kind(kind), _REFUSED)
    if not rule.is_exact and rule.conversion not in lenience.conversions:
        hint = f": --convert={rule.conversion} takes it" if rule.conversion else ""
        raise ValueError(f"{shown} is no {kind}{hint}")
