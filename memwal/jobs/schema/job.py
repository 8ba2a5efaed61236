"""`memwal schema TABLE`: the columns, and what changes come to; with `--apply`, makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from memwal.errors import MemWalError, Refused
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
from memwal.report import JobReport, TableReport
from memwal.run.lease import ChainLeases
from memwal.run.options import RunOptions
from memwal.run.progress import Progress, Quiet
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
        leased = replace(options, leases=options.leases or own)
        return runner.run_each(
            leased,
            lambda table, stores, view, fanout: _change(
                _Table(table=table, stores=stores, options=leased, progress=progress, steps=steps),
                view,
            ),
            progress,
        )


@dataclass(frozen=True, kw_only=True)
class _Table:
    """A table whose columns change; `claimed` are the epochs that were taken of its shards."""

    table: OpenTable
    stores: Stores
    options: SchemaOptions
    progress: Progress
    steps: Steps
    claimed: dict[ShardId, int] = field(default_factory=dict)

    def bring_to_rest(self, view: TableView) -> None:
        """Fence the writers, if that is asked for, and merge. Raises Refused if they are open."""
        if self.options.request.fence:
            self.table.take_lease(NAME, self.options)
            self._fence(view)
        elif unrest := self.find_unrest(view):
            raise _refuse_unrest(self.stores.uri, unrest)
        merge = self.options.for_job(MergeOptions, [self.table.resolved], request=MergeRequest())
        (merged,) = run_merge(merge, Quiet(self.progress)).tables
        self.check_rest(self.stores.views.table(), merged.error or merged.outcome)

    def _fence(self, view: TableView) -> None:
        """Claim every shard and flush its rows. Raises what stands against it, as a torn entry."""
        stores, check = self.stores, self.stores.views.field_ids.check_entry
        rescuer = ShardRescuer(
            wal=StoredShardWal(stores.objects, check=partial(check, view.version)),
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
            if plan.cause is not None:
                raise plan.cause
            self.table.before_commit()
            self.steps("fence")
            flush = rescuer.writers.claim(shard.shard_id, **plan.memtable)
            # Should another have claimed it since the view, it is not this epoch: it is in the way.
            self.claimed[shard.shard_id] = shard.manifest.writer_epoch + 1
            flush()

    def check_rest(self, view: TableView, why: str = "generations came meanwhile") -> None:
        """Raise Refused if rows wait, or a writer may be open."""
        if unrest := self.find_unrest(view):
            raise _refuse_unrest(self.stores.uri, unrest)
        if pending := [s.shard_id for s in view.shards if s.pending]:
            raise Refused(
                "MW-K32",
                f"{self.stores.uri}: {count_of(len(pending), 'shard')} could not be merged "
                f"({why}): {name_some(pending, 3, 'shards')}. The columns are as they were",
            )

    def find_unrest(self, view: TableView) -> Sequence[Unrest]:
        """The shards that are not at rest."""
        for broken in view.broken:
            raise broken.error
        wal = StoredShardWal(self.stores.objects)
        ids = [shard.shard_id for shard in view.shards]
        found = side_by_side(wal.read, ids, _READERS_MAX)
        now = self.stores.clock.now_nanos()
        return find_unrest([one for one in found if one], self.claimed, now)


def _change(own: _Table, view: TableView) -> TableReport:
    table, stores, options = own.table, own.stores, own.options
    stored = StoredSchemaTable(stores, own.progress)
    changer = SchemaChanger(
        table=stored,
        plan=lambda view: plan_schema(view, options.request, read_type),
        clock=stores.clock,
        take_lease=partial(table.take_lease, NAME, options),
        before_commit=table.before_commit,
        check_rest=own.check_rest,
        steps=own.steps,
    )
    seen, plan = changer.read()
    done, unrest = Altered(plan=plan), list[Unrest]()
    report = partial(report_schema, table.resolved.name, view.version, done, own.claimed)
    try:
        if options.acts:
            if plan.has_work:
                own.bring_to_rest(seen)
            changer.run(done)
            seen = stored.read()
        indexes = stored.name_indexes(seen.version, frozenset(list_ids(seen.columns)))
        if not options.acts and plan.has_work:
            done.dropped, unrest = plan.list_doomed(indexes), [*own.find_unrest(seen)]
    except MemWalError as error:
        if not (done.commits or own.claimed):
            raise
        return report(error=error)
    return report(acts=options.acts, view=seen, indexes=indexes, unrest=unrest)


def _refuse_unrest(uri: str, unrest: Sequence[Unrest]) -> Refused:
    texts = [f"shard {one.shard_id}: {one.detail}" for one in unrest]
    return Refused(
        "MW-K31",
        f"{uri}: columns change at rest only. {'; '.join(name_some(texts, 3, 'shards'))}. Close "
        "the writers, or fence them with --fence",
    )
