"""Sums up the reports of tables as a job's report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from memwal.errors import MemWalError, error_of
from memwal.report import DONE, NOTHING_TO_DO, EngineReport, JobReport, TableReport, sum_up_tables
from memwal.run.engines.choice import EngineChoice

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
