"""Primary keys as Lance takes them: as SQL text, and in commits that race. Pure.

The forms of SQL work on pylance 14.0.2: identifiers in backticks (double quotes would make a string
literal that matches nothing), strings with doubled quotes, binary as X'…', `struct(…) IN
(struct(…), …)` for several key columns, and the lowest int64 by a cast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memwal.errors import Unsupported

_INT64_MIN = -(2**63)
# Key types whose inserted keys pylance 14.0.2 does not compare between racing commits.
_UNCOMPARED_TYPES = frozenset({"int8", "uint8", "int16", "uint16", "bool"})


def quote_name(name: str) -> str:
    """A column name, quoted. Raises Unsupported for a name that holds a backtick."""
    if "`" in name:
        raise Unsupported("MW-K03", f"column {name!r} can't be quoted: its name holds a backtick")
    return f"`{name}`"


def quote_value(value: object) -> str:
    """A key value of any type that a MemWAL primary key may have."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"cast('{value}' as bigint)" if value == _INT64_MIN else str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    raise Unsupported("MW-K05", f"a key of type {type(value).__name__} has no literal")


def keys_in(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """`key IN (…)` over rows of key values. Raises ValueError when there is none.

    An empty list is a parse error in Lance, and leaving the predicate out of a delete-by-source
    would delete every row.
    """
    texts = [[quote_value(value) for value in row] for row in rows]
    if not texts:
        raise ValueError("a key list must not be empty")
    if len(columns) == 1:
        return f"{quote_name(columns[0])} IN ({', '.join(t[0] for t in texts)})"
    names = ", ".join(quote_name(c) for c in columns)
    tuples = (f"struct({', '.join(t)})" for t in texts)
    return f"struct({names}) IN ({', '.join(tuples)})"


def new_keys_are_compared(key_types: Sequence[str]) -> bool:
    """Whether Lance notices that two racing scan-join commits insert the same new key."""
    return not _UNCOMPARED_TYPES.intersection(key_types)
