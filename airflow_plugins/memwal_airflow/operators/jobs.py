"""One operator for each job. Fields have the names of the command's options.

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

# The jobs that `memwal backfill` runs.
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
        """The options, as on the command line."""
        return [*self._repeat("--shard", self.shards, parse_shard), *self._give(*_LIMITS)]


class MemWalMergeOperator(_ShardsOperator):
    """Folds flushed generations into the base table, oldest first.

    :param shards: only these shards (templated)
    :param until_generation: the last generation to merge (templated)
    :param generations_per_commit_max: most generations in one commit (templated)
    :param bytes_per_commit_max: most bytes, in memory, in one commit, such as `256MB` (templated)
    :param allow_index_join: probe the key's index where that is cheaper than a scan; safe only if
        nobody else writes to the base table meanwhile (templated)
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
        """The options, as on the command line."""
        return [*super().options(), *self._switch(*_MERGE_SWITCHES)]


class MemWalBackfillOperator(_ShardsOperator):
    """Merges many tables and catches their indexes up, the largest backlog first.

    :param jobs: merge, index-catchup or both; others are ignored (templated)
    :param concurrency: how many tables at once (templated)
    :param deadline: start nothing new after this time, such as `2h`; what runs is finished
        (templated)

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
        """The options, as on the command line."""
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
    :param append_rows_max: above this many unindexed rows, segments are built in parallel
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
        """The options, as on the command line."""
        indexes = self._repeat("--index", self.indexes, partial(check_name, "index"))
        return [*indexes, *self._give("method", "append_rows_max")]


class MemWalSnapshotOperator(MemWalJobOperator):
    """Refreshes the shard snapshot in the MemWAL index."""

    default_job = "snapshot"


class MemWalCompactionOperator(MemWalJobOperator):
    """Rewrites the small fragments that merging leaves.

    :param target_rows_per_fragment: combine fragments that are smaller than this (templated)
    :param tasks_max: most rewrites in one run (templated)
    :param materialize_deletions_threshold: rewrite a fragment once this fraction of its rows is
        deleted (templated)
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
        """The options, as on the command line."""
        return self._give(*_COMPACTION_VALUES)


class _DeletingOperator(MemWalJobOperator):
    """The fields of garbage collection, whether on its own or at the end of `maintain`."""

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
        """The options, as on the command line."""
        return [*self._give(*_GARBAGE_VALUES), *self._switch(*_GARBAGE_SWITCHES)]


class MemWalGarbageOperator(_DeletingOperator):
    """Lists what is provably unused; deletes it with `execute`.

    :param execute: drop and delete instead of only listing (templated)
    :param retention: first expire base-table versions older than this, such as `7d` (templated)
    :param grace: how long unused things are kept for readers, such as `1h` (templated)
    :param ingest_idle: how long rows of an unfinished ingest are kept, such as `14d` (templated)
    :param wal: collect WAL entries too (templated)
    :param allow_short_retention: permit a retention under a day and a grace under ten minutes
        (templated)
    :param adopt_orphans: also delete the shards of a table whose MemWAL index is gone (templated)
    :param as_configured: drop and delete on tables for which memwal.toml sets a `retention`, by
        that retention (templated)
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
        """The options, as on the command line."""
        return [*super().options(), *self._switch(*_GARBAGE_OWN)]


class MemWalMaintainOperator(_DeletingOperator):
    """Merges, catches indexes up, refreshes the snapshot and collects garbage, in one run.

    :param compaction: also rewrite small fragments; with `auto`, only where `status` advises it; by
        default as configured (templated)

    The other fields are those of `MemWalGarbageOperator`.
    """

    default_job = "maintain"
    template_fields: Sequence[str] = (*_DeletingOperator.template_fields, "compaction")

    def __init__(self, *, compaction: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.compaction = compaction

    def options(self) -> list[str]:
        """The options, as on the command line."""
        try:
            chosen = self._switch("compaction")
        except Usage:  # a mode such as `auto`, which the command checks
            chosen = self._give("compaction")
        return [*super().options(), *chosen]


class MemWalRescueOperator(MemWalJobOperator):
    """Flushes what a writer that is gone left in the WAL, for a merge to take.

    It claims the shard: a writer that is alive after all is fenced, and has to be opened again. So
    it works only in runs that were started by hand, and only with `yes`; a dry run tells which
    shards would be claimed.

    :param shards: only these shards (templated)
    :param idle: skip shards with a sign of life more recent than this, such as `10m` (templated)
    :param drop_torn: set aside a torn entry if it is the last one in its WAL (templated)
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
        """The options, as on the command line."""
        shards = self._repeat("--shard", self.shards, parse_shard)
        return [*shards, *self._give("idle"), *self._switch("drop_torn", "yes")]

    def check_run(self, context: Context) -> None:
        """Raise Usage for a claim, unless the run was started by hand and confirmed with `yes`."""
        if is_true(self.dry_run_only):
            return
        if context["dag_run"].run_type.value != "manual":
            raise Usage("rescue claims shards only in a run that was started by hand")
        if not is_true(self.yes):
            raise Usage("claiming shards has to be confirmed: set `yes`, or leave it at a dry run")


class MemWalVerifyOperator(MemWalJobOperator):
    """Checks the invariants on a table, and changes nothing.

    If a table breaks an invariant, its task fails at once and names both.
    """

    default_job = "verify"
    common_options: ClassVar[Sequence[str]] = ("allow_untested_lance",)
