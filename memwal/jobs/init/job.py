"""`memwal init`: a Lance table becomes one that MemWAL writers and all jobs can work on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from memwal.jobs.init.apply import Initialiser
from memwal.jobs.init.plan import InitRequest, plan_steps
from memwal.jobs.init.report import report_init
from memwal.jobs.init.store import StoredInitTable, read_view
from memwal.model import TableView
from memwal.ports import LOWERING_JOB, Steps, no_steps
from memwal.report import JobReport, TableReport
from memwal.rows.policy import RowPolicy
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.policy_choice import store_policy
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable

NAME = "init"


@dataclass(frozen=True, kw_only=True)
class InitOptions(RunOptions):
    """The options of `init`. The configuration's policy and expiry count as asked for."""

    request: InitRequest = field(default_factory=InitRequest)


def run_init(options: InitOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """Make each table ready for MemWAL; one that is ready already is left as it is."""

    def init(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        resolved = table.resolved
        request = replace(
            options.request,
            policy=options.request.policy or resolved.policy,
            expire=options.request.expire or resolved.expire,
        )

        def put_policy(policy: RowPolicy) -> None:
            store_policy(table, policy, options)

        stored = StoredInitTable(stores, put_policy)
        if options.dry_run:
            found = stored.read(request)
            left = plan_steps(found, request)
            return report_init(resolved.name, view.version, found, request, left)
        # Under this name of the lease, merges without the lease wait: progress may be lowered.
        lease_name = LOWERING_JOB if request.adopts_clone else NAME
        initialiser = Initialiser(
            table=stored,
            take_lease=partial(table.take_lease, lease_name, options),
            before_commit=table.before_commit,
            before_repair=table.before_repair,
            steps=steps,
        )
        found, made = initialiser.run(request)
        return report_init(resolved.name, view.version, found, request, made)

    runner = JobRunner(
        name=NAME, read=lambda stores, fanout: read_view(stores), engine=lambda fanout: None
    )
    return runner.run_each(options, init, progress)
