"""Rows from programs (any Arrow data, or a list of dicts) -> an Arrow table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from memwal.errors import Usage
from memwal.ingest.values.exact import convert, make_plain
from memwal.rows.json_values import build
from memwal.rows.pairs import Lenience

Rows: TypeAlias = "pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]"
_ARROW = ("__arrow_c_stream__", "__arrow_c_array__")
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


def read_rows(
    rows: Rows, schema: pa.Schema, deleted: Sequence[bool] | None, lenience: Lenience
) -> pa.Table:
    """The rows as a table; dicts get the types of `schema`, the table's own.

    Raises Usage for a value that does not fit, naming row and column, and for a row that lacks a
    column of other rows, since that would become NULL, unless the lenience allows it or the row
    deletes.
    """
    if isinstance(rows, pa.Table):
        return make_plain(rows)
    if any(hasattr(rows, name) for name in _ARROW):
        return make_plain(pa.table(rows))
    if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable):
        raise Usage(f"rows are {type(rows).__name__}: expected Arrow data, or a list of dicts")
    dicts = list(rows)
    names = _name_columns(dicts) if dicts else schema.names
    for number, row in enumerate(dicts):
        missing = [name for name in names if name not in row]
        if missing and not (lenience.missing or (deleted is not None and deleted[number])):
            raise Usage(
                f"row {number} has no {missing[0]!r}, which other rows have, and NULL would be "
                "written over what the table has there. --missing-as-null allows that"
            )
    kinds = {field.name: field.type for field in schema}
    columns = [
        _make_column(name, [row.get(name) for row in dicts], kinds, lenience) for name in names
    ]
    return pa.Table.from_arrays(columns, names=names)


def _name_columns(rows: Iterable[object]) -> list[str]:
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise Usage(f"row {number} is {type(row).__name__}: expected a dict of column names")
        names.update(dict.fromkeys(row))
    return list(names)


def _make_column(
    name: str, values: list[Any], kinds: Mapping[str, pa.DataType], lenience: Lenience
) -> pa.Array:
    if name not in kinds:
        return pa.nulls(len(values))  # unknown columns are handled later
    kind = kinds[name]
    try:
        return _read(values, kind, lenience)
    except _UNFIT as error:
        found = error
    arrays = []
    for number, value in enumerate(values):
        try:
            arrays.append(_read([value], kind, lenience))
        except _UNFIT as error:
            raise _explain(name, kind, error, f" (row {number}: {repr(value)[:80]})") from None
    try:
        return pa.concat_arrays(arrays)  # of several types, each of which fits
    except _UNFIT:
        raise _explain(name, kind, found) from None


def _read(values: Sequence[Any], kind: pa.DataType, lenience: Lenience) -> pa.Array:
    """The values in the type that Arrow infers, as the table's.

    When asked for a type, Arrow converts with loss: 1.5 to 1, a text to a list of its letters. And
    of dicts it infers one struct with all their members, of which some may lack some.
    """
    if isinstance(kind, pa.BaseExtensionType) and "struct<" in str(kind.storage_type):
        return pa.array(values, kind)
    if not any(word in str(kind) for word in ("struct<", "map<")):
        return convert(pa.array(values), kind, lenience, is_written=True)
    kinds = (dict, Mapping) if pa.types.is_struct(kind) else (list, tuple, dict, np.ndarray)
    for value in values:
        if value is not None and not isinstance(value, kinds):
            raise ValueError(f"{value!r} is no {kind}")
    if pa.types.is_map(kind):
        values = [list(v.items()) if isinstance(v, dict) else v for v in values]
    return build(values, kind, lenience, partial(_read, lenience=lenience))


def _explain(name: str, kind: pa.DataType, error: Exception, where: str = "") -> Usage:
    text = str(error).split("\n", 1)[0]
    return Usage(f"column {name!r} is {kind} in the table: {text}{where}")
