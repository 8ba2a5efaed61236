"""Run records: every job's run on a table leaves one, through this one place.

An idle pass, a dry run and a run that found the lease held leave none, and ask the store for
nothing. A record never fails a job: what goes wrong with it is a warning in the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice

from memwal.errors import BadCredentials, MemWalError, StoreUnavailable
from memwal.ingest.report import IngestTableReport
from memwal.jobs.rescue.report import RescueTableReport
from memwal.model import FlushedGeneration, TableView
from memwal.report import (
    FAILED,
    HELD,
    NOTHING_TO_DO,
    BacklogReport,
    GarbageTableReport,
    RunRecord,
    TableReport,
)
from memwal.run.engine import EngineChoice
from memwal.run.open import OpenTable, Progress, RunOptions
from memwal.run.stores import Stores
from memwal.store.process import this_holder

RUNS_KEPT_MAX = 500
# At each write a few more may pile up, so that not every run deletes one.
_SLACK_RECORDS_MIN = 10
_ERROR_CHARACTERS_MAX = 2000
_STUCK_MAX = 20
_EXIT_CANCELLED = 130


class RunRecorder:
    """Writes the records of one job, one a table."""

    def __init__(
        self, job: str, options: RunOptions, progress: Progress, *, acts: bool | None = None
    ) -> None:
        """`acts` tells whether the run may change anything; by default, unless it is a dry run."""
        self._job = job
        self._acts = not options.dry_run if acts is None else acts
        self._progress = progress
        self._written: set[str] = set()

    def write(
        self,
        table: OpenTable,
        report: TableReport,
        *,
        view: TableView | None = None,
        engine: EngineChoice | None = None,
    ) -> TableReport:
        """Record what came of a table; the report, with a warning where that did not work.

        `view` is what the job saw before it began. The garbage job also prunes old records down to
        the bound, and says how many.
        """
        stores = table.stores
        if not self._acts or not table.known or stores is None:
            return report
        if report.outcome in (NOTHING_TO_DO, HELD) or table.untrusted:
            return report
        if isinstance(table.error, StoreUnavailable | BadCredentials):
            return report  # a store that does not answer is not asked, and waited for, once more
        self._written.add(stores.uri)
        try:
            table.prove_store()
            stores.run_records.add(self._record(table, stores, report, view, engine))
            kept = table.resolved.settings.runs_kept_max or RUNS_KEPT_MAX
            exactly = isinstance(report, GarbageTableReport)
            slack = 0 if exactly else max(_SLACK_RECORDS_MIN, kept // 10)
            pruned = stores.run_records.prune(kept, slack=slack)
        except Exception as error:
            return self._warned(report, f"run records could not be written: {error}")
        return report.model_copy(update={"runs_deleted": pruned}) if exactly else report

    def failed(self, table: OpenTable, error: BaseException) -> None:
        """Record a run that ended without reports. Only where work had begun: a lease was taken."""
        if not table.worked_on or (table.stores and table.stores.uri in self._written):
            return
        text, outcome, code = f"unexpected {type(error).__name__}: {error}", FAILED, 1
        if isinstance(error, KeyboardInterrupt):
            text, code = "cancelled; what was committed stays", _EXIT_CANCELLED
        elif isinstance(error, MemWalError):
            text, outcome, code = str(error), error.outcome, error.exit_code
        report = TableReport(table=table.resolved.name, outcome=outcome, error=text, exit_code=code)
        self.write(table, report, view=table.view)

    def _record(
        self,
        table: OpenTable,
        stores: Stores,
        report: TableReport,
        view: TableView | None,
        engine: EngineChoice | None,
    ) -> RunRecord:
        finished = stores.clock.now_nanos()
        before = report.version_before
        if before is None and view is not None:
            before = view.version
        return RunRecord.model_validate(
            {
                "run_id": stores.clock.new_id().replace("-", ""),
                "job": self._job,
                "started_at": _iso(table.began_at_nanos),
                "finished_at": _iso(finished),
                "seconds": round(stores.clock.monotonic_seconds() - table.began_seconds, 3),
                "outcome": report.outcome,
                "exit_code": report.exit_code,
                "error": _shortened(report.error),
                "engine": engine.name if engine and engine.name in ("spark", "local") else None,
                "holder": this_holder(),
                "version_before": before,
                "version_after": report.version_after,
                "summary": summary_of(report),
                "backlog": backlog_of(view, report),
                "stuck": stuck_of(report),
                "requests": table.requests(),
            }
        )

    def _warned(self, report: TableReport, text: str) -> TableReport:
        if not hasattr(report, "warnings"):
            self._progress.say(f"{report.table}: {text}")
            return report
        return report.model_copy(update={"warnings": (*report.warnings, text)})


def summary_of(report: TableReport) -> Mapping[str, int | None]:
    """The few numbers of a run that people compare over time."""
    names: tuple[str, ...]
    match report:
        case GarbageTableReport():
            names = ("dropped", "deleted", "bytes_freed", "versions_expired")
        case RescueTableReport():
            names = ("generations", "rows")
        case IngestTableReport():
            names = ("rows_written", "rows_deleted", "merges")
        case _:
            return report.summary()
    return {name: getattr(report, name) for name in names}


def stuck_of(report: TableReport) -> Mapping[str, tuple[int, str | None]]:
    """Shards that a merge could not go on with, and another run could not either; some of many."""
    stuck = islice(report.stuck().items(), _STUCK_MAX)
    return {shard: (generation, _shortened(error)) for shard, (generation, error) in stuck}


def backlog_of(view: TableView | None, report: TableReport) -> BacklogReport:
    """What was pending when the job looked, and what a merge left of that.

    Generations that were flushed meanwhile are not in it: no job looks a second time for this.
    """
    if view is None:
        return BacklogReport()
    before = [g for s in view.shards for g in s.pending]
    merged = report.merged()
    if merged is None:
        return BacklogReport(generations_before=len(before), bytes_before=_size(before))
    after = [g for s in view.shards for g in s.pending if g.generation > merged.get(s.shard_id, 0)]
    return BacklogReport(
        generations_before=len(before),
        bytes_before=_size(before),
        generations_after=len(after),
        bytes_after=_size(after),
    )


def _size(generations: list[FlushedGeneration]) -> int | None:
    sizes = [g.in_memory_bytes for g in generations]
    return None if None in sizes else sum(s or 0 for s in sizes)


def _shortened(text: str | None) -> str | None:
    if text is None or len(text) <= _ERROR_CHARACTERS_MAX:
        return text
    return text[: _ERROR_CHARACTERS_MAX - 1] + "…"


def _iso(nanos: int) -> str:
    return datetime.fromtimestamp(nanos // 10**6 / 1000, UTC).isoformat(timespec="milliseconds")
