"""Sums up reports: of tables as a job's, of a chain of jobs as a table's; and of a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from memwal.errors import MemWalError, error_of
from memwal.format import layout
from memwal.model import Checkpoint, Cursor
from memwal.report import (
    DONE,
    FAILED,
    HELD,
    NOTHING_TO_DO,
    REFUSED,
    CheckpointReport,
    CursorReport,
    EngineReport,
    JobOnTable,
    JobReport,
    TableReport,
    sum_up,
    sum_up_tables,
)
from memwal.run.engines.choice import EngineChoice
from memwal.store.objects.full_disk import tells_of_it
from memwal.text import iso_time

Report = TypeVar("Report", bound=TableReport)


def job_report(
    job: str,
    tables: Iterable[TableReport],
    *,
    seconds: float = 0.0,
    requests: Iterable[Mapping[str, int]] = (),
    engine: EngineChoice | None = None,
    dry_run: bool = False,
    otherwise: str = NOTHING_TO_DO,
) -> JobReport:
    """Sum up the tables' reports, and the requests that were made for them."""
    reports = tuple(tables)
    outcome, code = sum_up_tables(reports, otherwise)
    return JobReport(
        job=job,
        outcome=outcome,
        exit_code=code,
        seconds=round(seconds, 3),
        dry_run=dry_run,
        engine=None if engine is None else EngineReport(name=engine.name, reason=engine.reason),
        tables=reports,
        requests=add_counts(requests),
    )


def add_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts by key."""
    total: Counter[str] = Counter()
    for more in counts:
        total.update(more)
    return dict(total)


def take_report(report: JobReport, kind: type[Report]) -> Report:
    """The report of a job on exactly one table. Raises the error that it carries, if any."""
    (table,) = report.tables
    if isinstance(table, kind) and table.outcome in (DONE, NOTHING_TO_DO):
        return table
    error = table.cause
    if not isinstance(error, MemWalError):
        error = error_of(table.exit_code, table.outcome, table.error or table.outcome)
    error.report = table
    raise error


def must_stop(jobs: Sequence[JobOnTable]) -> bool:
    """Whether a job left the table in a state that needs a look before later jobs run on it."""
    return any(_is_in_the_way(job) for job in jobs)


def had_no_room(jobs: Sequence[JobOnTable]) -> bool:
    """Whether a job hit a full disk; garbage can still run then, and makes room."""
    return any(tells_of_it(job.report.error) for job in jobs)


def _is_in_the_way(job: JobOnTable) -> bool:
    # One sealed or broken shard must not keep the others from being collected, whether or not
    # those had anything to merge this time. A snapshot that was refused because of such a shard
    # does not stop the chain either: garbage checks each shard itself. Nor does a compaction that
    # failed: nothing depends on it.
    outcome = job.report.outcome
    if outcome not in (FAILED, REFUSED):
        return outcome == HELD
    if job.job == "compaction" or (job.job == "snapshot" and outcome == REFUSED):
        return False
    shards = getattr(job.report, "shards", ())  # of a merge, or of its dry run
    return not any(shard.outcome in (DONE, NOTHING_TO_DO) for shard in shards)


def sum_up_jobs(jobs: Sequence[JobOnTable]) -> dict[str, Any]:
    """The fields of one table's `MaintainTableReport`, derived from its jobs' reports."""
    outcome, code = sum_up(job.report for job in jobs)
    before = (job.report.version_before for job in jobs)
    after = (job.report.version_after for job in reversed(jobs))
    return {
        "outcome": outcome,
        "exit_code": code,
        "error": "; ".join(f"{j.job}: {j.report.error}" for j in jobs if j.report.error) or None,
        "version_before": next((v for v in before if v is not None), None),
        "version_after": next((v for v in after if v is not None), None),
        "jobs": tuple(jobs),
    }


def describe_checkpoint(
    found: Checkpoint, now_nanos: int, *, tagged: bool = True, fate: str | None = None
) -> CheckpointReport:
    """The report of a checkpoint; `fate` overrides its state when this run makes or drops it."""
    state = "kept" if tagged else "untagged"
    if not found.ready:
        state = "unfinished"
    if found.is_expired(now_nanos):
        state = "expired"
    return CheckpointReport(
        name=found.name,
        state=fate or state,
        version=found.version,
        generations=found.generations,
        cut={shard.shard_id: shard.generation for shard in found.shards},
        holder=found.holder,
        created_at=iso_time(found.created_at_nanos),
        expires_at=iso_time(found.expires_at_nanos),
        tag=layout.checkpoint_tag(found.key),
    )


def describe_cursor(
    found: Cursor, latest: int | None = None, *, dropped: bool = False
) -> CursorReport:
    """The report of a cursor, in a table whose latest version is that."""
    return CursorReport(
        name=found.name,
        version=found.version,
        behind=None if latest is None else latest - found.version,
        moved_at=iso_time(found.moved_at_nanos) or "",
        holder=found.holder,
        transaction=found.transaction,
        dropped=dropped,
    )
