"""The tasks and the form of the backfill DAG."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, TriggerRule, get_current_context, task, task_group
from airflow.sdk.exceptions import AirflowFailException

from memwal import report as words
from memwal.config import Config, mask_address
from memwal_airflow.forms import asked_tables, dry_run_param, run_fields, tables_param
from memwal_airflow.job_operators import SUMMARY_KEY
from memwal_airflow.memwal_operators import BACKFILL_JOBS, MemWalBackfillOperator
from memwal_airflow.task_groups import STEPS, announce, job_chain, job_defaults

# What comes after a backfill, table by table, in the order in which each makes work for the next.
REST = ("compaction", "snapshot", "garbage")
ORDER = (*BACKFILL_JOBS, *REST)
SHARDS_MAX = 1_000
_SHARD = "^[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}$"


def backfill_params(config: Config) -> dict[str, Param]:
    """The form. Every field has a JSON schema, so that Airflow refuses what does not fit it."""
    return {
        "tables": tables_param(config),
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
        "shards": Param(
            [],
            type=["array", "null"],
            title="Shards",
            description="Merge these only (shard ids); empty: all",
            items={"type": "string", "pattern": _SHARD},
            maxItems=SHARDS_MAX,
            uniqueItems=True,
        ),
        "until_generation": _number("Merge up to this generation"),
        "generations_per_commit_max": _number("Generations in one commit, at most"),
        "bytes_per_commit_max": _number("Bytes in one commit, at most (in memory)"),
        "execute": Param(
            False, type="boolean", title="Delete garbage", description="Else it is only listed"
        ),
        "dry_run": dry_run_param(),
    }


def _number(title: str) -> Param:
    return Param(None, type=["integer", "null"], minimum=1, title=title)


def backfill_tasks(config: Config) -> None:
    """One backfill of the chosen tables, then a group of jobs for each of them.

    What was not chosen is skipped. A table whose backfill failed stops there, and fails the run.
    """
    tables = asked_tables()
    backfill = MemWalBackfillOperator(
        task_id="backfill",
        tables=tables,
        jobs="{{ params.jobs }}",
        shards="{{ params.shards }}",
        until_generation="{{ params.until_generation }}",
        generations_per_commit_max="{{ params.generations_per_commit_max }}",
        bytes_per_commit_max="{{ params.bytes_per_commit_max }}",
        **run_fields("backfill"),
        enabled="{{ 'merge' in params.jobs or 'index-catchup' in params.jobs }}",
        concurrency=config.airflow.tasks_in_flight_max,
        **job_defaults("backfill", config.airflow),
    )
    for job in BACKFILL_JOBS:
        backfill >> announce("backfill", STEPS[job], config, f"announce_{STEPS[job]}", part=job)

    @task_group(group_id="table")
    def upkeep(table: str) -> None:
        backfilled(table) >> job_chain(table, REST, config, _fields)

    backfill >> upkeep.expand(table=tables)


@task(task_id="backfilled", trigger_rule=TriggerRule.ALL_DONE, retries=0)
def backfilled(table: str) -> None:
    """Fail for a table that the backfill could not bring up to date."""
    context = get_current_context()
    if not set(BACKFILL_JOBS) & set(context["params"]["jobs"]):
        return
    found = context["ti"].xcom_pull(task_ids="backfill", key=SUMMARY_KEY) or {}
    name = mask_address(table)
    told = next((t for t in found.get("tables") or [] if t["table"] == name), None)
    if told is None:
        raise AirflowFailException(f"{name}: the backfill ended without a word of it")
    if told["outcome"] not in (words.DONE, words.NOTHING_TO_DO):
        raise AirflowFailException(f"{name}: {told['outcome']}: {told['error']}")


def _fields(job: str) -> dict[str, Any]:
    return {
        # What was not chosen, or has nothing to do, is skipped; the next job runs all the same.
        "trigger_rule": TriggerRule.NONE_FAILED,
        "configured_only": True,
        "dry_run_only": "{{ params.dry_run }}",
        "enabled": f"{{{{ {job!r} in params.jobs }}}}",
        **({"garbage_execute": "{{ params.execute }}"} if job == "garbage" else {}),
    }
