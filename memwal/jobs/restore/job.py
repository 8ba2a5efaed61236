"""`memwal restore`: makes a table out of a backup, where none is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from rich.console import RenderableType
from rich.text import Text

from memwal.config import ResolvedTable
from memwal.errors import Refused
from memwal.grid import Column, build_table, format_generations, format_size, numbers, words
from memwal.jobs.backup.request import RestoreRequest
from memwal.jobs.backup.store import check_apart
from memwal.jobs.restore.apply import Restorer
from memwal.jobs.restore.plan import RestoredShardReport, RestoreTableReport
from memwal.jobs.restore.store import RestorePlaces
from memwal.model import MemWalState, TableView, VersionManifest
from memwal.ports import Steps, no_steps
from memwal.report import JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores, open_stores
from memwal.run.tables import OpenTable
from memwal.text import count_of

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
            table=table,
            places=RestorePlaces(objects=stores.objects, source=backup.objects, clock=stores.clock),
            take_lease=partial(table.take_lease, NAME, options, mends=True),
            progress=progress,
            steps=steps,
        )
        work = restorer.plan if options.dry_run else restorer.run
        try:
            report = work(options.request)
        finally:
            table.unit_requests.append(backup.objects.counts.as_dict())
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
    text = f"{table.unknown}; a new place is written ./{table.name}"
    return table.model_copy(update={"unknown": text})


def _read_nothing(stores: Stores) -> TableView:
    """No view: there is no table yet."""
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


# ---- what people see


SHARDS: tuple[Column[RestoredShardReport], ...] = (
    words("shard", lambda shard: shard.shard_id),
    words("epoch", lambda shard: str(shard.epoch)),
    numbers("generations", lambda shard: format_generations(shard.generations)),
    numbers("WAL entries", lambda shard: shard.wal_entries),
)


def show_table(report: RestoreTableReport) -> list[RenderableType]:
    """Render what was restored, and a line for each shard."""
    if report.backup is None:
        return []
    copied = "to copy" if report.version_after is None else "copied"
    line = (
        f"  backup {report.backup} of {report.backup_made_at}, version {report.backup_version}: "
        f"{count_of(report.objects_copied, 'object')} ({format_size(report.bytes_copied)}) {copied}"
    )
    return [Text(line), *([build_table(report.shards, SHARDS)] if report.shards else [])]
