"""`memwal wait` on a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from memwal.clock import SystemClock
from memwal.errors import MemWalError, StandDown
from memwal.format import layout
from memwal.jobs.wait.apply import Waited, Waiter, WaitLimits
from memwal.jobs.wait.plan import Until, missing_text, target_of
from memwal.model import ShardId
from memwal.report import DONE, JobReport, TableReport, WaitTableReport
from memwal.run.open import (
    OpenTable,
    Progress,
    RunOptions,
    check_lance_version,
    error_of,
    job_report,
    open_tables,
)
from memwal.run.stores import Stores


@dataclass(frozen=True, kw_only=True)
class WaitOptions(RunOptions):
    """What `wait` takes besides. `generations` names targets by shard."""

    until: Until
    timeout_seconds: float
    generations: Mapping[ShardId, int] = field(default_factory=dict)
    limits: WaitLimits = WaitLimits()


def run_wait(options: WaitOptions, progress: Progress) -> JobReport:
    """Wait until what was flushed when the run began is merged, indexed or collected."""
    check_lance_version(options.untested_lance_allowed)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    with open_tables(options, lambda stores: stores.views.table()) as tables:
        reports = [_wait(table, options, progress) for table in tables]
        return job_report(
            "wait", reports, clock.monotonic_seconds() - started, opened=tables, otherwise=DONE
        )


def _wait(table: OpenTable, options: WaitOptions, progress: Progress) -> TableReport:
    target: Mapping[ShardId, int] = {}
    try:
        stores, view = table.stores, table.view
        if table.error is not None or view is None or stores is None:
            raise error_of(table)
        target = target_of(view, options.generations)
        waiter = Waiter(
            views=stores.views,
            shards=stores.shard_manifests,
            folders=lambda shard: _folders(stores, shard),
            clock=stores.clock,
            limits=options.limits,
            tell=lambda missing: progress.say(missing_text(options.until, target, missing)),
        )
        waited = waiter.run(options.until, target, timeout_seconds=options.timeout_seconds)
    except MemWalError as error:
        return WaitTableReport(
            table=table.resolved.name,
            outcome=error.outcome,
            error=str(error),
            exit_code=error.exit_code,
            until=options.until.value,
            target=_plain(target),
            missing=dict.fromkeys(map(str, target), 0),
        )
    return _report(table, options, target, view.version, waited)


def _report(
    table: OpenTable,
    options: WaitOptions,
    target: Mapping[ShardId, int],
    version_before: int,
    waited: Waited,
) -> TableReport:
    error = None
    if waited.missing:
        text = missing_text(options.until, target, waited.missing)
        error = StandDown(f"not there after {options.timeout_seconds:g} s: {text}")
    return WaitTableReport(
        table=table.resolved.name,
        outcome=DONE if error is None else error.outcome,
        exit_code=0 if error is None else error.exit_code,
        error=None if error is None else str(error),
        version_before=version_before,
        version_after=waited.version,
        until=options.until.value,
        reached=error is None,
        target=_plain(target),
        missing=_plain(waited.missing),
    )


def _plain(generations: Mapping[ShardId, int]) -> dict[str, int]:
    return {str(shard): generation for shard, generation in generations.items()}


def _folders(stores: Stores, shard_id: ShardId) -> Iterable[int]:
    names = stores.objects.list_folders(layout.shard_folder(shard_id))
    numbers = (layout.parse_generation_folder(name) for name in names)
    return [number for number in numbers if number is not None]
