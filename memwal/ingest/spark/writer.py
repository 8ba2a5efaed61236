"""The writing half of the Spark data source: a DataFrame's rows, or a stream's batches, ingested.

Spark may run a task several times, even concurrently, and finally names one attempt for each
partition. So tasks don't write to shards: they route rows, store them below `_maintenance/ingest/`,
and return the paths in their commit messages. From the messages that Spark names, the driver's
commit makes the plan of a round, and carries it out as an ingest in this process. A write is round
1 of its ingest; batch N of a stream is round N + 1 of its query's ingest. So a batch that Spark
repeats, because it died before it knew that the batch was written, is finished, or nothing to do.

Files that tasks stored for nothing are removed by the abort as far as it knows them, else by the
commit; what both miss, `memwal.jobs.garbage.kinds.ingest` removes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from memwal.clock import SystemClock
from memwal.errors import LASTING_EXITS, MemWalError, Unsupported, error_of
from memwal.format import layout
from memwal.ingest.plan import IngestOptions, StagedRound
from memwal.ingest.sources.columns import make_columns
from memwal.ingest.spark.staging import SourceRows, Staging, join_records, store_rows
from memwal.ingest.target import IngestTable
from memwal.run.keywords import name_options
from memwal.run.progress import LogProgress
from memwal.run.stores import open_stores
from memwal.store.records.ingests import Round, StagedRecord

_FIRST = 1
_WHERE = "the DataFrame"
# The properties in which Spark's driver tells its tasks which batch they belong to.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True, kw_only=True)
class StoredRows(WriterCommitMessage):  # type: ignore[misc]
    """The files that a task stored for a round, in its rows' order."""

    ingest_id: str
    round: int
    write_id: str
    spec_id: int
    files: tuple[StagedRecord, ...]


Messages = Sequence[StoredRows | None]


@dataclass(frozen=True, kw_only=True)
class Sink:
    """Where rows go. Made where a query is planned, on the driver, and sent to its tasks."""

    options: IngestOptions = field(repr=False)
    staging: Staging
    spec_id: int
    write_id: str

    @classmethod
    def open(cls, options: IngestOptions, schema: StructType) -> Sink:
        """Look at the table. Raises the error that any row with these columns would meet."""
        # The driver's alone: tasks import this module, too, and may lack what shows a report.
        from memwal.ingest.job import name_shard

        [table] = options.tables
        stores = open_stores(table.find_uri(), table.storage_options)
        view = stores.views.table()
        options = name_shard(options, view)
        request = options.request
        known = IngestTable.read(stores, view, request.shard)
        shape = known.make_shape(
            delete_column=request.delete_column,
            missing_as_null=request.missing_as_null,
            convert=request.convert,
        )
        shape.check(to_arrow_schema(schema, timezone="UTC"), _WHERE)
        return cls(
            options=options,
            staging=Staging(
                uri=stores.uri,
                storage_options=stores.storage_options,
                router=known.check_shards(),
                shape=shape,
                columns=make_columns(shape, (), ()),
            ),
            spec_id=known.spec_id,
            write_id=SystemClock().new_id(),
        )

    def store(self, ingest_id: str, number: int, batches: Iterator[pa.RecordBatch]) -> StoredRows:
        """Store a task's rows, by shard. Runs on an executor."""
        tables = (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
        rows = (SourceRows(name=_WHERE, rows=table) for table in tables)
        folder = _find_folder(ingest_id, number, self.write_id)
        return StoredRows(
            ingest_id=ingest_id,
            round=number,
            write_id=self.write_id,
            spec_id=self.spec_id,
            files=tuple(store_rows(self.staging, folder, rows, with_digests=True)),
        )

    def commit(self, name: str, messages: Messages) -> None:
        """Ingest the rows that the tasks stored. Raises the ingest's error."""
        stored = [message for message in messages if message is not None and message.files]
        if not stored:
            return
        options = replace(
            self.options,
            request=replace(self.options.request, ingest_id=stored[0].ingest_id),
            staged=StagedRound(
                name=name,
                number=stored[0].round,
                spec_id=stored[0].spec_id,
                records=join_records(file for message in stored for file in message.files),
            ),
        )
        from memwal.ingest.job import run_ingest

        report = run_ingest(options, LogProgress())
        if report.exit_code:
            text = "; ".join(t.error for t in report.tables if t.error) or str(report.error)
            raise error_of(report.exit_code, report.outcome, text)

    def abort(self, ingest_id: str, number: int, write_id: str) -> None:
        """Remove the files that a write's tasks stored for a round and its plan does not name."""
        objects = open_stores(self.staging.uri, self.staging.storage_options).objects
        plan = Round(objects, ingest_id, number, write_id).read_plan()
        named = {path for record in (plan and plan.staged) or () for path in record.files}
        mine = {info.path for info in objects.list(_find_folder(ingest_id, number, write_id))}
        objects.delete(sorted(mine - named))

    def forget(self, ingest_id: str) -> None:
        """Remove the records of a finished write that got no id, since nothing can resume it."""
        objects = open_stores(self.staging.uri, self.staging.storage_options).objects
        with suppress(MemWalError):  # the rows are written, and what is left is small
            Round(objects, ingest_id, _FIRST, self.write_id).forget()


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """One `df.write`."""

    def __init__(self, options: IngestOptions, schema: StructType, overwrite: bool) -> None:
        """Raise what `Sink.open` raises, and Unsupported for the mode overwrite."""
        with _explained():
            _check_mode(overwrite, 'mode("append")')
            self._sink = Sink.open(options, schema)
        given = options.request.ingest_id
        self._is_nameless = given is None
        self._id = f"write-{self._sink.write_id}" if given is None else given

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredRows:
        """Store a task's rows."""
        with _explained():
            return self._sink.store(self._id, _FIRST, iterator)

    def commit(self, messages: Messages) -> None:
        """Ingest the rows that the tasks stored."""
        with _explained(f"to go on with it, save the same again with the option id = {self._id}"):
            self._sink.commit(f"the write with id {self._id}", messages)
            if self._is_nameless:
                self._sink.forget(self._id)

    def abort(self, messages: Messages) -> None:
        """Remove what an ingest that goes on has no use for."""
        with _explained():
            self._sink.abort(self._id, _FIRST, self._sink.write_id)


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes the batches of one `df.writeStream`.

    Spark makes one object for a batch's tasks and another to commit; they share only what is in the
    tasks' messages.
    """

    def __init__(self, options: IngestOptions, schema: StructType, overwrite: bool) -> None:
        """Raise what `Sink.open` raises, and Unsupported for the mode complete and an id."""
        with _explained():
            _check_mode(overwrite, 'outputMode("append")')
            if options.request.ingest_id is not None:
                raise Unsupported(
                    "MW-I34", "option id is for batches: a stream is known by its checkpoint"
                )
            self._sink = Sink.open(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredRows:
        """Store a task's rows."""
        with _explained():
            task = TaskContext.get()
            query = task and task.getLocalProperty(_QUERY_ID)
            batch = task and task.getLocalProperty(_BATCH_ID)
            if query is None or batch is None:
                raise Unsupported("MW-I35", "Spark does not say which batch of which query this is")
            return self._sink.store(f"stream-{query}", int(batch) + 1, iterator)

    def commit(self, messages: Messages, batch_id: int) -> None:
        """Ingest the stored rows, unless an earlier run of the query has."""
        with _explained("start the query again: it goes on with this batch"):
            self._sink.commit(f"batch {batch_id} of the query", messages)

    def abort(self, messages: Messages, batch_id: int) -> None:
        """Remove what an ingest that goes on has no use for."""
        with _explained():
            for stored in messages:
                if stored is not None:
                    self._sink.abort(stored.ingest_id, stored.round, stored.write_id)
                    return  # the others are of the same write


def _find_folder(ingest_id: str, number: int, write_id: str) -> str:
    return f"{layout.ingest_round_folder(ingest_id, number)}/staged/{write_id}"


def _check_mode(overwrite: bool, right: str) -> None:
    if overwrite:
        raise Unsupported(
            "MW-I36", f"a table with a MemWAL is not overwritten, only appended to: use {right}"
        )


@contextmanager
def _explained(advice: str | None = None) -> Iterator[None]:
    """Reword errors: they name the data source's options, not the command's, and add `advice`."""
    try:
        yield
    except MemWalError as error:
        text = name_options(error.text)
        helps = advice is not None and error.exit_code not in LASTING_EXITS
        raise error.say(f"{text}; {advice}" if helps else text) from None
