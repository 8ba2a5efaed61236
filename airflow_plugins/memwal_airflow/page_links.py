"""The link from a task to its table on the MemWAL page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import attrs
from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PAGE_PREFIX = "/memwal"


def build_page_url(table: str | None = None) -> str:
    """The address of the page, or of one table on it, relative to Airflow's own address."""
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    return f"{base}{PAGE_PREFIX}/" + (f"#/table/{quote(table, safe='')}" if table else "")


@attrs.define()
class MemWalPageLink(BaseOperatorLink):
    """Leads to the page; straight to the table if the task works on one."""

    name = "MemWAL page"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address."""
        tables = getattr(operator, "tables", None) or getattr(operator, "table", None)
        named = [tables] if isinstance(tables, str) else list(tables or [])
        return build_page_url(named[0] if len(named) == 1 else None)
