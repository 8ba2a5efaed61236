"""Stages an ingest's rows with Spark: routed, in order, and stored once, before any is written.

A Spark source may give its rows in another order each time, or even other rows. So a shard's writer
can't read from the shuffle: a restarted task would not read what the earlier attempt wrote. Rows
are stored first, below the round's folder, by tasks that may run as often as Spark likes; the plan
names the files of the attempts that counted. From then on it is an ingest of files, with one track
per shard (`memwal.ingest.track`), and the source is not read again.

What goes through the shuffle are not rows but a few blocks of a shard's rows in Arrow format, so
that types which Spark lacks are kept.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

from memwal.errors import MemWalError, Usage
from memwal.ingest.plan import make_plan
from memwal.ingest.progress.identity import read_digests_of
from memwal.ingest.request import IngestRequest
from memwal.ingest.routing import Place, Router
from memwal.ingest.sources.columns import SourceColumns, make_columns
from memwal.ingest.sources.files import SourceFiles
from memwal.ingest.sources.splits import FindPlace, Places, RowPlace
from memwal.ingest.target import IngestTable
from memwal.ingest.values.numbered_chunks import is_marked
from memwal.ingest.values.shape import Shape
from memwal.ingest.values.writable_rows import Sieve, Sifted
from memwal.run.stores import open_stores
from memwal.store.records.ingests import PlanRecord, Round, SourceFile, StagedRecord

_BLOCK_BYTES = 4 * 1024 * 1024
_FILE_BYTES = _BATCH_BYTES = 64 * 1024 * 1024
_CHUNK_ROWS = 64 * 1024
_PART_ROWS = 16 * _CHUNK_ROWS
_BLOCKS = "shard string, entries string, part long, place long, rows long, data binary"
_FILES = "shard string, entries string, place long, path string, rows long"
_PARTITIONS_MIN = 8
TABLE = "table"
_REJECTED = ("", "")
"""The shard and entries that mark blocks of rows that can't be written (lines of JSON)."""


def pack_block(
    shard: tuple[str, str], part: int, place: int, rows: int, data: bytes
) -> pa.RecordBatch:
    """One block: some rows of (shard, entries), or lines of JSON of rows that can't be written."""
    return pa.record_batch(
        {
            "shard": [shard[0]],
            "entries": [shard[1]],
            "part": pa.array([part], pa.int64()),
            "place": pa.array([place], pa.int64()),
            "rows": pa.array([rows], pa.int64()),
            "data": pa.array([data], pa.binary()),
        }
    )


def gather_files(
    blocks: Iterator[dict[str, Any]], file_bytes: int
) -> Iterator[tuple[str, str, list[bytes], int]]:
    """(shard, entries, blocks' data, rows) of each file, cut at about `file_bytes`."""
    for (shard, entries), group in groupby(blocks, key=itemgetter("shard", "entries")):
        parts: list[bytes] = []
        rows = size_bytes = 0
        for block in group:
            parts.append(block["data"])
            rows += block["rows"]
            size_bytes += len(block["data"])
            if size_bytes >= file_bytes:
                yield shard, entries, parts, rows
                parts, rows, size_bytes = [], 0, 0
        if parts:
            yield shard, entries, parts, rows


def gather_records(files: Iterable[tuple[str, str, str, int]]) -> tuple[StagedRecord, ...]:
    """What was stored for each shard, from (shard, entries, path, rows) in the rows' order."""
    by_shard: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for shard, entries, path, rows in files:
        by_shard.setdefault((shard, entries), []).append((path, rows))
    return tuple(
        StagedRecord(
            shard_id=shard,
            entries=tuple((name, value) for name, value in json.loads(entries)),
            files=tuple(path for path, _ in stored),
            rows=sum(rows for _, rows in stored),
        )
        for (shard, entries), stored in sorted(by_shard.items())
    )


def encode_rows(tables: Sequence[pa.Table]) -> bytes:
    """Tables of one schema as the bytes of an Arrow stream."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, tables[0].schema) as stream:
        for table in tables:
            stream.write_table(table)
    return out.getvalue()


def decode_rows(data: bytes) -> pa.Table:
    """The rows of an Arrow stream."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()


@dataclass(frozen=True, kw_only=True)
class Staging:
    """What the tasks need; sent to executors."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)
    folder: str
    router: Router
    shape: Shape
    columns: SourceColumns
    name: str
    rejects_max: int | None = None
    """How many bad rows may be set aside; None: a bad row ends the run."""


@dataclass(frozen=True, kw_only=True)
class Staged:
    """What was stored: rows by shard, and files of rows that can't be written."""

    rows: tuple[StagedRecord, ...]
    rejects: tuple[str, ...]
    rows_rejected: int


def stage(session: SparkSession, blocks: DataFrame, staging: Staging) -> Staged:
    """Bring blocks of rows together by shard, and store them.

    Raises Usage for too many rows that can't be written.
    """
    session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(_BATCH_BYTES))
    partitions = max(_PARTITIONS_MIN, session.sparkContext.defaultParallelism)
    together = blocks.repartition(partitions, "shard").sortWithinPartitions(
        "shard", "part", "place"
    )
    try:
        found = together.mapInArrow(partial(_store_blocks, staging), _FILES).collect()
    except PythonException as error:
        raise _translate(error) from None
    found.sort(key=lambda row: int(row.place))
    rejected = [row for row in found if (row.shard, row.entries) == _REJECTED]
    rows_rejected = sum(row.rows for row in rejected)
    if rows_rejected > (staging.rejects_max or 0):
        raise Usage(f"{rows_rejected:,} rows can't be written, more than --bad-rows-max takes")
    files = ((row.shard, row.entries, row.path, row.rows) for row in found if row.shard)
    rejects = tuple(row.path for row in rejected)
    return Staged(rows=gather_records(files), rejects=rejects, rows_rejected=rows_rejected)


def stage_plan(
    request: IngestRequest,
    table: IngestTable,
    shape: Shape,
    session: SparkSession,
    records: Round,
    files: Sequence[SourceFile] | None,
    rejects_max: int | None = None,
) -> PlanRecord:
    """Store the source's rows for a round; returns the plan that names them.

    `files` are read by our own reader; None means that Spark reads the source. Up to `rejects_max`
    rows that can't be written are set aside; with None, the first one ends the run.
    """
    staging = Staging(
        uri=table.stores.uri,
        storage_options=table.stores.storage_options,
        folder=f"{records.folder}/staged/{records.run_id}",
        router=table.make_router(),
        shape=shape,
        columns=make_columns(shape, request.renamed, request.defaults),
        name=", ".join(request.sources),
        rejects_max=rejects_max,
    )
    if files is not None:
        files = read_digests(session, files, staging)
        blocks = read_files(session, files, staging)
    else:
        options = dict(request.source_options)
        rows = read_source(session, request.sources, str(request.format), options)
        blocks = route_rows(rows, staging)
    staged = stage(session, blocks, staging)
    plan = make_plan(
        request,
        spec_id=table.spec_id,
        rows_per_entry_max=table.rows_per_entry_max,
        chunk_rows=request.rows_per_chunk or _CHUNK_ROWS,
        staged=staged.rows,
        sources=files or (),
    )
    update = {"rejects": staged.rejects, "rows_rejected": staged.rows_rejected}
    return plan.model_copy(update=update)


# ---- sources


def read_source(
    session: SparkSession,
    sources: Sequence[str],
    kind: str,
    options: Mapping[str, str],
) -> DataFrame:
    """Read with Spark itself: a format with its options, or `table` for names that Spark knows."""
    try:
        if kind == TABLE:
            found = [session.table(name) for name in sources]
            rows = found[0]
            for more in found[1:]:
                rows = rows.unionByName(more)
            return rows
        reader = session.read.format(kind).options(**dict(options))
        rows = reader.load(list(sources)) if sources else reader.load()
        _ = rows.schema  # raises for a source that can't be read
        return rows
    except AnalysisException as error:
        raise Usage(f"{', '.join(sources)}: {str(error).splitlines()[0]}") from None


def route_rows(rows: DataFrame, staging: Staging) -> DataFrame:
    """Make blocks of Spark's rows, in the order in which Spark reads them."""
    named = pa.schema([(name, pa.null()) for name in rows.columns])
    staging.shape.check(staging.columns.convert_schema(named, staging.name), staging.name)
    return rows.mapInArrow(partial(route_batches, staging), _BLOCKS)


def read_files(session: SparkSession, found: Sequence[SourceFile], staging: Staging) -> DataFrame:
    """Make blocks of files that our own reader reads, on the executors, in the files' order."""
    files = SourceFiles(staging.storage_options, staging.columns)
    parts: list[_Part] = []
    for file in found:
        staging.shape.check(files.read_schema(file), file.uri)
        total = files.count_rows(file)
        if total is None:
            parts.append(_Part(file=file, first_row=0, rows=None))
        else:
            firsts = range(0, total, _PART_ROWS)
            parts += [_Part(file=file, first_row=n, rows=_PART_ROWS) for n in firsts]
    numbers = session.range(0, len(parts), 1, max(1, len(parts)))
    return numbers.mapInArrow(partial(_route_files, staging, files, tuple(parts)), _BLOCKS)


def read_digests(
    session: SparkSession, found: Sequence[SourceFile], staging: Staging
) -> list[SourceFile]:
    """The files with their digests, read on the executors."""
    files = SourceFiles(staging.storage_options, staging.columns)
    read = partial(read_digests_of, files, tuple(found))
    try:
        numbers = session.range(0, len(found), 1, len(found))
        rows = numbers.mapInArrow(read, "place long, file string").collect()
    except PythonException as error:
        raise _translate(error) from None
    return [SourceFile.model_validate_json(row.file) for row in sorted(rows)]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Part of a file: `rows` rows from `first_row` on, or all with None."""

    file: SourceFile
    first_row: int
    rows: int | None


# ---- tasks


@dataclass
class _Held:
    """Rows of one shard that are not in a block yet."""

    tables: list[pa.Table] = field(default_factory=list)
    bytes: int = 0


def route_batches(staging: Staging, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows -> blocks of one shard's rows."""
    columns = staging.columns
    rows = (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
    if columns.changes:
        rows = (
            columns.convert(table, columns.convert_schema(table.schema, staging.name).names)
            for table in rows
        )
    return _make_blocks(staging, (_Rows(name=staging.name, rows=table) for table in rows))


def _route_files(
    staging: Staging,
    files: SourceFiles,
    parts: Sequence[_Part],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Numbers of parts -> blocks of one shard's rows."""
    chosen = (parts[n] for batch in batches for n in batch.column("id").to_pylist())
    columns = staging.shape.select_columns
    return _make_blocks(
        staging,
        (
            rows
            for part in chosen
            for rows in _read_part(files, part, columns(files.read_schema(part.file)))
        ),
    )


def _read_part(files: SourceFiles, part: _Part, columns: Sequence[str]) -> Iterator[_Rows]:
    read, find_place = 0, Places(files, part.file).find
    for chunk in files.read_chunks(part.file, _CHUNK_ROWS, part.first_row, columns=columns):
        first_row = part.first_row + read
        yield _Rows(name=part.file.uri, rows=chunk, first_row=first_row, find_place=find_place)
        read += len(chunk)
        if part.rows is not None and read >= part.rows:
            return


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """Rows of a source; their row numbers are not known when Spark reads it."""

    name: str
    rows: pa.Table
    first_row: int = 0
    find_place: FindPlace = lambda row: RowPlace(row=None)


def _make_blocks(staging: Staging, tables: Iterator[_Rows]) -> Iterator[pa.RecordBatch]:
    """Route rows and gather them into blocks, each numbered within its partition."""
    context = TaskContext.get()
    part = 0 if context is None else context.partitionId()
    held: dict[Place, _Held] = {}
    places = count()
    sieve = Sieve(shape=staging.shape, rows_max=staging.rejects_max)
    for read in tables:
        if not is_marked(read.rows):  # the types of a source that Spark reads show here first
            staging.shape.check(read.rows.schema, read.name)
        sifted = sieve.sift(read.rows, read.name, read.first_row, read.find_place)
        if sifted.rejects:
            lines = "".join(f"{reject.model_dump_json()}\n" for reject in sifted.rejects)
            rows = len(sifted.rejects)
            yield pack_block(_REJECTED, part, next(places), rows, lines.encode())
        for place, routed in _route(staging, sifted):
            into = held.setdefault(place, _Held())
            into.tables.append(routed)
            into.bytes += routed.nbytes
            if into.bytes >= _BLOCK_BYTES:
                yield _make_block(place, held.pop(place), part, next(places))
    for place, left in held.items():
        yield _make_block(place, left, part, next(places))


def _route(staging: Staging, sifted: Sifted) -> Iterator[tuple[Place, pa.Table]]:
    conformed, name = sifted.rows, staging.shape.delete_column
    if name is not None:
        flags = pa.array([False] * len(conformed)) if sifted.deleted is None else sifted.deleted
        conformed = conformed.append_column(name, flags)
    for batch in conformed.combine_chunks().to_batches():
        for routed in staging.router.route(batch, batch[name] if name is not None else None):
            yield routed.place, routed.take(batch)


def _make_block(place: Place, held: _Held, part: int, place_in_part: int) -> pa.RecordBatch:
    rows = pa.concat_tables(held.tables).combine_chunks()
    entries = json.dumps([(name, value.hex()) for name, value in place.values.entries])
    shard = (str(place.shard_id), entries)
    return pack_block(shard, part, place_in_part, len(rows), encode_rows([rows]))


def _store_blocks(staging: Staging, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Blocks, sorted by shard and place -> files of one shard each; yields what each holds."""
    context = TaskContext.get()
    attempt = 0 if context is None else context.taskAttemptId()
    objects = open_stores(staging.uri, staging.storage_options).objects
    blocks = (row for batch in batches for row in batch.to_pylist())
    for place, (shard, entries, parts, rows) in enumerate(gather_files(blocks, _FILE_BYTES)):
        if (shard, entries) == _REJECTED:
            # Rejects are kept with the round's records.
            folder = staging.folder.replace("/staged/", "/rejects/")
            path, data = f"{folder}/{attempt}-{place:06d}.jsonl", b"".join(parts)
        else:
            path = f"{staging.folder}/{attempt}/{shard}/{place:06d}.arrow"
            data = encode_rows([decode_rows(part) for part in parts])
        objects.put(path, data)
        yield pa.record_batch(
            {
                "shard": [shard],
                "entries": [entries],
                "place": pa.array([place], pa.int64()),
                "path": [path],
                "rows": pa.array([rows], pa.int64()),
            }
        )


def _translate(error: PythonException) -> MemWalError:
    """A task's error as one of ours. Spark keeps only its text, which begins with its class."""
    lines = [line for line in str(error).splitlines() if line.startswith("memwal.errors.")]
    if not lines:
        return MemWalError(f"staging failed: {str(error).strip().splitlines()[-1]}")
    kind, _, text = lines[-1].partition(": ")
    return Usage(text) if kind.endswith("Usage") else MemWalError(text)
