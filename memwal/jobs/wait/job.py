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
    """The options of `wait`. `generations` has targets by shard id, or its first characters."""

    until: Until
    timeout_seconds: float
    generations: Mapping[str, int] = field(default_factory=dict)
    limits: WaitLimits = WaitLimits()


def run_wait(options: WaitOptions, progress: Progress) -> JobReport:
    """Wait until what was flushed when the run began is merged, indexed or collected."""

    def wait(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        report = WaitTableReport(table=table.resolved.name, outcome=DONE, until=options.until.value)
        target: Mapping[ShardId, int] = {}
        try:
            target = choose_target(view, options.generations)
            waited = _wait(stores, options, progress, target)
        except MemWalError as error:
            return _fail(report, error, target, dict.fromkeys(target, 0))
        report = report.model_copy(
            update={"version_before": view.version, "version_after": waited.version}
        )
        if waited.missing:
            text = describe_missing(options.until, target, waited.missing)
            late = StandDown(f"not there after {options.timeout_seconds:g} s: {text}")
            return _fail(report, late, target, waited.missing)
        return report.model_copy(update={"reached": True, "target": dict(target)})

    def fail(name: str, error: MemWalError) -> TableReport:
        report = WaitTableReport(table=name, outcome=DONE, until=options.until.value)
        return _fail(report, error, {}, {})

    return JobRunner(name="wait", looks_only=True, fail=fail).run_each(options, wait, progress)


def _wait(
    stores: Stores, options: WaitOptions, progress: Progress, target: Mapping[ShardId, int]
) -> Waited:
    deadline = stores.clock.monotonic_seconds() + options.timeout_seconds

    def tell(missing: Mapping[ShardId, int]) -> None:
        # The report has what the last look found.
        if missing and stores.clock.monotonic_seconds() < deadline:
            progress.say(describe_missing(options.until, target, missing))

    waiter = Waiter(
        views=stores.views,
        shards=stores.shard_manifests,
        folders=lambda shard: _list_folders(stores, shard),
        clock=stores.clock,
        limits=options.limits,
        tell=tell,
    )
    return waiter.run(options.until, target, timeout_seconds=options.timeout_seconds)


def _fail(
    report: WaitTableReport,
    error: MemWalError,
    target: Mapping[ShardId, int],
    missing: Mapping[ShardId, int],
) -> WaitTableReport:
    return report.model_copy(
        update={
            "outcome": error.outcome,
            "error": str(error),
            "exit_code": error.exit_code,
            "target": dict(target),
            "missing": dict(missing),
        }
    )


def _list_folders(stores: Stores, shard_id: ShardId) -> Iterable[int]:
    names = stores.objects.list_folders(layout.shard_folder(shard_id))
    numbers = (layout.parse_generation_folder(name) for name in names)
    return [number for number in numbers if number is not None]
