"""What a job reports: one JSON document, and the exit code that sums it up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator, model_serializer

from memwal.errors import EXIT_PARTIAL as EXIT_PARTIAL

DONE = "done"
NOTHING_TO_DO = "nothing_to_do"
PARTIAL = "partial"
FAILED = "failed"
REFUSED = "refused"
HELD = "held"

# A model's checks are built when it is first used: a command uses few of these.
_FROZEN = ConfigDict(frozen=True, defer_build=True)


class Part(BaseModel):
    """Something with an outcome: a job, a table, a shard. `error` is the text of its `cause`."""

    model_config = _FROZEN

    outcome: str
    error: str | None = None
    exit_code: int = Field(default=0, exclude=True)
    cause: Any = Field(default=None, exclude=True, repr=False)


class TableReport(Part):
    """One table of any job."""

    table: str
    version_before: int | None = None
    version_after: int | None = None

    def summary(self) -> Mapping[str, int | None]:
        """The few numbers of a run that people compare over time; they go into its record."""
        return {}

    def stuck(self) -> Mapping[str, tuple[int, str | None]]:
        """Shards that no further run mends: the generation that each is left at, and why."""
        return {}

    def merged(self) -> Mapping[str, int] | None:
        """How far each shard is merged; None for a job that merges nothing."""
        return None


class ShardStatusReport(Part):
    """One shard in `status`.

    `holes` have `from_generation`, `to_generation` and a `cause` of `memwal.rows.holes`.
    `sizes_estimated`: the writer recorded none, so that they are told by the generations' files.
    `unflushed_wal_entries` is judged by a listing alone; `idle_seconds` since the newest WAL entry.
    `stuck` is why the last merge of the shard, by its record, could not go on from where it stands.
    """

    shard_id: str
    status: str | None = None
    writer_epoch: int | None = None
    manifest_version: int | None = None
    current_generation: int | None = None
    merged_generation: int = 0
    pending_generations: tuple[int, ...] = ()
    holes: tuple[dict[str, Any], ...] = ()
    pending_rows: int | None = 0
    pending_bytes: int | None = 0
    sizes_estimated: bool = False
    oldest_pending_flushed_at: str | None = None
    replay_after_wal_entry_position: int | None = None
    wal_entries: int | None = None
    wal_bytes: int | None = None
    unflushed_wal_entries: int | None = None
    idle_seconds: float | None = None
    abandoned: bool = False
    stuck: str | None = None
    due_reasons: tuple[str, ...] = ()


class IndexStatusReport(BaseModel):
    """One base-table index in `status`. `lag_generations` is None where nothing is recorded."""

    model_config = _FROZEN

    name: str
    caught_up: dict[str, int]
    lag_generations: int | None
    unindexed_rows: int | None


class SnapshotStatusReport(BaseModel):
    """The shard snapshot in the MemWAL index."""

    model_config = _FROZEN

    taken_at: str | None
    num_shards: int


class ReclaimableReport(BaseModel):
    """Listed generations that are merged and covered by every index that must cover them."""

    model_config = _FROZEN

    generations: int
    bytes: int | None


class LeaseReport(BaseModel):
    """The newest claim on a table's lease."""

    model_config = _FROZEN

    state: str
    token: int
    holder: str
    job: str
    acquired_at: str | None
    expires_at: str | None
    reason: str | None = None


class LeaseTableReport(TableReport):
    """One table of `lease break`."""

    lease: LeaseReport | None = None


class JobOnTable(BaseModel):
    """What one job of several came to on a table. In the document, `job` stands in the report."""

    model_config = _FROZEN

    job: str
    report: SerializeAsAny[TableReport]

    @model_serializer
    def _in_the_document(self) -> dict[str, Any]:
        return {"job": self.job, **self.report.model_dump(mode="json")}


class MaintainTableReport(TableReport):
    """One table of `maintain`: each job's own report of it, in the order they ran."""

    jobs: tuple[JobOnTable, ...] = ()


class StorageReport(BaseModel):
    """Bytes by kind; None where not known. Pending and reclaimable are in-memory bytes.

    `base_bytes` is what the version's manifest names: data files, and index files as far as their
    sizes are recorded. A shard that could not be read is left out.
    """

    model_config = _FROZEN

    base_bytes: int | None
    pending_bytes: int | None
    reclaimable_bytes: int | None
    wal_bytes: int | None


class StatusTableReport(TableReport):
    """One table in `status`. `uri` carries no credentials; `due` is whether a merge is due."""

    uri: str | None = None
    due: bool = False
    due_reasons: tuple[str, ...] = ()
    storage: StorageReport | None = None
    version: int | None = None
    rows: int | None = None
    primary_key: tuple[str, ...] = ()
    policy: dict[str, Any] | None = None
    shards: tuple[ShardStatusReport, ...] = ()
    indexes: tuple[IndexStatusReport, ...] = ()
    snapshot: SnapshotStatusReport | None = None
    reclaimable: ReclaimableReport | None = None
    lease: LeaseReport | None = None
    warnings: tuple[str, ...] = ()


class BacklogReport(BaseModel):
    """What was pending before and after a run, in the shards that could be read; None: unknown."""

    model_config = _FROZEN

    generations_before: int | None = None
    bytes_before: int | None = None
    generations_after: int | None = None
    bytes_after: int | None = None


class RunRecord(BaseModel):
    """One run of a job on one table, as it is stored under `_maintenance/runs/`.

    Read back from storage, so everything is checked; fields of a newer build are passed over.
    `stuck` has shards that no further run mends: the generation that a merge left them at, and why.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)

    format: Literal[1] = 1
    run_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    job: str = Field(pattern=r"^[a-z][a-z-]{0,39}$")
    started_at: str
    finished_at: str
    seconds: float = Field(ge=0)
    outcome: Literal["done", "partial", "failed", "refused"]
    exit_code: int
    error: str | None = None
    engine: Literal["spark", "local"] | None = None
    holder: str
    version_before: int | None = None
    version_after: int | None = None
    summary: dict[str, int | None] = Field(default_factory=dict)
    backlog: BacklogReport = BacklogReport()
    stuck: dict[str, tuple[int, str]] = Field(default_factory=dict)
    requests: dict[str, int] = Field(default_factory=dict)

    @field_validator("started_at", "finished_at")
    @classmethod
    def _is_a_time(cls, text: str) -> str:
        if datetime.fromisoformat(text).utcoffset() is None:
            raise ValueError("a time without its offset from UTC")
        return text


class RunsTableReport(TableReport):
    """One table of `runs`, newest first. `unreadable` counts documents that are no record."""

    runs: tuple[RunRecord, ...] = ()
    unreadable: int = 0


class WaitTableReport(TableReport):
    """The table of `wait`. `missing` tells how far each shard is that is not at its target."""

    until: str
    reached: bool = False
    target: dict[str, int] = Field(default_factory=dict)
    missing: dict[str, int] = Field(default_factory=dict)


class EngineReport(BaseModel):
    """Which engine ran, and why."""

    model_config = _FROZEN

    name: str
    reason: str


class JobReport(Part):
    """The one document that `--json` prints."""

    job: str
    seconds: float = 0.0
    dry_run: bool = False
    engine: EngineReport | None = None
    tables: tuple[SerializeAsAny[TableReport], ...] = ()
    requests: dict[str, int] = Field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The document, JSON-ready."""
        return self.model_dump(mode="json")


def sum_up(parts: Iterable[Part], otherwise: str = NOTHING_TO_DO) -> tuple[str, int]:
    """The outcome and exit code of a whole from those of its parts.

    Some work done and some not: partial. Nothing done: the worst part speaks, if all that went
    wrong went wrong in the same way; else failed with exit code 6.
    """
    found: Sequence[Part] = list(parts)
    wrong = [p for p in found if p.outcome not in (DONE, NOTHING_TO_DO)]
    done = any(p.outcome in (DONE, PARTIAL) for p in found)
    if not wrong:
        return (DONE if done else otherwise), 0
    if done:
        return PARTIAL, EXIT_PARTIAL
    outcomes = {p.outcome for p in wrong}
    codes = {p.exit_code for p in wrong}
    code = codes.pop() if len(codes) == 1 else EXIT_PARTIAL
    return (outcomes.pop() if len(outcomes) == 1 else FAILED), code


def sum_up_tables(tables: Iterable[Part], otherwise: str = NOTHING_TO_DO) -> tuple[str, int]:
    """The same of tables: one that failed beside others that did not is partial, work or not."""
    found = tuple(tables)
    wrong = sum(table.outcome not in (DONE, NOTHING_TO_DO) for table in found)
    return (PARTIAL, EXIT_PARTIAL) if 0 < wrong < len(found) else sum_up(found, otherwise)
