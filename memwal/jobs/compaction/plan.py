"""Chooses which of Lance's compaction tasks a run takes. Pure.

Lance plans: neighbouring fragments below the target size, or with many deleted rows, that the same
index SEGMENTS cover. Indexed and unindexed ones are never put together, so index catch-up comes
first; and each delta segment of an index keeps its fragments apart from the others', so it is index
catch-up's merging of segments that lets fragments grow over time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """What a version's fragments add up to. `rows` are without the deleted ones."""

    version: int
    fragment_ids: frozenset[int]
    files: int
    rows: int
    deleted_rows: int

    @property
    def fragments(self) -> int:
        """How many there are."""
        return len(self.fragment_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionTask:
    """Some fragments of a version that are to become fewer. `data` is Lance's own description."""

    version: int
    fragment_ids: tuple[int, ...]
    rows: int
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
        """Bytes to be read and written again."""
        return sum(t.file_bytes for t in self.tasks)


def choose_tasks(
    table: TableFragments, tasks: Sequence[CompactionTask], limits: CompactionLimits
) -> CompactionPlan:
    """Lance's tasks up to the limit, those that do away with the most fragments first."""
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
