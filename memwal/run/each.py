"""Runs a job table by table: one report a table, one pair of engines for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from memwal.clock import SystemClock
from memwal.errors import MemWalError
from memwal.model import TableView
from memwal.report import JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.open import (
    OpenTable,
    Progress,
    RunOptions,
    check_lance_version,
    error_of,
    failed_report,
    job_report,
    open_tables,
)
from memwal.run.records import RunRecorder
from memwal.run.stores import Stores


class UnitResult(Protocol):
    """What a unit tells besides its result."""

    @property
    def requests(self) -> Mapping[str, int]:
        """What it asked of the store."""
        ...

    @property
    def trace(self) -> str | None:
        """The traceback of an error nobody expected."""
        ...


Unit = TypeVar("Unit")
Result = TypeVar("Result", bound=UnitResult)
OneTable = Callable[[OpenTable, Stores, TableView, Fanout], TableReport]


def run_each(name: str, options: RunOptions, progress: Progress, one_table: OneTable) -> JobReport:
    """Run `one_table` on every table that could be opened; its MemWalError is that table's."""
    check_lance_version(options.untested_lance_allowed)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    recorder = RunRecorder(name, options, progress)
    with (
        open_tables(
            options, lambda stores: stores.views.table(), recorder.failed, warn=progress.warn
        ) as tables,
        Fanout(options, progress) as fanout,
    ):
        reports = []
        for table in tables:
            table.begin()
            report = _report(table, fanout, one_table)
            reports.append(recorder.write(table, report, view=table.view, engine=fanout.choice))
        return job_report(
            name,
            reports,
            clock.monotonic_seconds() - started,
            opened=tables,
            engine=None if options.dry_run else fanout.choice,
            dry_run=options.dry_run,
        )


def _report(table: OpenTable, fanout: Fanout, one_table: OneTable) -> TableReport:
    view, stores = table.view, table.stores
    if table.error is not None or view is None or stores is None:
        return failed_report(table.resolved.name, error_of(table))
    try:
        return one_table(table, stores, view, fanout)
    except MemWalError as error:
        return failed_report(table.resolved.name, error)


def run_for(
    table: OpenTable,
    fanout: Fanout,
    progress: Progress,
    work: Callable[[Unit], Result],
    units: Sequence[Unit],
    *,
    what: str,
    in_memory_bytes: int,
    lost: Callable[[Unit, MemWalError], Result],
) -> Sequence[Result]:
    """Run units for one table: their requests are counted as the table's, their traces shown."""
    results = fanout.run(work, units, what=what, in_memory_bytes=in_memory_bytes, lost=lost)
    for result in results:
        table.unit_requests.append(result.requests)
        if result.trace:
            progress.trace(result.trace)
    return results
