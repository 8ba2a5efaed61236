"""What jobs tell of one table."""

from __future__ import annotations

from typing import Any

from memwal.config import Settings
from memwal.jobs.status.job import run_status
from memwal.jobs.status.plan import parse_condition
from memwal.jobs.status.report import StatusTableReport
from memwal.jobs.verify.job import run_verify
from memwal.run.options import RunOptions
from tests.support.indexed import resolved
from tests.support.progress import Quiet


def status(
    table: Any, *conditions: str, **settings: Any
) -> tuple[StatusTableReport, dict[str, int]]:
    """The report of `status`, and the requests that it took."""
    options = RunOptions(tables=[resolved(table).with_settings(Settings(**settings))])
    report = run_status(options, conditions=[parse_condition(text) for text in conditions])
    (found,) = report.tables
    assert isinstance(found, StatusTableReport), found
    return found, report.requests


def told(run: Any, table: Any, *, dry_run: bool = False, **configured: Any) -> Any:
    """The report of a job on a table of which the configuration says more."""
    tables = [resolved(table).model_copy(update=configured)]
    arguments = () if run is run_status else (Quiet(),)
    (found,) = run(RunOptions(tables=tables, dry_run=dry_run), *arguments).tables
    return found


def checked(table: Any, check: str, **configured: Any) -> Any:
    """What `verify` says of one thing; None if it was not looked at."""
    checks = told(run_verify, table, **configured).checks
    return next((found for found in checks if found.name == check), None)
