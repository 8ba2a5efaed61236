"""Rows from programs (any Arrow data, or a list of dicts) -> an Arrow table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from memwal.errors import Usage

Rows: TypeAlias = "pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]"
_ARROW = ("__arrow_c_stream__", "__arrow_c_array__")
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


def read_rows(
    rows: Rows, schema: pa.Schema, deleted: Sequence[bool] | None, *, missing_as_null: bool
) -> pa.Table:
    """The rows as a table; dicts get the types of `schema`, the table's own.

    Raises Usage for a value that does not fit, naming row and column, and for a row that lacks a
    column of other rows, since that would become NULL; not with `missing_as_null`, nor if the row
    deletes.
    """
    if isinstance(rows, pa.Table):
        return rows
    if any(hasattr(rows, name) for name in _ARROW):
        return pa.table(rows)
    if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable):
        raise Usage(f"rows are {type(rows).__name__}: expected Arrow data, or a list of dicts")
    dicts = list(rows)
    names = _name_columns(dicts) if dicts else schema.names
    for number, row in enumerate(dicts):
        missing = [name for name in names if name not in row]
        if missing and not (missing_as_null or (deleted is not None and deleted[number])):
            raise Usage(
                f"row {number} has no {missing[0]!r}, which other rows have, and NULL would be "
                "written over what the table has there. --missing-as-null allows that"
            )
    kinds = {field.name: field.type for field in schema}
    columns = [_make_column(name, [row.get(name) for row in dicts], kinds) for name in names]
    return pa.Table.from_arrays(columns, names=names)


def _name_columns(rows: Iterable[object]) -> list[str]:
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise Usage(f"row {number} is {type(row).__name__}: expected a dict of column names")
        names.update(dict.fromkeys(row))
    return list(names)


def _make_column(name: str, values: list[Any], kinds: Mapping[str, pa.DataType]) -> pa.Array:
    """The values in a type that casts to the table's without loss, as a file's values must.

    When asked for a type, Arrow converts with loss: 1.5 to 1, a text to a list of its letters. So
    Arrow infers the type, and is asked for the table's type only where there is no cast, such as
    from dicts to a map.
    """
    if name not in kinds:
        return pa.nulls(len(values))  # unknown columns are handled later
    kind = kinds[name]
    try:
        return _infer(values, kind)
    except _UNFIT as error:
        found = error
    for number, value in enumerate(values):
        try:
            _infer([value], kind)
        except _UNFIT as error:
            raise _explain(name, kind, error, f" (row {number}: {repr(value)[:80]})") from None
    try:
        return pa.array(values, kind)  # of several types, each of which fits
    except _UNFIT:
        raise _explain(name, kind, found) from None


def _infer(values: list[Any], kind: pa.DataType) -> pa.Array:
    """The values in the type that Arrow infers, if it casts. Raises what `_UNFIT` lists."""
    inferred = pa.array(values)
    try:
        inferred.cast(kind)
    except pa.ArrowNotImplementedError:
        if "map<" not in str(kind) and not isinstance(kind, pa.BaseExtensionType):
            raise
        return pa.array(values, kind)
    return inferred


def _explain(name: str, kind: pa.DataType, error: Exception, where: str = "") -> Usage:
    text = str(error).split("\n", 1)[0]
    return Usage(f"column {name!r} is {kind} in the table: {text}{where}")
