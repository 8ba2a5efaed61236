"""One operator for each job, with the job's own options as fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from memwal_airflow.job_operators import MemWalJobOperator, is_true
from memwal_airflow.request import check_name, parse_shard

# What `memwal backfill` runs.
BACKFILL_JOBS = ("merge", "index-catchup")
_LIMITS = ("until_generation", "generations_per_commit_max", "bytes_per_commit_max")
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
