"""The dry run of an ingest, from the columns that decide a row's shard or may not fit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import pyarrow as pa

from memwal.ingest.check import list_doubtful
from memwal.ingest.report import IngestShardReport
from memwal.ingest.routing import Router
from memwal.ingest.shards import route_rows
from memwal.ingest.sources.files import CHUNK_ROWS, SourceFiles
from memwal.ingest.sources.row_locations import Places
from memwal.ingest.values.operations import Kind
from memwal.ingest.values.shape import Shape
from memwal.ingest.values.writable_rows import Sieve
from memwal.model import ShardId
from memwal.report import DONE
from memwal.store.records.ingests import SourceFile


@dataclass(kw_only=True)
class Forecast:
    """Counts what each shard would get. `there` are the shards that the table has.

    It also counts rows that can't be written, as far as their source's types leave that in doubt.
    """

    files: SourceFiles
    shape: Shape
    router: Router
    there: Collection[ShardId]
    rejects_max: int | None = None
    rows: int = 0
    rows_deleted: int = 0
    rows_rejected: int = 0
    shards: dict[ShardId, IngestShardReport] = field(default_factory=dict)

    def add(self, file: SourceFile) -> int:
        """Count a file's rows. Raises what writing them would raise for columns and keys."""
        schema = self.files.read_schema(file)
        self.shape.check(schema, file.uri)
        key = self.shape.key if self.shape.delete_column else ()
        wanted = {*self.router.columns, *key, *list_doubtful(self.shape, schema, file)}
        wanted = wanted or set(self.shape.select_columns(schema)[:1])
        read = [n for n in schema.names if n in {*wanted, self.shape.delete_column}]
        fields = [f for f in self.shape.schema if f.name in wanted]
        narrow = replace(self.shape, schema=pa.schema(fields), missing_as_null=True)
        rows, find_place = 0, Places(self.files, file).find
        sieve = Sieve(shape=narrow, rows_max=self.rejects_max, rejected=self.rows_rejected)
        for chunk in self.files.read_chunks(file, CHUNK_ROWS, columns=read):
            sifted = sieve.sift(chunk, file.uri, rows, find_place)
            self.shape.check_missing(schema, file.uri, sifted.deleted)
            self._count(sifted.rows, sifted.deleted)
            rows += len(chunk)
        self.rows_rejected = sieve.rejected
        self.rows += rows
        return rows

    def _count(self, rows: pa.Table, gone: pa.Array | None) -> None:
        delta = route_rows(
            self.router, rows, self.shape.key, deleted=gone, rows_max=max(1, len(rows))
        )
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
