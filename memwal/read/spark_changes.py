"""The changes of a table as a batch or as a stream of Spark's; made and used in its workers.

A stream's offset is a version of the table. Versions never change, so that a micro-batch which is
read again after a restart has the same rows. Each is read by one task, as the net change of its
versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from memwal.read.changes import (
    ChangesOptions,
    find_range,
    move_cursor,
    open_range,
    open_table,
)
from memwal.read.spark_options import convert_batch
from memwal.read.store.changes import shape_changes


def fix_range(options: ChangesOptions) -> tuple[ChangesOptions, pa.Schema]:
    """The options with versions for all that may change later, and the columns of the rows.

    Says nothing of whether these versions are still there: a stream may be past them.
    """
    stores = open_table(options.table)
    request, _ = find_range(stores, options.asked)
    shape = shape_changes(stores.tables, options.asked.until, request)
    until = int(shape.new.version)
    asked = replace(options.asked, since=request.since, cursor=None, until=until)
    return replace(options, asked=asked), shape.schema


class _Range(InputPartition):  # type: ignore[misc]
    """The versions after `since` up to `until`, for one task."""

    def __init__(self, since: int, until: int) -> None:
        super().__init__((since, until))
        self.since, self.until = since, until


class ChangesReader(DataSourceReader):  # type: ignore[misc]
    """One range of versions."""

    def __init__(self, options: ChangesOptions, schema: StructType) -> None:
        self._options = options
        self._arrow = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """One task."""
        return [_Range(self._options.asked.since or 0, self._options.asked.until or 0)]

    def read(self, partition: _Range) -> Iterator[pa.RecordBatch]:
        """The rows. Runs on an executor."""
        return _read(self._options, self._arrow, partition)


class ChangesStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Ranges of versions, one after the other. What Spark has done moves the cursor, if any."""

    def __init__(self, options: ChangesOptions, schema: StructType) -> None:
        self._options = options
        self._arrow = to_arrow_schema(schema, timezone="UTC")

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """Where the first micro-batch begins."""
        return {
            "version": find_range(open_table(self._options.table), self._options.asked)[0].since
        }

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The table's latest version."""
        latest = open_table(self._options.table).views.table_version()
        return {"version": max(latest, start["version"])}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One task, or none where nothing was committed."""
        found = _Range(start["version"], end["version"])
        return [found] if found.since < found.until else []

    def read(self, partition: _Range) -> Iterator[pa.RecordBatch]:
        """The rows. Runs on an executor."""
        return _read(self._options, self._arrow, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Move the cursor: Spark has these versions in its checkpoint."""
        if self._options.asked.cursor is not None:
            done = replace(self._options.asked, commit=end["version"])
            move_cursor(open_table(self._options.table), done)


def _read(
    options: ChangesOptions, schema: pa.Schema, partition: _Range
) -> Iterator[pa.RecordBatch]:
    asked = replace(options.asked, since=partition.since, until=partition.until, cursor=None)
    opened, _ = open_range(open_table(options.table), asked)
    for batch in opened.read():
        yield from convert_batch(batch.select(schema.names), schema)
