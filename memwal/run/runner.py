"""Runs a job over tables: opens them, records the outcome of each, and makes one report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from memwal.clock import SystemClock
from memwal.errors import MemWalError
from memwal.model import TableView
from memwal.report import DONE, NOTHING_TO_DO, JobReport, TableReport, failed_report
from memwal.run.engines.choice import EngineChoice
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.process import logs
from memwal.run.progress import SILENT, Progress
from memwal.run.records import RunRecorder
from memwal.run.reports import job_report
from memwal.run.stores import Stores, check_lance_version
from memwal.run.tables import TABLE_READERS_MAX, OpenTable, open_tables
from memwal.run.trail import make_trail

ReadTable = Callable[[Stores, Fanout], TableView]
OneTable = Callable[[OpenTable, Stores, TableView, Fanout], TableReport]
AllTables = Callable[[Sequence[OpenTable], Fanout], Iterable[TableReport]]


@dataclass(frozen=True, kw_only=True)
class JobRunner:
    """A job's name, and how it differs from other jobs.

    `read` gets each table's view, in threads unless `readers_max` is 1. A job that `looks_only`
    writes nothing and needs no engine; it leaves no run record, and its outcome is done even when
    there was nothing to do. `engine` gives the engine that the report names. `is_recorded` can keep
    a report out of the run records, unless the audit trail has an intent of it; `fail` makes the
    report of a table that could not be worked on.
    """

    name: str
    read: ReadTable = lambda stores, fanout: stores.views.table()
    readers_max: int = TABLE_READERS_MAX
    looks_only: bool = False
    engine: Callable[[Fanout], EngineChoice | None] = lambda fanout: fanout.choice
    is_recorded: Callable[[OpenTable, TableReport], bool] = lambda table, report: True
    fail: Callable[[str, MemWalError], TableReport] = failed_report

    def run_each(
        self, options: RunOptions, one_table: OneTable, progress: Progress = SILENT
    ) -> JobReport:
        """Run `one_table` on each table that could be opened; a MemWalError fails only it."""

        def one(table: OpenTable, fanout: Fanout) -> TableReport:
            table.begin()
            return self.report(table, lambda stores, view: one_table(table, stores, view, fanout))

        def all_tables(tables: Sequence[OpenTable], fanout: Fanout) -> Iterator[TableReport]:
            return (one(table, fanout) for table in tables)

        return self.run_together(options, all_tables, progress)

    def run_together(
        self, options: RunOptions, all_tables: AllTables, progress: Progress = SILENT
    ) -> JobReport:
        """Run `all_tables` on the tables, whether they could be opened or not.

        `all_tables` returns or yields one report per table, in order; each is recorded as it
        comes.
        """
        check_lance_version(options.untested_lance_allowed)
        clock = SystemClock()
        started = clock.monotonic_seconds()
        acts = options.acts and not self.looks_only
        recorder = RunRecorder(self.name, options.run_id, progress, acts=acts)
        fanout = Fanout(options, progress)
        reports = []
        # Engines stop before the leases are released, and also when the tables could not be opened.
        with (
            fanout,
            open_tables(
                options,
                lambda stores: self.read(stores, fanout),
                recorder.record_failure,
                warn=progress.warn,
                readers_max=self.readers_max,
            ) as tables,
            fanout,
        ):
            if acts:
                for table in tables:
                    _start_trail(table, self.name, options)
            for table, report in zip(tables, all_tables(tables, fanout), strict=True):
                if table.has_intended or self.is_recorded(table, report):
                    report = recorder.record(table, report, self.engine(fanout))
                reports.append(report)
            return job_report(
                self.name,
                reports,
                seconds=clock.monotonic_seconds() - started,
                requests=(table.requests() for table in tables),
                engine=self.engine(fanout) if acts else None,
                dry_run=not (acts or self.looks_only),
                otherwise=DONE if self.looks_only else NOTHING_TO_DO,
            )

    def report(
        self, table: OpenTable, work: Callable[[Stores, TableView], TableReport]
    ) -> TableReport:
        """The report that `work` makes, or the one of a table that failed to open or in `work`."""
        try:
            with logs.about(table=table.resolved.name):
                return work(*table.require())
        except MemWalError as error:
            return self.fail(table.resolved.name, error)


def _start_trail(table: OpenTable, job: str, options: RunOptions) -> None:
    """Let a table's runs be written down, if an audit trail is configured for it."""
    if table.stores is not None:
        table.trail = make_trail(
            table.resolved,
            table.stores,
            job,
            options.run_id,
            getattr(options, "request", None),
        )
