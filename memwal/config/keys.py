"""Every key of `memwal.toml`: its type, its bounds and what it means."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    model_validator,
)

from memwal.config.names import is_address
from memwal.config.namespaces import NamespaceSettings
from memwal.options import PRIORITY
from memwal.rows.policy import RowPolicy, make_policy
from memwal.text import parse_bytes, parse_seconds


def _with_unit(parse: Callable[[str], float]) -> BeforeValidator:
    """Takes a text that ends in a unit by `parse`; a plain number is left to pydantic."""

    def read(value: object) -> object:
        return parse(value) if isinstance(value, str) and value.strip()[-1:].isalpha() else value

    return BeforeValidator(read)


def _mark(unit: str) -> Any:
    return Field(json_schema_extra={"unit": unit})


ByteCount = Annotated[int, _with_unit(parse_bytes), _mark("bytes")]
"""`268435456`, `"256MB"` or `"1GiB"`."""
Seconds = Annotated[float, _with_unit(parse_seconds), _mark("seconds")]
"""`90`, `"90s"`, `"10m"`, `"1h"` or `"7d"`."""

ImportPaths = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")], ...],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]
"""`"my_module.my_function"`, or a list of such."""


# Checks are built when a model is first used (`defer_build`): without a file, few are.
_STRICT = ConfigDict(extra="forbid", frozen=True, defer_build=True)

EngineName = Literal["auto", "spark", "local"]
CompactionMode = Literal["never", "auto", "always"]


def _check_address(text: str) -> str:
    if "${" in text:
        raise ValueError(f"{text!r}: expected an address that is written out, without ${{…}}")
    return text


Address = Annotated[str, AfterValidator(_check_address)]


def _key(meaning: str, default: Any = None, **limits: Any) -> Any:
    """A key and its meaning, which the reference page shows."""
    if "default_factory" in limits:
        return Field(description=meaning, **limits)
    return Field(default=default, description=meaning, **limits)


class Settings(BaseModel):
    """Settings that `[defaults]`, `[patterns.GLOB]` and `[tables.NAME]` may hold; None: not set."""

    model_config = _STRICT

    engine: EngineName | None = _key("Where jobs run; auto: on Spark where that pays")
    log_format: Literal["text", "json"] | None = _key("Format of lines on stderr")
    master: str | None = _key("The Spark master; not set: as Spark is configured")
    generations_per_commit_max: int | None = _key("Generations in a merge's commit", ge=1)
    shards_per_commit_max: int | None = _key("Small shards that share a commit; 1: none do", ge=1)
    bytes_per_commit_max: ByteCount | None = _key(
        "Bytes in memory of a merge's commit; one generation is always taken", ge=1
    )
    memory_bytes_max: ByteCount | None = _key(
        "The most a process may use, including its interpreter", ge=1
    )
    conflict_attempts_max: int | None = _key("Attempts of a commit that loses races", ge=1)
    conflict_seconds_max: Seconds | None = _key(
        "How long a commit that loses races is retried", gt=0
    )
    tombstones_in_commit_max: int | None = _key(
        "Deletes in a commit of rows; more get one of their own before it", ge=0, le=100_000
    )
    segment_rows_min: int | None = _key(
        "Unindexed rows from which segments are built in parallel", ge=1
    )
    segment_tasks_max: int | None = _key("Segments of an index built in parallel", ge=1)
    retrain_unindexed_percent_max: float | None = _key(
        "Unindexed rows; above, a vector index is trained again", ge=0
    )
    retrain_segments_max: int | None = _key("Segments; above, an index is rebuilt", ge=1)
    target_rows_per_fragment: int | None = _key("Rows per fragment that compaction aims for", ge=1)
    compaction: CompactionMode | None = _key(
        "Whether maintain (not set: never) and watch (auto) compact; auto: where advised"
    )
    compaction_fragments_min: int | None = _key(
        "Small fragments from which compaction is advised", ge=2
    )
    compaction_tasks_max: int | None = _key("Rewrites in a run of compaction", ge=1)
    materialize_deletions_threshold: float | None = _key(
        "Share of deleted rows from which compaction rewrites a fragment", ge=0, le=1
    )
    due_generations_min: int | None = _key(
        "Generations pending in a shard that make a merge due", ge=1
    )
    due_bytes_min: ByteCount | None = _key("Bytes pending in a shard that make a merge due", ge=1)
    due_age_seconds_min: Seconds | None = _key(
        "Age of a pending generation that makes a merge due", ge=0
    )
    abandoned_after_seconds: Seconds | None = _key(
        "Silence after which a writer with unflushed rows looks gone", ge=0
    )
    sweep_seconds: Seconds | None = _key(
        "How long garbage passes look only at what changed, between full sweeps", ge=0
    )
    retention: Seconds | None = _key(
        "How long versions stay; jobs then delete by it what nothing needs, and WAL",
        ge=86_400,
    )
    grace: Seconds | None = _key("How long unused objects stay for readers; not set: 1h", ge=600)
    audit: str | None = _key("A folder or address for audit trails; not set: none", min_length=1)
    runs_kept_max: int | None = _key("Run records of a table", ge=1, le=4000)
    freshness: Seconds | None = _key("The lag that watch keeps the table under", ge=1)
    priority: int | None = _key("Whose turn comes first where tables wait; 9 before 1", ge=1, le=9)
    # A shorter one lapses while the store retries; a longer one, heartbeats make unnecessary.
    lease_seconds: Seconds | None = _key(
        "How long others wait when a run's host dies", ge=15, le=3600
    )
    store_seconds_max: Seconds | None = _key(
        "How long a request to a store is tried", ge=1, le=3600
    )
    requests_per_second_max: int | None = _key(
        "Requests a second to a store, of a command's processes and Lance", ge=1, le=100_000
    )
    storage_options: dict[str, str] = _key(
        "As pylance takes them; `${VARIABLE}` is replaced", default_factory=dict
    )


class ColumnOperator(BaseModel):
    """`COLUMN = { operator = …, cap = … }`; a text alone is the operator."""

    model_config = _STRICT

    operator: str = Field(min_length=1)
    cap: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _cap_fits(self) -> ColumnOperator:
        if self.cap is not None and self.operator != "list_append":
            raise ValueError("cap goes with list_append")
        return self


class PolicySettings(BaseModel):
    """`[tables.NAME.policy]`: how several rows of one key become one (`memwal.rows.policy`)."""

    model_config = _STRICT

    columns: dict[str, ColumnOperator | str] = _key("Operators by column", ..., min_length=1)
    marker: str | None = _key("A bool column: true marks operands; not set: all rows are")
    expiry: str | None = _key("A timestamp column: when a row expires")

    def policy(self) -> RowPolicy:
        """The same as the rest of the program knows it."""
        columns = {
            name: (found, None) if isinstance(found, str) else (found.operator, found.cap)
            for name, found in self.columns.items()
        }
        return make_policy(columns, self.marker, self.expiry)


class ExpireSettings(BaseModel):
    """`[tables.NAME.expire]`: when rows expire. `memwal init` stores it in the table."""

    model_config = _STRICT

    column: str = _key("A timestamp or date, from which a row's age counts", ..., min_length=1)
    after: Seconds = _key("The age, such as 90d", ..., ge=1)


class BackupSettings(BaseModel):
    """`[tables.NAME.backup]`: where the table's backups go, and how long they stay."""

    model_config = _STRICT

    uri: Address = _key("A folder, or an address in any store", ..., min_length=1)
    keep: str | None = _key(
        "How many, or how long, such as 7d; not set: all", pattern=r"^[1-9][0-9]{0,5}[smhd]?$"
    )
    storage_options: dict[str, str] = _key(
        "For the backups; not set: the table's own", default_factory=dict
    )


class TableSettings(Settings):
    """One `[tables.NAME]` section."""

    uri: Address = _key("A path, an address, or NAMESPACE:schema.table", ..., min_length=1)
    policy: PolicySettings | None = _key("How several rows of a key become one")
    expire: ExpireSettings | None = _key("When rows expire")
    backup: BackupSettings | None = _key("Where backups go")


# A name that starts with a dash would be an option on every command line.
TableName = Annotated[str, Field(pattern=r"^[^-]")]


# Stands before a colon in TABLE.
NamespaceName = Annotated[str, Field(pattern=r"^\w[\w-]*$")]


class AirflowDags(BaseModel):
    """`[airflow]`: what the DAGs in `dags/` need besides the tables and limits.

    Schedules are cron texts (UTC); an empty one takes the clock out. Durations are texts such as
    `7d`, as on the command line. `any_address` lets a run of a DAG name a table that this file does
    not: whoever may start one then reaches all that the jobs' credentials do.
    """

    model_config = _STRICT

    merge_schedule: str = _key("Cron, UTC; empty: by ingest events only", "*/5 * * * *")
    index_catchup_schedule: str = _key("Cron, UTC; empty: by merge events only", "0 2 * * *")
    snapshot_schedule: str = _key("Cron, UTC; empty: by merge events only", "30 2 * * *")
    compaction_schedule: str = _key("Cron, UTC; empty: only when started", "30 3 * * *")
    garbage_schedule: str = _key("Cron, UTC; empty: only when started", "0 4 * * *")
    backup_schedule: str = _key("Cron, UTC; empty: only when started", "0 1 * * *")
    verify_schedule: str = _key("Cron, UTC; empty: only when started", "0 5 * * *")
    owner: str = _key("Of the shipped DAGs' tasks", "memwal", min_length=1)
    any_address: bool = _key("Whether a run may name a table that this file does not", False)
    conn_id: str = _key("The connection to the tables", "memwal_default")
    spark_conn_id: str | None = _key("For spark-submit; not set: the memwal command")
    pool: str = _key("The pool of the tasks", "default_pool")
    deferrable: bool = _key("Whether jobs run in the triggerer", False)
    runs_in_flight_max: int = _key("Runs of a DAG at a time", 3, ge=1)
    tasks_in_flight_max: int = _key("Tasks of a job in a DAG at a time", 4, ge=1)
    retries: int = _key("Retries of a task", 3, ge=0)
    retry_delay_seconds: Seconds = _key("Between the tries of a task", 60, gt=0)
    held_seconds_max: Seconds = _key(
        "How long to wait for a held lease before a try fails", 3600, ge=0
    )
    execution_timeout_seconds: Seconds = _key("How long a try may take", 6 * 3600, gt=0)
    on_failure: ImportPaths = _key("Functions to call when a task has failed for good", ())


class WatchSettings(BaseModel):
    """`[watch]`: how `memwal watch` goes about it. Upkeep that has no interval is not done."""

    model_config = _STRICT

    every: Seconds = _key("Between looks at a table that changes", 5.0, gt=0)
    workers: int | None = _key(
        "Rounds in parallel; not set: one a processor, two with an object store, four at most",
        ge=1,
        le=256,
    )
    worker_memory_bytes_max: ByteCount = _key(
        "A worker with more after a round is replaced", 2**30, ge=1
    )
    worker_idle_seconds_max: Seconds = _key(
        "How long an idle worker, or Spark, is kept", 300.0, ge=0
    )
    looks_in_flight_max: int = _key("Looks at tables in parallel", 16, ge=1, le=1024)
    backoff_seconds_max: Seconds = _key(
        "How long a table or shard that failed is left alone", 300.0, gt=0
    )
    stop_seconds_max: Seconds = _key("How long commits in progress may take at the end", 30.0, gt=0)
    snapshot_every: Seconds | None = _key(
        "Between snapshots; longer where one finds nothing", 3600.0, gt=0
    )
    compaction_every: Seconds = _key("Between looks whether compaction is advised", 600.0, gt=0)
    garbage_every: Seconds = _key("Between garbage collections", 3600.0, gt=0)
    names_every: Seconds = _key("Between listings of the tables of a folder or glob", 60.0, ge=1)


class Config(BaseModel):
    """The whole file."""

    model_config = _STRICT
    _file: Path | None = PrivateAttr(default=None)

    defaults: Settings = Field(default_factory=Settings)
    patterns: dict[TableName, Settings] = Field(default_factory=dict)
    tables: dict[TableName, TableSettings] = Field(default_factory=dict)
    namespaces: dict[NamespaceName, NamespaceSettings] = Field(default_factory=dict)
    airflow: AirflowDags = Field(default_factory=AirflowDags)
    watch: WatchSettings = Field(default_factory=WatchSettings)

    def find_settings(self, table: str) -> Settings:
        """What holds for TABLE: its own settings, over those of its patterns, over the defaults.

        Of two patterns that match the later one in the file wins. An address has the defaults.
        """
        found = [self.defaults]
        if not is_address(table):
            found += [own for glob, own in self.patterns.items() if fnmatchcase(table, glob)]
            found += [self.tables[table]] if table in self.tables else []
        merged: dict[str, Any] = {}
        options: dict[str, str] = {}
        for settings in found:
            merged.update(settings.model_dump(include={*Settings.model_fields}, exclude_none=True))
            options.update(settings.storage_options)
        return Settings.model_validate({**merged, "storage_options": options})

    def find_priority(self, table: str) -> int:
        """The priority of TABLE."""
        return self.find_settings(table).priority or PRIORITY

    @property
    def file(self) -> Path | None:
        """Where it was read from; None where no file was."""
        return self._file


DURATIONS = frozenset(
    name
    for model in (Settings, ExpireSettings, AirflowDags, WatchSettings)
    for name, field in model.model_fields.items()
    if Seconds in get_args(field.annotation) or field.json_schema_extra == {"unit": "seconds"}
)
"""The keys whose values are durations."""
