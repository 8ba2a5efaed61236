"""`memwal schema TABLE`: the columns, and what changes come to; with `--apply`, makes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from memwal.config import ResolvedTable
from memwal.errors import MemWalError, Refused
from memwal.jobs.index_catchup.job import IndexCatchupOptions, make_catchup_job
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.rescue.apply import ShardRescuer
from memwal.jobs.rescue.request import RescueRequest
from memwal.jobs.rescue.store import LanceShardWriters, StoredShardWal
from memwal.jobs.schema.apply import Altered, SchemaChanger
from memwal.jobs.schema.plan import Unrest, find_unrest, list_ids, plan_schema
from memwal.jobs.schema.report import report_schema
from memwal.jobs.schema.request import SchemaRequest
from memwal.jobs.schema.store import StoredSchemaTable, read_type
from memwal.model import ShardId, ShardStatus, TableView
from memwal.ports import Steps, no_steps
from memwal.report import DONE, JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.lease import ChainLeases
from memwal.run.options import RunOptions
from memwal.run.progress import SILENT, Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.text import count_of, name_some
from memwal.threads import side_by_side

_READERS_MAX = 16
NAME = "schema"


@dataclass(frozen=True, kw_only=True)
class SchemaOptions(RunOptions):
    """The options of `schema`."""

    request: SchemaRequest = SchemaRequest()

    @property
    def acts(self) -> bool:
        """Whether anything may be written."""
        return self.request.apply and not self.dry_run


def run_schema(options: SchemaOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """Change each table's columns; without `apply`, report what that would do.

    A table with changes is brought to rest first: writers are fenced, if that is asked for, and
    what is pending is merged.
    """
    if options.request.apply and options.dry_run:
        progress.warn("--dry-run wins over --apply: nothing is changed")
    runner = JobRunner(name=NAME, engine=lambda fanout: None)
    with ChainLeases(NAME, warn=progress.warn) as own:
        options = replace(options, leases=options.leases or own)
        rest = _Rest()
        if options.acts:
            rest = _bring_to_rest(options, progress, steps)

        def change(
            table: OpenTable, stores: Stores, view: TableView, fanout: Fanout
        ) -> TableReport:
            return _change(table, stores, view, fanout, options, progress, rest, steps)

        return runner.run_each(options, change, progress)


@dataclass(kw_only=True)
class _Rest:
    """What brought tables to rest, by their names: claims, merges, and what failed."""

    claimed: dict[str, dict[ShardId, int]] = field(default_factory=dict)
    merged: dict[str, TableReport] = field(default_factory=dict)
    failed: dict[str, MemWalError] = field(default_factory=dict)


def _bring_to_rest(options: SchemaOptions, progress: Progress, steps: Steps) -> _Rest:
    """Fence and merge the tables whose columns change. Changing them reports what fails here."""
    rest, going = _Rest(), list[ResolvedTable]()

    def fence(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        name = table.resolved.name
        report = TableReport(table=name, outcome=DONE)
        plan = plan_schema(view, options.request, read_type)
        if not plan.has_work:
            return report
        try:
            StoredSchemaTable(stores).check(view, plan)
            if options.request.fence:
                table.take_lease(NAME, options)
                rest.claimed[name] = dict(_fence(table, stores, view, steps))
            elif unrest := _find_unrest(stores, view, {}):
                raise _refuse_unrest(stores.uri, unrest)
            going.append(table.resolved)
        except MemWalError as error:
            rest.failed[name] = error
        return report

    looks = JobRunner(name=NAME, looks_only=True)
    looks.run_each(options.for_job(RunOptions, options.tables), fence, SILENT)
    if going:
        merge = options.for_job(MergeOptions, going, request=MergeRequest())
        rest.merged = {table.table: table for table in run_merge(merge, progress).tables}
    return rest


def _change(
    table: OpenTable,
    stores: Stores,
    view: TableView,
    fanout: Fanout,
    options: SchemaOptions,
    progress: Progress,
    rest: _Rest,
    steps: Steps,
) -> TableReport:
    name = table.resolved.name
    stored = StoredSchemaTable(stores, progress)
    claimed = rest.claimed.get(name, {})

    def check_rest(view: TableView) -> None:
        if error := rest.failed.get(name):
            raise error
        if unrest := _find_unrest(stores, view, claimed):
            raise _refuse_unrest(stores.uri, unrest)
        if pending := [s.shard_id for s in view.shards if s.pending]:
            merged = rest.merged.get(name)
            why = "generations came meanwhile" if merged is None else merged.error or merged.outcome
            raise Refused(
                "MW-K32",
                f"{stores.uri}: {count_of(len(pending), 'shard')} could not be merged ({why}): "
                f"{name_some(pending, 3, 'shards')}. The columns are as they were",
            )

    chained = IndexCatchupOptions(tables=options.tables, steps=steps)
    catchup = make_catchup_job(table, stores, fanout, chained)
    changer = SchemaChanger(
        table=stored,
        plan=lambda view: plan_schema(view, options.request, read_type),
        clock=stores.clock,
        take_lease=partial(table.take_lease, NAME, options),
        before_commit=table.before_commit,
        check_rest=check_rest,
        catch_up=lambda: catchup.catch_up(stored.read()),
        steps=steps,
    )
    done: Altered | None = None
    seen, plan, note = changer.look()
    if options.acts:
        done = changer.run()
        plan, seen = done.plan, stored.read()
    return report_schema(
        name,
        view.version,
        seen,
        plan,
        done,
        indexes=stored.name_indexes(seen.version, frozenset(list_ids(seen.columns))),
        unrest=_find_unrest(stores, seen, claimed) if plan.has_work and done is None else (),
        fenced=tuple(claimed),
        owed=() if note is None else tuple(note.indexes),
    )


def _find_unrest(
    stores: Stores, view: TableView, claimed: Mapping[ShardId, int]
) -> Sequence[Unrest]:
    for broken in view.broken:
        raise broken.error
    wal = StoredShardWal(stores.objects)
    ids = [shard.shard_id for shard in view.shards]
    found = side_by_side(wal.read, ids, _READERS_MAX)
    return find_unrest([one for one in found if one], claimed, stores.clock.now_nanos())


def _refuse_unrest(uri: str, unrest: Sequence[Unrest]) -> Refused:
    texts = [f"shard {one.shard_id}: {one.detail}" for one in unrest]
    return Refused(
        "MW-K31",
        f"{uri}: columns change at rest only. {'; '.join(name_some(texts, 3, 'shards'))}. Close "
        "the writers, or fence them with --fence",
    )


def _fence(
    table: OpenTable, stores: Stores, view: TableView, steps: Steps
) -> Iterator[tuple[ShardId, int]]:
    """Claim every shard and flush its rows; gives the epochs that were taken.

    Raises what stands against a claim, such as a torn entry.
    """
    rescuer = ShardRescuer(
        wal=StoredShardWal(
            stores.objects, check=partial(stores.views.field_ids.check_entry, view.version)
        ),
        writers=LanceShardWriters(stores.tables),
        clock=stores.clock,
        request=RescueRequest(idle_seconds=0),  # a writer that is alive is meant, too
    )
    for error in (broken.error for broken in view.broken):
        raise error
    for shard in view.shards:
        plan = rescuer.plan(shard.shard_id)
        if plan is None or (shard.manifest.status is ShardStatus.SEALED and not plan.entries):
            continue
        if plan.error is not None:
            raise plan.error
        table.before_commit()
        steps("fence")
        rescuer.writers.claim(
            shard.shard_id,
            memtable_rows_max=plan.memtable_rows_max,
            memtable_batches_max=plan.memtable_batches_max,
        ).flush()
        claimed = stores.shard_manifests.latest(shard.shard_id)
        if claimed is not None:
            yield shard.shard_id, claimed.writer_epoch
