"""`memwal backup`: makes a backup of a table; lists, verifies and drops those of a place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import Refused
from memwal.jobs.backup.apply import BackupMaker, Dropper, compare_objects, name_backup
from memwal.jobs.backup.report import (
    BackupTableReport,
    report_dropped,
    report_listed,
    report_made,
    report_place,
    report_planned,
    report_verified,
)
from memwal.jobs.backup.request import BackupRequest, read_keep
from memwal.jobs.backup.store import (
    LanceSource,
    PlaceClaim,
    StoredDestination,
    check_apart,
    choose_place,
    open_existing,
    open_place,
)
from memwal.model import TableView
from memwal.ports import Objects, Steps, no_steps
from memwal.report import JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.progress import SILENT, Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.records.backups import StoredBackups

NAME = "backup"


@dataclass(frozen=True, kw_only=True)
class BackupOptions(RunOptions):
    """The options of `backup`: where to, by default as configured, and what is asked for."""

    dest: ResolvedTable | None = None
    request: BackupRequest = field(default_factory=BackupRequest)


def run_backup(options: BackupOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """Back up the table to the destination, by default the one that is configured."""
    asked = options.request
    if not options.lease and not options.dry_run:
        raise Refused(
            "MW-L01", "a backup is made under the lease of its place: run it without --no-lease"
        )

    def one(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        place, keep = choose_place(options.dest, asked.keep, table.resolved)
        objects = open_place(place, stores.clock, asked.dest_storage_options)
        check_apart(stores.objects, objects)
        dest = StoredDestination(objects=objects, source=stores.objects)
        name, table_name = asked.name or name_backup(stores.clock), table.resolved.name
        try:
            with PlaceClaim(objects, stores.clock, options.run_id, table.warn) as claim:
                maker = BackupMaker(
                    source=LanceSource(stores=stores, dest=objects.uri),
                    dest=dest,
                    documents=dest.backups,
                    clock=stores.clock,
                    memwal_version=str(import_module("memwal").__version__),
                    show=progress,
                    take_lease=claim.take,
                    before_step=claim.check,
                    verify=asked.verify,
                    steps=steps,
                )
                if options.dry_run:
                    report = report_planned(table_name, dest.uri, *maker.plan(name))
                else:
                    report = report_made(table_name, dest.uri, maker.make(name, keep))
        finally:
            table.unit_requests.append(objects.counts.as_dict())
        return report.model_copy(update={"requests_dest": objects.counts.as_dict()})

    runner = JobRunner(
        name=NAME, read=lambda stores, fanout: stores.views.base(), engine=lambda fanout: None
    )
    return runner.run_each(options, one, progress)


# ---- a place, without its table


def run_list(dest: ResolvedTable) -> JobReport:
    """List the backups of a place, oldest first."""

    def look(objects: Objects) -> BackupTableReport:
        there = StoredBackups(objects)
        return report_listed(dest.name, objects.uri, there.list(), there.read_mark())

    return report_place(dest.name, lambda: open_existing(dest), look)


def run_verify(
    dest: ResolvedTable, name: str | None = None, *, progress: Progress = SILENT
) -> JobReport:
    """Read every object that the backups need, or the one of that name, and compare its digest."""

    def verify(objects: Objects) -> BackupTableReport:
        place = StoredDestination(objects=objects)
        chosen = place.backups.list() if name is None else [place.backups.find(name)]
        needed = {backup.name: place.backups.objects_of(backup) for backup in chosen}
        return report_verified(
            dest.name, objects.uri, chosen, *compare_objects(place, needed, progress)
        )

    return report_place(dest.name, lambda: open_existing(dest), verify)


def run_drop(
    dest: ResolvedTable,
    names: Sequence[str] = (),
    *,
    keep: str | None = None,
    dry_run: bool = False,
    run_id: str | None = None,
    progress: Progress = SILENT,
    steps: Steps = no_steps,
) -> JobReport:
    """Drop backups of these names and, with `keep`, those that it does not keep."""

    def drop(objects: Objects) -> BackupTableReport:
        place = StoredDestination(objects=objects)
        with PlaceClaim(objects, SystemClock(), run_id, progress.warn) as claim:
            dropper = Dropper(
                dest=place, documents=place.backups, before_step=claim.check, steps=steps
            )
            stay = None if keep is None else read_keep(keep)
            take = None if dry_run else claim.take
            chosen, paths = dropper.run(names, stay, SystemClock().now_nanos(), take)
        return report_dropped(dest.name, objects.uri, chosen, len(paths), dry_run=dry_run)

    return report_place(dest.name, lambda: open_existing(dest), drop, dry_run=dry_run)
