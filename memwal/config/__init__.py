"""The configuration file `memwal.toml`, checked at the edge. Values only; nothing is opened here.

A command-line flag beats the environment (`MEMWAL_*`), which beats a table's own section, which
beats `[defaults]`.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from memwal.config.names import check_named as check_named
from memwal.config.names import explain_unknown
from memwal.config.names import find_names as find_names
from memwal.config.names import is_address as is_address
from memwal.config.names import is_glob as is_glob
from memwal.config.names import match_listed as match_listed
from memwal.config.names import match_names as match_names
from memwal.config.namespaces import OPTION as NAMESPACE_OPTION
from memwal.config.namespaces import NamespacedTable as NamespacedTable
from memwal.config.namespaces import NamespaceSettings as NamespaceSettings
from memwal.config.namespaces import find_namespaced as find_namespaced
from memwal.config.storage_options import STORAGE_OPTIONS_VARIABLE as STORAGE_OPTIONS_VARIABLE
from memwal.config.storage_options import WAIT_OPTION, expand
from memwal.config.storage_options import read_environment_options as read_environment_options
from memwal.config.values import ByteCount, ImportPaths, Seconds
from memwal.errors import NotATable, Usage
from memwal.rows.policy import RowPolicy, make_policy
from memwal.text import mask_address as mask_address

DEFAULT_FILE = "memwal.toml"
RUN_ID_VARIABLE = "MEMWAL_RUN_ID"
AIRFLOW_TASK_VARIABLE = "MEMWAL_AIRFLOW_TASK"

# Checks are built when a model is first used (`defer_build`): without a file, few are.
_STRICT = ConfigDict(extra="forbid", frozen=True, defer_build=True)

EngineName = Literal["auto", "spark", "local"]
CompactionMode = Literal["never", "auto", "always"]


def _key(meaning: str, default: Any = None, **limits: Any) -> Any:
    """A key and its meaning, which the reference page and `memwal config --explain` show."""
    if "default_factory" in limits:
        return Field(description=meaning, **limits)
    return Field(default=default, description=meaning, **limits)


class Settings(BaseModel):
    """Settings that `[defaults]` and each `[tables.NAME]` may hold. None: not set here."""

    model_config = _STRICT

    engine: EngineName | None = _key("Where jobs run; auto: on Spark where that pays")
    log_format: Literal["text", "json"] | None = _key("Format of lines on stderr")
    master: str | None = _key("The Spark master; not set: as Spark is configured")
    generations_per_commit_max: int | None = _key("Generations in a merge's commit", ge=1)
    shards_per_commit_max: int | None = _key("Small shards that share a commit; 1: none do", ge=1)
    bytes_per_commit_max: ByteCount | None = _key(
        "In memory, in a merge's commit; one generation always goes", ge=1
    )
    memory_bytes_max: ByteCount | None = _key(
        "What a process may take, its interpreter included", ge=1
    )
    conflict_attempts_max: int | None = _key("Tries of a commit that loses races", ge=1)
    conflict_seconds_max: Seconds | None = _key("How long a commit that loses races is tried", gt=0)
    index_join_allowed: bool | None = _key(
        "Whether a merge may join by an index, where that costs less"
    )
    tombstones_in_commit_max: int | None = _key(
        "Deletes in a commit of rows; more go by themselves", ge=0, le=10_000
    )
    append_rows_max: int | None = _key("Unindexed rows up to which index-catchup appends", ge=0)
    append_seconds_max: Seconds | None = _key(
        "Expected time up to which index-catchup appends", ge=0
    )
    segment_rows_min: int | None = _key(
        "Unindexed rows from which segments are built side by side", ge=1
    )
    segment_tasks_max: int | None = _key("Segments of an index built side by side", ge=1)
    retrain_unindexed_percent_max: float | None = _key(
        "Unindexed rows; above, a vector index is trained again", ge=0
    )
    retrain_segments_max: int | None = _key("Segments; above, an index is built anew", ge=1)
    retrain_imbalance_ratio_max: float | None = _key(
        "Largest partition to tenth percentile; above, it is trained again", ge=1
    )
    retrain_imbalance_rows_min: int | None = _key("Smaller partitions never count as uneven", ge=1)
    retrain_growth_percent_min: float | None = _key(
        "New rows since the training; below, uneven partitions stay", gt=0
    )
    target_rows_per_fragment: int | None = _key("Rows that compaction aims at", ge=1)
    compaction: CompactionMode | None = _key("Whether maintain compacts; auto: where it is advised")
    compaction_fragments_min: int | None = _key(
        "Small fragments by which a compaction is advised", ge=2
    )
    compaction_tasks_max: int | None = _key("Rewrites in a run of compaction", ge=1)
    materialize_deletions_threshold: float | None = _key(
        "Share of deleted rows from which compaction rewrites a fragment", ge=0, le=1
    )
    due_generations_min: int | None = _key("Pending in a shard, by which a merge is due", ge=1)
    due_bytes_min: ByteCount | None = _key("Pending in a shard, by which a merge is due", ge=1)
    due_age_seconds_min: Seconds | None = _key(
        "Age of a pending generation by which a merge is due", ge=0
    )
    abandoned_after_seconds: Seconds | None = _key(
        "Silence by which a writer with unflushed rows looks gone", ge=0
    )
    runs_kept_max: int | None = _key("Run records of a table", ge=1, le=4000)
    freshness: Seconds | None = _key("The lag that watch keeps the table under", ge=1)
    # A shorter one lapses while the store retries; a longer one, heartbeats make unnecessary.
    lease_seconds: Seconds | None = _key(
        "How long others wait when a run's host dies", ge=15, le=3600
    )
    store_seconds_max: Seconds | None = _key(
        "How long a request to a store is tried", ge=1, le=3600
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
    """`[tables.NAME.policy]`: how several rows of one key become one (`memwal.policy`)."""

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


class TableSettings(Settings):
    """One `[tables.NAME]` section."""

    uri: str = _key("A path, an address, or NAMESPACE:schema.table", ..., min_length=1)
    policy: PolicySettings | None = _key("How several rows of a key become one")


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
    verify_schedule: str = _key("Cron, UTC; empty: only when started", "0 5 * * *")
    owner: str = _key("Of the shipped DAGs' tasks", "memwal", min_length=1)
    any_address: bool = _key("Whether a run may name a table that this file does not", False)
    garbage_execute: bool = _key("Whether garbage is deleted, or only listed", False)
    garbage_wal: bool = _key("Whether covered WAL entries go, too", False)
    retention: str | None = _key("Such as 7d; older versions are expired; not set: none")
    grace: str | None = _key("Such as 1h; how long unused things are kept for readers")
    conn_id: str = _key("The connection to the tables", "memwal_default")
    spark_conn_id: str | None = _key("For spark-submit; not set: the memwal command")
    pool: str = _key("The pool of the tasks", "default_pool")
    deferrable: bool = _key("Whether tasks wait in the triggerer", False)
    defer_after_seconds: Seconds = _key("How long a task waits in the worker first", 30, ge=0)
    runs_in_flight_max: int = _key("Runs of a DAG at a time", 3, ge=1)
    tasks_in_flight_max: int = _key("Tasks of a job in a DAG at a time", 4, ge=1)
    retries: int = _key("Tries after the first", 3, ge=0)
    retry_delay_seconds: Seconds = _key("Between the tries of a task", 60, gt=0)
    held_seconds_max: Seconds = _key(
        "How long a held lease is waited for before a try has failed", 3600, ge=0
    )
    execution_timeout_seconds: Seconds = _key("How long a try may take", 6 * 3600, gt=0)
    on_failure: ImportPaths = _key("Functions to call when a task has failed for good", ())
    deadline_seconds: Seconds | None = _key("How long a run may take from when it was queued", gt=0)
    on_deadline: ImportPaths = _key("Functions to call when a run takes longer", ())

    @model_validator(mode="after")
    def _deadline_is_whole(self) -> AirflowDags:
        if bool(self.on_deadline) != (self.deadline_seconds is not None):
            raise ValueError("deadline_seconds and on_deadline go together")
        return self


class WatchSettings(BaseModel):
    """`[watch]`: how `memwal watch` goes about it. Upkeep that has no interval is not done."""

    model_config = _STRICT

    every: Seconds = _key("Between looks at a table that changes", 5.0, gt=0)
    workers: int = _key(
        "Rounds side by side; not set: one a processor, four at most",
        default_factory=lambda: min(os.cpu_count() or 1, 4),
        ge=1,
        le=256,
    )
    worker_memory_bytes_max: ByteCount = _key(
        "A worker with more after a round is replaced", 2**30, ge=1
    )
    worker_idle_seconds_max: Seconds = _key(
        "How long an idle worker, or Spark, is kept", 300.0, ge=0
    )
    looks_in_flight_max: int = _key("Looks at tables, side by side", 16, ge=1, le=1024)
    backoff_seconds_max: Seconds = _key("How long what fails is left alone", 300.0, gt=0)
    stop_seconds_max: Seconds = _key("How long commits in hand may take at the end", 30.0, gt=0)
    snapshot_every: Seconds | None = _key(
        "Between snapshots; longer where one finds nothing", 3600.0, gt=0
    )
    compaction_every: Seconds | None = _key("Between compactions; not set: none", gt=0)
    garbage_every: Seconds = _key("Between garbage collections, with garbage_execute", 3600.0, gt=0)
    names_every: Seconds = _key(
        "Between questions to a namespace what a glob stands for", 60.0, ge=1
    )
    garbage_execute: bool = _key("Whether garbage is collected", False)
    garbage_wal: bool = _key("Whether covered WAL entries go, too", False)
    retention: Seconds | None = _key("Older versions are expired; not set: none", ge=0)
    grace: Seconds = _key("How long unused things are kept for readers", 3600.0, ge=0)


class Config(BaseModel):
    """The whole file."""

    model_config = _STRICT
    _file: Path | None = PrivateAttr(default=None)

    defaults: Settings = Field(default_factory=Settings)
    tables: dict[TableName, TableSettings] = Field(default_factory=dict)
    namespaces: dict[NamespaceName, NamespaceSettings] = Field(default_factory=dict)
    airflow: AirflowDags = Field(default_factory=AirflowDags)
    watch: WatchSettings = Field(default_factory=WatchSettings)

    @property
    def file(self) -> Path | None:
        """Where it was read from; None where no file was."""
        return self._file


class ResolvedTable(BaseModel):
    """A TABLE argument after the configuration was looked up.

    `unknown` is why a name can lead nowhere: it is in no configuration.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    name: str
    uri: str
    settings: Settings
    storage_options: dict[str, str]
    policy: RowPolicy | None = None
    unknown: str | None = None

    def find_uri(self) -> str:
        """Where the table is. Raises NotATable for a name that is no folder here either."""
        # Unlike Path.exists, it raises for no name, however odd.
        if self.unknown is not None and not os.path.exists(self.uri):  # noqa: PTH110
            raise NotATable(self.unknown)
        return self.uri

    def with_settings(self, given: Settings) -> ResolvedTable:
        """The table with some settings, from a command line or a call, over those it has."""
        settings = self.settings.model_copy(update=given.model_dump(exclude_unset=True))
        return self.model_copy(update={"settings": settings})


def find_named_file(path: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The configuration file that somebody asked for: by `--config`, or by `MEMWAL_CONFIG`."""
    return path or environment.get("MEMWAL_CONFIG") or None


def load_config(path: str | None, environment: Mapping[str, str] = os.environ) -> Config:
    """Read the file at `path`, or `MEMWAL_CONFIG`, or `./memwal.toml` if there is one.

    Raises Usage for a missing file that was asked for, one of somebody else's that was not, bad
    TOML, or an unknown key (named).
    """
    asked = find_named_file(path, environment)
    file = Path(asked or DEFAULT_FILE)
    if not file.exists():
        if asked:
            raise Usage(f"{file}: no such configuration file")
        return Config()
    if not asked and not _is_own(file):
        raise Usage(
            f"{file.absolute()} belongs to another user, or everybody may write to it: a "
            f"configuration decides where requests and secrets go. --config {file} takes it, "
            "--config /dev/null none"
        )
    try:
        config = Config.model_validate(tomllib.loads(file.read_text("utf-8-sig")))
        config._file = file.absolute()
        return config
    except (OSError, UnicodeDecodeError) as error:
        raise Usage(f"{file}: can't be read: {error}") from None
    except ValidationError as error:
        raise Usage(f"{file}: {_explain(error)}") from None
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is no TOMLDecodeError
        raise Usage(f"{file}: not valid TOML: {error}") from None


def _is_own(file: Path) -> bool:
    """Whether nobody but this user and root can have written the file, or put a link to it here."""
    ours = {os.geteuid(), 0}
    is_open = file.stat().st_mode & stat.S_IWOTH
    return not is_open and {file.stat().st_uid, file.lstat().st_uid} <= ours


def _explain(error: ValidationError) -> str:
    texts = []
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            texts.append(f"unknown key {place!r}")
        else:
            texts.append(f"{place}: {_say(problem)}")
    return "; ".join(texts)


def _say(problem: Mapping[str, Any]) -> str:
    return str(problem["msg"]).removeprefix("Value error, ")


def resolve_table(
    table: str,
    config: Config,
    storage_options: Mapping[str, str],
    environment: Mapping[str, str] = os.environ,
) -> ResolvedTable:
    """Look TABLE up in the configuration, or take it as an address.

    An address is never looked up: whoever names one means that place, whatever a file says. A name
    in a namespace, given here or as a table's `uri`, is not asked for yet: that is done by whoever
    opens the table.
    `${VARIABLE}` in a storage option is replaced from the environment (secrets belong there, not
    into the file). Raises Usage for a variable that is not set, or that would become part of the
    address which requests go to; and for a limit in the environment that can't be one.
    """
    section = None if is_address(table) else config.tables.get(table)
    merged: dict[str, Any] = config.defaults.model_dump(exclude_none=True)
    options = dict(merged.pop("storage_options", {}))
    if section is not None:
        own = section.model_dump(exclude_none=True)
        options.update(own.pop("storage_options", {}))
        own.pop("uri")
        own.pop("policy", None)
        merged.update(own)
    merged.update(read_environment_settings(environment))
    # An option of the command line also stands in for a variable that is not set.
    options = {k: expand(k, v, environment) for k, v in options.items() if k not in storage_options}
    options.update(storage_options)
    if (seconds := merged.get("store_seconds_max")) is not None:
        options = {WAIT_OPTION: str(round(seconds)), **options}
    place = table if section is None else section.uri
    found = find_namespaced(place, config.namespaces, environment)
    options.pop(NAMESPACE_OPTION, None)  # from the configuration, and from nowhere else
    if found is not None:
        options[NAMESPACE_OPTION] = found.encode()
    return ResolvedTable(
        name=mask_address(table) if section is None and found is None else table,
        uri=place if found is None else found.uri,
        settings=Settings.model_validate(merged),
        storage_options=options,
        policy=None if section is None or section.policy is None else section.policy.policy(),
        unknown=explain_unknown(table, config) if section is None and found is None else None,
    )


def read_environment_settings(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What `MEMWAL_…` variables say of the settings, each under its own name in capitals.

    Raises Usage, which names the variable. An empty one is not set.
    """
    given = {
        name: text
        for name in Settings.model_fields
        if name != "storage_options" and (text := environment.get(name_variable(name), "").strip())
    }
    try:
        return Settings.model_validate(given).model_dump(exclude_unset=True)
    except ValidationError as error:
        texts = (f"{name_variable(str(p['loc'][0]))}: {_say(p)}" for p in error.errors())
        raise Usage("; ".join(texts)) from None


def make_settings(**values: object) -> Settings:
    """The limits that somebody gives; what is left out is None. Raises Usage."""
    try:
        return Settings.model_validate({k: v for k, v in values.items() if v is not None})
    except ValidationError as error:
        raise Usage(_explain(error)) from None


def make_row_policy(lines: Sequence[str]) -> RowPolicy:
    """The policy that lines of `[tables.NAME.policy]` make. Raises Usage."""
    try:
        return PolicySettings.model_validate(tomllib.loads("\n".join(lines))).policy()
    except ValidationError as error:
        raise Usage(f"policy: {_explain(error)}") from None
    except (ValueError, RecursionError) as error:
        raise Usage(f"policy: not valid TOML: {error}") from None


def name_variable(setting: str) -> str:
    """The environment variable of a setting."""
    return f"MEMWAL_{setting.upper()}"
