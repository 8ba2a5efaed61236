"""Stages an ingest's rows with Spark: routed, in order, and stored once, before any is written.

Spark may run a task several times, and may not give it the same rows each time. So tasks don't
write to shards: they route rows, and store them, by shard, below the round's folder, in files of
which each attempt has its own; the plan names those of the attempts that counted. From then on it
is an ingest of files, with one track per shard (`memwal.ingest.track`), and the source is not read
again.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from memwal import errors
from memwal.clock import SystemClock
from memwal.errors import MemWalError, Usage
from memwal.ingest.plan import make_plan
from memwal.ingest.progress.identity import add_digest, digest_each, sum_digests
from memwal.ingest.request import IngestRequest
from memwal.ingest.routing import Place, Router
from memwal.ingest.sources.columns import SourceColumns, make_columns
from memwal.ingest.sources.files import SourceFiles
from memwal.ingest.target import IngestTable
from memwal.ingest.values.shape import Shape
from memwal.ingest.values.writable_rows import Sieve, Sifted
from memwal.run.stores import open_stores
from memwal.store.records.ingests import (
    PlanRecord,
    RejectRecord,
    Round,
    SourceFile,
    StagedRecord,
    encode_rejects,
)

_FILE_BYTES = 4 * 1024 * 1024
# Of all shards together: a task holds no more of these before it stores the largest part.
_HELD_BYTES_MAX = 256 * 1024 * 1024
_CHUNK_ROWS = 64 * 1024
_PART_ROWS = 16 * _CHUNK_ROWS


@dataclass(frozen=True, kw_only=True)
class Staging:
    """What the tasks need; sent to executors. Up to `rejects_max` bad rows are set aside."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)
    router: Router
    shape: Shape
    columns: SourceColumns
    rejects_max: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceRows:
    """Rows of a source, from `first_row` on, if that is known."""

    name: str
    rows: pa.Table
    first_row: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Part of a file: `rows` rows from `first_row` on, or all with None."""

    file: SourceFile
    first_row: int
    rows: int | None


def stage_plan(
    request: IngestRequest,
    table: IngestTable,
    shape: Shape,
    session: SparkSession,
    records: Round,
    files: Sequence[SourceFile],
) -> PlanRecord:
    """Store the files' rows for a round; returns the plan that names them.

    Raises Usage for more rows that can't be written than may be set aside.
    """
    staging = Staging(
        uri=table.stores.uri,
        storage_options=table.stores.storage_options,
        router=table.make_router(),
        shape=shape,
        columns=make_columns(shape, request.renamed, request.defaults),
        rejects_max=request.rejects_max,
    )
    reader = SourceFiles(staging.storage_options, staging.columns)
    folder = f"{records.folder}/staged/{records.run_id}"

    def read_digest(number: int) -> Iterator[str]:
        yield add_digest(reader, files[number]).model_dump_json()

    def store_part(number: int) -> Iterator[str]:
        for record in store_rows(staging, folder, read_part(reader, shape, parts[number])):
            yield record.model_dump_json()

    digested = map(SourceFile.model_validate_json, _run_tasks(session, read_digest, len(files)))
    sources = tuple(digested)
    # Cut only now: what is put in a file's place after this is noticed by its digest.
    parts = cut_files(reader, shape, files)
    stored = [
        StagedRecord.model_validate_json(r) for r in _run_tasks(session, store_part, len(parts))
    ]
    rejected = [record for record in stored if not record.shard_id]
    rows_rejected = sum(record.rows for record in rejected)
    if rows_rejected > (request.rejects_max or 0):
        raise Usage(f"{rows_rejected:,} rows can't be written, more than --bad-rows-max takes")
    plan = make_plan(
        request,
        spec_id=table.spec_id,
        rows_per_entry_max=table.rows_per_entry_max,
        chunk_rows=request.rows_per_chunk or _CHUNK_ROWS,
        staged=join_records(record for record in stored if record.shard_id),
        sources=sources,
    )
    rejects = tuple(path for record in rejected for path in record.files)
    return plan.model_copy(update={"rejects": rejects, "rows_rejected": rows_rejected})


def join_records(stored: Iterable[StagedRecord]) -> tuple[StagedRecord, ...]:
    """What was stored for each shard, from the records of single files, in their rows' order."""
    by_shard: dict[tuple[str, tuple[tuple[str, str], ...]], list[StagedRecord]] = {}
    for record in stored:
        by_shard.setdefault((record.shard_id, record.entries), []).append(record)
    return tuple(
        StagedRecord(
            shard_id=shard,
            entries=entries,
            files=tuple(path for part in parts for path in part.files),
            rows=sum(part.rows for part in parts),
            digest=_join_digests([part.digest for part in parts]),
        )
        for (shard, entries), parts in sorted(by_shard.items())
    )


def _join_digests(digests: Sequence[str | None]) -> str | None:
    known = [int(digest, 16) for digest in digests if digest is not None]
    return f"{sum_digests(known):x}" if len(known) == len(digests) else None


def cut_files(reader: SourceFiles, shape: Shape, files: Sequence[SourceFile]) -> tuple[_Part, ...]:
    """Parts of files for tasks, in order. Raises Usage for columns that can't be written."""
    parts: list[_Part] = []
    for file in files:
        shape.check(reader.read_schema(file), file.uri)
        total = reader.count_rows(file)
        if total is None:
            parts.append(_Part(file=file, first_row=0, rows=None))
        else:
            firsts = range(0, total, _PART_ROWS)
            parts += [_Part(file=file, first_row=n, rows=_PART_ROWS) for n in firsts]
    return tuple(parts)


def _run_tasks(
    session: SparkSession, work: Callable[[int], Iterator[str]], tasks: int
) -> list[str]:
    """Run `work` with each number below `tasks` on executors; returns all texts, in order."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (n for batch in batches for n in batch.column("id").to_pylist()):
            for text in work(number):
                yield pa.record_batch({"text": [text]})

    try:
        numbers = session.range(0, tasks, 1, max(1, tasks))
        return [row.text for row in numbers.mapInArrow(run, "text string").collect()]
    except PythonException as error:
        raise _translate(error) from None


def _translate(error: PythonException) -> MemWalError:
    """A task's error as one of ours. Spark keeps only its text, which begins with its class."""
    lines = [line for line in str(error).splitlines() if line.startswith("memwal.errors.")]
    if not lines:
        return MemWalError(f"staging failed: {str(error).strip().splitlines()[-1]}")
    name, _, text = lines[-1].removeprefix("memwal.errors.").partition(": ")
    kind = getattr(errors, name, MemWalError)
    return errors.error_of(kind.exit_code, kind.outcome, text)


# ---- tasks


def read_part(reader: SourceFiles, shape: Shape, part: _Part) -> Iterator[SourceRows]:
    """The rows of a part of a file."""
    read = 0
    columns = shape.select_columns(reader.read_schema(part.file))
    for chunk in reader.read_chunks(part.file, _CHUNK_ROWS, part.first_row, columns=columns):
        yield SourceRows(name=part.file.uri, rows=chunk, first_row=part.first_row + read)
        read += len(chunk)
        if part.rows is not None and read >= part.rows:
            return


def store_rows(
    staging: Staging, folder: str, tables: Iterable[SourceRows], *, with_digests: bool = False
) -> Iterator[StagedRecord]:
    """Route a task's rows and store them, below `folder`; yields a record of each file, in order.

    The last one, which names no shard, is of rows that can't be written, if there are any.
    """
    objects = open_stores(staging.uri, staging.storage_options).objects
    folder = f"{folder}/{SystemClock().new_id()}"  # attempts don't share one
    held: dict[Place, list[pa.Table]] = {}
    sizes: dict[Place, int] = {}
    numbers = count()
    rejects: list[RejectRecord] = []
    sieve = Sieve(shape=staging.shape, rows_max=staging.rejects_max)

    def store(place: Place) -> StagedRecord:
        rows = pa.concat_tables(held.pop(place)).combine_chunks()
        del sizes[place]
        path = f"{folder}/{next(numbers):06d}.arrow"
        objects.put(path, encode_rows(rows))
        return StagedRecord(
            shard_id=place.shard_id,
            entries=tuple((name, value.hex()) for name, value in place.values.entries),
            files=(path,),
            rows=len(rows),
            digest=f"{digest_each(rows):x}" if with_digests else None,
        )

    for read in tables:
        sifted = sieve.sift(read.rows, read.name, read.first_row)
        rejects += sifted.rejects
        for place, routed in _route(staging, sifted):
            held.setdefault(place, []).append(routed)
            sizes[place] = sizes.get(place, 0) + routed.nbytes
            if sizes[place] >= _FILE_BYTES:
                yield store(place)
            elif sum(sizes.values()) >= _HELD_BYTES_MAX:
                yield store(max(sizes, key=lambda held_place: sizes[held_place]))
    for place in list(held):
        yield store(place)
    if rejects:  # kept with the round's records
        path = f"{folder.replace('/staged/', '/rejects/')}.jsonl"
        objects.put(path, encode_rejects(rejects))
        yield StagedRecord(shard_id="", files=(path,), rows=len(rejects))


def _route(staging: Staging, sifted: Sifted) -> Iterator[tuple[Place, pa.Table]]:
    conformed, name = sifted.rows, staging.shape.delete_column
    if name is not None:
        flags = pa.array([False] * len(conformed)) if sifted.deleted is None else sifted.deleted
        conformed = conformed.append_column(name, flags)
    for batch in conformed.combine_chunks().to_batches():
        for routed in staging.router.route(batch, batch[name] if name is not None else None):
            yield routed.place, routed.take(batch)


def encode_rows(rows: pa.Table) -> bytes:
    """Rows as the bytes of an Arrow stream."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_table(rows)
    return out.getvalue()
