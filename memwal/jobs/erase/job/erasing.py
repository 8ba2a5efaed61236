"""`memwal erase TABLE`: erases rows, or lists what holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from memwal.config import make_settings
from memwal.errors import Refused, Usage
from memwal.jobs.compaction.job import CompactionOptions, run_compaction
from memwal.jobs.erase.apply import Chain, Eraser
from memwal.jobs.erase.job.proofs import (
    Copies,
    KeysOptions,
    collecting,
    find_copies,
    leave_out,
    look_at_copies,
    open_search,
)
from memwal.jobs.erase.report import report_erase
from memwal.jobs.erase.request import EraseRequest
from memwal.jobs.erase.store import delete_objects, drop_pin
from memwal.jobs.erase.store.indexes import LanceRebuild
from memwal.jobs.erase.store.keys import Keys, read_keys
from memwal.jobs.erase.store.tombstones import TableTombstones
from memwal.jobs.garbage.job import run_garbage
from memwal.jobs.garbage.plan import RETENTION_SECONDS_MIN, Permission, permit
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.model import Erasure, ShardId, TableView
from memwal.options import narrow
from memwal.ports import Steps, no_steps
from memwal.report import JobOnTable, JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.lease import ChainLeases
from memwal.run.progress import Progress, Quiet
from memwal.run.reports import must_stop
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.records.process import this_holder
from memwal.store.shards.writers import sentinel_bytes

NAME = "erase"
# Fragments with any deleted row are rewritten. The rows of a new one are as configured: it is that
# limit, too, by which Lance cuts what it writes.
_REWRITE = make_settings(materialize_deletions_threshold=0.0)

Confirm = Callable[[str, Sequence[ShardId]], bool]


@dataclass(frozen=True, kw_only=True)
class EraseOptions(KeysOptions):
    """The options of `erase`. Without `yes`, `confirm` is asked before shards are claimed."""

    confirm: Confirm = lambda name, shards: False
    request: EraseRequest = EraseRequest()
    steps: Steps = no_steps

    @property
    def acts(self) -> bool:
        """Whether anything may be written."""
        return self.request.execute and not self.dry_run


def run_erase(options: EraseOptions, progress: Progress) -> JobReport:
    """Erase the rows, or go on with that; without `execute`, list what holds them."""
    for table in options.tables:
        permit(narrow(options.request, GarbageRequest), table.settings)
    if options.acts and not options.lease:
        raise Refused("MW-L01", "an erasure runs under the table's lease: run without --no-lease")

    def erase(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        if not view.primary_key:
            raise Usage(f"{stores.uri}: the table has no primary key to erase by")
        record, keys = _choose_keys(options.request, stores, view)
        copies = find_copies(options, options.request, table)
        eraser = _make_eraser(options, progress, table, stores, keys, record, copies)
        erased = eraser.run(view) if options.acts else eraser.foresee(view)
        erased.elsewhere = leave_out(erased.elsewhere, copies)
        return report_erase(table.resolved.name, erased, keys=keys.count, version=view.version)

    runner = JobRunner(
        name=NAME,
        engine=lambda fanout: None,
        is_recorded=lambda table, report: options.acts and table.worked_on,
    )
    with ChainLeases(NAME, warn=progress.warn) as own:
        options = replace(options, leases=options.leases or own)
        return runner.run_each(options, erase, progress)


def _choose_keys(
    request: EraseRequest, stores: Stores, view: TableView
) -> tuple[Erasure | None, Keys]:
    """The open erasure to go on with, if any, and the keys."""
    erasures = stores.erasures
    if request.resume is not None:
        if request.key or request.keys:
            raise Usage("--resume goes by the stored keys: leave --key and --keys out")
        record = erasures.find(request.resume)
        stored = erasures.read_keys(record.erasure_id)
        if record.state == "done":
            raise Usage(f"{stores.uri}: erasure {record.erasure_id} is done")
        if stored is None:
            raise Usage(
                f"{stores.uri}: erasure {record.erasure_id} was stopped before its keys were "
                "stored, and erased nothing: erase by --key or --keys, and it is dropped"
            )
        return record, Keys(stored)
    schema = stores.tables.seen(view.version).schema
    keys = Keys(read_keys(request.key, request.keys, view.primary_key, schema))
    for record in erasures.list():
        stored = erasures.read_keys(record.erasure_id) if record.state == "open" else None
        if stored is not None and keys.same_as(stored):
            return record, keys
    return None, keys


def _choose_retention(permission: Permission, record: Erasure | None) -> float | None:
    """As permitted, else as it began; a short one has to be asked for again."""
    began = None if record is None else record.retention_seconds
    if permission.retention_seconds is not None or began is None or began < RETENTION_SECONDS_MIN:
        return permission.retention_seconds
    return began


def _make_eraser(
    options: EraseOptions,
    progress: Progress,
    table: OpenTable,
    stores: Stores,
    keys: Keys,
    record: Erasure | None,
    copies: Copies,
) -> Eraser:
    request, quiet = options.request, Quiet(progress)
    permission = permit(narrow(request, GarbageRequest), table.resolved.settings)
    retention = _choose_retention(permission, record)

    def run(name: str, job: Callable[[], JobReport]) -> JobOnTable:
        progress.say(f"{name}")
        table.before_commit()
        return JobOnTable(job=name, report=job().tables[0])

    tables = [table.resolved]
    merge = options.for_job(MergeOptions, tables)
    compact = options.for_job(CompactionOptions, [table.resolved.with_settings(_REWRITE)])
    catch_up = options.for_job(IndexCatchupOptions, tables)
    collect = collecting(options, table, execute=True, retention_seconds=retention, asked=request)
    return Eraser(
        uri=stores.uri,
        keys=keys,
        read_view=stores.views.table,
        search=open_search(table, stores, keys),
        look_at_copies=partial(look_at_copies, copies, stores, keys),
        erasures=stores.erasures,
        tombstones=TableTombstones(stores, keys),
        rebuild=LanceRebuild(stores.tables),
        chain=Chain(
            merge=partial(run, "merge", partial(run_merge, merge, quiet)),
            compact=partial(run, "compaction", partial(run_compaction, compact, quiet)),
            catch_up=partial(run, "index-catchup", partial(run_index_catchup, catch_up, quiet)),
            collect=partial(run, "garbage", partial(run_garbage, collect, quiet)),
            must_stop=lambda done: must_stop([done]),
        ),
        clock=stores.clock,
        request=request,
        retention_seconds=retention,
        grace_seconds=permission.grace_seconds,
        holder=this_holder().partition(":")[0],
        run_id=options.run_id,
        confirm=partial(options.confirm, table.resolved.name),
        take_lease=partial(table.take_lease, NAME, options),
        before_commit=table.before_commit,
        drop_pin=lambda pin: drop_pin(stores, pin),
        delete=lambda paths: delete_objects(stores, paths),
        empty=lambda path, epoch: stores.objects.put(path, sentinel_bytes(epoch)),
        intend=table.intend,
        open_record=record,
        steps=options.steps,
    )
