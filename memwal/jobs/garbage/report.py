"""What a run of `garbage` tells of a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memwal.errors import EXIT_PARTIAL
from memwal.format import layout
from memwal.jobs.garbage.apply import Deleted
from memwal.jobs.garbage.model import Action, Evidence, GarbagePlan, Item
from memwal.jobs.garbage.run import GarbageOptions, GarbageRun
from memwal.report import (
    DONE,
    FAILED,
    PARTIAL,
    REFUSED,
    FailedDelete,
    GarbageItemReport,
    GarbageTableReport,
    Part,
    TableReport,
    sum_up,
)
from memwal.run.reports import failed_report
from memwal.text import iso_time

_NAMED_MAX = 3


def garbage_report(run: GarbageRun, options: GarbageOptions) -> TableReport:
    """One table's report: what was done, or would be, and what went wrong."""
    plan, table = run.plan, run.table
    if table.error is not None or plan is None or run.evidence is None:
        return failed_report(table.resolved.name, table.failure)
    dropped = {path for d in run.dropped if d.error is None for path in d.paths}
    deleted = {d.path: d for d in run.deleted}
    parts = [*_wrong(run, plan, run.evidence), *_done(run, plan, options)]
    outcome, code = sum_up(parts)
    errors = list(dict.fromkeys(p.error for p in parts if p.error))
    return GarbageTableReport(
        table=table.resolved.name,
        outcome=outcome,
        exit_code=code,
        error="; ".join(errors) or None,
        version_before=run.version,
        version_after=run.version,
        items=tuple(_item(i, dropped, deleted.get(i.path)) for i in plan.items),
        dropped=len(dropped),
        deleted=sum(d.error is None for d in run.deleted),
        bytes_freed=sum(d.size_bytes for d in run.deleted),
        objects_deleted=sum(d.objects for d in run.deleted),
        failed=tuple(
            FailedDelete(path=d.path, error=d.error) for d in run.deleted if d.error is not None
        ),
        versions_expired=0 if run.expired is None else run.expired.versions,
        version_bytes_freed=0 if run.expired is None else run.expired.size_bytes,
        oldest_claim=_old_claim(run),
        warnings=_warnings(run, plan, options),
    )


def _item(item: Item, dropped: set[str], deleted: Deleted | None) -> GarbageItemReport:
    done = item.path in dropped if item.action is Action.DROP else False
    if item.action is Action.DELETE and deleted is not None:
        done = deleted.error is None
    return GarbageItemReport(
        kind=item.kind.value,
        shard_id=item.shard_id,
        path=item.path,
        bytes=item.size_bytes,
        action=item.action.value,
        reason=item.reason,
        done=done,
    )


def _wrong(run: GarbageRun, plan: GarbagePlan, evidence: Evidence) -> Iterable[Part]:
    """What kept evidence from being read, or a part of the table from being served."""
    for broken in plan.broken:
        yield _failed(f"shard {broken.shard_id}: {broken.error}", broken.error)
    for problem in plan.problems:
        yield _failed(str(problem), problem)
    for version in evidence.versions:
        if version.problem is not None:
            yield Part(outcome=FAILED, exit_code=8, error=version.problem)
    if run.broken is not None:
        text = f"{run.stores.uri}: {run.broken}. A bug in memwal: that step was not made"
        yield _failed(f"{text}, nor any after it", run.broken)
    if plan.refusal is not None:
        yield Part(outcome=REFUSED, exit_code=5, error=f"{run.stores.uri}: {plan.refusal}")


def _failed(text: str, error: Exception) -> Part:
    return Part(outcome=FAILED, exit_code=getattr(error, "exit_code", 1), error=text)


def _done(run: GarbageRun, plan: GarbagePlan, options: GarbageOptions) -> Iterable[Part]:
    if not options.acts:
        if plan.drops or plan.deletes or run.expirable:
            yield Part(outcome=DONE)
        return
    for dropped in run.dropped:
        if dropped.error is None:
            yield Part(outcome=DONE)
        else:
            yield Part(
                outcome=dropped.error.outcome,
                exit_code=dropped.error.exit_code,
                error=str(dropped.error),
            )
    if any(d.objects for d in run.deleted) or (run.expired and run.expired.versions):
        yield Part(outcome=DONE)
    failed = [d for d in run.deleted if d.error is not None]
    if failed:
        yield Part(
            outcome=PARTIAL,
            exit_code=EXIT_PARTIAL,
            error=f"{len(failed)} deletes failed and are left to the next run: {failed[0].error}",
        )


def _old_claim(run: GarbageRun) -> dict[str, Any] | None:
    claim = run.old_claim
    if claim is None:
        return None
    age = (run.stores.clock.now_nanos() - run.fast_nanos - claim.claimed_at_nanos) / 1e9
    return {
        "shard_id": claim.shard_id,
        "writer_epoch": claim.writer_epoch,
        "claimed_at": iso_time(claim.claimed_at_nanos),
        "age_seconds": round(age, 1),
    }


def _days(seconds: float) -> str:
    return f"{seconds / 86_400:.1f} d" if seconds >= 86_400 else f"{seconds:.0f} s"


def _warnings(run: GarbageRun, plan: GarbagePlan, options: GarbageOptions) -> tuple[str, ...]:
    found = list(plan.warnings)
    if run.view is not None:
        found += [w for w in run.view.warnings if layout.MEM_WAL in w]
    if run.never_merged and options.retention_seconds is not None and run.expired is None:
        more = len(run.never_merged) - _NAMED_MAX
        named = ", ".join(run.never_merged[:_NAMED_MAX]) + (f" and {more} more" * (more > 0))
        found.append(
            f"no version is expired: shards {named} can't be read, or have "
            "generations and were never merged. Only an old version proves that those belong to "
            "this MemWAL index; merge them first, or mend what can't be read"
        )
    claim = _old_claim(run)
    if claim is not None and options.retention_seconds is not None:
        age, retention = _days(claim["age_seconds"]), _days(options.retention_seconds)
        found.append(
            f"the oldest writer claim (shard {claim['shard_id']}, epoch {claim['writer_epoch']}) "
            f"is {age} old, the retention {retention}: if its writer is still open, or a LanceDB "
            "connection of that age, their own reads miss what is collected. Open such handles "
            "anew within the retention"
        )
    if run.expirable and not options.acts:
        found.append(
            f"{run.expirable} versions are older than the retention and would be expired first; "
            "what they alone hold is listed as if they were gone"
        )
    return tuple(found)
