"""Writes the run record that each run of a job on a table leaves.

An idle pass, a dry run and a run that found the lease held leave none, and make no request for it.
A record never fails a job: a failure to write it is a warning in the report.
"""

from __future__ import annotations

from itertools import islice

from memwal.errors import EXIT_CANCELLED, BadCredentials, MemWalError, StoreUnavailable
from memwal.model import TableView, sum_known
from memwal.report import (
    FAILED,
    HELD,
    NOTHING_TO_DO,
    AuditLink,
    BacklogReport,
    RunRecord,
    TableReport,
)
from memwal.run.engines.choice import EngineChoice
from memwal.run.progress import Progress
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.run.trail import NOT_WRITTEN
from memwal.store.records.process import this_holder, this_task
from memwal.text import iso_time, shorten

RUNS_KEPT_MAX = 500
# Let a few more pile up before pruning, so that not every run deletes one, or looks for them.
_SLACK_RECORDS_MIN = 10
_LOOKS_SHARE = 0.1
_ERROR_CHARACTERS_MAX = 2000
_STUCK_MAX = 20


class RunRecorder:
    """Writes the records of one job, one per table."""

    def __init__(self, job: str, run_id: str, progress: Progress, *, acts: bool) -> None:
        """`acts` is whether the run may change anything; if not, it leaves no record."""
        self._job = job
        self._run_id = run_id
        self._acts = acts
        self._progress = progress
        self._recorded: set[str] = set()

    def record(
        self, table: OpenTable, report: TableReport, engine: EngineChoice | None = None
    ) -> TableReport:
        """Record the outcome on a table; returns the report, with a warning if that failed.

        The garbage job also prunes old records down to the bound, and reports how many.
        """
        report, link = self._write_trail(table, report)
        stores = table.stores
        if not self._acts or not table.was_read or stores is None:
            return report
        if report.outcome in (NOTHING_TO_DO, HELD) or table.untrusted:
            return report
        if isinstance(table.error, StoreUnavailable | BadCredentials):
            return report  # don't wait a second time for a store that does not answer
        self._recorded.add(stores.uri)
        try:
            table.prove_store()
            stores.run_records.add(self._describe(table, stores, report, engine, link))
            kept = table.resolved.settings.runs_kept_max or RUNS_KEPT_MAX
            exactly = hasattr(report, "runs_deleted")
            slack = 0 if exactly else max(_SLACK_RECORDS_MIN, kept // 10)
            pruned = 0
            if exactly or stores.clock.random() < _LOOKS_SHARE:  # each look is a listing
                pruned = stores.run_records.prune(kept, slack=slack)
        except Exception as error:
            return self._warn(report, f"run records could not be written: {error}")
        return report.model_copy(update={"runs_deleted": pruned}) if exactly else report

    def record_failure(self, table: OpenTable, error: BaseException) -> None:
        """Record a run that ended without a report, if work had begun: a lease was taken."""
        if not (table.worked_on or table.has_intended) or (
            table.stores and table.stores.uri in self._recorded
        ):
            return
        text, outcome, code = f"unexpected {type(error).__name__}: {error}", FAILED, 1
        if isinstance(error, KeyboardInterrupt):
            text, code = "cancelled; what was committed stays", EXIT_CANCELLED
        elif isinstance(error, MemWalError):
            text, outcome, code = str(error), error.outcome, error.exit_code
        report = TableReport(table=table.resolved.name, outcome=outcome, error=text, exit_code=code)
        self.record(table, report)

    def _write_trail(
        self, table: OpenTable, report: TableReport
    ) -> tuple[TableReport, AuditLink | None]:
        """Write down in the audit trail what the run did, even if it then failed."""
        try:
            return report, None if table.trail is None else table.trail.finish(report)
        except MemWalError as error:
            return self._warn(report, f"{NOT_WRITTEN}: {error}"), None

    def _describe(
        self,
        table: OpenTable,
        stores: Stores,
        report: TableReport,
        engine: EngineChoice | None,
        link: AuditLink | None,
    ) -> RunRecord:
        finished = stores.clock.now_nanos()
        before = report.version_before
        if before is None and table.view is not None:
            before = table.view.version
        return RunRecord.model_validate(
            {
                "run_id": self._run_id,
                "airflow": this_task(),
                "job": self._job,
                "started_at": iso_time(table.began_at_nanos, "milliseconds"),
                "finished_at": iso_time(finished, "milliseconds"),
                "seconds": round(stores.clock.monotonic_seconds() - table.began_seconds, 3),
                "outcome": report.outcome,
                "exit_code": report.exit_code,
                "error": _shorten(report.error),
                "engine": engine.name if engine and engine.name in ("spark", "local") else None,
                "holder": this_holder(),
                "version_before": before,
                "version_after": report.version_after,
                "summary": report.summary(),
                "backlog": describe_backlog(table.view, report),
                "stuck": {
                    shard: (generation, _shorten(error))
                    for shard, (generation, error) in islice(report.stuck().items(), _STUCK_MAX)
                },
                "requests": table.requests(),
                "audit": link,
            }
        )

    def _warn(self, report: TableReport, text: str) -> TableReport:
        if not hasattr(report, "warnings"):
            self._progress.say(f"{report.table}: {text}")
            return report
        return report.model_copy(update={"warnings": (*report.warnings, text)})


def describe_backlog(view: TableView | None, report: TableReport) -> BacklogReport:
    """What was pending when the job looked, and what a merge left of that.

    Generations that were flushed in the meantime are not counted: no job reads again for this.
    """
    if view is None:
        return BacklogReport()
    before = [(s.shard_id, g) for s in view.shards for g in s.pending]
    found = BacklogReport(
        generations_before=len(before),
        bytes_before=sum_known(g.in_memory_bytes for _, g in before),
    )
    merged = report.merged()
    if merged is None:
        return found
    after = [g for shard, g in before if g.generation > merged.get(shard, 0)]
    return found.model_copy(
        update={
            "generations_after": len(after),
            "bytes_after": sum_known(g.in_memory_bytes for g in after),
        }
    )


def _shorten(text: str | None) -> str | None:
    return text and shorten(text, _ERROR_CHARACTERS_MAX)
