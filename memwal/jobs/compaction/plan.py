"""Chooses which of Lance's compaction tasks a run takes. Pure.

Lance plans the tasks: neighbouring fragments that are below the target size or have many deleted
rows, and that the same index SEGMENTS cover. It never combines indexed and unindexed ones, so index
catch-up comes first. And each delta segment of an index keeps its fragments apart from others, so
fragments can only grow over time because index catch-up merges segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from memwal.indexes import FragmentFacts
from memwal.jobs.index_catchup.plan import IndexCatchupReport
from memwal.report import AuditItem, TableReport
from memwal.text import count_of


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionLimits:
    """Bounds of a compaction run. The threshold is the deleted fraction of a fragment's rows."""

    target_rows_per_fragment: int = 1024 * 1024
    compaction_tasks_max: int = 256
    materialize_deletions_threshold: float = 0.1
    conflict_attempts_max: int = 5
    conflict_seconds_max: float = 600.0
    conflict_wait_seconds_max: float = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFragments:
    """A version's fragments, and their totals. `rows` does not count deleted ones."""

    version: int
    each: frozenset[FragmentFacts]

    @property
    def fragments(self) -> int:
        """The number of fragments."""
        return len(self.each)

    @property
    def files(self) -> int:
        """The number of data files."""
        return sum(f.files for f in self.each)

    @property
    def rows(self) -> int:
        """Rows that are not deleted."""
        return sum(f.rows for f in self.each)

    @property
    def deleted_rows(self) -> int:
        """Rows that are deleted, and still in the files."""
        return sum(f.deleted_rows for f in self.each)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgedFragment:
    """A fragment with rows that have expired, among `rows` written, of which some are deleted."""

    rows: int
    deleted_rows: int
    expired_rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionTask:
    """Fragments of a version to rewrite as fewer. `data` is Lance's own description of the task."""

    version: int
    fragment_ids: tuple[int, ...]
    file_bytes: int
    data: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionPlan:
    """The tasks that a run takes, and why it takes these."""

    tasks: tuple[CompactionTask, ...]
    left_out: int
    reason: str

    @property
    def file_bytes(self) -> int:
        """The bytes of all files that are rewritten."""
        return sum(t.file_bytes for t in self.tasks)


def is_worth_purging(aged: Sequence[AgedFragment], limits: CompactionLimits) -> bool:
    """Whether to delete what has expired: if a fragment is then so full of deleted rows that it is
    rewritten.

    Reads hide these rows anyway. One commit takes those of all fragments, since to mark a row as
    deleted costs little; the others wait until their fragment is worth it.
    """
    return any(
        fragment.expired_rows + fragment.deleted_rows
        > limits.materialize_deletions_threshold * fragment.rows
        for fragment in aged
    )


def name_purged(rows: int, before: str | None, **more: Any) -> AuditItem:
    """Rows that go, or are gone, as they have expired; for the audit trail."""
    return AuditItem(
        action="delete",
        kind="expired_rows",
        path="data",
        reason=f"{rows} rows were older than {before}",
        **more,
    )


def choose_tasks(
    table: TableFragments, tasks: Sequence[CompactionTask], limits: CompactionLimits
) -> CompactionPlan:
    """Choose Lance's tasks up to the limit, those that replace the most fragments first."""
    if not tasks:
        return CompactionPlan(
            tasks=(),
            left_out=0,
            reason=f"{count_of(table.fragments, 'fragment')}: none is full of deleted rows, or "
            "small and next to another that the same index segments cover",
        )
    # A stable sort: the oldest first among equals.
    best = sorted(tasks, key=lambda t: -len(t.fragment_ids))[: limits.compaction_tasks_max]
    fragments = sum(len(t.fragment_ids) for t in best)
    left = len(tasks) - len(best)
    later = f"; {left} tasks are left for the next run" if left else ""
    return CompactionPlan(
        tasks=tuple(best),
        left_out=left,
        reason=f"{fragments} of {table.fragments} fragments have less than "
        f"{limits.target_rows_per_fragment:,} rows, or over "
        f"{100 * limits.materialize_deletions_threshold:g} % deleted ones{later}",
    )


# ---- what is reported


class CompactionTableReport(TableReport):
    """One table of a compaction, with the index catch-up that followed it.

    `columns` are the types of its columns, by their names. `expired_rows` are rows of the base that
    are older than `expired_before`; null where rows do not expire. `purged_rows` of them were
    deleted, or in a dry run would be.
    """

    columns: dict[str, str] = {}
    fragments_before: int | None = None
    fragments_after: int | None = None
    files_before: int | None = None
    files_after: int | None = None
    rows_before: int | None = None
    rows_after: int | None = None
    deleted_rows_before: int | None = None
    deleted_rows_after: int | None = None
    expired_before: str | None = None
    expired_rows: int | None = None
    purged_rows: int = 0
    fragments_rewritten: tuple[int, ...] = ()
    tasks: int = 0
    tasks_failed: int = 0
    tasks_left: int = 0
    commits: int = 0
    conflicts: int = 0
    bytes_rewritten: int = 0
    seconds: float = 0.0
    reason: str | None = None
    indexes: tuple[IndexCatchupReport, ...] = ()
    warnings: tuple[str, ...] = ()

    SUMMARISED: ClassVar = ("fragments_before", "fragments_after", "bytes_rewritten")

    def audited(self) -> Iterable[AuditItem]:
        """Rows that were purged, and fragments that were rewritten.

        Their files stay until the versions before expire.
        """
        if self.purged_rows:
            version = self.version_after
            yield name_purged(self.purged_rows, self.expired_before, version=version, done=True)
        if self.commits:
            yield AuditItem(
                action="rewrite",
                kind="fragment",
                path="data",
                bytes=self.bytes_rewritten,
                fragments=self.fragments_rewritten,
                version=self.version_after,
                reason=self.reason,
                done=True,
            )
