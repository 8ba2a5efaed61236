"""What people see of `memwal status`: all that matters of one table, or one line for each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import (
    CHECKPOINTS,
    Column,
    build_table,
    describe_lease,
    format_count,
    format_size,
    numbers,
    prose,
    style_outcome,
    words,
)
from memwal.jobs.status.report import (
    IndexStatusReport,
    ShardStatusReport,
    StatusTableReport,
    find_unflushed,
)
from memwal.report import HELD, LastBackupReport, TableReport
from memwal.text import count_of, format_age, name_some, one_line

SHARDS_SHOWN_MAX = 50
_DUE_LINES_MAX = 5
_FLUSH = (
    "no merge sees them until the writer makes a generation: close or reopen it (`open_writer` "
    "does so by itself: generation_every), or `memwal rescue` if it is gone"
)
_WIDTH = 80

# What fits into the 80 columns of a terminal beside a shard's name.
SHARDS: tuple[Column[ShardStatusReport], ...] = (
    words("shard", lambda shard: shard.shard_id),
    numbers("merged", lambda shard: str(shard.merged_generation)),
    numbers("pending", lambda shard: len(shard.pending_generations)),
    numbers("rows", lambda shard: shard.pending_rows),
    numbers("bytes", lambda shard: _format_pending_size(shard)),
    numbers("in WAL", lambda shard: _format_count_unflushed(shard)),
)
INDEXES: tuple[Column[IndexStatusReport], ...] = (
    words("index", lambda index: index.name),
    numbers("unindexed rows", lambda index: index.unindexed_rows),
    numbers("lag (generations)", lambda index: _format_lag(index)),
)


TABLES: tuple[Column[TableReport], ...] = (
    words("table", lambda table: one_line(table.table)),
    numbers("pending", lambda table: getattr(table, "pending_generations", None)),
    numbers("bytes", lambda table: format_size(getattr(table, "pending_bytes", None))),
    numbers("oldest", lambda table: _format_oldest(table)),
    numbers("lag", lambda table: getattr(table, "index_lag_generations", None)),
    numbers("garbage", lambda table: format_size(getattr(table, "reclaimable_bytes", None))),
    prose("now", lambda table: _describe_first(table)),
)


def show_table(report: StatusTableReport) -> list[RenderableType]:
    """Render the table's shards and indexes, its storage, and whether a merge is due.

    If there are many shards, only those with something pending or wrong are shown, the worst first.
    """
    return [] if report.version is None else list(_describe(report))


def show_tables(
    reports: Sequence[TableReport], lines: int | None = None
) -> Iterator[RenderableType]:
    """Render a line for each table, the worst first, then the errors; no more than `lines`.

    What failed is before what needs somebody, and that by what is pending for longest.
    """
    ranked = sorted(reports, key=_rank)
    errors = [(r.table, r.error) for r in ranked if r.error]
    shown = len(ranked) if lines is None else max(0, lines - len(errors))
    yield build_table(ranked[:shown], TABLES)
    for table, error in errors:
        named = error.startswith(f"{table}:")
        yield Text(error if named else f"{table}: {error}", style="red")
    wrong = sum(bool(r.error or getattr(r, "attention", ())) for r in reports)
    more = f", {shown} of them shown" if shown < len(reports) else ""
    text = f"{count_of(len(reports), 'table')}{more}; {wrong} to look after"
    yield Text(text, style="dim")


def _rank(report: TableReport) -> tuple[bool, bool, float, str]:
    told, age = getattr(report, "attention", ()), getattr(report, "oldest_pending_seconds", None)
    return not report.error, not told, -(age or 0.0), report.table


def _describe_first(report: TableReport) -> Text:
    """What is wrong with the table or happens to it, in a few words."""
    if report.error:
        return style_outcome("unreachable" if report.unreachable else report.outcome)
    lease, attention = getattr(report, "lease", None), getattr(report, "attention", ())
    if lease is not None and lease.state == HELD:
        return Text(f"{lease.job} by {lease.holder}")
    return Text(attention[0].what, style="yellow") if attention else Text("OK", style="green")


def _format_oldest(report: TableReport) -> str:
    age = getattr(report, "oldest_pending_seconds", None)
    return "-" if age == 0 else format_age(age)


def show_verdicts(reports: Sequence[TableReport]) -> Iterator[RenderableType]:
    """Render a line for each table: OK, or what needs attention most and the command for it.

    The command goes on a second line if it does not fit into 80 columns.
    """
    for report in reports:
        found = getattr(report, "attention", ())
        if not isinstance(report, StatusTableReport) or report.version is None:
            yield Text(f"{report.table}: {report.outcome}, see its error", style="red")
        elif not found:
            yield Text(f"{report.table}: OK", style="green")
        else:
            first, more = found[0], len(found) - 1
            text = f"{report.table}: {first.what}" + (f", and {more} more" if more else "")
            if first.command is not None:
                apart = " -> " if len(text) + 4 + len(first.command) <= _WIDTH else "\n  -> "
                text += apart + first.command
            yield from (Text(line, style="yellow") for line in text.split("\n"))


def _describe(report: StatusTableReport) -> Iterator[RenderableType]:
    key = ", ".join(report.primary_key) or "none"
    rows = "? base rows" if report.rows is None else count_of(report.rows, "base row")
    yield Text(f"  {rows}, primary key: {key}{'' if report.has_mem_wal else '; no MemWAL'}")
    yield from _list_shards(report)
    if report.policy is not None:
        yield Text(f"  row-merge policy: {json.dumps(report.policy)}")
    if report.expire is not None:
        yield Text(f"  rows expire: {json.dumps(report.expire)}")
    if report.indexes:
        yield build_table(report.indexes, INDEXES)
    if report.snapshot is not None and report.has_mem_wal:
        taken = report.snapshot.taken_at or "never taken"
        shown = "; the shards above are as of then" if report.consistency == "snapshot" else ""
        shards = count_of(report.snapshot.num_shards, "shard")
        yield Text(f"  snapshot: {taken}, {shards}{shown}")
    if report.lease is not None and report.lease.state in ("held", "broken"):
        yield describe_lease(report.lease)
    if report.checkpoints:
        yield build_table(report.checkpoints, CHECKPOINTS)
    for cursor in report.cursors:
        yield Text(
            f"  cursor {cursor.name} of {cursor.holder}: version {cursor.version}, "
            f"{count_of(cursor.behind or 0, 'version')} behind, moved {cursor.moved_at}"
        )
    if report.backup is not None:
        yield Text(f"  {_format_backup(report.backup, report.backup_age_seconds)}")
    yield from map(Text, _format_storage(report))
    if report.compaction and (advice := report.compaction.describe("memwal compaction")):
        yield Text(f"  {advice}", style="yellow")
    yield from _list_due(report)
    if report.until is not None and report.until.reached:
        shards = count_of(len(report.until.target), "shard")
        yield Text(f"  {report.until.step}: {shards}", style="green")


def _list_shards(report: StatusTableReport) -> Iterator[RenderableType]:
    listed = _choose_shown(report.shards)
    if listed:
        yield build_table(listed, SHARDS, cut=_cut_broken)
    if sealed := sum(shard.status == "SEALED" for shard in report.shards):
        yield Text(f"  {count_of(sealed, 'shard')} sealed")
    if (more := len(report.shards) - len(listed)) > 0:
        yield Text(f"  and {count_of(more, 'shard')} more: --json has them", style="dim")
    if not report.shards and report.has_mem_wal:
        yield Text("  no shards yet", style="dim")


def _choose_shown(shards: Sequence[ShardStatusReport]) -> list[ShardStatusReport]:
    """All shards, or of many those that no merge mends, then those that are pending for longest."""
    if len(shards) <= SHARDS_SHOWN_MAX:
        return list(shards)

    def weigh(shard: ShardStatusReport) -> tuple[bool, bool, str]:
        sound = not (shard.error or shard.stuck or shard.holes)
        return sound, not shard.abandoned, shard.oldest_pending_flushed_at or "~"

    return sorted(shards, key=weigh)[:SHARDS_SHOWN_MAX]


def _cut_broken(shard: ShardStatusReport) -> tuple[str | Text, ...]:
    """Cut the line of a broken shard to its id and that it is broken."""
    return (shard.shard_id, Text("broken", style="red")) if shard.error else ()


def _format_pending_size(shard: ShardStatusReport) -> str:
    return ("~" if shard.sizes_estimated else "") + format_size(shard.pending_bytes)


def _format_count_unflushed(shard: ShardStatusReport) -> Text:
    style = "yellow" if shard.abandoned else ""
    return Text(format_count(shard.unflushed_wal_entries), style=style)


def _format_lag(index: IndexStatusReport) -> str:
    return "not recorded" if index.lag_generations is None else str(index.lag_generations)


def _format_storage(report: StatusTableReport) -> Iterator[str]:
    if (stored := report.storage) is None:
        return
    # Files of small generations are much larger than their rows in memory.
    yield (
        f"  storage: base {format_size(stored.base_bytes)}, WAL {format_size(stored.wal_bytes)}; "
        f"in memory: pending {format_size(report.pending_bytes)}, "
        f"reclaimable {format_size(report.reclaimable_bytes)}"
    )
    told = []
    if report.reclaimable is not None and report.reclaimable.generations:
        told.append(f"{count_of(report.reclaimable.generations, 'generation')} reclaimable")
    if stored.small_objects:
        told.append(f"manifests and WAL entries: {stored.small_objects:,}")
    if told:
        yield "    " + ", ".join(told)
    if report.reclaimable and report.reclaimable.generations and not report.reclaimable.collected:
        yield "    no retention is configured: memwal garbage shows what can go"


def _format_backup(backup: LastBackupReport, age_seconds: float | None) -> str:
    if backup.error:
        return f"last backup: not known: {backup.error}"
    if backup.name is None:
        return f"last backup: none yet in {backup.uri}"
    return f"last backup: {backup.name}, {format_age(age_seconds)} ago, in {backup.uri}"


def _list_due(report: StatusTableReport) -> Iterator[Text]:
    """Say whether a merge is due, with up to `_DUE_LINES_MAX` reasons, and what none would see."""
    waiting = [
        f"in the WAL only for {format_age(s.unflushed_seconds)}: rows of shard {s.shard_id}"
        for s in find_unflushed(report)
    ]
    for line in name_some(waiting, _DUE_LINES_MAX, "shards"):
        yield Text(f"  {line}", style="yellow")
    if waiting:
        yield Text(f"  {_FLUSH}", style="yellow")
    elif not report.due:
        yield Text("  not due", style="dim")
        return
    for reason in name_some(report.due_reasons, _DUE_LINES_MAX, "more"):
        yield Text(f"  due: {reason}", style="yellow")
