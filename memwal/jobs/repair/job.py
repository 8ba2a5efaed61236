"""`memwal repair` over tables: lists what is damaged; with `--execute`, mends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memwal.config import ResolvedTable
from memwal.jobs.backup.store import check_apart
from memwal.jobs.repair.apply import TableRepair
from memwal.jobs.repair.backups import BackedUp
from memwal.jobs.repair.model import Damage
from memwal.jobs.repair.report import (
    RepairTableReport,
    audit_item,
    report_repair,
)
from memwal.jobs.repair.request import RepairRequest
from memwal.jobs.repair.store import StoredRepair, read_newest
from memwal.jobs.snapshot.job import check_lease, make_refresher
from memwal.model import TableView
from memwal.ports import Steps, no_steps
from memwal.report import JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores, open_stores
from memwal.run.tables import OpenTable
from memwal.store.records.backups import StoredBackups

NAME = "repair"

Confirm = Callable[[str, Sequence[Damage]], bool]


@dataclass(frozen=True, kw_only=True)
class RepairOptions(RunOptions):
    """The options of `repair`.

    `confirm` is called with the damages whose mending fences a writer, `find_place` with the name
    or address of the place of backups.
    """

    confirm: Confirm
    find_place: Callable[[str], ResolvedTable]
    request: RepairRequest = RepairRequest()

    @property
    def acts(self) -> bool:
        """Whether anything may be written."""
        return self.request.execute and not self.dry_run


def run_repair(options: RepairOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """List what is damaged in each table; with `execute`, mend it."""
    if options.acts:
        check_lease(options)
    if options.request.execute and options.dry_run:
        progress.warn("--dry-run wins over --execute: damage is listed, nothing is mended")
    name = options.request.from_backup
    source = None if name is None else options.find_place(name)

    def repair(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        backed_up = None
        if source is not None:
            place = open_stores(source.find_uri(), source.storage_options).objects
            check_apart(stores.objects, place)
            backed_up = BackedUp.read(place, stores.objects, progress)

        def take_lease() -> None:
            StoredBackups(stores.objects).refuse_any()
            # Under the snapshot's name: jobs without the lease heed that progress may be changed.
            table.take_lease("snapshot", options, own_claim=True, mends=True)

        work = TableRepair(
            uri=stores.uri,
            store=StoredRepair(
                stores=stores,
                progress=progress,
                run_id=options.run_id,
                refresh=lambda: make_refresher(table, stores).run(stores.views.table()),
                backed_up=backed_up,
            ),
            intend=lambda damages: table.intend([audit_item(d) for d in damages if d.effects]),
            take_lease=take_lease,
            before_commit=table.before_commit,
            confirm=lambda damages: options.confirm(table.resolved.name, damages),
            steps=steps,
        )
        work.run(acts=options.acts)
        versions = (view.version, read_newest(stores).version)
        return report_repair(
            table.resolved.name, work, versions, options.run_id, acted=options.acts
        )

    def is_recorded(table: OpenTable, report: TableReport) -> bool:
        mended = isinstance(report, RepairTableReport) and report.mended > 0
        return mended or table.worked_on

    runner = JobRunner(
        name=NAME,
        read=lambda stores, fanout: read_newest(stores),
        engine=lambda fanout: None,
        is_recorded=is_recorded,
    )
    return runner.run_each(options, repair, progress)
