"""Building blocks for the shipped DAGs and for your own.

from airflow.sdk import DAG
from memwal_airflow.task_groups import memwal_task_group

with DAG("orders_upkeep", schedule="@hourly", catchup=False):
    load_orders() >> memwal_task_group("orders")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import (
    DAG,
    AssetAny,
    AssetOrTimeSchedule,
    CronTriggerTimetable,
    Param,
    TaskGroup,
    TriggerRule,
    get_current_context,
    task,
    task_group,
)
from airflow.sdk.exceptions import AirflowFailException
from airflow.utils.types import DagRunType

from memwal.config import AirflowDags, Config, mask_address
from memwal.report import DONE, NOTHING_TO_DO
from memwal_airflow.alerts import build_failure_callbacks
from memwal_airflow.assets.events import (
    BACKED_UP,
    COLLECTED,
    INDEXED,
    INGESTED,
    MERGED,
    SOURCES,
    add_events,
    build_alias,
    build_asset,
    declare_tables,
)
from memwal_airflow.forms import (
    build_dry_run_param,
    build_option_params,
    build_run_fields,
    build_run_params,
    build_tables_param,
    list_tables,
)
from memwal_airflow.operators.base import SUMMARY_KEY, describe
from memwal_airflow.operators.jobs import BACKFILL_JOBS, OPERATORS
from memwal_airflow.settings import read_dag_config

# A run works on the tables as they are now, so Airflow's own backfill over past dates is no use.
RUN_TYPES: Any = [kind for kind in DagRunType if kind is not DagRunType.BACKFILL_JOB]
BY_HAND: Any = [DagRunType.MANUAL]
JobFields = Callable[[str], Mapping[str, Any]]
# The step that a job's event announces. Nothing is started by compaction and snapshots. No shipped
# DAG is started by backups, but one of yours may be.
STEPS = {
    "ingest": INGESTED,
    "merge": MERGED,
    "index-catchup": INDEXED,
    "garbage": COLLECTED,
    "backup": BACKED_UP,
}
# Of which step the events start a job's DAG.
STARTED_BY = {job: step for job, step in SOURCES.items() if job != "compaction"}
# Jobs that run several others; it is the work of those that is announced.
CHAINS = {"maintain": ("merge", "index-catchup", "garbage"), "backfill": BACKFILL_JOBS}


def build_task_defaults(dags: AirflowDags) -> dict[str, Any]:
    """The fields that `[airflow]` sets for every job's task."""
    return {
        "pool": dags.pool,
        "retries": dags.retries,
        "retry_delay": timedelta(seconds=dags.retry_delay_seconds),
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(seconds=dags.retry_delay_seconds * 16),
        "on_failure_callback": build_failure_callbacks(dags),
    }


def build_job_defaults(job: str, dags: AirflowDags) -> dict[str, Any]:
    """The fields that `[airflow]` sets for the task of `job`."""
    names = {"conn_id", "spark_conn_id", "deferrable", "held_seconds_max"}
    fields = dags.model_dump(include=names)
    fields["max_active_tis_per_dag"] = dags.tasks_in_flight_max
    fields["outlets"] = []  # the task after it announces, even after a failure
    fields["execution_timeout"] = timedelta(seconds=dags.execution_timeout_seconds)
    if job == "backup":
        fields["verify"] = True
    return {**build_task_defaults(dags), **fields}


def choose_tables(config: Config, job: str = "") -> Any:
    """Make the task that lists the tables of a run; of a backup's, those that have a place for it.

    The events that started the run will not come again, so the task has as many tries as a job.
    """
    tables = list_tables.override(**build_task_defaults(config.airflow))
    return tables(with_backup=job == "backup")


def map_job(job: str, tables: Any, config: Config, **overrides: Any) -> Any:
    """Run `job` on each of `tables` (a list, or an XCom that will be one), in mapped tasks.

    The failure of one does not stop the others. If the job's progress is to be announced, each task
    is followed by one that adds the table's asset event if the table moved. The event does not wait
    for the other tables, which may be retried for hours.
    """
    settings = {**build_job_defaults(job, config.airflow), **overrides}
    kind = OPERATORS[job]

    @task_group(group_id=f"{name_task(job)}_each", prefix_group_id=False)
    def each(table: str) -> None:
        current = kind(
            task_id=name_task(job),
            tables=table,
            map_index_template="{{ task.tables }}",
            doc_md=describe(kind),
            **settings,
        )
        if job in STEPS:
            current >> announce(job, STEPS[job], config, config.tables)

    return each.expand(table=tables)


def announce(
    job: str,
    step: str,
    config: Config,
    tables: Iterable[str],
    task_id: str = "announce",
    part: str | None = None,
) -> Any:
    """Make a task that adds the asset events of `job`'s task in the same group or DAG.

    `tables` are the tables that it may announce, for the graph of assets. If the job's task runs
    several jobs on each table, `part` names the one that counts. The new task runs after failures
    too, since a table that was merged in part has moved.
    """
    # These are outlets only to be shown: an asset in no DAG would land in Airflow's own group.
    made: list[Any] = [build_asset(step, table) for table in tables if "{{" not in table]
    made += declare_tables(tables, config) if step == MERGED else []

    @task(
        task_id=task_id,
        outlets=[build_alias(step), *made],
        trigger_rule=TriggerRule.ALL_DONE,
        **build_task_defaults(config.airflow),
    )
    def add(from_task: str) -> list[str]:
        """Add an event for each table that the preceding job has moved."""
        context = get_current_context()
        instance = context["ti"]
        group = instance.task_id.rpartition(".")[0]
        source = f"{group}.{from_task}" if group else from_task
        index = -1 if instance.map_index is None else instance.map_index
        found = instance.xcom_pull(task_ids=source, key=SUMMARY_KEY, map_indexes=index)
        return add_events(step, found, context, part)

    # A teardown does not decide how the run ends; as a plain last task it would turn every failed
    # run into a success. If it fails for good, the daily runs over all tables make up for it.
    return add(name_task(job)).as_teardown()


def name_task(job: str) -> str:
    """A job's task id."""
    return job.replace("-", "_")


def chain_jobs(table: Any, jobs: Sequence[str], config: Config, fields: JobFields) -> Any:
    """Add one table's jobs, one after the other, and their announcements to the open group.

    `fields` returns a job's operator fields, which override those of `[airflow]`. Returns the first
    task.
    """
    first = previous = None
    for job in jobs:
        settings = {**build_job_defaults(job, config.airflow), **fields(job)}
        settings["table" if job == "ingest" else "tables"] = table
        current = OPERATORS[job](task_id=name_task(job), **settings)
        first = current if first is None else first
        if previous is not None:
            previous >> current
        names = [table] if isinstance(table, str) else []
        if job in STEPS:
            current >> announce(job, STEPS[job], config, names, f"announce_{STEPS[job]}")
        for part in CHAINS.get(job, ()):
            task_id = f"announce_{STEPS[part]}_by_{job}"
            current >> announce(job, STEPS[part], config, names, task_id, part)
        previous = current
    return first


def build_dag_fields(job: str, config: Config, text: str | None) -> dict[str, Any]:
    """The fields of every shipped DAG; `text` is the docstring of the DAG's file.

    Its first paragraph becomes the DAG's description.
    """
    return {
        "catchup": False,
        "allowed_run_types": BY_HAND if job == "rescue" else RUN_TYPES,
        "tags": ["memwal", f"memwal:{job}"],
        "description": " ".join((text or "").partition("\n\n")[0].split()),
        "doc_md": text,
        "default_args": {"owner": config.airflow.owner},
    }


def build_job_dag(job: str, text: str | None) -> DAG:
    """Build the shipped DAG of a job, with a mapped task for each table that a run is about.

    Several runs go on at once where events start them: one that waits for a held lease must not
    keep the other tables.
    """
    config = read_dag_config()
    by_hand = job == "rescue"
    with DAG(
        f"memwal_{name_task(job)}",
        schedule=build_schedule(job, config),
        max_active_runs=config.airflow.runs_in_flight_max if job in STARTED_BY else 1,
        params=build_run_params(config, job),
        render_template_as_native_obj=by_hand,  # so that a list stays a list
        **build_dag_fields(job, config, text),
    ) as dag:
        map_job(job, choose_tables(config, job), config, **build_run_fields(job))
    return dag


def memwal_task_group(
    table: str,
    *,
    jobs: Sequence[str] = ("merge", "index-catchup", "snapshot", "garbage"),
    group_id: str | None = None,
    fields: Mapping[str, Mapping[str, Any]] | None = None,
    **overrides: Any,
) -> TaskGroup:
    """The upkeep of one table, job after job, for a DAG of your own.

    :param table: a name in memwal.toml, or an address
    :param jobs: commands that have an operator, such as verify; they run in this order
    :param group_id: by default `memwal_` and the table's name
    :param fields: fields of one job's operator, such as `{"garbage": {"execute": True}}`; an ingest
        needs `sources`
    :param overrides: fields of every operator, such as `spark_conn_id` or `deferrable`

    A job with nothing to do succeeds, and the next one runs; after a failure the remaining jobs do
    not run. If the first is skipped (by a branch), so are the others. Limits come from memwal.toml,
    as for the command line. Asset events announce progress, so the shipped DAGs carry on from there
    if they know the table.
    """
    given = fields or {}
    unknown = [job for job in (*jobs, *given) if job not in OPERATORS]
    if unknown:
        raise ValueError(f"unknown job {unknown[0]!r}: expected {', '.join(OPERATORS)}")
    unused = [job for job in given if job not in jobs]
    if unused:
        raise ValueError(f"fields of {unused[0]!r}, which is not among the jobs: {', '.join(jobs)}")
    if isinstance(table, list | tuple):
        raise TypeError("a group is about one table: make a group for each")
    readable = "".join(c if c.isalnum() or c in "-_" else "_" for c in table).strip("_")[-120:]
    with TaskGroup(group_id or f"memwal_{readable}") as group:
        chain_jobs(
            table,
            jobs,
            read_dag_config(),
            lambda job: {"skip_when_idle": False, **overrides, **given.get(job, {})},
        )
    return group


def memwal_ingest_group(
    table: str, sources: Sequence[str] | str, *, group_id: str | None = None, **fields: Any
) -> TaskGroup:
    """Ingest files into one table's MemWAL and announce it, in a DAG of your own.

    :param table: a name in memwal.toml, or an address
    :param sources: files, folders, Lance tables; from a folder, only files that are new
    :param group_id: by default `memwal_ingest`
    :param fields: fields of `MemWalIngestOperator`, including those of every operator

    If the configuration names the table, the event starts `memwal_merge`, which merges the table
    once it is due. A DAG of your own is started with `schedule=[build_asset(INGESTED, table)]`.
    Without a new file the task is skipped, and there is no event.
    """
    config = read_dag_config()
    with TaskGroup(group_id or "memwal_ingest") as group:
        chain_jobs(table, ["ingest"], config, lambda _: {"sources": sources, **fields})
    return group


def build_schedule(job: str, config: Config) -> Any:
    """Build the schedule of a job's DAG: cron in UTC, whatever Airflow's own zone is, and events.

    The events are those of any configured table. None if there is neither.
    """
    cron = getattr(config.airflow, f"{name_task(job)}_schedule", "")
    if job == "backup" and not any(table.backup for table in config.tables.values()):
        cron = ""
    clock = CronTriggerTimetable(cron, timezone="UTC") if cron else None
    assets = [build_asset(STARTED_BY[job], table) for table in config.tables if job in STARTED_BY]
    if not assets or clock is None:
        return AssetAny(*assets) if assets else clock
    return AssetOrTimeSchedule(timetable=clock, assets=AssetAny(*assets))


# The jobs that follow a backfill, table by table; each may make work for the next.
REST = ("compaction", "snapshot", "garbage")


def build_backfill_params(config: Config) -> dict[str, Param]:
    """Build the form of a backfill. The fields beside `jobs` are for those that take them."""
    order = [*BACKFILL_JOBS, *REST]
    options = build_option_params("backfill")
    options["concurrency"].value = config.airflow.tasks_in_flight_max
    options["concurrency"].schema["maximum"] = config.airflow.tasks_in_flight_max
    return {
        "tables": build_tables_param(config),
        "jobs": Param(
            ["merge", "index-catchup", "snapshot"],
            type="array",
            title="Jobs",
            description=f"Run in this order: {', '.join(order)}",
            items={"type": "string", "enum": order},
            minItems=1,
            uniqueItems=True,
            examples=order,
        ),
        **options,
        "engine": Param(
            None,
            type=["string", "null"],
            enum=["auto", "spark", "local", None],
            title="Engine",
            description="Where the work runs; empty: as configured",
        ),
        "execute": build_option_params("garbage")["execute"],
        "dry_run": build_dry_run_param(True),
    }


def add_backfill_tasks(config: Config) -> None:
    """Add one backfill of the chosen tables, then a group of jobs for each of them.

    Jobs that were not chosen are skipped. A table whose backfill failed gets no further jobs, and
    fails the run.
    """
    tables = choose_tables(config)
    backfill = OPERATORS["backfill"](
        task_id="backfill",
        tables=tables,
        jobs="{{ params.jobs }}",
        engine="{{ params.engine }}",
        **build_run_fields("backfill"),
        enabled="{{ 'merge' in params.jobs or 'index-catchup' in params.jobs }}",
        **build_job_defaults("backfill", config.airflow),
    )
    for job in BACKFILL_JOBS:
        step = STEPS[job]
        backfill >> announce("backfill", step, config, config.tables, f"announce_{step}", part=job)

    def choose_fields(job: str) -> dict[str, Any]:
        return {
            # A job that was not chosen, or has nothing to do, is skipped; the next one runs anyway.
            "trigger_rule": TriggerRule.NONE_FAILED,
            "configured_only": True,
            "dry_run": "{{ params.dry_run }}",
            "enabled": f"{{{{ {job!r} in params.jobs }}}}",
            **({"execute": "{{ params.execute }}"} if job == "garbage" else {}),
        }

    @task_group(group_id="table")
    def upkeep(table: str) -> None:
        check = check_backfill.override(**build_task_defaults(config.airflow))
        check(table) >> chain_jobs(table, REST, config, choose_fields)

    backfill >> upkeep.expand(table=tables)


@task(task_id="backfilled", trigger_rule=TriggerRule.ALL_DONE)
def check_backfill(table: str) -> None:
    """Fail if the backfill could not bring the table up to date."""
    context = get_current_context()
    if not set(BACKFILL_JOBS) & set(context["params"]["jobs"]):
        return
    found = context["ti"].xcom_pull(task_ids="backfill", key=SUMMARY_KEY) or {}
    name = mask_address(table)
    result = next((t for t in found.get("tables") or [] if t["table"] == name), None)
    if result is None:
        why = found.get("error") or "the backfill did not report on it"
        raise AirflowFailException(f"{name}: {why}")
    if result["outcome"] not in (DONE, NOTHING_TO_DO):
        raise AirflowFailException(f"{name}: {result['outcome']}: {result['error']}")
