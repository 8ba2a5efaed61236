"""What an ingest would write, by the columns that decide it: its dry run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import pyarrow as pa

from memwal.ingest.operations import Kind
from memwal.ingest.report import IngestShardReport
from memwal.ingest.routing import Router
from memwal.ingest.shape import Shape
from memwal.ingest.shards import route_rows
from memwal.ingest.sources import CHUNK_ROWS, SourceFiles
from memwal.model import ShardId
from memwal.report import DONE
from memwal.store.ingest_records import SourceFile


@dataclass(kw_only=True)
class Forecast:
    """Counts what each shard would get. `there` are the shards that the table has."""

    files: SourceFiles
    shape: Shape
    router: Router
    there: Collection[ShardId]
    rows: int = 0
    rows_deleted: int = 0
    shards: dict[ShardId, IngestShardReport] = field(default_factory=dict)

    def add(self, file: SourceFile) -> int:
        """Count a file's rows. Raises what writing them would raise for their columns and keys."""
        schema = self.files.read_schema(file)
        self.shape.check(schema, file.uri)
        key = self.shape.key if self.shape.delete_column else ()
        wanted = {*self.router.columns, *key} or set(self.shape.select_columns(schema)[:1])
        read = [n for n in schema.names if n in {*wanted, self.shape.delete_column}]
        fields = [f for f in self.shape.schema if f.name in wanted]
        narrow = replace(self.shape, schema=pa.schema(fields), missing_as_null=True)
        rows_before = self.rows
        for chunk in self.files.read_chunks(file, CHUNK_ROWS, columns=read):
            conformed, gone = narrow.conform(chunk, file.uri)
            self.shape.check_missing(schema, file.uri, gone)
            self._count(conformed, gone)
        return self.rows - rows_before

    def _count(self, rows: pa.Table, gone: pa.Array | None) -> None:
        self.rows += len(rows)
        delta = route_rows(self.router, rows, self.shape.key, deleted=gone, rows_max=len(rows))
        for place, todo in delta.by_place.items():
            before = self.shards.get(place.shard_id) or IngestShardReport(
                shard_id=place.shard_id, outcome=DONE, is_new=place.shard_id not in self.there
            )
            puts = sum(len(call) for call in todo if call.kind is Kind.PUT)
            deletes = sum(len(call) for call in todo if call.kind is Kind.DELETE)
            self.rows_deleted += deletes
            self.shards[place.shard_id] = before.model_copy(
                update={"rows": before.rows + puts, "rows_deleted": before.rows_deleted + deletes}
            )
