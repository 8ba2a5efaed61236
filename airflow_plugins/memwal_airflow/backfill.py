"""The tasks and the form of the backfill DAG."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, TriggerRule, get_current_context, task, task_group

from memwal.config import Config
from memwal_airflow.task_groups import job_chain

# The order in which each job makes work for the next.
ORDER = ("merge", "index-catchup", "compaction", "snapshot", "garbage")


def backfill_params(config: Config) -> dict[str, Param]:
    """The form. Every field has a JSON schema, so that Airflow refuses what does not fit it."""
    tables = list(config.tables)
    return {
        "tables": Param(
            tables[:1],
            type="array",
            title="Tables",
            description="Names in memwal.toml, paths, or s3:// addresses",
            items={"type": "string", "minLength": 1},
            minItems=1,
            uniqueItems=True,
            examples=tables,
        ),
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
            type="array",
            title="Shards",
            description="Merge these only (shard ids); empty: all",
            items={"type": "string", "pattern": "^[0-9a-fA-F-]{32,36}$"},
            uniqueItems=True,
        ),
        "until_generation": _number("Merge up to this generation"),
        "generations_per_commit_max": _number("Generations in one commit, at most"),
        "bytes_per_commit_max": _number("Bytes in one commit, at most (in memory)"),
        "execute": Param(
            False, type="boolean", title="Delete garbage", description="Else it is only listed"
        ),
        "dry_run": Param(
            False, type="boolean", title="Dry run", description="Tell, and change nothing"
        ),
    }


def _number(title: str) -> Param:
    return Param(None, type=["integer", "null"], minimum=1, title=title)


def backfill_tasks(config: Config) -> None:
    """The chosen tables, and a group of jobs for each of them; what was not chosen is skipped."""

    @task_group(group_id="table")
    def upkeep(table: str) -> None:
        job_chain(table, ORDER, config, _fields)

    upkeep.expand(table=tables_of_form())


@task(task_id="tables")
def tables_of_form() -> list[str]:
    """The tables that were chosen."""
    return [str(table) for table in get_current_context()["params"]["tables"]]


def _fields(job: str) -> dict[str, Any]:
    return {
        # What was not chosen, or has nothing to do, is skipped; the next job runs all the same.
        "trigger_rule": TriggerRule.NONE_FAILED,
        "dry_run_only": "{{ params.dry_run }}",
        "enabled": f"{{{{ {job!r} in params.jobs }}}}",
        **_FROM_FORM.get(job, {}),
    }


_FROM_FORM: dict[str, dict[str, Any]] = {
    "merge": {
        "shards": "{{ params.shards }}",
        "until_generation": "{{ params.until_generation }}",
        "generations_per_commit_max": "{{ params.generations_per_commit_max }}",
        "bytes_per_commit_max": "{{ params.bytes_per_commit_max }}",
    },
    "garbage": {"garbage_execute": "{{ params.execute }}"},
}
