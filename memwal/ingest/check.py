"""Checks sources before anything is written: their first rows, or all of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from memwal.errors import Usage
from memwal.ingest.report import IngestFindingReport, IngestShardReport
from memwal.ingest.routing import Router
from memwal.ingest.shards import route_rows
from memwal.ingest.sources.files import CHUNK_ROWS, SourceFiles
from memwal.ingest.values.numbered_chunks import count_rows
from memwal.ingest.values.operations import Kind
from memwal.ingest.values.shape import Shape
from memwal.ingest.values.writable_rows import Sieve, examine
from memwal.model import ShardId
from memwal.report import DONE
from memwal.store.records.ingests import SourceFile

FINDINGS_MAX = 100
COUNTED_MAX = 10_000
"""Counting stops here: a finding costs 0.5 ms, so a column that is all bad would take hours."""
_LOOKED_ROWS = 1024
_LOOKED_FILES_MAX = 1000
_VALUE_CHARACTERS_MAX = 200


def look_first(
    files: SourceFiles, shape: Shape, found: Sequence[SourceFile], *, rows: bool
) -> None:
    """Check what is cheap to read before the first write. Raises Usage for what can't be written.

    That is the schema of every file and, with `rows`, the first rows of up to `_LOOKED_FILES_MAX`
    files, of the doubtful columns only (`list_doubtful`).
    """
    for place, file in enumerate(found):
        schema = files.read_schema(file)
        shape.check(schema, file.uri)
        doubtful = list_doubtful(shape, schema, file)
        if not (rows and doubtful) or place >= _LOOKED_FILES_MAX:
            continue
        fields = [f for f in shape.schema if f.name in doubtful]
        narrow = replace(shape, schema=pa.schema(fields), missing_as_null=True)
        read = [n for n in schema.names if n in {*doubtful, shape.delete_column}]
        for chunk in files.read_chunks(file, _LOOKED_ROWS, columns=read):
            Sieve(shape=narrow).sift(chunk, file.uri, 0)
            break


def list_doubtful(shape: Shape, source: pa.Schema, file: SourceFile) -> set[str]:
    """The columns whose values may not fit the table, judged by the source's types."""
    there = {f.name: f for f in source}
    return {
        f.name
        for f in shape.schema
        if f.name in there
        and (
            file.format in ("csv", "jsonl")
            or there[f.name].type != f.type
            or (there[f.name].nullable and not f.nullable)
        )
    }


@dataclass(kw_only=True)
class Check:
    """Reads whole sources, and collects what can't be written."""

    files: SourceFiles
    shape: Shape
    rows: int = 0
    findings: list[IngestFindingReport] = field(default_factory=list)
    left_out: int = 0

    def add(self, file: SourceFile) -> int | None:
        """Check a file; returns its number of rows, None if not all were read.

        Raises StoreUnavailable.
        """
        before = self.rows
        try:
            schema = self.files.read_schema(file)
            self.shape.check(schema, file.uri)
            columns = self.shape.select_columns(schema)
            for chunk in self.files.read_chunks(file, CHUNK_ROWS, columns=columns):
                if self.is_full:
                    return None
                self._add_chunk(file, chunk, self.rows - before)
        except Usage as error:
            reason = str(error).removeprefix(f"{file.uri}: ")
            self.findings.append(IngestFindingReport(source=file.uri, reason=reason))
            return None
        return self.rows - before

    def describe(self) -> dict[str, object]:
        """The fields of the table's report."""
        found = tuple(self.findings)
        return {"rows": self.rows, "findings": found, "findings_left_out": self.left_out}

    @property
    def count(self) -> int:
        """The number of findings, including those that are counted only."""
        return len(self.findings) + self.left_out

    @property
    def is_full(self) -> bool:
        """Whether there are so many findings that counting has stopped."""
        return self.count >= COUNTED_MAX

    def _add_chunk(self, file: SourceFile, chunk: pa.Table, first_row: int) -> None:
        self.rows += count_rows(chunk)
        left = COUNTED_MAX - self.count
        found = examine(self.shape, chunk, file.uri, first_row, left)
        for finding in found.findings[:left]:
            if self.count >= FINDINGS_MAX:
                self.left_out += 1
                continue
            told = found.tell(finding).model_dump(exclude={"data"})
            told["value"] = _shorten(told["value"])
            self.findings.append(IngestFindingReport.model_validate(told))


def _shorten(value: Any) -> Any:
    text = str(value)
    return value if len(text) <= _VALUE_CHARACTERS_MAX else f"{text[:_VALUE_CHARACTERS_MAX]}…"


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
        rows = 0
        sieve = Sieve(shape=narrow, rows_max=self.rejects_max, rejected=self.rows_rejected)
        for chunk in self.files.read_chunks(file, CHUNK_ROWS, columns=read):
            sifted = sieve.sift(chunk, file.uri, rows)
            self.shape.check_missing(schema, file.uri, sifted.deleted)
            self._count(sifted.rows, sifted.deleted)
            rows += count_rows(chunk)
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
