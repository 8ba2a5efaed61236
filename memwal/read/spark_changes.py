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

from memwal.read.changes import ChangesOptions, find_range, move_cursor, open_table
from memwal.read.plan.changes import ChangesRequest
from memwal.read.spark_options import convert_batch
from memwal.read.store.changes import open_changes, shape_changes


def fix_range(options: ChangesOptions) -> tuple[ChangesRequest, pa.Schema]:
    """The changes asked for, with versions for all that may change later, and their columns.

    Says nothing of whether these versions are still there: a stream may be past them.
    """
    stores = open_table(options)
    request, _ = find_range(stores, options.asked)
    shape = shape_changes(stores.tables, request.until, request)
    return replace(request, until=int(shape.new.version)), shape.schema


class _Reader:
    """Reads ranges of versions, each in one task, whose partition has the request for it."""

    def __init__(
        self, options: ChangesOptions, request: ChangesRequest, schema: StructType
    ) -> None:
        self._options = options
        self._request = request
        self._arrow = to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows. Runs on an executor."""
        stores = open_table(self._options)
        opened = open_changes(stores.tables, stores.table_manifests, partition.value)
        for batch in opened.read():
            yield from convert_batch(batch.select(self._arrow.names), self._arrow)


class ChangesReader(_Reader, DataSourceReader):  # type: ignore[misc]
    """One range of versions."""

    def partitions(self) -> list[InputPartition]:
        """One task."""
        return [InputPartition(self._request)]


class ChangesStreamReader(_Reader, DataSourceStreamReader):  # type: ignore[misc]
    """Ranges of versions, one after the other. What Spark has done moves the cursor, if any."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """Where the first micro-batch begins."""
        return {"version": find_range(open_table(self._options), self._options.asked)[0].since}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The table's latest version, or the last one asked for."""
        latest = open_table(self._options).views.table_version()
        return {"version": max(min(latest, self._options.asked.until or latest), start["version"])}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One task, or none where nothing was committed."""
        since, until = start["version"], end["version"]
        request = replace(self._request, since=since, until=until)
        return [InputPartition(request)] if since < until else []

    def commit(self, end: dict[str, Any]) -> None:
        """Move the cursor: Spark has these versions in its checkpoint."""
        if self._options.asked.cursor is not None:
            done = replace(self._options.asked, commit=end["version"])
            move_cursor(open_table(self._options), done)
