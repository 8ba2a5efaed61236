"""`memwal schema TABLE`: the columns, and what changes come to; with `--apply`, makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from memwal.jobs.index_catchup.job import IndexCatchupOptions, make_catchup_job
from memwal.jobs.rescue.apply import ShardRescuer
from memwal.jobs.rescue.request import RescueRequest
from memwal.jobs.rescue.store import LanceShardWriters, StoredShardWal
from memwal.jobs.schema.apply import Altered, SchemaChanger, Written
from memwal.jobs.schema.plan import list_ids, plan_schema
from memwal.jobs.schema.report import report_schema
from memwal.jobs.schema.request import SchemaRequest
from memwal.jobs.schema.store import (
    StoredSchemaTable,
    describe_pending,
    list_unflushed,
    read_type,
)
from memwal.model import ShardId, TableView
from memwal.ports import Steps, no_steps
from memwal.report import JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable

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
    """Change each table's columns; without `apply`, report what that would do."""
    if options.request.apply and options.dry_run:
        progress.warn("--dry-run wins over --apply: nothing is changed")

    def change(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        stored = StoredSchemaTable(stores, _make_tell(progress))
        fenced: list[ShardId] = []

        def fence() -> None:
            if options.request.fence:
                fenced.extend(_fence(table, stores, stored.read(), steps))

        chained = IndexCatchupOptions(tables=options.tables, steps=steps)
        catchup = make_catchup_job(table, stores, fanout, chained)
        changer = SchemaChanger(
            table=stored,
            plan=lambda view: plan_schema(view, options.request, read_type),
            clock=stores.clock,
            take_lease=partial(table.take_lease, NAME, options),
            before_commit=table.before_commit,
            catch_up=lambda: catchup.catch_up(stored.read()),
            before_change=fence,
            steps=steps,
        )
        done: Altered | None = None
        seen, plan, note = changer.look()
        if options.acts:
            done = changer.run()
            plan, seen = done.plan, stored.read()
        columns = plan.wanted if done is None else seen.columns
        return report_schema(
            table.resolved.name,
            view.version,
            seen,
            plan,
            done,
            indexes=stored.name_indexes(seen.version, frozenset(list_ids(seen.columns))),
            pending=describe_pending(stores, seen, columns),
            unflushed=list_unflushed(stores, seen),
            fenced=fenced,
            owed=() if note is None else tuple(note.indexes),
        )

    runner = JobRunner(name=NAME, engine=lambda fanout: None)
    return runner.run_each(options, change, progress)


def _make_tell(progress: Progress) -> Callable[[Written, int], None]:
    """What shows how many fragments have been written; a retry begins anew."""

    def tell(written: Written, fragments: int) -> None:
        if written.fragments == 1:
            progress.start("fragments", fragments)
        progress.done(written.fragments, written.bytes)

    return tell


def _fence(table: OpenTable, stores: Stores, view: TableView, steps: Steps) -> Iterator[ShardId]:
    """Claim every shard and flush its rows, by the columns that the table has still.

    Raises what stands against a claim, such as a sealed shard or a torn entry.
    """
    rescuer = ShardRescuer(
        wal=StoredShardWal(stores.objects, columns=view.describe_columns()),
        writers=LanceShardWriters(stores.tables),
        clock=stores.clock,
        request=RescueRequest(idle_seconds=0),  # a writer that is alive is meant, too
    )
    for error in (broken.error for broken in view.broken):
        raise error
    for shard in view.shards:
        plan = rescuer.plan(shard.shard_id)
        if plan is None:
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
        yield shard.shard_id
