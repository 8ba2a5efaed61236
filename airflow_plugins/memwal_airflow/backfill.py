"""The tasks and the form of the backfill DAG."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, TriggerRule, get_current_context, task, task_group
from airflow.sdk.exceptions import AirflowFailException

from memwal.config import Config, mask_address
from memwal.jobs.garbage.request import GarbageRequest
from memwal.options import list_options
from memwal.report import DONE, NOTHING_TO_DO
from memwal_airflow.forms import (
    build_dry_run_param,
    build_param,
    build_run_fields,
    build_tables_param,
    list_form_options,
)
from memwal_airflow.operators.base import SUMMARY_KEY
from memwal_airflow.operators.jobs import BACKFILL_JOBS, MemWalBackfillOperator
from memwal_airflow.task_groups import (
    STEPS,
    announce,
    build_job_defaults,
    build_task_defaults,
    chain_jobs,
    choose_tables,
)

# The jobs that follow a backfill, table by table; each may make work for the next.
REST = ("compaction", "snapshot", "garbage")
ORDER = (*BACKFILL_JOBS, *REST)
(_EXECUTE,) = (d for d in list_options(GarbageRequest) if d.field == "execute")
_HOW = ("concurrency", "engine")


def build_backfill_params(config: Config) -> dict[str, Param]:
    """Build the form. Each field has a JSON schema, so that Airflow refuses unfit values."""
    return {
        "tables": build_tables_param(config),
        "jobs": Param(
            ["merge", "index-catchup", "snapshot"],
            type="array",
            title="Jobs",
            description=f"Run in this order: {', '.join(ORDER)}",
            items={"type": "string", "enum": list(ORDER)},
            minItems=1,
            uniqueItems=True,
            examples=list(ORDER),
        ),
        **{d.field: build_param(d) for d in list_form_options("backfill")},
        **_build_how_params(config),
        "execute": build_param(_EXECUTE, False),
        "dry_run": build_dry_run_param(True),
    }


def _build_how_params(config: Config) -> dict[str, Param]:
    """Fields for how merges and index catch-ups run; the other jobs ignore them."""
    tables_max = config.airflow.tasks_in_flight_max
    return {
        "concurrency": Param(
            tables_max,
            type=["integer", "null"],
            minimum=1,
            maximum=tables_max,
            title="Tables side by side",
            description="For merge and index-catchup, as are those that follow",
        ),
        "engine": Param(
            None,
            type=["string", "null"],
            enum=["auto", "spark", "local", None],
            title="Engine",
            description="Where the work runs; empty: as configured",
        ),
    }


def add_backfill_tasks(config: Config) -> None:
    """Add one backfill of the chosen tables, then a group of jobs for each of them.

    Jobs that were not chosen are skipped. A table whose backfill failed gets no further jobs, and
    fails the run.
    """
    tables = choose_tables(config)
    how: dict[str, Any] = {name: f"{{{{ params.{name} }}}}" for name in _HOW}
    backfill = MemWalBackfillOperator(
        task_id="backfill",
        tables=tables,
        jobs="{{ params.jobs }}",
        **how,
        **build_run_fields("backfill"),
        enabled="{{ 'merge' in params.jobs or 'index-catchup' in params.jobs }}",
        **build_job_defaults("backfill", config.airflow),
    )
    for job in BACKFILL_JOBS:
        step = STEPS[job]
        backfill >> announce("backfill", step, config, config.tables, f"announce_{step}", part=job)

    @task_group(group_id="table")
    def upkeep(table: str) -> None:
        check = check_backfill.override(**build_task_defaults(config.airflow))
        check(table) >> chain_jobs(table, REST, config, _fields)

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


def _fields(job: str) -> dict[str, Any]:
    return {
        # A job that was not chosen, or has nothing to do, is skipped; the next one runs anyway.
        "trigger_rule": TriggerRule.NONE_FAILED,
        "configured_only": True,
        "dry_run": "{{ params.dry_run }}",
        "enabled": f"{{{{ {job!r} in params.jobs }}}}",
        **({"execute": "{{ params.execute }}"} if job == "garbage" else {}),
    }
