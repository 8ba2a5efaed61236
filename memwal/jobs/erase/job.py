"""`memwal erase`: erases rows, or lists what holds them; goes on with what is open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from memwal.config import make_settings
from memwal.errors import MemWalError, Refused, Usage
from memwal.jobs.compaction.job import CompactionOptions, run_compaction
from memwal.jobs.erase.apply import Eraser, find_open
from memwal.jobs.erase.keys import Keys, read_keys
from memwal.jobs.erase.report import EraseTableReport
from memwal.jobs.erase.request import EraseRequest, ResumeRequest
from memwal.jobs.erase.search import TableSearch
from memwal.jobs.erase.store import ErasedTable
from memwal.jobs.garbage.job import GarbageOptions, run_garbage
from memwal.jobs.garbage.plan import RETENTION_SECONDS_MIN, permit
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.jobs.snapshot.job import fence_off
from memwal.model import Erasure, ShardId, TableView
from memwal.options import convert_request
from memwal.ports import Steps, no_steps
from memwal.report import HELD, JobOnTable, JobReport, TableReport, failed_report
from memwal.run.fanout import Fanout
from memwal.run.lease import ChainLeases
from memwal.run.options import RunOptions
from memwal.run.progress import Progress, Quiet
from memwal.run.reports import must_stop, sum_up_jobs
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.records.process import this_holder
from memwal.text import iso_time, mask_address

NAME = "erase"
# Fragments with any deleted row are rewritten. The rows of a new one are as configured: it is that
# limit, too, by which Lance cuts what it writes.
_REWRITE = make_settings(materialize_deletions_threshold=0.0)

Confirm = Callable[[str, Sequence[ShardId]], bool]


@dataclass(frozen=True, kw_only=True)
class EraseOptions(RunOptions):
    """The options of both. Without `yes`, `confirm` is asked before shards are claimed."""

    request: ResumeRequest = EraseRequest()
    confirm: Confirm = lambda name, shards: False
    steps: Steps = no_steps

    @property
    def acts(self) -> bool:
        """Whether anything may be written."""
        return self.request.execute and not self.dry_run


def run_erase(options: EraseOptions, progress: Progress) -> JobReport:
    """Erase the rows, or go on with that; without `execute`, list what holds them."""

    def erase(
        options: EraseOptions, table: OpenTable, stores: Stores, view: TableView
    ) -> TableReport:
        if not view.primary_key:
            raise Usage(f"{stores.uri}: the table has no primary key to erase by")
        request = convert_request(options.request, EraseRequest)
        schema = stores.tables.seen(view.version).schema
        keys = Keys(read_keys(request.key, request.keys, view.primary_key, schema))
        return _erase(options, progress, table, stores, view, keys, find_open(stores, keys))

    return _run(options, progress, erase)


def run_resume(options: EraseOptions, progress: Progress) -> JobReport:
    """Go on with every open erasure; without `execute`, only look what holds its keys.

    The oldest comes first; one that is refused stops no other.
    """

    def resume(
        options: EraseOptions, table: OpenTable, stores: Stores, view: TableView
    ) -> TableReport:
        name, jobs = table.resolved.name, list[JobOnTable]()
        records = [record for record in stores.erasures.list() if record.state == "open"]
        for record in records:
            progress.say(f"{name}: erasure {record.erasure_id}")
            try:
                keys = _read_stored(stores, record)
                now = stores.views.table() if jobs else view
                report: TableReport = _erase(options, progress, table, stores, now, keys, record)
            except MemWalError as error:
                report = failed_report(name, error)
            jobs.append(JobOnTable(job=NAME, report=report))
            if report.outcome == HELD:
                break
        began = {record.erasure_id for record in records}
        warnings = (text for job in jobs for text in getattr(job.report, "warnings", ()))
        return EraseTableReport(
            table=name,
            erasures=tuple(e for e in stores.erasures.list() if e.erasure_id in began),
            warnings=tuple(dict.fromkeys(warnings)),
            **sum_up_jobs(jobs),
        )

    return _run(options, progress, resume)


def _run(
    options: EraseOptions,
    progress: Progress,
    work: Callable[[EraseOptions, OpenTable, Stores, TableView], TableReport],
) -> JobReport:
    for table in options.tables:
        permit(convert_request(options.request, GarbageRequest), table.settings)
    if options.acts and not options.lease:
        raise Refused("MW-L01", "an erasure runs under the table's lease: run without --no-lease")
    runner = JobRunner(
        name=NAME,
        engine=lambda fanout: None,
        is_recorded=lambda table, report: options.acts and table.worked_on,
    )
    with ChainLeases(NAME, warn=progress.warn) as own:
        leased = replace(options, leases=options.leases or own)
        return runner.run_each(
            leased, lambda table, stores, view, _: work(leased, table, stores, view), progress
        )


def run_list(options: RunOptions, progress: Progress) -> JobReport:
    """List each table's erasures."""

    def look(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        records = tuple(stores.erasures.list())
        return EraseTableReport(
            table=table.resolved.name,
            outcome="done" if records else "nothing_to_do",
            version_before=view.version,
            version_after=view.version,
            erasures=records,
        )

    return JobRunner(name=NAME, looks_only=True).run_each(options, look, progress)


def _read_stored(stores: Stores, record: Erasure) -> Keys:
    stored = stores.erasures.read_keys(record.erasure_id)
    if stored is None:
        raise Usage(
            f"{stores.uri}: erasure {record.erasure_id} was stopped before its keys were "
            "stored, and erased nothing: erase by --key or --keys, and it is dropped"
        )
    return Keys(stored)


def _erase(
    options: EraseOptions,
    progress: Progress,
    table: OpenTable,
    stores: Stores,
    view: TableView,
    keys: Keys,
    record: Erasure | None,
) -> EraseTableReport:
    request, resolved, tables = options.request, table.resolved, [table.resolved]
    permission = permit(convert_request(request, GarbageRequest), resolved.settings)
    began = None if record is None else record.retention_seconds
    if permission.retention_seconds is None and (began or 0) >= RETENTION_SECONDS_MIN:
        # As it began; a short one has to be asked for again.
        permission = replace(permission, retention_seconds=began)
    how = {"retention_seconds": permission.retention_seconds, "wal": True, "full": True}
    garbage = convert_request(request, GarbageRequest, **how)
    rewritten = [resolved.with_settings(_REWRITE)]
    jobs: dict[str, Callable[[Progress], JobReport]] = {
        "merge": partial(run_merge, options.for_job(MergeOptions, tables)),
        "compaction": partial(run_compaction, options.for_job(CompactionOptions, rewritten)),
        "index-catchup": partial(run_index_catchup, options.for_job(IndexCatchupOptions, tables)),
        "garbage": partial(run_garbage, options.for_job(GarbageOptions, tables, request=garbage)),
    }

    def run_job(name: str) -> JobOnTable:
        progress.say(name)
        table.before_commit()
        return JobOnTable(job=name, report=jobs[name](Quiet(progress)).tables[0])

    new = Erasure(
        erasure_id=stores.clock.new_id().replace("-", "")[:8],
        keys=keys.count,
        began_at=str(iso_time(stores.clock.now_nanos(), "milliseconds")),
        holder=this_holder().partition(":")[0],
        run_id=options.run_id,
        version_before=view.version,
        retention_seconds=permission.retention_seconds,
    )
    backups = None if resolved.backup is None else mask_address(resolved.backup.uri)
    eraser = Eraser(
        table=table,
        stores=stores,
        keys=keys,
        search=TableSearch(stores=stores, keys=keys, backups=backups),
        erased=ErasedTable(stores, keys),
        options=options,
        permission=permission,
        run_job=run_job,
        fence_off=partial(fence_off, table, NAME, options),
        must_stop=must_stop,
        record=record or new,
        is_stored=record is not None,
    )
    return eraser.run(view) if options.acts else eraser.plan(view)
