"""Runs `backup` and `restore` on tables of tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memwal.config import ResolvedTable, Settings
from memwal.jobs.backup.job import BackupOptions, run_backup
from memwal.jobs.backup.request import BackupRequest, RestoreRequest
from memwal.jobs.restore.job import RestoreOptions, run_restore
from memwal.ports import Steps, no_steps
from memwal.run.progress import SILENT
from tests.support.builders import Table
from tests.support.policy_tables import PolicyTable


def resolve(uri: object, options: Mapping[str, str] | None = None) -> ResolvedTable:
    """A place without a configuration."""
    return ResolvedTable(
        name=str(uri), uri=str(uri), settings=Settings(), storage_options=dict(options or {})
    )


def back_up(table: Table | PolicyTable, dest: object, name: str = "b1") -> None:
    """Make a backup, which has to succeed."""
    options = BackupOptions(
        tables=[resolve(table.uri)], dest=resolve(dest), request=BackupRequest(name=name)
    )
    (report,) = run_backup(options, SILENT).tables
    assert report.exit_code == 0, report.error


def restore(
    source: object,
    uri: object,
    *,
    steps: Steps = no_steps,
    dry_run: bool = False,
    lease: bool = True,
    options: Mapping[str, str] | None = None,
    **request: Any,
) -> Any:
    """Run a restore; its report, whatever came of it."""
    options = RestoreOptions(
        tables=[resolve(uri, options)],
        source=resolve(source),
        request=RestoreRequest(**request),
        dry_run=dry_run,
        lease=lease,
    )
    (report,) = run_restore(options, SILENT, steps).tables
    return report
