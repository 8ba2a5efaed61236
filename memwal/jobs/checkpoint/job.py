"""`memwal checkpoint`: create, list, drop, each on one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import MemWalError, Refused
from memwal.format import layout
from memwal.jobs.checkpoint.apply import CheckpointMaker
from memwal.jobs.checkpoint.plan import CheckpointRequest, check_request
from memwal.jobs.checkpoint.report import CheckpointTableReport, drop_item
from memwal.model import Checkpoint, TableView
from memwal.ports import Steps, no_steps
from memwal.report import DONE, NOTHING_TO_DO, JobReport, TableReport, failed_report
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions, choose_run_id
from memwal.run.progress import Progress
from memwal.run.reports import describe_checkpoint, job_report
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores, open_stores
from memwal.run.tables import OpenTable
from memwal.run.trail import RunTrail, finish, make_trail
from memwal.store.records.checkpoints import LanceTags
from memwal.store.records.process import this_holder

NAME = "checkpoint"


@dataclass(frozen=True, kw_only=True)
class CreateOptions(RunOptions):
    """The options of `checkpoint create`."""

    request: CheckpointRequest


def make_request(
    name: str, *, expires_seconds: float | None, holder: str | None
) -> CheckpointRequest:
    """Make a checked request; by default, the holder is this user and host."""
    request = CheckpointRequest(
        name=layout.parse_name(name, "checkpoint"),
        holder=this_holder().partition(":")[0] if holder is None else holder,
        expires_seconds=expires_seconds,
    )
    check_request(request)
    return request


def run_create(options: CreateOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """Make a checkpoint of each table's present state."""
    if not options.lease and not options.dry_run:
        raise Refused(
            "MW-L01", "a checkpoint is made under the table's lease: run it without --no-lease"
        )

    def create(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        maker = CheckpointMaker(
            uri=stores.uri,
            views=stores.views,
            checkpoints=stores.checkpoints,
            tags=LanceTags(stores.tables),
            clock=stores.clock,
            take_lease=partial(table.take_lease, NAME, options),
            before_commit=table.before_commit,
            steps=steps,
        )
        made = (maker.plan if options.dry_run else maker.create)(options.request)
        fate = "planned" if options.dry_run else None
        report = describe_checkpoint(made, stores.clock.now_nanos(), fate=fate)
        return CheckpointTableReport(
            table=table.resolved.name,
            outcome=DONE,
            version_before=made.version,
            version_after=made.version,
            checkpoints=(report,),
        )

    runner = JobRunner(name=NAME, engine=lambda fanout: None)
    return runner.run_each(options, create, progress)


def run_list(table: ResolvedTable) -> JobReport:
    """List the table's checkpoints, even if it was overwritten and has lost its MemWAL."""

    return _report(table, lambda stores, trail: stores.checkpoints.list(), tagged=True)


def run_drop(
    table: ResolvedTable, name: str, *, dry_run: bool = False, run_id: str | None = None
) -> JobReport:
    """Drop all checkpoints of a name, including expired and unfinished ones.

    It needs no lease, as each is removed by a key that no other checkpoint ever has.
    """

    def drop(stores: Stores, trail: RunTrail | None) -> Sequence[Checkpoint]:
        found = stores.checkpoints.named(name)
        if trail is not None:
            trail.intend([drop_item(layout.checkpoint_tag(c.key), c.version) for c in found])
        for checkpoint in () if dry_run else found:
            stores.checkpoints.remove(checkpoint)
        return found

    writes = None if dry_run else run_id or choose_run_id()
    return _report(table, drop, fate=None if dry_run else "dropped", dry_run=dry_run, writes=writes)


def _report(
    table: ResolvedTable,
    work: Callable[[Stores, RunTrail | None], Sequence[Checkpoint]],
    *,
    tagged: bool = False,
    fate: str | None = None,
    dry_run: bool = False,
    writes: str | None = None,
) -> JobReport:
    """Report what `work` found, and its `fate`; with `tagged`, also whether each tag exists.

    It gets the audit trail, if it is a run, with that id, that `writes`.
    """
    report: TableReport
    trail, clock = None, SystemClock()
    started = clock.monotonic_seconds()
    requests: list[Mapping[str, int]] = []
    try:
        stores = open_stores(table.find_uri(), table.storage_options, clock=clock)
        version = stores.views.table_version()
        if writes is not None:
            trail = make_trail(table, stores, NAME, writes)
        found = work(stores, trail)
        now, is_tagged = clock.now_nanos(), stores.checkpoints.is_tagged
        report = CheckpointTableReport(
            table=table.name,
            outcome=DONE if found else NOTHING_TO_DO,
            version_before=version,
            version_after=version,
            checkpoints=tuple(
                describe_checkpoint(c, now, tagged=not tagged or is_tagged(c), fate=fate)
                for c in found
            ),
        )
        requests.append(stores.objects.counts.as_dict())
    except MemWalError as error:
        report = failed_report(table.name, error)
    report, seconds = finish(trail, report), clock.monotonic_seconds() - started
    return job_report(NAME, [report], seconds=seconds, requests=requests, dry_run=dry_run)
