"""The merging read as a Spark data source, cut over base fragments and pending generations.

    from memwal.read import spark as memwal_spark

    memwal_spark.register(session)
    events = (
        session.read.format("memwal")
        .option("columns", "id,text,vector")
        .option("filter", "score > 0.5")
        .load("s3://bucket/events")
    )

Or, with Python values: `memwal_spark.read(session, uri, columns=["id"], storage_options={...})`.

A DataFrame is the table as it was at `load()`, however often it is used. Maintenance may delete
what that needs some time later (see garbage's grace and retention); the query then fails and names
what is gone. Load the DataFrame again; running the query again does not help.

Spark prunes no columns for a Python data source, and its filter pushdown is not safe (a pushed
filter sticks to every later use of the DataFrame). So both are options: `columns`, and `filter` in
Lance's SQL, which applies to the newest row of each key.

With `search`, as `COLUMN=TEXT`, a DataFrame has the rows whose text has these words, best first, in
one partition that one task reads, and a column `_score`. Its options are `limit`, `operator` (`or`,
`and`) and `phrase` (`true`). `nearest`, as `COLUMN=[0.1, …]`, likewise gives the rows
whose vectors are nearest, with `_distance`; its `k` (10), `metric` and `nprobes`
are those of `memwal read`.

With `with_wal` as `true`, rows that no generation holds yet are included. They are read at `load()`
and go to all tasks, so they may take no more than `keys_bytes_max`.

`version` reads that version of the base with the generations that are listed now and not merged in
it, which may have rows that were written later; with `merged_only` as `true`, the base alone.
`checkpoint` names a checkpoint made by `memwal checkpoint`: exactly the table at that time.

`changes_since`, a version, or `changes_cursor`, the name of a cursor, reads what changed after it
instead, with `changes_until` and `changes_before` as for `memwal changes`. `session.readStream`
follows the changes; its offset is the version. A cursor moves as Spark commits micro-batches.

Further options: `consistency` (`snapshot`: shards from the table's shard snapshot, in few requests;
the log says so when it can't be used), `storage.KEY`, `allow_holes`, `allow_reinitialised`,
`allow_untested_lance`, `partition_bytes` (about what one task reads), and `keys_bytes_max`: pending
keys that take more memory are not sent to the tasks, each of which then looks them up in all
generations. A task reads whole fragments and whole generations. With a row-merge policy it reads
all pending generations of a shard, and keys that take more are an error.

What is loaded may also be a name: of a table in the file `config` (or MEMWAL_CONFIG) where the
driver runs, or `NAMESPACE:schema.table` if that file has the namespace. `load()` asks the namespace
where the table is. Temporary credentials that it vends are renewed by each executor, which
therefore has to reach the namespace.

For a session that `register` (or `read`) was called with, Spark redacts storage options, whatever
their names, in plans and in the event log. If that is not enough, such as with a Spark Connect
server that logs what clients send, give them in the driver's variable MEMWAL_STORAGE_OPTIONS.

Lance is imported in Spark's Python workers, never in the driver's own process.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from memwal.errors import Missing, StoreUnavailable, Usage
from memwal.read.plan.request import DISTANCE, SCORE
from memwal.read.plan.sources import ReadTask, plan_tasks
from memwal.read.spark_options import (
    STORAGE_PREFIX,
    Settings,
    check_schema,
    convert_batch,
    convert_schema,
    is_changes,
    is_write,
    parse_changes,
    parse_settings,
    parse_write,
    write_names,
)

if TYPE_CHECKING:
    from memwal.config import ResolvedTable
    from memwal.ingest.spark.writer import BatchWriter, StreamWriter
    from memwal.read.changes import ChangesOptions
    from memwal.read.plan.changes import ChangesRequest
    from memwal.read.plan.sources import ReadPlan
    from memwal.read.store.sources import Listed
    from memwal.read.store.tasks import Decided, Snapshot, TaskReads
    from memwal.read.table import OpenedRead, ReadableTable

T = TypeVar("T")

NAME = "memwal"
_LOG = logging.getLogger(NAME)
_REDACTED = "spark.sql.redaction.options.regex"
_STORAGE = rf"(?i:^{re.escape(STORAGE_PREFIX)})"
_TABLES_MAX = 4


def register(session: SparkSession) -> None:
    """Register the format with a session, and have Spark redact its storage options.

    Spark writes a load's options into plans and the event log, except for names that look like
    secrets to it. Every storage option is added to what this session redacts.
    """
    _look_at_python(session)
    session.dataSource.register(MemWalDataSource)
    known = session.conf.get(_REDACTED, None)
    if _STORAGE not in (known or ""):
        session.conf.set(_REDACTED, f"{known}|{_STORAGE}" if known else _STORAGE)


def _look_at_python(session: SparkSession) -> None:
    """Warn when Spark's Python was not chosen and is another one: it may lack memwal."""
    if "PYSPARK_PYTHON" in os.environ:
        return
    with suppress(PySparkException, AttributeError):  # Spark Connect's sessions have no context
        python = session.sparkContext.pythonExec
        if shutil.which(python) != sys.executable:
            _LOG.warning(
                "Spark's Python is %s, which needs memwal too; to have this one, set "
                "PYSPARK_PYTHON=%s before the session starts",
                shutil.which(python) or python,
                sys.executable,
            )


def read(
    session: SparkSession,
    uri: str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    version: int | None = None,
    merged_only: bool | None = None,
    checkpoint: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    **options: object,
) -> DataFrame:
    """A table as it is now, by its address or its name; registers the format first.

    `options` are the others of the format. Raises what Spark raises, with our text in it.
    """
    register(session)
    reader = session.read.format(NAME)
    given = {
        "columns": None if columns is None else write_names(columns),
        "filter": filter,
        "version": version,
        "merged_only": None if merged_only is None else str(merged_only).lower(),
        "checkpoint": checkpoint,
        **{f"{STORAGE_PREFIX}{name}": value for name, value in (storage_options or {}).items()},
        **options,
    }
    for name, value in given.items():
        if value is not None:
            reader = reader.option(name, str(value))
    return reader.load(uri)


class MemWalDataSource(DataSource):  # type: ignore[misc]
    """One `load()`, `save()` or `start()`. Spark makes it in a worker.

    Spark keeps it as long as the DataFrame is used. So the snapshot is taken at `load()`, and is
    the same for every query and every branch of one.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    def __getstate__(self) -> dict[str, Any]:
        # When it is loaded with a schema, nobody has asked for ours before. Spark sends a stream
        # that writes, too.
        if is_changes(self.options):
            _ = self._followed
        elif not is_write(self.options):
            _ = self._snapshot
        return self.__dict__

    @cached_property
    def _settings(self) -> Settings:
        found = parse_settings(self.options)
        return replace(found, table=_follow(found.table))

    @cached_property
    def _changes(self) -> ChangesOptions:
        asked = parse_changes(self.options)
        return replace(asked, table=_follow(asked.table))

    @cached_property
    def _followed(self) -> tuple[ChangesRequest, pa.Schema]:
        """The changes asked for, from version to version, and their columns."""
        from memwal.read.spark_changes import fix_range

        return fix_range(self._changes)

    @cached_property
    def _snapshot(self) -> Snapshot:
        return _take_snapshot(self._settings)

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> StructType:
        """The columns asked for, in that order. Raises Unsupported for a type that Spark lacks."""
        return StructType.fromJson(self._schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan the tasks. `schema` is ours, or some of our columns, given by `.schema(…)`."""
        asked = schema.jsonValue()
        check_schema(asked, self._schema())
        if is_changes(self.options):
            from memwal.read.spark_changes import ChangesReader

            return ChangesReader(self._changes, self._followed[0], schema)
        plan = self._snapshot.plan
        added = _list_added(plan)
        columns = tuple(f["name"] for f in asked["fields"] if f["name"] not in added)
        if not columns:
            raise Usage("a schema needs a column")
        hidden = tuple(key for key in plan.primary_key if key not in columns)
        narrowed = replace(self._snapshot, plan=replace(plan, columns=columns, hidden=hidden))
        return MemWalReader(self._settings, narrowed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Follow the changes of a table."""
        if not is_changes(self.options):
            raise Usage(
                "a stream follows changes: say from where, with changes_since or changes_cursor"
            )
        from memwal.read.spark_changes import ChangesStreamReader

        check_schema(schema.jsonValue(), self._schema())
        return ChangesStreamReader(self._changes, self._followed[0], schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Write a DataFrame into the MemWAL."""
        from memwal.ingest.spark.writer import BatchWriter

        return BatchWriter(parse_write(self.options), schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> StreamWriter:
        """Write a stream's batches into the MemWAL."""
        from memwal.ingest.spark.writer import StreamWriter

        return StreamWriter(parse_write(self.options), schema, overwrite)

    def _schema(self) -> dict[str, Any]:
        if is_changes(self.options):
            return convert_schema(self._followed[1])
        schema, plan = self._snapshot.schema, self._snapshot.plan
        fields = [schema.field(name) for name in plan.columns]
        fields += [pa.field(name, pa.float32()) for name in _list_added(plan)]
        return convert_schema(pa.schema(fields))


class MemWalPartition(InputPartition):  # type: ignore[misc]
    """One task, with the winners of the generations that it reads, if decided beforehand."""

    def __init__(self, task: ReadTask, winners: Mapping[Listed, bytes]) -> None:
        super().__init__(task)
        self.task = task
        self.winners = winners


class MemWalReader(DataSourceReader):  # type: ignore[misc]
    """Made where the query is planned, then sent to every executor once per stage."""

    def __init__(self, settings: Settings, snapshot: Snapshot, schema: StructType) -> None:
        self._settings = settings
        self._snapshot = snapshot
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        reads = _open_reads(settings, snapshot)
        decided = _advise_reload(snapshot, lambda: reads.decide(settings.keys_bytes_max))
        fragments = _advise_reload(snapshot, reads.list_fragments)
        tasks = plan_tasks(
            snapshot.plan,
            fragments,
            settings.partition_bytes,
            whole_shards=snapshot.whole_shards,
            unflushed=snapshot.unflushed_bytes,
        )
        self._partitions = [MemWalPartition(t, _pick_winners(decided, t)) for t in tasks]
        # What each task needs is in its partition; the rest goes to all of them.
        self._decided = None if decided is None else replace(decided, winners={})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_partitions": []}

    def partitions(self) -> list[InputPartition]:
        """The tasks; one that reads nothing for an empty table."""
        return self._partitions or [MemWalPartition(ReadTask(), {})]

    def read(self, partition: MemWalPartition) -> Iterator[pa.RecordBatch]:
        """One task's rows. Runs on an executor."""
        decided = self._decided
        if decided is not None:
            decided = replace(decided, winners=partition.winners)
        found = _open_reads(self._settings, self._snapshot).read(partition.task, decided)
        batches = (batch.select(self._arrow.names) for batch in found)
        end = object()
        while (batch := _advise_reload(self._snapshot, lambda: next(batches, end))) is not end:
            yield from convert_batch(batch, self._arrow)


def _pick_winners(decided: Decided | None, task: ReadTask) -> dict[Listed, bytes]:
    from memwal.read.store.tasks import name_source

    if decided is None:
        return {}
    mine = {name_source(source) for source in task.generations}
    return {which: won for which, won in decided.winners.items() if which in mine}


def _list_added(plan: ReadPlan) -> tuple[str, ...]:
    """The columns that a search adds."""
    if plan.nearest is not None:
        return (DISTANCE,)
    return () if plan.search is None else (SCORE,)


def _follow(table: ResolvedTable) -> ResolvedTable:
    """The table with a name resolved to its address and options, so all tasks read one table."""
    from memwal.store.objects.opening import find_address, normalise_uri

    uri, options = find_address(normalise_uri(table.find_uri()), table.storage_options)
    found = {"uri": uri, "storage_options": dict(options), "unknown": None}
    return table.model_copy(update=found)


def _take_snapshot(settings: Settings) -> Snapshot:
    from memwal.read.job import build_request
    from memwal.read.store.tasks import take_snapshot
    from memwal.run.policy_choice import check_stored

    table = _open_table(settings.table)

    def take(opened: OpenedRead) -> Snapshot:
        for text in opened.warnings:
            _LOG.warning("%s", text)
        if settings.asked.checkpoint is None:  # which has the policy of its moment, if any
            check_stored(settings.table, opened.view.policy_text)
        found = take_snapshot(
            table.tables, opened.view, opened.plan, opened.now_nanos(), opened.unflushed
        )
        size = sum(found.unflushed_bytes.values())
        if size > settings.keys_bytes_max:
            raise Usage(
                f"{table.uri}: the rows of the WAL take {size} bytes, more than keys_bytes_max = "
                f"{settings.keys_bytes_max}, and go to all tasks: raise it, or have the writers "
                "flush"
            )
        return found

    request = build_request(table, settings.asked)
    return table.use_read(request, take, with_wal=settings.asked.with_wal)


def _open_reads(settings: Settings, snapshot: Snapshot) -> TaskReads:
    from memwal.read.store.tasks import TaskReads

    return TaskReads(_open_table(settings.table).generations, snapshot)


def _open_table(table: ResolvedTable) -> ReadableTable:
    return _open_once(table.uri, tuple(sorted(table.storage_options.items())))


@lru_cache(maxsize=_TABLES_MAX)
def _open_once(uri: str, storage_options: tuple[tuple[str, str], ...]) -> ReadableTable:
    """Open a table, and keep it from task to task for Lance's caches."""
    from memwal.read.table import ReadableTable

    return ReadableTable(uri, dict(storage_options))


def _advise_reload(snapshot: Snapshot, call: Callable[[], T]) -> T:
    """Run a call; if something that was there at load() is gone, the error says what to do."""
    try:
        return call()
    except Missing as error:
        raise StoreUnavailable(
            f"{error}; it was there when the DataFrame was loaded, and maintenance has deleted it "
            f"since. Load the DataFrame again"
        ) from None
