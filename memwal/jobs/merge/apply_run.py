"""What is known of one shard's merge while it runs, and at its end."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from memwal.errors import MemWalError
from memwal.jobs.merge.plan import CommitShape, NextCommit
from memwal.jobs.merge.ports import CommitStats, Fold
from memwal.model import ShardId, ShardView

_NOT_ADDED_UP = ("from_generation", "joins")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardMerge:
    """What happened to one shard. `outcome` is the report's word; error is None when it went well.

    `from_generation` and `to_generation` are the watermark before and after. Rows are counted from
    the commits that this run saw land; `resolved` counts commits that were found in the table after
    an error, whose rows are not known. Of the `commits`, `commits_shared` are counted with another
    shard too.
    """

    shard_id: ShardId
    outcome: str
    from_generation: int
    to_generation: int
    generations: int = 0
    commits: int = 0
    commits_shared: int = 0
    resolved: int = 0
    conflicts: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    joins: tuple[str, ...] = ()
    warning: str | None = None
    error: str | None = None
    exit_code: int = 0
    trace: str | None = None


@dataclass(kw_only=True, slots=True)
class ShardRun:
    """The running totals of one shard's run."""

    shard_id: ShardId
    from_generation: int | None = None
    to_generation: int = 0
    generations: int = 0
    commits: int = 0
    commits_shared: int = 0
    resolved: int = 0
    conflicts: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    bytes_read: int = 0
    joins: list[str] = field(default_factory=list)
    warning: str | None = None

    def seen(self, shard: ShardView) -> None:
        """Take in the progress that a view shows; the first one is what the run began with."""
        if self.from_generation is None:
            self.from_generation = shard.merged_generation
        self.to_generation = max(self.to_generation, shard.merged_generation)

    def landed(self, plan: NextCommit, fold: Fold, shape: CommitShape, stats: CommitStats) -> None:
        """Count a commit that was seen to land."""
        self.commits += 1
        self.generations += len(plan.generations)
        self.to_generation = plan.mark
        self.rows_inserted += stats.rows_inserted
        self.rows_updated += stats.rows_updated
        self.rows_deleted += stats.rows_deleted
        self.bytes_read += fold.bytes_read
        self.joins.append(shape.join.value)

    def found(self, shard: ShardView, plan: NextCommit) -> None:
        """Count a commit whose outcome was open, if the mark that it set is there."""
        if shard.merged_generation >= plan.mark:
            self.resolved += 1

    def result(self, seconds: float, error: MemWalError | None) -> ShardMerge:
        """The end of the run."""
        started_at = self.from_generation or 0
        if error is None:
            outcome = "done" if self.to_generation > started_at else "nothing_to_do"
        else:
            outcome = "partial" if self.to_generation > started_at else error.outcome
        totals = {
            f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_ADDED_UP
        }
        return ShardMerge(
            **totals,
            outcome=outcome,
            from_generation=started_at,
            joins=tuple(dict.fromkeys(self.joins)),
            seconds=seconds,
            error=None if error is None else str(error),
            exit_code=0 if error is None else error.exit_code,
        )
