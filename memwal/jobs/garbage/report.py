"""Garbage's part of the document: what was done to each candidate, or would be, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from memwal.errors import EXIT_PARTIAL, Corruption, Refused
from memwal.format import layout
from memwal.jobs.garbage.apply.deletions import expire_item
from memwal.jobs.garbage.model import Action, Item
from memwal.report import (
    DONE,
    FAILED,
    PARTIAL,
    AuditItem,
    Part,
    Section,
    TableReport,
    describe_error,
    sum_up,
)
from memwal.text import count_of, iso_time

if TYPE_CHECKING:
    from memwal.jobs.garbage.apply import TableGarbage
    from memwal.jobs.garbage.apply.deletions import Deleted, Seen

_NAMED_MAX = 3


class GarbageItemReport(Section):
    """One candidate of garbage collection. `done` tells whether this run did what `action` says."""

    kind: str
    shard_id: str | None
    path: str
    bytes: int
    action: str
    reason: str
    done: bool = False


class FailedDelete(Section):
    """An item that could not be deleted whole; the next run finds it again."""

    path: str
    error: str


class GarbageTableReport(TableReport):
    """One table of a garbage run. `dropped` and `deleted` count items, and only what was done.

    `runs_deleted` counts run records beyond the number that is kept. `oldest_claim` is the oldest
    writer claim that is older than the retention: `shard_id`, `writer_epoch`, `claimed_at`,
    `age_seconds`; looked for where something is collected. `sweep` is `full`, or `difference` where
    only those `shards_looked_at` have items in which something may have become garbage lately.
    """

    items: tuple[GarbageItemReport, ...] = ()
    sweep: str = "full"
    shards_looked_at: int = 0
    dropped: int = 0
    deleted: int = 0
    bytes_freed: int = 0
    objects_deleted: int = 0
    failed: tuple[FailedDelete, ...] = ()
    versions_expired: int = 0
    expired_versions: tuple[int, ...] = ()
    version_bytes_freed: int = 0
    runs_deleted: int = 0
    oldest_claim: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()

    def summary(self) -> Mapping[str, int | None]:
        """What goes into the run's record."""
        names = ("dropped", "deleted", "bytes_freed", "versions_expired")
        return {name: getattr(self, name) for name in names}

    def audited(self) -> Iterable[AuditItem]:
        """The versions that expired, and all items that went or were to go."""
        yield from (expire_item(version, done=True) for version in self.expired_versions)
        errors = {failed.path: failed.error for failed in self.failed}
        for item in self.items:
            if item.action != Action.KEEP.value:
                yield AuditItem(
                    **item.model_dump(include={"kind", "shard_id", "path", "action", "reason"}),
                    bytes=item.bytes,
                    done=item.done,
                    error=errors.get(item.path),
                )


def report_garbage(name: str, garbage: TableGarbage, seen: Seen) -> GarbageTableReport:
    """One table's report: what was done, or would be, and what went wrong."""
    dropped = {path for d in garbage.dropped if d.error is None for path in d.paths}
    deleted = {d.path: d for d in garbage.deleted}
    parts = [*_find_faults(garbage, seen), *_find_done(garbage, seen)]
    outcome, code = sum_up(parts)
    errors = list(dict.fromkeys(p.error for p in parts if p.error))
    expired = garbage.expired
    left = {v.version for v in seen.look.evidence.versions}
    return GarbageTableReport(
        table=name,
        outcome=outcome,
        exit_code=code,
        error="; ".join(errors) or None,
        version_before=seen.look.version,
        version_after=seen.look.version,
        items=tuple(_report_item(i, dropped, deleted.get(i.path)) for i in seen.plan.items),
        sweep="difference" if garbage.by_difference else "full",
        shards_looked_at=garbage.looked_at,
        dropped=len(dropped),
        deleted=sum(d.error is None for d in garbage.deleted),
        bytes_freed=sum(d.size_bytes for d in garbage.deleted),
        objects_deleted=sum(d.objects for d in garbage.deleted),
        failed=tuple(
            FailedDelete(path=d.path, error=d.error) for d in garbage.deleted if d.error is not None
        ),
        versions_expired=0 if expired is None else expired.versions,
        expired_versions=tuple(sorted(garbage.versions_before - left)),
        version_bytes_freed=0 if expired is None else expired.size_bytes,
        oldest_claim=_describe_claim(garbage),
        warnings=tuple(_find_warnings(garbage, seen)),
    )


def _report_item(item: Item, dropped: set[str], deleted: Deleted | None) -> GarbageItemReport:
    done = item.action is Action.DROP and item.path in dropped
    if item.action is Action.DELETE and deleted is not None:
        done = deleted.error is None
    return GarbageItemReport(
        kind=item.kind,
        shard_id=item.shard_id,
        path=item.path,
        bytes=item.size_bytes,
        action=item.action.value,
        reason=item.reason,
        done=done,
    )


def _find_faults(garbage: TableGarbage, seen: Seen) -> Iterable[Part]:
    """What kept evidence from being read, or part of the table from being collected."""
    for broken in seen.plan.broken:
        yield _failed(f"shard {broken.shard_id}: {broken.error}", broken.error)
    for problem in seen.plan.problems:
        yield _failed(str(problem), problem)
    for version in seen.look.evidence.versions:
        if version.problem is not None:
            yield Part(outcome=FAILED, exit_code=Corruption.exit_code, error=version.problem)
    if garbage.broken is not None:
        text = f"{garbage.uri}: {garbage.broken}. A bug in memwal: that step was not made"
        yield _failed(f"{text}, nor any after it", garbage.broken)
    if garbage.unwritten is not None:
        yield _failed(str(garbage.unwritten), garbage.unwritten)
    if seen.plan.refusal is not None:
        kept = Refused("MW-G08", f"{garbage.uri}: {seen.plan.refusal}")
        yield Part(outcome=kept.outcome, exit_code=kept.exit_code, error=str(kept))


def _failed(text: str, error: Exception) -> Part:
    return Part(outcome=FAILED, exit_code=getattr(error, "exit_code", 1), error=text)


def _find_done(garbage: TableGarbage, seen: Seen) -> Iterable[Part]:
    if not garbage.acts:
        if seen.has_work:
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


def _describe_claim(garbage: TableGarbage) -> dict[str, Any] | None:
    claim = garbage.old_claim
    if claim is None:
        return None
    return {
        "shard_id": claim.shard_id,
        "writer_epoch": claim.writer_epoch,
        "claimed_at": iso_time(claim.claimed_at_nanos),
        "age_seconds": round((garbage.now_nanos - claim.claimed_at_nanos) / 1e9, 1),
    }


def _days(seconds: float) -> str:
    return f"{seconds / 86_400:.1f} d" if seconds >= 86_400 else f"{seconds:.0f} s"


def _find_warnings(garbage: TableGarbage, seen: Seen) -> Iterable[str]:
    yield from seen.plan.warnings
    if seen.look.view is not None:
        yield from (w for w in seen.look.view.warnings if layout.MEM_WAL in w)
    retention_seconds = garbage.retention_seconds
    if seen.never_merged and garbage.expired is None:
        more = len(seen.never_merged) - _NAMED_MAX
        named = ", ".join(seen.never_merged[:_NAMED_MAX]) + (f" and {more} more" * (more > 0))
        yield (
            f"no version is expired: shards {named} can't be read, or have "
            "generations and were never merged. Only an old version proves that those belong to "
            "this MemWAL index; merge them first, or mend what can't be read"
        )
    for found in seen.untagged:
        yield (
            f"no version is expired: somebody deleted the tag of checkpoint {found.name!r}, and "
            f"version {found.version} would go with the others; drop the checkpoint if nobody "
            "reads it any more"
        )
    if seen.followed is not None:
        cursor = seen.followed
        yield (
            f"versions from {cursor.version} on are kept for cursor {cursor.name!r} of "
            f"{cursor.holder}, which was moved last at {iso_time(cursor.moved_at_nanos)}: "
            f"`memwal changes TABLE --cursor {cursor.name} --drop` lets them go"
        )
    claim = _describe_claim(garbage)
    if claim is not None and retention_seconds is not None:
        age, retention = _days(claim["age_seconds"]), _days(retention_seconds)
        yield (
            f"the oldest writer claim (shard {claim['shard_id']}, epoch {claim['writer_epoch']}) "
            f"is {age} old, the retention {retention}: if its writer is still open, or a LanceDB "
            "connection of that age, their own reads miss what is collected. Open such handles "
            "anew within the retention"
        )
    if seen.expirable and not garbage.acts:
        versions = count_of(seen.expirable, "version")
        yield (
            f"{versions} older than the retention would be expired first; "
            "what they alone hold is listed as if they were gone"
        )
