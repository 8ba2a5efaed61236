"""The link from a task to its table on the MemWAL page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import attrs
from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

from memwal_airflow.operators.task_runs import name_run

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PAGE_PREFIX = "/memwal"


def build_page_url(table: str | None = None, run: str | None = None) -> str:
    """Return the address of the page, of a table on it, or of a run of that table.

    It is relative to Airflow's own address.
    """
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    place = f"#/table/{quote(table, safe='')}" if table else ""
    return f"{base}{PAGE_PREFIX}/{place}" + (f"?run={quote(run, safe='')}" if table and run else "")


@attrs.define()
class MemWalPageLink(BaseOperatorLink):
    """Links to the page; if the task works on one table, to that table and what the task did.

    A worker builds the link once the task is over, so the operator's fields are rendered.
    """

    name = "MemWAL page"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the link's address."""
        tables = getattr(operator, "tables", None) or getattr(operator, "table", None)
        named = [tables] if isinstance(tables, str) else list(tables or [])
        if len(named) != 1:
            return build_page_url()
        run = name_run(ti_key) if hasattr(operator, "job") else None
        return build_page_url(_find_name(named[0]), run)


def _find_name(table: str) -> str:
    """Return the page's name for a table, without a secret that an address may hold."""
    # Imported here, because every process of Airflow imports this module.
    from memwal.config import mask_address
    from memwal.errors import Usage
    from memwal_airflow.hooks.request import find_configured_tables
    from memwal_airflow.settings import read_dag_config

    try:
        (name,) = find_configured_tables([table], read_dag_config())
    except Usage:
        name = table
    return mask_address(name)
