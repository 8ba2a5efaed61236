"""`memwal schema` over tables: shows columns, and rows that wait; with `--apply`, changes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from memwal.jobs.schema.apply import SchemaChanger
from memwal.jobs.schema.plan import Found, SchemaPlan, plan_schema
from memwal.jobs.schema.report import (
    ChangeReport,
    ColumnReport,
    SchemaTableReport,
    WaitingReport,
)
from memwal.jobs.schema.request import SchemaRequest
from memwal.jobs.schema.store import StoredColumns
from memwal.model import TableView
from memwal.ports import Steps, no_steps
from memwal.report import DONE, NOTHING_TO_DO, JobReport, TableReport
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


def run_schema(options: SchemaOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """Show each table's columns; with `apply`, change them first."""
    request = options.request

    def change(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        stored = StoredColumns(
            stores=stores, clock=stores.clock, start=progress.start, done=progress.done
        )
        acts = request.apply and not options.dry_run
        if acts:
            plan, after = SchemaChanger(
                columns=stored,
                take_lease=partial(table.take_lease, NAME, options),
                before_commit=table.before_commit,
                steps=steps,
            ).run(request)
            found = stored.read()[1]
        else:
            after, found = stored.read()
            plan = plan_schema(found, request)
        idle = request.changes and not plan.changes and not plan.rebuilt
        return SchemaTableReport(
            table=table.resolved.name,
            outcome=NOTHING_TO_DO if idle else DONE,
            version_before=view.version,
            version_after=after.version,
            columns=tuple(_describe(found)),
            changes=tuple(
                ChangeReport(kind=c.kind, column=c.column, what=c.what, done=acts)
                for c in plan.changes
            ),
            waiting=tuple(
                WaitingReport(
                    shard_id=one.shard_id,
                    generation=one.generation,
                    becomes=one.becomes,
                    error=None if one.error is None else str(one.error),
                )
                for one in stored.waiting(after)
            ),
            rebuilt=plan.rebuilt,
            rows_rewritten=stored.rows_rewritten,
            bytes_written=stored.bytes_written,
            warnings=tuple(_warn_of_wals(stores, after, plan)),
        )

    return JobRunner(name=NAME, engine=lambda fanout: None).run_each(options, change, progress)


def _describe(found: Found) -> Iterator[ColumnReport]:
    for column in found.columns:
        yield ColumnReport(
            name=column.name,
            type=column.type_text,
            nullable=column.nullable,
            field_id=column.field_id,
            default=column.default,
            indexes=tuple(found.indexed.get(column.name, ())),
        )


def _warn_of_wals(stores: Stores, view: TableView, plan: SchemaPlan) -> Sequence[str]:
    """Shards with a WAL that no new writer can open, once a column is wider than in it."""
    if not any(change.kind == "widen" for change in plan.changes):
        return ()
    shards = [s.shard_id for s in view.shards if stores.wal.find_unflushed(s.manifest) is not None]
    if not shards:
        return ()
    return (
        f"rows in the WAL of {', '.join(shards)} have the former type. A writer that is open goes "
        f"on, and flushes them; if it is gone, `memwal rescue {view.uri}` does. No new writer "
        "opens the shard before",
    )
