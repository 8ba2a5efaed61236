"""One operator a job, with the job's own options as fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from memwal_airflow.asked import checked_name, checked_shard
from memwal_airflow.job_operators import MemWalJobOperator, is_true

# What `memwal backfill` runs.
BACKFILL_JOBS = ("merge", "index-catchup")


class MemWalMergeOperator(MemWalJobOperator):
    """Folds flushed generations into the base table, oldest first.

    :param shards: only these shards (templated)
    :param until_generation: up to this one (templated)
    :param generations_per_commit_max: a limit of one commit (templated)
    :param bytes_per_commit_max: a limit of one commit, in memory (templated)
    """

    template_fields: Sequence[str] = (
        *MemWalJobOperator.template_fields,
        "shards",
        "until_generation",
        "generations_per_commit_max",
        "bytes_per_commit_max",
    )

    def __init__(
        self,
        *,
        shards: Sequence[str] | str = (),
        until_generation: int | str | None = None,
        generations_per_commit_max: int | str | None = None,
        bytes_per_commit_max: int | str | None = None,
        job: str = "merge",
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, **kwargs)
        self.shards = shards
        self.until_generation = until_generation
        self.generations_per_commit_max = generations_per_commit_max
        self.bytes_per_commit_max = bytes_per_commit_max

    def options(self) -> list[str]:
        """As on the command line."""
        return [
            *_repeated("--shard", self.shards, checked_shard),
            *_given("--until-generation", self.until_generation),
            *_given("--generations-per-commit-max", self.generations_per_commit_max),
            *_given("--bytes-per-commit-max", self.bytes_per_commit_max),
        ]


class MemWalBackfillOperator(MemWalMergeOperator):
    """Merges many tables and catches their indexes up, the largest backlog first.

    :param jobs: merge, index-catchup or both; others are passed over (templated)
    :param concurrency: tables side by side
    """

    template_fields: Sequence[str] = (*MemWalMergeOperator.template_fields, "jobs")

    def __init__(
        self,
        *,
        jobs: Sequence[str] | str = BACKFILL_JOBS,
        concurrency: int | None = None,
        job: str = "backfill",
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, **kwargs)
        self.jobs = jobs
        self.concurrency = concurrency

    def options(self) -> list[str]:
        """As on the command line."""
        return [
            *super().options(),
            *_given("--jobs", ",".join(job for job in BACKFILL_JOBS if job in self.jobs)),
            *_given("--concurrency", self.concurrency),
        ]


class MemWalIndexCatchupOperator(MemWalJobOperator):
    """Brings the base table's indexes over the rows that merges added.

    :param indexes: only these indexes (templated)
    """

    template_fields: Sequence[str] = (*MemWalJobOperator.template_fields, "indexes")

    def __init__(
        self, *, indexes: Sequence[str] | str = (), job: str = "index-catchup", **kwargs: Any
    ) -> None:
        super().__init__(job=job, **kwargs)
        self.indexes = indexes

    def options(self) -> list[str]:
        """As on the command line."""
        return _repeated("--index", self.indexes, partial(checked_name, "index"))


class MemWalSnapshotOperator(MemWalJobOperator):
    """Refreshes the shard snapshot in the MemWAL index."""

    def __init__(self, *, job: str = "snapshot", **kwargs: Any) -> None:
        super().__init__(job=job, **kwargs)


class MemWalCompactionOperator(MemWalJobOperator):
    """Rewrites the small fragments that merging leaves."""

    def __init__(self, *, job: str = "compaction", **kwargs: Any) -> None:
        super().__init__(job=job, **kwargs)


class MemWalGarbageOperator(MemWalJobOperator):
    """Lists garbage; deletes it with `garbage_execute`.

    :param garbage_execute: drop and delete, not only list (templated)
    :param retention: expire base-table versions older than this first, such as `7d` (templated)
    :param grace: how long dropped generations stay, such as `1h` (templated)
    :param wal: collect WAL entries too (templated)
    """

    template_fields: Sequence[str] = (
        *MemWalJobOperator.template_fields,
        "garbage_execute",
        "retention",
        "grace",
        "wal",
    )

    def __init__(
        self,
        *,
        garbage_execute: bool | str = False,
        retention: str | None = None,
        grace: str | None = None,
        wal: bool | str = False,
        job: str = "garbage",
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, **kwargs)
        self.garbage_execute = garbage_execute
        self.retention = retention
        self.grace = grace
        self.wal = wal

    def options(self) -> list[str]:
        """As on the command line."""
        return [
            *(["--execute"] if is_true(self.garbage_execute) else []),
            *(["--wal"] if is_true(self.wal) else []),
            *_given("--retention", self.retention),
            *_given("--grace", self.grace),
        ]


def _given(option: str, value: Any) -> list[str]:
    # A template that renders nothing gives a text, not None. The value is of one word with its
    # option, so that it can't be taken for another one.
    return [] if value in (None, "", "None") else [f"{option}={value}"]


def _repeated(option: str, values: Sequence[str] | str, checked: Callable[[Any], str]) -> list[str]:
    found = [values] if isinstance(values, str) and values else list(values or ())
    return [f"{option}={checked(value)}" for value in found]
