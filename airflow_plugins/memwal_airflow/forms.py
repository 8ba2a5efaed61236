"""The forms of the shipped DAGs, the operator fields that they fill, and the check of a run's conf.

When a run is created, by whatever means, Airflow checks the values in its conf against the form's
schemas, but accepts unknown keys: `list_tables` refuses those before any job starts.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from memwal.config import Config, mask_address
from memwal.errors import Usage
from memwal_airflow.assets.events import find_triggering_tables
from memwal_airflow.hooks.request import check_keys, find_configured_tables, parse_tables
from memwal_airflow.settings import read_dag_config

TABLES_MAX = 1_000
SHARDS_MAX = 1_000
_SHARD = "^[0-9a-fA-F][0-9a-fA-F-]{0,35}$"
_DURATION = r"^[0-9]{1,9}(\.[0-9]{1,9})?[smhd]$"


def build_run_params(config: Config, job: str, no_tables: str = "all") -> dict[str, Param]:
    """Build the form for `job`'s DAG; `no_tables` says what a run without tables works on."""
    dags = config.airflow
    if job == "verify":
        return {"tables": build_tables_param(config, no_tables)}
    if job == "rescue":
        return _build_rescue_params(config)
    params = {"tables": build_tables_param(config, no_tables), "dry_run": build_dry_run_param()}
    if job != "garbage":
        return params
    wal = "Also delete WAL entries that a deleted generation covered"
    return {
        **params,
        "execute": build_execute_param(dags.garbage_execute),
        "as_configured": Param(
            True,
            type="boolean",
            title="As configured",
            description="Delete from tables for which memwal.toml sets a retention, by it",
        ),
        "retention": build_duration_param(
            "Retention", dags.retention, "Expire table versions that are older, such as 7d", "none"
        ),
        "grace": build_duration_param(
            "Grace", dags.grace, "How long to keep unused objects for readers", "1h"
        ),
        "wal": Param(dags.garbage_wal, type="boolean", title="WAL entries", description=wal),
    }


def _build_rescue_params(config: Config) -> dict[str, Param]:
    """Build the form of the rescue DAG, in which tables and intent have to be stated.

    A claim fences a writer that is still alive, so nothing is claimed by default.
    """
    idle = "Skip shards with a sign of life younger than this"
    torn = "Put a torn entry aside that is the last in its WAL, so that writers can open the shard"
    yes = "Claim the shards: a writer that is alive after all is fenced, and has to be opened again"
    return {
        "tables": build_tables_param(config),
        "shards": build_shards_param("Rescue"),
        "idle": build_duration_param("Idle", "10m", idle, "10m"),
        "drop_torn": Param(False, type="boolean", title="Drop torn entries", description=torn),
        "dry_run": build_dry_run_param(True),
        "yes": Param(False, type="boolean", title="Claim", description=yes),
    }


def build_run_fields(job: str) -> dict[str, Any]:
    """The fields of the job's operator, filled in from the form."""
    names = {
        "verify": (),
        "rescue": ("dry_run", "shards", "idle", "drop_torn", "yes"),
        "garbage": ("dry_run", "execute", "as_configured", "retention", "grace", "wal"),
    }.get(job, ("dry_run",))
    return {"configured_only": True, **{name: f"{{{{ params.{name} }}}}" for name in names}}


def build_tables_param(config: Config, no_tables: str | None = None) -> Param:
    """Tables by their names or addresses in the configuration; `no_tables` allows for none.

    Without `no_tables` a run that names no table is refused, since nothing tells which was meant.
    """
    names = list(config.tables)
    items: dict[str, Any] = {"type": "string", "pattern": "^[^-]"}
    choice: dict[str, Any] = {}
    if not config.airflow.any_address:
        # An address with a secret in it is not offered; its table can be chosen by name.
        addresses = [t.uri for t in config.tables.values() if t.uri == mask_address(t.uri)]
        items["enum"] = list(dict.fromkeys([*names, *addresses]))
        # Turns the field into a choice of these; without it, it is a field to type into.
        choice = {"examples": names}
    return Param(
        [],
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


def build_shards_param(verb: str) -> Param:
    """Shards by their ids, or by how the ids begin."""
    return Param(
        [],
        type=["array", "null"],
        title="Shards",
        description=f"{verb} these only (shard ids, or how they begin); empty: all",
        items={"type": "string", "pattern": _SHARD},
        maxItems=SHARDS_MAX,
        uniqueItems=True,
    )


def build_duration_param(title: str, default: str | None, text: str, empty: str) -> Param:
    """A duration with its unit; `empty` says what an empty field means."""
    kind: dict[str, Any] = {"type": ["string", "null"], "pattern": _DURATION}
    return Param(default, title=title, description=f"{text}; empty: {empty}", **kind)


def build_dry_run_param(default: bool = False) -> Param:
    """Whether to change nothing. Each DAG needs its own: Airflow keeps a run's value in it."""
    text = "Report, and change nothing"
    return Param(default, type="boolean", title="Dry run", description=text)


def build_execute_param(default: bool) -> Param:
    """Whether garbage is deleted rather than only listed."""
    text = "Else it is only listed"
    return Param(default, type="boolean", title="Delete garbage", description=text)


@task(task_id="tables")
def list_tables() -> list[str]:
    """Return the tables that the run names, else those of the events that started it, else all.

    Fails the run for a key that is not in the form, and for a table that may not be named.
    """
    context = get_current_context()
    params, config = context["params"], read_dag_config()
    try:
        check_keys(context["dag_run"].conf, {key: params[key] for key in context["dag"].params})
        named = parse_tables(params["tables"])
        moved = find_triggering_tables(context.get("triggering_asset_events"))
        known = [name for name in moved if name in config.tables] if moved else list(config.tables)
        return find_configured_tables(named or known, config)
    except Usage as error:
        raise AirflowFailException(str(error)) from None
