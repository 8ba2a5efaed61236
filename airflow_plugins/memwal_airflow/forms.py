"""The forms of the shipped DAGs, the operator fields that they fill, and the check of a run's conf.

When a run is created, by whatever means, Airflow checks the values in its conf against the form's
schemas, but accepts unknown keys: `list_tables` refuses those before any job starts.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

from memwal.config import Config, mask_address
from memwal.config.requests import describe_option, find_bounds
from memwal.errors import Usage
from memwal.options import DeclaredOption, Kind, list_options
from memwal_airflow.assets.events import find_triggering_tables
from memwal_airflow.hooks.request import check_keys, find_configured_tables, parse_tables
from memwal_airflow.operators.jobs import OPERATORS
from memwal_airflow.settings import read_dag_config

TABLES_MAX = 1_000
SHARDS_MAX = 1_000
_SHARD = "^[0-9a-fA-F][0-9a-fA-F-]{0,35}$"
_DURATION = r"^[0-9]{1,9}(\.[0-9]{1,9})?[smhd]$"
# The DAGs whose forms show the options of their jobs; those of a merge are in that of a backfill.
_FORMS = ("garbage", "rescue", "backfill")


def build_run_params(config: Config, job: str, no_tables: str = "all") -> dict[str, Param]:
    """Build the form for `job`'s DAG; `no_tables` says what a run without tables works on.

    In a rescue, tables and intent have to be stated, and nothing is claimed by default: a claim
    fences a writer that is still alive.
    """
    is_rescue = job == "rescue"
    params = {"tables": build_tables_param(config, None if is_rescue else no_tables)}
    if job != "verify":
        params["dry_run"] = build_dry_run_param(is_rescue)
    return params | build_option_params(job)


def list_form_options(job: str) -> list[DeclaredOption]:
    """The options of a job that whoever starts its DAG may choose."""
    request = OPERATORS[job].request if job in _FORMS else None
    return [] if request is None else [d for d in list_options(request) if d.option.form]


def build_option_params(job: str) -> dict[str, Param]:
    """Build the fields of a job's own options."""
    return {declared.field: _build_param(declared) for declared in list_form_options(job)}


def build_run_fields(job: str) -> dict[str, Any]:
    """The fields of the job's operator, filled in from the form."""
    names = [] if job == "verify" else ["dry_run"]
    names += [declared.field for declared in list_form_options(job)]
    return {"configured_only": True, **{name: f"{{{{ params.{name} }}}}" for name in names}}


def _build_param(declared: DeclaredOption) -> Param:
    """Build the field of a form for an option; its JSON schema refuses unfit values."""
    default, text = declared.shown_default, describe_option(declared)
    schema: dict[str, Any]
    match declared.kind:
        case Kind.SWITCH | Kind.EITHER:
            default = bool(default) if declared.kind is Kind.SWITCH else None
            schema = {"type": ["boolean", "null"]}
        case Kind.LIST:
            items = {"type": "string", "pattern": _SHARD}
            default, schema = [], {"type": ["array", "null"], "items": items}
            schema |= {"maxItems": SHARDS_MAX, "uniqueItems": True}
        case Kind.DURATION:
            empty = "" if "Default:" in text else f"; empty: {default or 'none'}"
            text = f"{text} Such as {declared.option.metavar}{empty}"
            schema = {"type": ["string", "null"], "pattern": _DURATION}
        case _:
            bounds = zip(("minimum", "maximum"), find_bounds(declared), strict=True)
            known = {name: value for name, value in bounds if value is not None}
            schema = {"type": ["integer", "null"], **known}
    return Param(default, title=declared.option.form, description=text, **schema)


def build_tables_param(config: Config, no_tables: str | None = None) -> Param:
    """Tables by their names or addresses in the configuration; `no_tables` allows for none.

    Without `no_tables` a run that names no table is refused, since nothing tells which was meant.
    """
    names, any_address = list(config.tables), config.airflow.any_address
    # Turns the field into a choice of these; without it, it is a field to type into.
    choice: dict[str, Any] = {} if any_address else {"examples": names}
    items: dict[str, Any] = {"type": "string", "pattern": "^[^-]"}
    if not any_address:
        # An address with a secret in it is not offered; its table can be chosen by name.
        addresses = [t.uri for t in config.tables.values() if t.uri == mask_address(t.uri)]
        items["enum"] = list(dict.fromkeys([*names, *addresses]))
    return Param(
        [],
        type="array" if no_tables is None else ["array", "null"],
        title="Tables",
        description="Names in memwal.toml"
        + (", paths, or s3:// addresses" if any_address else "")
        + (f"; none: {no_tables}" if no_tables else ""),
        items=items,
        minItems=1 if no_tables is None else 0,
        maxItems=TABLES_MAX,
        uniqueItems=True,
        **choice,
    )


def build_dry_run_param(default: bool = False) -> Param:
    """Whether to change nothing. Each DAG needs its own: Airflow keeps a run's value in it."""
    text = "Report, and change nothing"
    return Param(default, type="boolean", title="Dry run", description=text)


@task(task_id="tables")
def list_tables(with_backup: bool = False) -> list[str]:
    """Return the tables that the run names, else those of the events that started it, else all.

    Of all, `with_backup` takes those that have a place for their backups. Fails the run for a key
    that is not in the form, and for a table that may not be named.
    """
    context = get_current_context()
    params, config = context["params"], read_dag_config()
    try:
        check_keys(context["dag_run"].conf, {key: params[key] for key in context["dag"].params})
        named = parse_tables(params["tables"])
        moved = find_triggering_tables(context.get("triggering_asset_events"))
        known = [name for name in moved if name in config.tables] if moved else list(config.tables)
        if with_backup:
            known = [name for name in known if config.tables[name].backup is not None]
        return find_configured_tables(named or known, config)
    except Usage as error:
        raise AirflowFailException(str(error)) from None
