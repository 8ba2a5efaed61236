"""What a job reports: one JSON document, and the exit code that sums it up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_serializer,
)

from memwal.errors import EXIT_PARTIAL, MemWalError, Unreachable
from memwal.text import one_line

DONE = "done"
NOTHING_TO_DO = "nothing_to_do"
PARTIAL = "partial"
FAILED = "failed"
REFUSED = "refused"
HELD = "held"

RUN_ID = r"^[A-Za-z0-9][A-Za-z0-9_.~:+@/=-]{0,199}$"
"""What the id of a run may be: ours are 32 hex digits, whoever starts a run may give another."""


class Section(BaseModel):
    """A section of the document."""

    # Its checks are built when it is first used: a command uses few of these.
    model_config = ConfigDict(frozen=True, defer_build=True)

    def to_json(self) -> dict[str, Any]:
        """The section, JSON-ready."""
        return self.model_dump(mode="json")


class Part(Section):
    """Something with an outcome: a job, a table, a shard. `error` is the text of its `cause`."""

    outcome: str
    error: str | None = None
    exit_code: int = Field(default=0, exclude=True)
    cause: Any = Field(default=None, exclude=True, repr=False)


class AuditItem(Section):
    """What a run did to one thing, or is about to do, with its evidence: a line of an audit trail.

    `action` is delete, drop, expire, merge, rewrite, replace, break, claim, rescue or quiesce.
    `path` is below the table's folder. `generations` are the first and last of a merge or a rescue;
    `fragments` were rewritten; `version` is the one that expired, or that has the change. No
    value of any row is in it: the trail outlives them.
    """

    action: str = Field(pattern=r"^[a-z][a-z-]{0,19}$")
    kind: str
    path: str
    shard_id: str | None = None
    bytes: int | None = None
    generations: tuple[int, int] | None = None
    fragments: tuple[int, ...] = ()
    version: int | None = None
    reason: str | None = None
    done: bool | None = None
    error: str | None = None


class TableReport(Part):
    """One table of any job. `unreachable`: nothing was done, since its store did not answer.

    `state` is how the table stands, as metrics have it, from a job that tells.
    """

    table: str
    version_before: int | None = None
    version_after: int | None = None
    unreachable: bool = False
    state: Any = Field(default=None, exclude=True, repr=False)

    SUMMARISED: ClassVar[tuple[str, ...]] = ()
    """The few numbers of a run that people compare over time."""

    def summary(self) -> Mapping[str, int | None]:
        """Those numbers, for the run's record."""
        return {name: getattr(self, name) for name in self.SUMMARISED}

    def count_rows(self) -> Mapping[str, int]:
        """The rows that the run committed, by what was done with them."""
        found = self.summary().items()
        return {name[5:]: rows for name, rows in found if rows and name.startswith("rows_")}

    def stuck(self) -> Mapping[str, tuple[int, str | None]]:
        """Shards that no further run mends: the generation that each is left at, and why."""
        return {}

    def merged(self) -> Mapping[str, int] | None:
        """How far each shard is merged; None for a job that merges nothing."""
        return None

    def audited(self) -> Iterable[AuditItem]:
        """What the run did to the table, for its audit trail; nothing by jobs that only look."""
        return ()


class AirflowTask(Section):
    """The task of Airflow that started a run. Whoever starts a DAG's run may choose its id: all of
    this is for people to find the task by, and nothing is decided by it.
    """

    dag_id: str = Field(min_length=1, max_length=250)
    run_id: str = Field(min_length=1, max_length=250)
    task_id: str = Field(min_length=1, max_length=250)
    map_index: int = Field(default=-1, ge=-1, lt=2**31)
    try_number: int = Field(ge=0, lt=2**31)

    @field_validator("dag_id", "run_id", "task_id")
    @classmethod
    def _can_be_shown(cls, text: str) -> str:
        if one_line(text) != text:
            raise ValueError("control characters or direction marks")
        return text

    def describe(self) -> str:
        """On one line, for people."""
        mapped = "" if self.map_index < 0 else f"[{self.map_index}]"
        return f"{self.dag_id} {self.task_id}{mapped} try {self.try_number}, {self.run_id}"


def read_airflow_task(stored: object) -> AirflowTask | None:
    """As read back from storage: one that can't be right is none, and spoils nothing around it."""
    try:
        return AirflowTask.model_validate(stored)
    except ValidationError:
        return None


StoredAirflowTask = Annotated[AirflowTask | None, BeforeValidator(read_airflow_task)]


class LeaseReport(Section):
    """The newest claim on a table's lease. `ended`: it is held by a process that has ended here."""

    state: str
    ended: bool = False
    token: int
    holder: str
    job: str
    run_id: str | None = None
    airflow: StoredAirflowTask = None
    acquired_at: str | None
    expires_at: str | None
    reason: str | None = None


class CheckpointReport(Section):
    """A checkpoint. `cut` has the newest generation of each shard; `generations` are kept for it.

    `state` is kept, expired, unfinished (never readable), untagged (somebody deleted the tag);
    by this run, planned (a dry run) or dropped.
    """

    name: str
    state: str
    version: int
    generations: int
    cut: dict[str, int]
    holder: str
    created_at: str | None
    expires_at: str | None
    tag: str


class CursorReport(Section):
    """How far a consumer of changes has come: it has those up to `version`.

    `behind` counts versions after that; `transaction` is what the consumer says of its own commit.
    """

    name: str
    version: int
    behind: int | None = None
    moved_at: str
    holder: str
    transaction: str | None
    dropped: bool = False


class LastBackupReport(Section):
    """The newest backup of a table in the place that its configuration names.

    Without a `name` there is none, or it could not be read, for the reason in `error`. `made_at` is
    the moment whose rows it has.
    """

    uri: str
    name: str | None = None
    version: int | None = None
    made_at: str | None = None
    objects: int | None = None
    bytes: int | None = None
    error: str | None = None


class JobOnTable(Section):
    """What one job of several came to on a table. In the document, `job` stands in the report."""

    job: str
    report: SerializeAsAny[TableReport]

    @model_serializer
    def _in_the_document(self) -> dict[str, Any]:
        return {"job": self.job, **self.report.model_dump(mode="json")}


class BacklogReport(Section):
    """What was pending before and after a run, in the shards that could be read; None: unknown."""

    generations_before: int | None = None
    bytes_before: int | None = None
    generations_after: int | None = None
    bytes_after: int | None = None


class CompactionAdvice(Section):
    """What a compaction would rewrite now: fragments that it would put together, and deleted rows.

    `reason` is why it is advised, None where it is not.
    """

    small_fragments: int
    deleted_rows: int
    reason: str | None = None

    def describe(self, remedy: str) -> str | None:
        """A line for people, if a compaction is advised."""
        return self.reason and f"{self.reason}: {remedy}"


class AuditLink(Section):
    """A document of an audit trail, and the digest that the next one carries."""

    number: int = Field(ge=1, lt=10**12)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class AuditEntry(BaseModel):
    """The first line of a document of an audit trail: who, what was asked, what it came to.

    An intent is written before the first deletion, an outcome at the end; it names the `intents`
    that it closes. `more` of it follows where one document can't hold all items. `asked` has the
    options that were set, without texts and keys. `error` is only a code: an error's text may
    quote a row.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    format: Literal[1] = 1
    number: int = Field(ge=1, lt=10**12)
    previous: str = Field(pattern=r"^([0-9a-f]{64})?$")
    table: str
    run_id: str = Field(pattern=RUN_ID)
    job: str = Field(pattern=r"^[a-z][a-z -]{0,39}$")
    phase: Literal["intent", "outcome"]
    at: str
    holder: str
    airflow: StoredAirflowTask = None
    memwal: str
    asked: dict[str, Any] = Field(default_factory=dict)
    intents: tuple[int, ...] = ()
    more: bool = False
    outcome: str | None = None
    exit_code: int | None = None
    error: str | None = None
    version_before: int | None = None
    version_after: int | None = None


class RunRecord(BaseModel):
    """One run of a job on one table, as it is stored under `_maintenance/runs/`.

    Read back from storage, so everything is checked; fields of a newer build are passed over.
    `run_id` is of the command: the records of `maintain`'s jobs share it, on every table.
    `stuck` has shards that no further run mends: the generation that a merge left them at, and why.
    `audit` is the run's last document in the audit trail, so that either vouches for the other.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)

    format: Literal[1] = 1
    run_id: str = Field(pattern=RUN_ID)
    airflow: StoredAirflowTask = None
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
    backlog: BacklogReport = Field(default_factory=BacklogReport)
    stuck: dict[str, tuple[int, str]] = Field(default_factory=dict)
    requests: dict[str, int] = Field(default_factory=dict)
    audit: AuditLink | None = None

    @field_validator("started_at", "finished_at")
    @classmethod
    def _is_a_time(cls, text: str) -> str:
        if datetime.fromisoformat(text).utcoffset() is None:
            raise ValueError("a time without its offset from UTC")
        return text


class EngineReport(Section):
    """Which engine ran, and why."""

    name: str
    reason: str


class JobReport(Part):
    """The one document that `--json` prints."""

    job: str
    run_id: str | None = None
    seconds: float = 0.0
    dry_run: bool = False
    engine: EngineReport | None = None
    tables: tuple[SerializeAsAny[TableReport], ...] = ()
    requests: dict[str, int] = Field(default_factory=dict)


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


def describe_error(error: Exception | None, otherwise: str = DONE) -> dict[str, Any]:
    """The outcome, text and exit code of a part that ended in `error`, or else in `otherwise`."""
    if error is None:
        return {"outcome": otherwise}
    outcome, code = getattr(error, "outcome", FAILED), getattr(error, "exit_code", 1)
    return {"outcome": outcome, "error": str(error), "exit_code": code}


def join_errors(errors: Mapping[str, str | None]) -> str | None:
    """The errors of named parts in one line; None if there are none."""
    return "; ".join(f"{name}: {error}" for name, error in errors.items() if error) or None


def failed_report(name: str, error: MemWalError) -> TableReport:
    """The report of a table that its job could not work on."""
    unreachable = isinstance(error, Unreachable)
    return TableReport(table=name, **describe_error(error), cause=error, unreachable=unreachable)
