"""What may be asked of a run of the shipped DAGs: the form, the fields it fills, the check.

Airflow checks the values of a run's conf against the form's schemas when the run is made, whoever
makes it, and takes keys that it does not know: `asked_tables` refuses those before any job.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from memwal.config import Config, mask_address
from memwal.errors import Usage
from memwal_airflow.asked import check_keys, configured_tables
from memwal_airflow.asset_events import triggering_tables
from memwal_airflow.settings import dag_config

TABLES_MAX = 1_000
_DURATION = r"^[0-9]{1,9}(\.[0-9]{1,9})?[smhd]$"


def run_params(config: Config, job: str, no_tables: str = "all") -> dict[str, Param]:
    """The form of a DAG that runs `job`; `no_tables` says what a run without tables works on."""
    own: dict[str, Param] = {}
    if job == "garbage":
        own = {
            "execute": Param(
                config.airflow.garbage_execute,
                type="boolean",
                title="Delete garbage",
                description="Else it is only listed",
            ),
            "retention": _duration(
                config.airflow.retention,
                "Retention",
                "Expire table versions that are older, such as 7d; empty: none",
            ),
            "grace": _duration(
                config.airflow.grace,
                "Grace",
                "How long unused things are kept for readers; empty: 1h",
            ),
            "wal": Param(
                config.airflow.garbage_wal,
                type="boolean",
                title="WAL entries",
                description="Also delete WAL entries that a deleted generation covered",
            ),
        }
    return {"tables": tables_param(config, no_tables), "dry_run": dry_run_param(), **own}


def run_fields(job: str) -> dict[str, Any]:
    """The fields of the job's operator, as the form has them."""
    own = {
        "garbage_execute": "{{ params.execute }}",
        "retention": "{{ params.retention }}",
        "grace": "{{ params.grace }}",
        "wal": "{{ params.wal }}",
    }
    return {
        "configured_only": True,
        "dry_run_only": "{{ params.dry_run }}",
        **(own if job == "garbage" else {}),
    }


def tables_param(config: Config, no_tables: str | None = None) -> Param:
    """Tables by name, or by an address of the configuration; `no_tables`: none may be named."""
    names = list(config.tables)
    items: dict[str, Any] = {"type": "string", "pattern": "^[^-]"}
    choice: dict[str, Any] = {}
    if not config.airflow.any_address:
        # An address with a secret in it is none to show; its table has a name.
        addresses = [t.uri for t in config.tables.values() if t.uri == mask_address(t.uri)]
        items["enum"] = list(dict.fromkeys([*names, *addresses]))
        # Makes the form a choice of these; without it, it is a field to type into.
        choice = {"examples": names}
    return Param(
        names[:1] if no_tables is None else [],
        type="array" if no_tables is None else ["array", "null"],
        title="Tables",
        description="Names in memwal.toml"
        + (", paths, or s3:// addresses" if config.airflow.any_address else "")
        + (f"; none: {no_tables}" if no_tables else ""),
        items=items,
        minItems=1 if no_tables is None else 0,
        maxItems=TABLES_MAX,
        uniqueItems=True,
        **choice,
    )


def dry_run_param() -> Param:
    """Whether to change nothing."""
    return Param(False, type="boolean", title="Dry run", description="Tell, and change nothing")


def _duration(default: str | None, title: str, description: str) -> Param:
    return Param(
        default, type=["string", "null"], pattern=_DURATION, title=title, description=description
    )


@task(task_id="tables", retries=0)
def asked_tables() -> list[str]:
    """The tables that the run names; else those of the events that started it; else all.

    Fails the run for a key that the form does not have, and for a table that may not be named.
    """
    context = get_current_context()
    params, config = context["params"], dag_config()
    try:
        check_keys(context["dag_run"].conf, {key: params[key] for key in context["dag"].params})
        named = configured_tables(params["tables"], config)
    except Usage as error:
        raise AirflowFailException(str(error)) from None
    if named:
        return named
    told = triggering_tables(context.get("triggering_asset_events"))
    return [name for name in told if name in config.tables] if told else list(config.tables)
