"""What a merge reports of a table, shard by shard, and what its dry run does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field
from rich.console import RenderableType
from rich.text import Text

from memwal.errors import Corruption, Refused, Unsupported
from memwal.format import layout
from memwal.grid import Column, build_table, format_size, numbers, style_outcome, words
from memwal.jobs.merge.plan import LeftShard, NextCommit
from memwal.model import ShardId, ShardView, TableView, sum_known
from memwal.report import (
    DONE,
    NOTHING_TO_DO,
    AuditItem,
    Part,
    Section,
    TableReport,
    describe_error,
    join_errors,
    sum_up,
)

_FROZEN = ConfigDict(frozen=True, defer_build=True)
_NOT_MENDED_BY_A_RUN = frozenset(kind.exit_code for kind in (Refused, Unsupported, Corruption))


class ShardTotals(BaseModel):
    """What a merge counts of one shard, from its start to its report.

    `from_generation` and `to_generation` are the watermark before and after. Rows are those of
    commits that were seen to land; `commits_found_landed` were found in the table after an error,
    and their rows are not known. Of the `commits` that hold the shard's rows, `commits_shared` are
    counted for another shard too. `trace` is of an error that nobody expected.
    """

    shard_id: ShardId
    from_generation: int = 0
    to_generation: int = 0
    generations: int = 0
    commits: int = 0
    commits_shared: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    conflicts: int = 0
    commits_found_landed: int = 0
    warning: str | None = Field(default=None, exclude=True)
    trace: str | None = Field(default=None, exclude=True)


class PlannedMerge(Section):
    """What a dry run would merge of a shard; null where it is not known."""

    in_memory_bytes: int | None
    physical_rows: int | None


class ShardReport(ShardTotals, Part):
    """One shard of a merge. `planned` is set in a dry run: the numbers then are what would be."""

    model_config = _FROZEN

    planned: PlannedMerge | None = None


class MergeTableReport(TableReport):
    """One table of a merge. `columns` are the types of its columns, by their names."""

    columns: dict[str, str] = {}
    shards: tuple[ShardReport, ...] = ()
    warnings: tuple[str, ...] = ()

    def summary(self) -> Mapping[str, int | None]:
        """Sums over the shards; a commit that several of them share counts once."""
        names = ("generations", "commits", "rows_inserted", "rows_updated", "rows_deleted",
                 "bytes_read")  # fmt: skip
        sums = {name: sum(getattr(s, name) for s in self.shards) for name in names}
        sums["commits"] -= sum(shard.commits_shared for shard in self.shards)
        return sums

    def stuck(self) -> Mapping[str, tuple[int, str | None]]:
        """Shards that another run could not go on with either: where they stand, and why."""
        return {
            shard.shard_id: (shard.to_generation, shard.error)
            for shard in self.shards
            if shard.error and shard.exit_code in _NOT_MENDED_BY_A_RUN
        }

    def audited(self) -> Iterable[AuditItem]:
        """The generations that each shard's rows came from."""
        for shard in self.shards:
            if shard.to_generation > shard.from_generation and shard.planned is None:
                yield AuditItem(
                    action="merge",
                    kind="generation",
                    path=layout.shard_folder(shard.shard_id),
                    shard_id=shard.shard_id,
                    generations=(shard.from_generation + 1, shard.to_generation),
                    version=self.version_after,
                    done=True,
                )

    def merged(self) -> Mapping[str, int]:
        """How far the shards are merged."""
        return {shard.shard_id: shard.to_generation for shard in self.shards}


def report_left(left: LeftShard) -> ShardReport:
    """The report of a shard that the run leaves as it is."""
    at = left.merged_generation
    described = describe_error(left.error, NOTHING_TO_DO)
    return ShardReport(shard_id=left.shard_id, from_generation=at, to_generation=at, **described)


def report_planned(shard: ShardView, commits: Sequence[NextCommit]) -> ShardReport:
    """The report of what a run would commit of a shard."""
    generations = [g for commit in commits for g in commit.generations]
    at = shard.merged_generation
    return ShardReport(
        shard_id=shard.shard_id,
        outcome=DONE,
        from_generation=at,
        to_generation=commits[-1].mark if commits else at,
        generations=len(generations),
        commits=len(commits),
        planned=PlannedMerge(
            in_memory_bytes=sum_known(g.in_memory_bytes for g in generations),
            physical_rows=sum_known(g.physical_rows for g in generations),
        ),
    )


def report_merge(
    name: str,
    view: TableView,
    left: Sequence[LeftShard],
    merged: Sequence[ShardReport],
    *,
    version_after: int | None,
    otherwise: str = NOTHING_TO_DO,
    more: Sequence[str] = (),
) -> MergeTableReport:
    """The report of a table that is merged, or would be. `more` are warnings of the whole table.

    `otherwise` is its outcome if no shard had anything to do.
    """
    shards = [*map(report_left, left), *merged]
    shards.sort(key=lambda shard: shard.shard_id)
    outcome, code = sum_up(shards, otherwise)
    warnings = dict.fromkeys(shard.warning for shard in shards if shard.warning)
    return MergeTableReport(
        table=name,
        outcome=outcome,
        exit_code=code,
        error=join_errors({s.shard_id: s.error for s in shards}),
        version_before=view.version,
        version_after=version_after,
        columns=view.describe_columns(),
        shards=tuple(shards),
        warnings=(*view.warnings, *warnings, *more),
    )


_SHARDS_SHOWN_MAX = 50

MERGED: tuple[Column[ShardReport], ...] = (
    words("shard", lambda shard: shard.shard_id),
    words("outcome", lambda shard: style_outcome(shard.outcome)),
    numbers("merged", lambda shard: f"{shard.from_generation} -> {shard.to_generation}"),
    numbers("generations", lambda shard: str(shard.generations)),
    numbers("commits", lambda shard: str(shard.commits)),
    numbers("inserted", lambda shard: shard.rows_inserted),
    numbers("updated", lambda shard: shard.rows_updated),
    numbers("deleted", lambda shard: shard.rows_deleted),
    numbers("read", lambda shard: format_size(shard.bytes_read)),
    numbers("seconds", lambda shard: f"{shard.seconds:.2f}"),
)
PLANNED: tuple[Column[ShardReport], ...] = (
    words("shard", lambda shard: shard.shard_id),
    words("outcome", lambda shard: shard.outcome),
    numbers("merged", lambda shard: str(shard.from_generation)),
    numbers("would merge to", lambda shard: str(shard.to_generation)),
    numbers("generations", lambda shard: str(shard.generations)),
    numbers("commits", lambda shard: str(shard.commits)),
    numbers("rows", lambda shard: getattr(shard.planned, "physical_rows", None)),
    numbers("bytes", lambda s: format_size(getattr(s.planned, "in_memory_bytes", None))),
)


def show_table(report: MergeTableReport) -> list[RenderableType]:
    """Render a line for each shard; of many, only those with work, errors first, and a summary."""
    shards = report.shards
    columns = PLANNED if any(shard.planned for shard in shards) else MERGED
    if len(shards) <= _SHARDS_SHOWN_MAX:
        return [build_table(shards, columns)] if shards else []
    busy = [shard for shard in shards if shard.outcome != NOTHING_TO_DO]
    shown = sorted(busy, key=lambda shard: shard.outcome == DONE)[:_SHARDS_SHOWN_MAX]
    text = (
        f"  {len(shards):,} shards, {len(busy):,} with work, {len(shown)} shown; --json lists all"
    )
    return [*([build_table(shown, columns)] if shown else []), Text(text)]
