"""Garbage's part of the document: what was done to each candidate, or would be, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from memwal.errors import EXIT_PARTIAL, Corruption, Refused
from memwal.format import layout
from memwal.format.layout import parse_shard_manifest_name, parse_wal_entry_name
from memwal.grid import Column, build_table, format_size, numbers, words
from memwal.jobs.garbage.apply.deletions import audit_item, expire_item
from memwal.jobs.garbage.model import Action, Item
from memwal.report import (
    DONE,
    FAILED,
    PARTIAL,
    AuditItem,
    Part,
    TableReport,
    describe_error,
    sum_up,
)
from memwal.text import count_of, iso_time

if TYPE_CHECKING:
    from memwal.jobs.garbage.apply import TableGarbage
    from memwal.jobs.garbage.apply.deletions import Deleted, SurveyPlan

_NAMED_MAX = 3
_ROWS_MAX = 200


class GarbageTableReport(TableReport):
    """One table of a garbage run. `dropped` and `deleted` count items, and only what was done.

    `runs_deleted` counts run records beyond the number that is kept. `sweep` is `full`, or
    `difference` where only those `shards_looked_at` have items in which something may have become
    garbage lately.
    """

    items: tuple[Item, ...] = ()
    sweep: str = "full"
    shards_looked_at: int = 0
    dropped: int = 0
    deleted: int = 0
    bytes_freed: int = 0
    objects_deleted: int = 0
    versions_expired: int = 0
    expired_versions: tuple[int, ...] = ()
    version_bytes_freed: int = 0
    runs_deleted: int = 0
    warnings: tuple[str, ...] = ()

    SUMMARISED = ("dropped", "deleted", "bytes_freed", "versions_expired")

    def audited(self) -> Iterable[AuditItem]:
        """The versions that expired, and all items that went or were to go."""
        yield from (expire_item(version, done=True) for version in self.expired_versions)
        going = (item for item in self.items if item.action is not Action.KEEP)
        yield from (audit_item(item, done=item.done) for item in going)


def report_garbage(name: str, garbage: TableGarbage, planned: SurveyPlan) -> GarbageTableReport:
    """One table's report: what was done, or would be, and what went wrong."""
    dropped = {path for d in garbage.dropped if d.error is None for path in d.paths}
    deleted = {d.path: d for d in garbage.deleted}
    parts = [*_find_faults(garbage, planned), *_find_done(garbage, planned)]
    outcome, code = sum_up(parts)
    errors = list(dict.fromkeys(p.error for p in parts if p.error))
    expired = garbage.expired
    left = {v.version for v in planned.survey.evidence.versions}
    return GarbageTableReport(
        table=name,
        outcome=outcome,
        exit_code=code,
        error="; ".join(errors) or None,
        version_before=planned.survey.version,
        version_after=planned.survey.version,
        items=tuple(_note_done(i, dropped, deleted.get(i.path)) for i in planned.plan.items),
        sweep="difference" if garbage.by_difference else "full",
        shards_looked_at=garbage.looked_at,
        dropped=len(dropped),
        deleted=sum(d.error is None for d in garbage.deleted),
        bytes_freed=sum(d.size_bytes for d in garbage.deleted),
        objects_deleted=sum(d.objects for d in garbage.deleted),
        versions_expired=0 if expired is None else expired.versions,
        expired_versions=tuple(sorted(garbage.versions_before - left)),
        version_bytes_freed=0 if expired is None else expired.size_bytes,
        warnings=tuple(_find_warnings(garbage, planned)),
    )


def _note_done(item: Item, dropped: Set[str], deleted: Deleted | None) -> Item:
    if item.action is Action.DROP and item.path in dropped:
        return replace(item, done=True)
    if item.action is Action.DELETE and deleted is not None:
        return replace(item, done=deleted.error is None, error=deleted.error)
    return item


def _find_faults(garbage: TableGarbage, planned: SurveyPlan) -> Iterable[Part]:
    """What kept evidence from being read, or part of the table from being collected."""
    for broken in planned.plan.broken:
        yield _failed(f"shard {broken.shard_id}: {broken.error}", broken.error)
    for problem in planned.plan.problems:
        yield _failed(str(problem), problem)
    for version in planned.survey.evidence.versions:
        if version.problem is not None:
            yield Part(outcome=FAILED, exit_code=Corruption.exit_code, error=version.problem)
    if garbage.broken is not None:
        text = f"{garbage.uri}: {garbage.broken}. A bug in memwal: that step was not made"
        yield _failed(f"{text}, nor any after it", garbage.broken)
    if garbage.unwritten is not None:
        yield _failed(str(garbage.unwritten), garbage.unwritten)
    if planned.plan.refusal is not None:
        kept = Refused("MW-G08", f"{garbage.uri}: {planned.plan.refusal}")
        yield Part(outcome=kept.outcome, exit_code=kept.exit_code, error=str(kept))


def _failed(text: str, error: Exception) -> Part:
    return Part(outcome=FAILED, exit_code=getattr(error, "exit_code", 1), error=text)


def _find_done(garbage: TableGarbage, planned: SurveyPlan) -> Iterable[Part]:
    if not garbage.acts:
        if planned.has_work:
            yield Part(outcome=DONE)
        return
    for dropped in garbage.dropped:
        error = dropped.error
        if error is None:
            yield Part(outcome=DONE)
        else:
            yield Part(**describe_error(error))
    if any(d.objects for d in garbage.deleted) or (garbage.expired and garbage.expired.versions):
        yield Part(outcome=DONE)
    failed = [d for d in garbage.deleted if d.error is not None]
    if failed:
        deletes = count_of(len(failed), "delete")
        yield Part(
            outcome=PARTIAL,
            exit_code=EXIT_PARTIAL,
            error=f"{deletes} failed, left to the next run: {failed[0].error}",
        )


def _find_warnings(garbage: TableGarbage, planned: SurveyPlan) -> Iterable[str]:
    yield from planned.plan.warnings
    if planned.survey.view is not None:
        yield from (w for w in planned.survey.view.warnings if layout.MEM_WAL in w)
    if planned.never_merged and garbage.expired is None:
        more = len(planned.never_merged) - _NAMED_MAX
        named = ", ".join(planned.never_merged[:_NAMED_MAX]) + (f" and {more} more" * (more > 0))
        yield (
            f"no version is expired: shards {named} can't be read, or have "
            "generations and were never merged. Only an old version proves that those belong to "
            "this MemWAL index; merge them first, or mend what can't be read"
        )
    for found in planned.untagged:
        yield (
            f"no version is expired: somebody deleted the tag of checkpoint {found.name!r}, and "
            f"version {found.version} would go with the others; drop the checkpoint if nobody "
            "reads it any more"
        )
    if planned.followed is not None:
        cursor = planned.followed
        yield (
            f"versions from {cursor.version} on are kept for cursor {cursor.name!r} of "
            f"{cursor.holder}, which was moved last at {iso_time(cursor.moved_at_nanos)}: "
            f"`memwal changes TABLE --cursor {cursor.name} --drop` lets them go"
        )
    if planned.expirable and not garbage.acts:
        versions = count_of(planned.expirable, "version")
        yield (
            f"{versions} older than the retention would be expired first; "
            "what they alone hold is listed as if they were gone"
        )


# ---- for people

ITEMS: tuple[Column[Item], ...] = (
    words("action", lambda item: _format_action(item)),
    words("kind", lambda item: item.kind),
    numbers("bytes", lambda item: format_size(item.bytes)),
    words("path", lambda item: _format_path(item)),
    words("reason", lambda item: item.reason),
)


def show_table(report: GarbageTableReport) -> list[RenderableType]:
    """Render a table's items, those that go first, up to `_ROWS_MAX`, and the totals."""
    items = sorted(report.items, key=lambda item: item.action is Action.KEEP)
    parts: list[RenderableType] = [
        build_table(items[:_ROWS_MAX], ITEMS) if items else Text("  no candidates", style="dim")
    ]
    if (more := len(items) - _ROWS_MAX) > 0:
        parts.append(Text(f"  and {more:,} more: --json has all of them", style="dim"))
    if going := [item for item in items if item.action is not Action.KEEP]:
        parts.append(Text(f"  listed to go: {_sum_up(going)}"))
    done = f"  dropped {report.dropped}, deleted {report.deleted}, "
    done += f"{format_size(report.bytes_freed)} freed"
    if report.versions_expired:
        done += f"; {count_of(report.versions_expired, 'version')} expired, "
        done += f"{format_size(report.version_bytes_freed)} freed"
    if report.runs_deleted:
        done += f"; {report.runs_deleted} run records deleted"
    if report.sweep == "difference":
        shards = count_of(report.shards_looked_at, "changed shard")
        parts.append(Text(f"  looked at {shards}; --full looks at all", style="dim"))
    return [*parts, Text(done)]


def _sum_up(items: Sequence[Item]) -> str:
    kinds = Counter(item.kind for item in items)
    sizes = {kind: sum(item.bytes for item in items if item.kind == kind) for kind in kinds}
    return ", ".join(
        f"{count:,} {kind} ({format_size(sizes[kind])})" for kind, count in kinds.items()
    )


def _format_path(item: Item) -> str:
    """The path, with the position of a WAL entry or the version of a manifest as a plain number."""
    folder, _, name = item.path.rpartition("/")
    if item.kind == "wal_entry" and (position := parse_wal_entry_name(name)) is not None:
        return f"{folder}: position {position}"
    if item.kind == "shard_manifest" and (version := parse_shard_manifest_name(name)) is not None:
        return f"{folder}: version {version}"
    return item.path


def _format_action(item: Item) -> Text:
    style = {"keep": "dim", "drop": "yellow"}.get(item.action, "red")
    return Text(f"{item.action}{' (done)' if item.done else ''}", style=style)
