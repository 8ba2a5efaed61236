"""The operator that turns files into rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from memwal.errors import Usage
from memwal_airflow.hooks.request import check_name, parse_shard
from memwal_airflow.operators.base import MemWalJobOperator

_INGEST_VALUES = ("format", "delete_column", "bad_rows", "bad_rows_max", "rows_per_chunk",
                  "backlog_generations_max", "backlog_wait")  # fmt: skip
_INGEST_SWITCHES = ("check", "resume_corrected", "again", "skip_unknown_columns",
                    "missing_as_null", "merge")  # fmt: skip


class MemWalIngestOperator(MemWalJobOperator):
    """Writes files into a table's MemWAL, each row once; after a kill or failure it resumes.

    :param table: a name in memwal.toml, a path, or an s3:// address (templated)
    :param sources: files, folders, patterns, Lance tables: one, or a list. From a folder, each run
        takes the files that are new. They are read with the jobs' credentials, so don't let whoever
        starts a run choose them (templated)
    :param format: parquet, arrow, csv, jsonl, lance, or a format that Spark reads; by default as
        the files' names say (templated)
    :param source_options: options of Spark's reader (templated)
    :param map: maps the names of source columns to those of the table's columns (templated)
    :param default: values for columns that a source lacks (templated)
    :param delete_column: a boolean source column; where it is true, the row's key is deleted
        (templated)
    :param shard: write all rows to this shard, without routing (templated)
    :param ingest_id: names the ingest; by default derived from what is asked for (templated)
    :param check: read everything and list what can't be written; write nothing (templated)
    :param bad_rows: a file in which rows that can't be written are set aside (templated)
    :param bad_rows_max: stop if there are more such rows than this (templated)
    :param resume_corrected: resume with files that were corrected after the rows that are already
        written (templated)
    :param again: ingest again what has already been ingested completely (templated)
    :param skip_unknown_columns: leave out columns that the table lacks (templated)
    :param missing_as_null: write NULL for columns that a source lacks, over what is there
        (templated)
    :param rows_per_chunk: how many rows to route at a time (templated)
    :param merge: merge before, whenever the backlog is too large, and at the end (templated)
    :param backlog_generations_max: wait (or merge) while more generations than this wait for a
        merge (templated)
    :param backlog_wait: how long to wait for merges, such as `10m` (templated)

    The table in the return value has `rows_written` and `rows_rejected`. A DAG should run it
    once at a time (`max_active_runs=1`): a second run would take the shards from the first, which
    would then fail.
    """

    default_job = "ingest"
    template_fields: Sequence[str] = (
        *MemWalJobOperator.template_fields,
        *("sources", "source_options", "map", "default", "shard", "ingest_id"),
        *(*_INGEST_VALUES, *_INGEST_SWITCHES),
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
        bad_rows_max: int | str | None = None,
        resume_corrected: bool | str = False,
        again: bool | str = False,
        skip_unknown_columns: bool | str = False,
        missing_as_null: bool | str = False,
        rows_per_chunk: int | str | None = None,
        merge: bool | str = False,
        backlog_generations_max: int | str | None = None,
        backlog_wait: str | None = None,
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

    def options(self) -> list[str]:
        """The options, as on the command line."""
        pairs = {"option": self.source_options, "map": self.map, "default": self.default}
        return [
            *self._give(*_INGEST_VALUES),
            *self._switch(*_INGEST_SWITCHES),
            *(f"--{n}={k}={v}" for n, given in pairs.items() for k, v in (given or {}).items()),
            *self._repeat("--shard", self.shard or (), parse_shard),
            *self._repeat("--id", self.ingest_id or (), partial(check_name, "id")),
        ]

    def list_sources(self) -> list[str]:
        """The sources, which follow the table."""
        found = [self.sources] if isinstance(self.sources, str) else list(self.sources or ())
        if not found:
            raise Usage("no source is named")
        return found
