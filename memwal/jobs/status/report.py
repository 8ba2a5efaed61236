"""What `memwal status` reports of a table, out of its view. Opens no generation.

Airflow reads its classes: nothing heavy may be imported here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from memwal.errors import EXIT_CONDITION, EXIT_DONE, find_code
from memwal.jobs.status.plan import (
    SHARDS_NAMED_MAX,
    Condition,
    DueLimits,
    WalSize,
    count_lag,
    describe_due_shards,
    find_word,
    take_state,
)
from memwal.model import (
    FRESHNESS_SECONDS,
    BrokenShard,
    Cursor,
    ShardId,
    ShardView,
    TableView,
    sum_known,
)
from memwal.options import Consistency
from memwal.report import (
    DONE,
    FAILED,
    HELD,
    CheckpointReport,
    CompactionAdvice,
    CursorReport,
    JobReport,
    LastBackupReport,
    LeaseReport,
    Part,
    RunRecord,
    Section,
    TableReport,
    sum_up,
)
from memwal.rows.expire import describe_expire
from memwal.rows.policy import policy_document
from memwal.rows.progress import StrangerShard, find_holes, refuse_hole
from memwal.text import count_of, format_age, iso_time, name_some

# As long as `memwal rescue` takes a writer for alive, unless it is told otherwise.
_SILENT_SECONDS = 600.0

_MERGE, _CATCH_UP, _VERIFY = "merge {}", "index-catchup {}", "verify {}"
_RESCUE = "rescue {} --dry-run"
_ADOPT = "init {} --adopt-clone"
_BACKUP = "backup {}"
# Backups are made daily; one that is late by a day needs somebody.
_BACKUP_SECONDS_MAX = 2 * 86_400.0
_BY_WORD = {
    "pending_generations": _MERGE,
    "pending_bytes": _MERGE,
    "oldest_pending_seconds": _MERGE,
    "index_lag_generations": _CATCH_UP,
    "reclaimable_bytes": "garbage {}",
    "abandoned_shards": _RESCUE,
    "unflushed_seconds": _RESCUE,
    "backup_age_seconds": _BACKUP,
}


_HOLES_MAX = 100
_WAL = (
    *("manifests", "wal_entries", "wal_bytes", "unflushed_wal_entries"),
    *("idle_seconds", "abandoned", "wal_problem"),
)


class StorageReport(Section):
    """What is stored beside generations; None where not known.

    `base_bytes` is what the version's manifest names: data files, and index files as far as their
    sizes are recorded. `small_objects` counts the shards' manifests and WAL entries; a few of each
    writer's claim stay for good. A shard that could not be read is left out.
    """

    base_bytes: int | None
    wal_bytes: int | None
    small_objects: int | None = None


class ShardStatusReport(Part):
    """One shard in `status`.

    `holes` have `from_generation`, `to_generation` and a `cause` of `memwal.rows.progress`.
    `sizes_estimated`: the writer recorded none, so that they are told by the generations' files.
    `manifests` counts those that are stored, stoppers of collected ones included.
    `unflushed_wal_entries` hold rows that are in no generation, the oldest put `unflushed_seconds`
    ago; `idle_seconds` since the newest WAL entry.
    `wal_problem` tells of a WAL entry that is missing or torn, as far as a listing shows it.
    `stuck` is why the last merge of the shard, by its record, could not go on from where it stands.
    """

    shard_id: str
    status: str | None = None
    writer_epoch: int | None = None
    manifest_version: int | None = None
    current_generation: int | None = None
    merged_generation: int = 0
    pending_generations: tuple[int, ...] = ()
    holes: tuple[dict[str, Any], ...] = ()
    pending_rows: int | None = 0
    pending_bytes: int | None = 0
    sizes_estimated: bool = False
    oldest_pending_flushed_at: str | None = None
    replay_after_wal_entry_position: int | None = None
    manifests: int | None = None
    wal_entries: int | None = None
    wal_bytes: int | None = None
    unflushed_wal_entries: int | None = None
    unflushed_seconds: float | None = None
    idle_seconds: float | None = None
    abandoned: bool = False
    wal_problem: str | None = None
    stuck: str | None = None
    due_reasons: tuple[str, ...] = ()


class IndexStatusReport(Section):
    """One base-table index in `status`. `lag_generations` is None where nothing is recorded."""

    name: str
    caught_up: dict[str, int]
    lag_generations: int | None
    unindexed_rows: int | None


class SnapshotStatusReport(Section):
    """The shard snapshot in the MemWAL index.

    What was flushed before `taken_at` is in it, by the clock of the host that took it.
    """

    taken_at: str | None
    num_shards: int


class ReclaimableReport(Section):
    """Listed generations that are merged and covered by every index that must cover them.

    With them those that a former MemWAL index had merged, and whose folders are still there, by the
    sizes of their files; all else is in-memory bytes.
    `collected` tells whether a retention is configured, by which jobs delete them.
    """

    generations: int
    bytes: int | None
    collected: bool = False


class FailedConditionReport(Section):
    """A condition of `--fail-if` that holds, and the value; None where that is not known."""

    condition: str
    value: float | int | None


class UntilReport(Section):
    """How the wait of `--until` ended; `missing` tells how far shards are that fall short."""

    step: str
    reached: bool
    target: dict[ShardId, int]
    missing: dict[ShardId, int]


class AttentionReport(Section):
    """Something that needs somebody, and the command to begin with, where there is one."""

    what: str
    command: str | None = None


class StatusTableReport(TableReport):
    """One table in `status`. `uri` carries no credentials; `due` is whether a merge is due.

    `pending_generations` to `unflushed_seconds` are of the whole table, and None where they are not
    known of every shard; `failed_conditions` are judged by these. An index of which nothing is
    recorded is behind by all that is merged. `unflushed_seconds` is the age of the oldest
    acknowledged row that is in no generation, 0 where there is none, and more than
    `freshness_seconds` where no watch can keep that.

    `backup` is None where the configuration names no place for backups, and `backup_age_seconds`
    also where none was made or could be read.

    `attention` is what needs somebody, the worst first. Of a table that was read and is as it
    should be, it is empty.

    With a `consistency` of `snapshot` the shards are as they were when that was taken, and nothing
    is known of their WALs, of rows and bytes that are pending, and since when they are: a merge is
    due then by the number of generations alone.
    """

    uri: str | None = None
    due: bool = False
    due_reasons: tuple[str, ...] = ()
    storage: StorageReport | None = None
    version: int | None = None
    consistency: Consistency = "latest"
    rows: int | None = None
    primary_key: tuple[str, ...] = ()
    has_mem_wal: bool = True
    pending_generations: int | None = None
    pending_bytes: int | None = None
    oldest_pending_seconds: float | None = None
    index_lag_generations: int | None = None
    reclaimable_bytes: int | None = None
    abandoned_shards: int | None = None
    unflushed_seconds: float | None = None
    freshness_seconds: float = FRESHNESS_SECONDS
    backup_age_seconds: float | None = None
    attention: tuple[AttentionReport, ...] = ()
    failed_conditions: tuple[FailedConditionReport, ...] = ()
    policy: dict[str, Any] | None = None
    expire: dict[str, Any] | None = None
    shards: tuple[ShardStatusReport, ...] = ()
    indexes: tuple[IndexStatusReport, ...] = ()
    snapshot: SnapshotStatusReport | None = None
    reclaimable: ReclaimableReport | None = None
    compaction: CompactionAdvice | None = None
    lease: LeaseReport | None = None
    checkpoints: tuple[CheckpointReport, ...] = ()
    cursors: tuple[CursorReport, ...] = ()
    backup: LastBackupReport | None = None
    until: UntilReport | None = None
    warnings: tuple[str, ...] = ()


def find_late_backup(report: StatusTableReport) -> str | None:
    """What is wrong with the table's newest backup, if one is wanted and it is not a recent one."""
    backup, age = report.backup, report.backup_age_seconds
    if backup is None:
        return None
    if backup.error:
        return f"its backups can't be read: {backup.error}"
    if age is None:
        return "no backup yet"
    return f"the last backup is {format_age(age)} old" if age > _BACKUP_SECONDS_MAX else None


def find_backup_time(backup: LastBackupReport | None) -> int | None:
    """The moment of the newest backup, for metrics: 0 if none is known, None if none is wanted."""
    return None if backup is None else _nanos(backup.made_at) or 0


def _nanos(time: str | None) -> int | None:
    return None if time is None else int(datetime.fromisoformat(time).timestamp()) * 10**9


def report_status(
    name: str,
    view: TableView,
    *,
    wal: Callable[[ShardId], WalSize],
    unindexed_rows: Callable[[str], int | None],
    due: Mapping[ShardId, tuple[str, ...]],
    now_nanos: int,
    collects: bool = False,
    records: Sequence[RunRecord] = (),
    stored_cursors: Sequence[Cursor] = (),
    backup: LastBackupReport | None = None,
    warnings: Sequence[str] = (),
    **more: Any,
) -> StatusTableReport:
    """The status report of one table. The two callables look up what a view does not hold.

    `due` are the shards of `find_due_shards`; `records` are of runs, newest first; `warnings` are
    added to those of the view, and `more` are fields of the report as they are.
    """
    stuck = find_stuck_shards(view, records)
    wals = {shard.shard_id: wal(shard.shard_id) for shard in view.shards}
    shards = tuple(
        _report_shard(
            view, s, wals[s.shard_id], now_nanos, due.get(s.shard_id, ()), stuck.get(s.shard_id)
        )
        for s in view.shards
    )
    lease: LeaseReport | None = more.get("lease")
    made = find_backup_time(backup)
    state = replace(
        take_state(view, now_nanos, wals.values()),
        cursors=stored_cursors,
        lease_held_at_nanos=_nanos(lease.acquired_at) if lease and lease.state == HELD else None,
        last_backup_at_nanos=made,
    )
    broken = tuple(_report_broken(view, b) for b in view.broken)
    outcome, code = sum_up((*shards, *broken), otherwise=DONE)
    errors = name_some([str(b.error) for b in view.broken], SHARDS_NAMED_MAX, "shards")
    return StatusTableReport(
        table=name,
        outcome=outcome,
        exit_code=code,
        error="; ".join(errors) or None,
        version_before=view.version,
        version_after=view.version,
        uri=view.uri,
        due=bool(due),
        due_reasons=describe_due_shards(due),
        storage=StorageReport(
            base_bytes=view.file_bytes,
            wal_bytes=sum_known(s.wal_bytes for s in shards),
            small_objects=sum_known(n for s in shards for n in (s.manifests, s.wal_entries)),
        ),
        version=view.version,
        consistency="latest" if view.taken_at_millis is None else "snapshot",
        rows=view.rows,
        primary_key=view.primary_key,
        has_mem_wal=view.has_mem_wal,
        state=state,
        **state.known(),
        policy=policy_document(view.policy_text),
        expire=describe_expire(view),
        shards=(*shards, *broken),
        indexes=_report_indexes(view, unindexed_rows),
        snapshot=SnapshotStatusReport(
            taken_at=iso_time(view.mem_wal.snapshot_ts_millis * 10**6 or None),
            num_shards=view.mem_wal.num_shards,
        ),
        reclaimable=ReclaimableReport(
            generations=state.reclaimable_generations or 0,
            bytes=state.reclaimable_bytes,
            collected=collects,
        ),
        backup=backup,
        backup_age_seconds=max(0.0, round((now_nanos - made) / 1e9, 1)) if made else None,
        warnings=(
            *(*view.warnings, *_warn_of_shards(view, shards)),
            *(*filter(None, [view.snapshot_unused_text]), *warnings),
        ),
        **more,
    )


def judge_conditions(
    report: StatusTableReport, conditions: Sequence[Condition]
) -> StatusTableReport:
    """With the conditions that hold: the table has failed, unless more is wrong with it."""
    values = [(condition, getattr(report, condition.word)) for condition in conditions]
    failed = [(condition, value) for condition, value in values if condition.holds(value)]
    if not failed:
        return report
    texts = [condition.describe(value) for condition, value in failed]
    own = {"outcome": FAILED, "exit_code": EXIT_CONDITION} if not report.exit_code else {}
    reports = (FailedConditionReport(condition=c.text, value=value) for c, value in failed)
    error = "; ".join(filter(None, [report.error, *texts]))
    return report.model_copy(update={"failed_conditions": tuple(reports), "error": error, **own})


def sum_up_conditions(report: JobReport) -> JobReport:
    """The run's own exit code where conditions hold, and nothing else went wrong."""
    if {table.exit_code for table in report.tables} - {EXIT_DONE} != {EXIT_CONDITION}:
        return report
    return report.model_copy(update={"outcome": FAILED, "exit_code": EXIT_CONDITION})


def find_stuck_shards(view: TableView, records: Sequence[RunRecord]) -> Mapping[ShardId, str]:
    """Shards that stand where a run left them for a reason that running again does not mend."""
    found: dict[ShardId, str] = {}
    for shard in view.shards if records else ():
        last = next((r for r in records if shard.shard_id in r.stuck), None)
        if last is None or not shard.pending:
            continue
        generation, error = last.stuck[shard.shard_id]
        if generation == shard.merged_generation:
            found[shard.shard_id] = f"{error} (merge of {last.finished_at})"
    return found


def _warn_of_shards(view: TableView, shards: Sequence[ShardStatusReport]) -> Iterator[str]:
    """A line for each shard that has a hole, is stuck, damaged or looks abandoned; some a kind."""
    holes = [str(refuse_hole(s, hole)) for s in view.shards for hole in islice(find_holes(s), 1)]
    stuck = [
        f"shard {s.shard_id} is stuck at generation {s.merged_generation}: {s.stuck}"
        for s in shards
        if s.stuck
    ]
    abandoned = [
        f"shard {s.shard_id} looks abandoned: {s.unflushed_wal_entries} WAL entries are in no "
        f"generation, the newest is {s.idle_seconds:.0f} s old; no merge will see them until a "
        "writer, or `memwal rescue`, takes the shard"
        for s in shards
        if s.abandoned
    ]
    damaged = [f"shard {s.shard_id}: {s.wal_problem}" for s in shards if s.wal_problem]
    for lines in (holes, stuck, damaged, abandoned):
        yield from name_some(lines, SHARDS_NAMED_MAX, "shards")


def _report_shard(
    view: TableView,
    shard: ShardView,
    wal: WalSize,
    now_nanos: int,
    due: tuple[str, ...],
    stuck: str | None,
) -> ShardStatusReport:
    manifest, pending, put = shard.manifest, shard.pending, wal.unflushed_at_nanos
    return ShardStatusReport(
        outcome=DONE,
        shard_id=shard.shard_id,
        # A shard snapshot does not tell it.
        status=None if view.taken_at_millis is not None else manifest.status.name,
        writer_epoch=manifest.writer_epoch,
        manifest_version=manifest.version,
        current_generation=manifest.current_generation,
        merged_generation=shard.merged_generation,
        pending_generations=tuple(g.generation for g in pending),
        holes=tuple(
            {"from_generation": h.first, "to_generation": h.last, "cause": h.cause.value}
            for h in islice(find_holes(shard), _HOLES_MAX)
        ),
        pending_rows=sum_known(g.physical_rows for g in pending),
        pending_bytes=sum_known(g.in_memory_bytes for g in pending),
        sizes_estimated=any(g.estimated for g in pending),
        oldest_pending_flushed_at=iso_time(shard.oldest_pending_flushed_at_nanos),
        replay_after_wal_entry_position=manifest.replay_after_wal_entry_position,
        **{name: getattr(wal, name) for name in _WAL},
        unflushed_seconds=None if put is None else max(0.0, round((now_nanos - put) / 1e9, 1)),
        stuck=stuck,
        due_reasons=due,
    )


def _report_broken(view: TableView, shard: BrokenShard) -> ShardStatusReport:
    """A shard that can't be read; the MemWAL index tells what of it is merged.

    Of a stranger nothing is: that progress is not its own.
    """
    merged = view.mem_wal.merged.get(ShardId(shard.shard_id), 0)
    return ShardStatusReport(
        merged_generation=0 if isinstance(shard, StrangerShard) else merged,
        outcome=FAILED,
        error=str(shard.error),
        exit_code=getattr(shard.error, "exit_code", 1),
        shard_id=shard.shard_id,
        pending_rows=None,
        pending_bytes=None,
    )


def _report_indexes(
    view: TableView, unindexed_rows: Callable[[str], int | None]
) -> tuple[IndexStatusReport, ...]:
    recorded = view.mem_wal.index_catchup
    return tuple(
        IndexStatusReport(
            name=name,
            caught_up={str(shard): to for shard, to in recorded.get(name, {}).items()},
            lag_generations=count_lag(view.mem_wal.merged, recorded.get(name)),
            unindexed_rows=unindexed_rows(name),
        )
        for name in sorted({entry.name for entry in view.manifest.indexes})
    )


def find_attention(report: StatusTableReport, limits: DueLimits) -> tuple[AttentionReport, ...]:
    """All that needs attention, the worst first; nothing where the table is as it should be."""
    table = shlex.quote(report.table)
    return tuple(
        AttentionReport(what=what, command=command and f"memwal {command.format(table)}")
        for what, command in _find(report, limits)
    )


def _find(report: StatusTableReport, limits: DueLimits) -> Iterator[tuple[str, str | None]]:
    shards = report.shards
    if find_code(report.error or "") == "MW-C08":  # no job commits until that is mended
        yield "the newest version lost", "repair {}"
        return
    broken = [s for s in shards if s.error]
    if cloned := [s for s in broken if "(MW-H06)" in str(s.error)]:
        yield f"{count_of(len(cloned), 'shard')} of a clone, not adopted", _ADOPT
    if unreadable := len(broken) - len(cloned):
        yield f"{count_of(unreadable, 'shard')} unreadable", _VERIFY
    warned = 0
    for what, command, found in (
        ("stuck", _VERIFY, [s for s in shards if s.stuck]),
        ("with missing generations", _VERIFY, [s for s in shards if s.holes]),
        ("with a damaged WAL", _RESCUE, [s for s in shards if s.wal_problem]),
    ):
        if found:
            warned += min(len(found), SHARDS_NAMED_MAX + 1)
            yield f"{count_of(len(found), 'shard')} {what}", command
    silent = [s for s in shards if s.unflushed_wal_entries and _is_silent(s.idle_seconds)]
    abandoned = [s for s in shards if s.abandoned]
    warned += min(len(abandoned), SHARDS_NAMED_MAX + 1)
    if found := silent or abandoned:
        age = format_age(max(s.idle_seconds or 0.0 for s in found))
        yield f"{count_of(len(found), 'shard')} with unflushed rows, silent for {age}", _RESCUE
    elif found := find_unflushed(report):
        age = format_age(max(s.unflushed_seconds or 0.0 for s in found))
        where = count_of(len(found), "shard")
        yield f"rows in the WAL only, of {where}, for {age}: close or reopen the writer", None
    if report.until is not None and not report.until.reached:
        yield f"not {report.until.step} in time", None
    for failed in report.failed_conditions:
        yield f"--fail-if '{failed.condition}'", _BY_WORD[find_word(failed.condition)]
    if due := [s for s in shards if s.due_reasons]:
        yield f"{count_of(len(due), 'shard')} due for a merge", _MERGE
    lag = report.index_lag_generations or 0
    if lag >= limits.due_generations_min:
        yield f"indexes {count_of(lag, 'generation')} behind", _CATCH_UP
    if late := find_late_backup(report):
        yield late, _BACKUP
    if report.compaction is not None and report.compaction.reason:
        yield report.compaction.reason, "compaction {}"
    if (others := len(report.warnings) - warned) > 0:
        yield count_of(others, "warning"), None


def find_unflushed(report: StatusTableReport) -> list[ShardStatusReport]:
    """The shards whose rows have been in no generation for longer than the table's freshness."""
    most = report.freshness_seconds
    return [s for s in report.shards if (s.unflushed_seconds or 0.0) > most]


def _is_silent(idle_seconds: float | None) -> bool:
    return idle_seconds is not None and idle_seconds >= _SILENT_SECONDS
