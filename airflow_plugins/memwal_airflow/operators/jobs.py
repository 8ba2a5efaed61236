"""One operator for each job. A field is called as the option of the command is.

Each takes `tables`, a name or a list; `table` where the command takes exactly one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from memwal.errors import Usage
from memwal_airflow.hooks.request import check_name, parse_shard
from memwal_airflow.operators.base import MemWalJobOperator, is_true
from memwal_airflow.operators.ingest import MemWalIngestOperator as MemWalIngestOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

# What `memwal backfill` runs.
BACKFILL_JOBS = ("merge", "index-catchup")
_LIMITS = ("until_generation", "generations_per_commit_max", "bytes_per_commit_max")
_MERGE_SWITCHES = ("allow_index_join", "allow_holes", "allow_reinitialised")
_COMPACTION_VALUES = ("target_rows_per_fragment", "tasks_max", "materialize_deletions_threshold")
_GARBAGE_VALUES = ("retention", "grace", "ingest_idle")
_GARBAGE_OWN = ("adopt_orphans", "as_configured", "full")
_GARBAGE_SWITCHES = ("garbage_execute", "wal", "allow_short_retention")


class _ShardsOperator(MemWalJobOperator):
    """The fields that a merge and a backfill share."""

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
        return [*self._repeat("--shard", self.shards, parse_shard), *self._give(*_LIMITS)]


class MemWalMergeOperator(_ShardsOperator):
    """Folds flushed generations into the base table, oldest first.

    :param shards: only these shards (templated)
    :param until_generation: up to this one (templated)
    :param generations_per_commit_max: a limit of one commit (templated)
    :param bytes_per_commit_max: a limit of one commit, in memory, such as `256MB` (templated)
    :param allow_index_join: probe the key's index where that costs less than a scan; only if nobody
        else writes to the base table meanwhile (templated)
    :param allow_holes: pass over missing generation numbers (templated)
    :param allow_reinitialised: take generations that are older than the table's MemWAL index
        (templated)
    """

    default_job = "merge"
    template_fields: Sequence[str] = (*_ShardsOperator.template_fields, *_MERGE_SWITCHES)

    def __init__(
        self,
        *,
        allow_index_join: bool | str = False,
        allow_holes: bool | str = False,
        allow_reinitialised: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.allow_index_join = allow_index_join
        self.allow_holes = allow_holes
        self.allow_reinitialised = allow_reinitialised

    def options(self) -> list[str]:
        """As on the command line."""
        return [*super().options(), *self._switch(*_MERGE_SWITCHES)]


class MemWalBackfillOperator(_ShardsOperator):
    """Merges many tables and catches their indexes up, the largest backlog first.

    :param jobs: merge, index-catchup or both; others are ignored (templated)
    :param concurrency: how many tables at once (templated)
    :param deadline: begin nothing after so long, such as `2h`; what runs is finished (templated)

    `shards` and the limits are those of `MemWalMergeOperator`.
    """

    default_job = "backfill"
    template_fields: Sequence[str] = (
        *(*_ShardsOperator.template_fields, "jobs", "concurrency", "deadline"),
    )

    def __init__(
        self,
        *,
        jobs: Sequence[str] | str = BACKFILL_JOBS,
        concurrency: int | str | None = None,
        deadline: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.jobs = jobs
        self.concurrency = concurrency
        self.deadline = deadline

    def options(self) -> list[str]:
        """As on the command line."""
        jobs = ",".join(job for job in BACKFILL_JOBS if job in self.jobs)
        return [
            *super().options(),
            *([f"--jobs={jobs}"] if jobs else []),
            *self._give("concurrency", "deadline"),
        ]


class MemWalIndexCatchupOperator(MemWalJobOperator):
    """Extends the base table's indexes over the rows that merges added.

    :param indexes: only these indexes (templated)
    :param method: auto, append, segments or retrain (templated)
    :param append_rows_max: above so many unindexed rows, segments are built side by side
        (templated)
    """

    default_job = "index-catchup"
    template_fields: Sequence[str] = (
        *(*MemWalJobOperator.template_fields, "indexes", "method", "append_rows_max"),
    )

    def __init__(
        self,
        *,
        indexes: Sequence[str] | str = (),
        method: str | None = None,
        append_rows_max: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.indexes = indexes
        self.method = method
        self.append_rows_max = append_rows_max

    def options(self) -> list[str]:
        """As on the command line."""
        indexes = self._repeat("--index", self.indexes, partial(check_name, "index"))
        return [*indexes, *self._give("method", "append_rows_max")]


class MemWalSnapshotOperator(MemWalJobOperator):
    """Refreshes the shard snapshot in the MemWAL index."""

    default_job = "snapshot"


class MemWalCompactionOperator(MemWalJobOperator):
    """Rewrites the small fragments that merging leaves.

    :param target_rows_per_fragment: smaller fragments are put together (templated)
    :param tasks_max: rewrites in one run (templated)
    :param materialize_deletions_threshold: the deleted part of a fragment from which on it is
        rewritten (templated)
    """

    default_job = "compaction"
    template_fields: Sequence[str] = (*MemWalJobOperator.template_fields, *_COMPACTION_VALUES)

    def __init__(
        self,
        *,
        target_rows_per_fragment: int | str | None = None,
        tasks_max: int | str | None = None,
        materialize_deletions_threshold: float | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target_rows_per_fragment = target_rows_per_fragment
        self.tasks_max = tasks_max
        self.materialize_deletions_threshold = materialize_deletions_threshold

    def options(self) -> list[str]:
        """As on the command line."""
        return self._give(*_COMPACTION_VALUES)


class _DeletingOperator(MemWalJobOperator):
    """The fields that garbage collection has, alone and at the end of `maintain`."""

    template_fields: Sequence[str] = (
        *(*MemWalJobOperator.template_fields, *_GARBAGE_VALUES, *_GARBAGE_SWITCHES),
    )

    def __init__(
        self,
        *,
        execute: bool | str = False,
        retention: str | None = None,
        grace: str | None = None,
        ingest_idle: str | None = None,
        wal: bool | str = False,
        allow_short_retention: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.garbage_execute = execute
        self.retention = retention
        self.grace = grace
        self.ingest_idle = ingest_idle
        self.wal = wal
        self.allow_short_retention = allow_short_retention

    def options(self) -> list[str]:
        """As on the command line."""
        return [*self._give(*_GARBAGE_VALUES), *self._switch(*_GARBAGE_SWITCHES)]


class MemWalGarbageOperator(_DeletingOperator):
    """Lists what is provably unused; deletes it with `execute`.

    :param execute: drop and delete, not only list (templated)
    :param retention: expire base-table versions older than this first, such as `7d` (templated)
    :param grace: how long unused things are kept for readers, such as `1h` (templated)
    :param ingest_idle: how long rows of an unfinished ingest are kept, such as `14d` (templated)
    :param wal: collect WAL entries too (templated)
    :param allow_short_retention: permit a retention under a day, a grace under ten minutes
        (templated)
    :param adopt_orphans: also delete the shards of a table whose MemWAL index is gone (templated)
    :param as_configured: drop and delete where memwal.toml sets a `retention`, by it (templated)
    :param full: look at all shards of a large table, not only at what changed (templated)
    """

    default_job = "garbage"
    template_fields: Sequence[str] = (*_DeletingOperator.template_fields, *_GARBAGE_OWN)

    def __init__(
        self,
        *,
        adopt_orphans: bool | str = False,
        as_configured: bool | str = False,
        full: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.adopt_orphans = adopt_orphans
        self.as_configured = as_configured
        self.full = full

    def options(self) -> list[str]:
        """As on the command line."""
        return [*super().options(), *self._switch(*_GARBAGE_OWN)]


class MemWalMaintainOperator(_DeletingOperator):
    """Merges, catches indexes up, refreshes the snapshot and collects garbage, in one run.

    :param compaction: also rewrite small fragments; `auto` where that is advised, as `status` says;
        neither: as configured (templated)

    The other fields are those of `MemWalGarbageOperator`.
    """

    default_job = "maintain"
    template_fields: Sequence[str] = (*_DeletingOperator.template_fields, "compaction")

    def __init__(self, *, compaction: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.compaction = compaction

    def options(self) -> list[str]:
        """As on the command line."""
        try:
            chosen = self._switch("compaction")
        except Usage:  # a mode, which the command knows
            chosen = self._give("compaction")
        return [*super().options(), *chosen]


class MemWalRescueOperator(MemWalJobOperator):
    """Flushes what a writer that has gone left in the WAL; a merge takes it from there.

    It claims the shard: a writer that is alive after all is fenced, and has to be opened again. So
    it works only in a run that somebody started by hand, and only with `yes`; a dry run tells which
    shards would be claimed.

    :param shards: only these shards (templated)
    :param idle: leave shards alone that show a younger sign of life, such as `10m` (templated)
    :param drop_torn: put a torn entry aside that is the last in its WAL (templated)
    :param yes: claim the shards (templated)
    """

    default_job = "rescue"
    common_options: ClassVar[Sequence[str]] = ("no_lease", "allow_untested_lance", "dry_run_only")
    template_fields: Sequence[str] = (
        *(*MemWalJobOperator.template_fields, "shards", "idle", "drop_torn", "yes"),
    )

    def __init__(
        self,
        *,
        shards: Sequence[str] | str = (),
        idle: str | None = None,
        drop_torn: bool | str = False,
        yes: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.shards = shards
        self.idle = idle
        self.drop_torn = drop_torn
        self.yes = yes

    def options(self) -> list[str]:
        """As on the command line."""
        shards = self._repeat("--shard", self.shards, parse_shard)
        return [*shards, *self._give("idle"), *self._switch("drop_torn", "yes")]

    def check_run(self, context: Context) -> None:
        """Refuse to claim anything where nobody decides about it."""
        if is_true(self.dry_run_only):
            return
        if context["dag_run"].run_type.value != "manual":
            raise Usage("rescue claims shards only in a run that was started by hand")
        if not is_true(self.yes):
            raise Usage("claiming shards has to be confirmed: set `yes`, or leave it at a dry run")


class MemWalVerifyOperator(MemWalJobOperator):
    """Checks the invariants on a table, and changes nothing.

    The task of a table that breaks one fails at once, and names the table and the invariant.
    """

    default_job = "verify"
    common_options: ClassVar[Sequence[str]] = ("allow_untested_lance",)
