"""`memwal init`: a Lance table becomes one that MemWAL writers and all jobs can work on."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial

from rich.console import RenderableType
from rich.text import Text

from memwal.config import make_row_policy
from memwal.errors import Usage
from memwal.ingest.routing import ShardValues, derive_id
from memwal.jobs.init.apply import Initialiser
from memwal.jobs.init.plan import InitTableReport, describe_spec, plan_steps, report_init
from memwal.jobs.init.request import InitRequest, WriteSpec
from memwal.jobs.init.store import StoredInitTable
from memwal.model import LOWERING_JOB, ShardId, TableView
from memwal.ports import Steps, no_steps
from memwal.report import JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.policy_choice import store_policy
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.sharding.spec import read_spec

NAME = "init"


@dataclass(frozen=True, kw_only=True)
class InitOptions(RunOptions):
    """The options of `init`. The configuration's policy and expiry count as asked for."""

    request: InitRequest = InitRequest()


def run_init(options: InitOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """Make each table ready for MemWAL; one that is ready already is left as it is."""

    asked = options.request
    if asked.maintain and asked.maintain_none:
        raise Usage("--maintain-none: name no index with --maintain beside it")
    policy = make_row_policy(asked.policy) if asked.policy else None

    def init(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        resolved = table.resolved
        request = replace(
            asked,
            row_policy=policy or resolved.policy,
            expire=asked.expire or resolved.expire,
        )

        stored = StoredInitTable(stores, lambda policy: store_policy(table, policy, options))
        if options.dry_run:
            found = stored.read(request)
            left = plan_steps(found, request)
            return report_init(resolved.name, view.version, found, request, left)
        # Under this name of the lease, merges without the lease wait: progress may be lowered.
        lease_name = LOWERING_JOB if request.adopt_clone else NAME
        initialiser = Initialiser(
            table=stored,
            take_lease=partial(table.take_lease, lease_name, options),
            before_commit=table.before_commit,
            before_repair=table.before_repair,
            steps=steps,
        )
        found, made = initialiser.run(request)
        return report_init(
            resolved.name, view.version, found, request, made, _derive_shard(found.view)
        )

    runner = JobRunner(
        name=NAME, read=lambda stores, fanout: stores.views.unready(), engine=lambda fanout: None
    )
    return runner.run_each(options, init, progress)


def _derive_shard(view: TableView) -> ShardId | None:
    """The shard that takes every row, by the id that `ingest` and LanceDB take, too."""
    specs = view.mem_wal.shard_specs
    if describe_spec(view) != str(WriteSpec()):
        return None
    spec = read_spec(specs[0]) if specs else None
    return derive_id(spec, ShardValues(spec_id=0 if spec is None else spec.spec_id))


# ---- what people see


def show_table(report: InitTableReport) -> list[RenderableType]:
    """Render the table's setup, and the commits that were made."""
    indexes = report.maintained_indexes
    kept = "every index" if indexes is None else ", ".join(indexes) or "none"
    key = ", ".join(report.primary_key) or "none"
    parts: list[RenderableType] = [
        Text(f"  primary key {key}; spec {report.spec}; indexes that writers maintain: {kept}"),
        Text(f"  commits: {', '.join(report.steps) or 'none; it was as asked'}"),
    ]
    if report.expire:
        parts.append(Text(f"  rows expire: {json.dumps(report.expire)}"))
    if report.let_go:
        parts.append(Text(f"  progress that is not theirs: of {', '.join(report.let_go)}"))
    if report.shard_id:
        parts.append(Text(f"  one shard: {report.shard_id}"))
    return parts
