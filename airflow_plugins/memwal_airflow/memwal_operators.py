"""One operator for each job, with the job's own options as fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from memwal.errors import Usage
from memwal_airflow.job_operators import MemWalJobOperator, is_true
from memwal_airflow.request import check_name, parse_shard

# What `memwal backfill` runs.
BACKFILL_JOBS = ("merge", "index-catchup")
_LIMITS = ("until_generation", "generations_per_commit_max", "bytes_per_commit_max")
_INGEST_VALUES = ("format", "delete_column", "bad_rows", "bad_rows_max", "rows_per_chunk",
                  "backlog_generations_max", "backlog_wait", "engine")  # fmt: skip
_INGEST_SWITCHES = ("check", "resume_corrected", "again", "skip_unknown_columns",
                    "missing_as_null", "merge")  # fmt: skip
_GARBAGE_FIELDS = ("garbage_execute", "retention", "grace", "wal")


class MemWalMergeOperator(MemWalJobOperator):
    """Folds flushed generations into the base table, oldest first.

    :param shards: only these shards (templated)
    :param until_generation: up to this one (templated)
    :param generations_per_commit_max: a limit of one commit (templated)
    :param bytes_per_commit_max: a limit of one commit, in memory (templated)
    """

    default_job = "merge"
    template_fields: Sequence[str] = (*MemWalJobOperator.template_fields, "shards", *_LIMITS)

    def __init__(
        self,
        *,
        shards: Sequence[str] | str = (),
        until_generation: int | str | None = None,
        generations_per_commit_max: int | str | None = None,
        bytes_per_commit_max: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.shards = shards
        self.until_generation = until_generation
        self.generations_per_commit_max = generations_per_commit_max
        self.bytes_per_commit_max = bytes_per_commit_max

    def options(self) -> list[str]:
        """As on the command line."""
        return [*_repeat("--shard", self.shards, parse_shard), *self._give(*_LIMITS)]


class MemWalIngestOperator(MemWalJobOperator):
    """Writes files into a table's MemWAL, each row once; killed or failed, it goes on.

    :param table: a name in memwal.toml, a path, or an s3:// address (templated)
    :param sources: files, folders, patterns, Lance tables: one, or a list. Of a folder, each run
        takes the files that are new. They are read with the jobs' credentials, so nothing that
        whoever starts a run may choose (templated)
    :param format: parquet, arrow, csv, jsonl, lance, or what Spark reads; default: by the files'
        names (templated)
    :param source_options: for Spark's reader (templated)
    :param map: the table's name for a source's column, by the source's (templated)
    :param default: values for columns that a source lacks (templated)
    :param delete_column: a boolean column that deletes the row's key (templated)
    :param shard: write to this one, without routing (templated)
    :param ingest_id: names the ingest; default: by what is asked for (templated)
    :param check: read everything and list what can't be written; write nothing (templated)
    :param bad_rows: a file; rows that can't be written are set aside in it (templated)
    :param bad_rows_max: stop when there are more of these
    :param resume_corrected: go on with files that were mended behind what is written (templated)
    :param again: ingest once more what was ingested completely (templated)
    :param skip_unknown_columns: leave out columns that the table lacks
    :param missing_as_null: write NULL for columns that a source lacks, over what is there
    :param rows_per_chunk: rows that are routed at a time
    :param merge: merge first, when too much waits, and at the end
    :param backlog_generations_max: wait (or merge) while more wait for a merge
    :param backlog_wait: how long to wait for merges, such as `10m`
    :param engine: auto, spark or local (templated)

    The table in the return value has `rows_written` and `rows_rejected`. A DAG should have one run
    of it at a time (`max_active_runs=1`): a second one would take the shards from the first, which
    then fails.
    """

    default_job = "ingest"
    template_fields: Sequence[str] = (
        *MemWalJobOperator.template_fields,
        *("sources", "format", "source_options", "map", "default", "delete_column", "shard"),
        *("ingest_id", "check", "bad_rows", "resume_corrected", "again", "engine"),
    )

    def __init__(
        self,
        *,
        table: str,
        sources: Sequence[str] | str,
        format: str | None = None,
        source_options: Mapping[str, str] | None = None,
        map: Mapping[str, str] | None = None,
        default: Mapping[str, Any] | None = None,
        delete_column: str | None = None,
        shard: str | None = None,
        ingest_id: str | None = None,
        check: bool | str = False,
        bad_rows: str | None = None,
        bad_rows_max: int | None = None,
        resume_corrected: bool | str = False,
        again: bool | str = False,
        skip_unknown_columns: bool = False,
        missing_as_null: bool = False,
        rows_per_chunk: int | None = None,
        merge: bool = False,
        backlog_generations_max: int | None = None,
        backlog_wait: str | None = None,
        engine: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(tables=table, **kwargs)
        self.sources = sources
        self.format = format
        self.source_options = source_options
        self.map = map
        self.default = default
        self.delete_column = delete_column
        self.shard = shard
        self.ingest_id = ingest_id
        self.check = check
        self.bad_rows = bad_rows
        self.bad_rows_max = bad_rows_max
        self.resume_corrected = resume_corrected
        self.again = again
        self.skip_unknown_columns = skip_unknown_columns
        self.missing_as_null = missing_as_null
        self.rows_per_chunk = rows_per_chunk
        self.merge = merge
        self.backlog_generations_max = backlog_generations_max
        self.backlog_wait = backlog_wait
        self.engine = engine

    def options(self) -> list[str]:
        """As on the command line."""
        pairs = {"option": self.source_options, "map": self.map, "default": self.default}
        return [
            *self._give(*_INGEST_VALUES),
            *(f"--{n.replace('_', '-')}" for n in _INGEST_SWITCHES if is_true(getattr(self, n))),
            *(f"--{n}={k}={v}" for n, given in pairs.items() for k, v in (given or {}).items()),
            *_repeat("--shard", self.shard or (), parse_shard),
            *_repeat("--id", self.ingest_id or (), partial(check_name, "id")),
        ]

    def list_sources(self) -> list[str]:
        """The files, behind the table."""
        found = [self.sources] if isinstance(self.sources, str) else list(self.sources or ())
        if not found:
            raise Usage("no source is named")
        return found


class MemWalBackfillOperator(MemWalMergeOperator):
    """Merges many tables and catches their indexes up, the largest backlog first.

    :param jobs: merge, index-catchup or both; others are ignored (templated)
    :param concurrency: how many tables at once
    """

    default_job = "backfill"
    template_fields: Sequence[str] = (*MemWalMergeOperator.template_fields, "jobs")

    def __init__(
        self,
        *,
        jobs: Sequence[str] | str = BACKFILL_JOBS,
        concurrency: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.jobs = jobs
        self.concurrency = concurrency

    def options(self) -> list[str]:
        """As on the command line."""
        jobs = ",".join(job for job in BACKFILL_JOBS if job in self.jobs)
        return [
            *super().options(),
            *([f"--jobs={jobs}"] if jobs else []),
            *self._give("concurrency"),
        ]


class MemWalIndexCatchupOperator(MemWalJobOperator):
    """Extends the base table's indexes over the rows that merges added.

    :param indexes: only these indexes (templated)
    """

    default_job = "index-catchup"
    template_fields: Sequence[str] = (*MemWalJobOperator.template_fields, "indexes")

    def __init__(self, *, indexes: Sequence[str] | str = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.indexes = indexes

    def options(self) -> list[str]:
        """As on the command line."""
        return _repeat("--index", self.indexes, partial(check_name, "index"))


class MemWalSnapshotOperator(MemWalJobOperator):
    """Refreshes the shard snapshot in the MemWAL index."""

    default_job = "snapshot"


class MemWalCompactionOperator(MemWalJobOperator):
    """Rewrites the small fragments that merging leaves."""

    default_job = "compaction"


class MemWalGarbageOperator(MemWalJobOperator):
    """Lists garbage; deletes it with `garbage_execute`.

    :param garbage_execute: drop and delete, not only list (templated)
    :param retention: expire base-table versions older than this first, such as `7d` (templated)
    :param grace: how long dropped generations stay, such as `1h` (templated)
    :param wal: collect WAL entries too (templated)
    """

    default_job = "garbage"
    template_fields: Sequence[str] = (*MemWalJobOperator.template_fields, *_GARBAGE_FIELDS)

    def __init__(
        self,
        *,
        garbage_execute: bool | str = False,
        retention: str | None = None,
        grace: str | None = None,
        wal: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.garbage_execute = garbage_execute
        self.retention = retention
        self.grace = grace
        self.wal = wal

    def options(self) -> list[str]:
        """As on the command line."""
        return [
            *(["--execute"] if is_true(self.garbage_execute) else []),
            *(["--wal"] if is_true(self.wal) else []),
            *self._give("retention", "grace"),
        ]


def _repeat(option: str, values: Sequence[str] | str, check: Callable[[Any], str]) -> list[str]:
    found = [values] if isinstance(values, str) and values else list(values or ())
    return [f"{option}={check(value)}" for value in found]
