"""`memwal restore`: makes a table again out of a backup, in a new place or over what is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from memwal.config import ResolvedTable
from memwal.errors import Refused
from memwal.jobs.backup.store import check_apart
from memwal.jobs.checkpoint.apply import CheckpointMaker
from memwal.jobs.checkpoint.plan import CheckpointRequest
from memwal.jobs.restore.apply import Restorer
from memwal.jobs.restore.report import list_replaced, report_restore
from memwal.jobs.restore.request import RestoreRequest
from memwal.jobs.restore.store import StoredBackupSource, StoredRestorePlace
from memwal.model import MemWalState, TableView, VersionManifest
from memwal.ports import Steps, no_steps
from memwal.report import JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores, open_stores
from memwal.run.tables import OpenTable
from memwal.store.records.checkpoints import LanceTags
from memwal.store.records.process import this_holder

NAME = "restore"


@dataclass(frozen=True, kw_only=True)
class RestoreOptions(RunOptions):
    """The options of `restore`: where the backup is, and what is asked for."""

    source: ResolvedTable
    request: RestoreRequest = field(default_factory=RestoreRequest)


def run_restore(options: RestoreOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """Restore the one table from a place of backups."""
    if not options.lease and not options.dry_run:
        raise Refused(
            "MW-L01", "a restore is made under the table's lease: run it without --no-lease"
        )

    def restore(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        source = options.source
        asked = dict(options.request.backup_storage_options)
        backup = open_stores(source.find_uri(), {**source.storage_options, **asked})
        check_apart(stores.objects, backup.objects)
        restorer = Restorer(
            uri=stores.uri,
            source_uri=backup.uri,
            source=StoredBackupSource(backup.objects),
            place=StoredRestorePlace(stores.objects, backup.objects, stores.clock),
            clock=stores.clock,
            take_lease=partial(table.take_lease, NAME, options, mends=True),
            before_commit=table.before_commit,
            keep=_make_keep(table, stores),
            intend=lambda found: table.intend(list_replaced(found)),
            start=progress.start,
            done=progress.done,
            steps=steps,
        )
        work = restorer.plan if options.dry_run else restorer.run
        try:
            done = work(options.request)
        finally:
            table.unit_requests.append(backup.objects.counts.as_dict())
        report = report_restore(table.resolved.name, done, dry_run=options.dry_run)
        return report.model_copy(update={"requests_backup": backup.objects.counts.as_dict()})

    runner = JobRunner(
        name=NAME,
        read=lambda stores, fanout: _read_nothing(stores),
        engine=lambda fanout: None,
        # A place that is not to be written to gets no record either.
        is_recorded=lambda table, report: table.worked_on,
    )
    tables = [_explain_new(table) for table in options.tables]
    return runner.run_each(replace(options, tables=tables), restore, progress)


def _explain_new(table: ResolvedTable) -> ResolvedTable:
    """Where nothing has the name, a folder that is yet to be made may be meant."""
    if table.unknown is None:
        return table
    told = f"{table.unknown}; a new place is written ./{table.name}"
    return table.model_copy(update={"unknown": told})


def _make_keep(table: OpenTable, stores: Stores) -> Callable[[str], str]:
    """Makes a checkpoint of what is there, which stays until it is dropped."""

    def keep(end: str) -> str:
        maker = CheckpointMaker(
            uri=stores.uri,
            views=stores.views,
            checkpoints=stores.checkpoints,
            tags=LanceTags(stores.tables),
            clock=stores.clock,
            take_lease=lambda: None,
            before_commit=table.before_commit,
        )
        request = CheckpointRequest(
            name=f"before-restore-{end}",
            holder=this_holder().partition(":")[0],
            expires_seconds=None,
        )
        return maker.create(request).name

    return keep


def _read_nothing(stores: Stores) -> TableView:
    """No view: there may be no table yet, or one that can't be read."""
    return TableView(
        uri=stores.uri,
        version=0,
        primary_key=(),
        columns=(),
        rows=0,
        manifest=VersionManifest(version=0, timestamp_nanos=0, mem_wal=None),
        mem_wal=MemWalState(index_uuid="", created_at_millis=None, merged={}, index_catchup={}),
        shards=(),
    )
