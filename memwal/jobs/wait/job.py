"""`memwal wait` on a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from memwal.errors import MemWalError, StandDown
from memwal.format import layout
from memwal.jobs.wait.apply import Waited, Waiter, WaitLimits
from memwal.jobs.wait.plan import Until, choose_target, describe_missing
from memwal.jobs.wait.report import WaitTableReport
from memwal.model import ShardId, TableView
from memwal.report import DONE, JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable


@dataclass(frozen=True, kw_only=True)
class WaitOptions(RunOptions):
    """What `wait` takes besides. `generations` names targets by shard."""

    until: Until
    timeout_seconds: float
    generations: Mapping[ShardId, int] = field(default_factory=dict)
    limits: WaitLimits = WaitLimits()


def run_wait(options: WaitOptions, progress: Progress) -> JobReport:
    """Wait until what was flushed when the run began is merged, indexed or collected."""

    def wait(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        target: Mapping[ShardId, int] = {}
        try:
            target = choose_target(view, options.generations)
            waited = _wait(stores, options, progress, target)
        except MemWalError as error:
            return _failed(options, table.resolved.name, error, target)
        return _report(table, options, target, view.version, waited)

    runner = JobRunner(
        name="wait", looks_only=True, fail=lambda name, error: _failed(options, name, error, {})
    )
    return runner.run_each(options, wait, progress)


def _wait(
    stores: Stores, options: WaitOptions, progress: Progress, target: Mapping[ShardId, int]
) -> Waited:
    waiter = Waiter(
        views=stores.views,
        shards=stores.shard_manifests,
        folders=lambda shard: _folders(stores, shard),
        clock=stores.clock,
        limits=options.limits,
        tell=lambda missing: progress.say(describe_missing(options.until, target, missing)),
    )
    return waiter.run(options.until, target, timeout_seconds=options.timeout_seconds)


def _failed(
    options: WaitOptions, name: str, error: MemWalError, target: Mapping[ShardId, int]
) -> TableReport:
    return WaitTableReport(
        table=name,
        outcome=error.outcome,
        error=str(error),
        exit_code=error.exit_code,
        until=options.until.value,
        target=_plain(target),
        missing=dict.fromkeys(map(str, target), 0),
    )


def _report(
    table: OpenTable,
    options: WaitOptions,
    target: Mapping[ShardId, int],
    version_before: int,
    waited: Waited,
) -> TableReport:
    error = None
    if waited.missing:
        text = describe_missing(options.until, target, waited.missing)
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
