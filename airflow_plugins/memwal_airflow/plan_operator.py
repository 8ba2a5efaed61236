"""Finds the tables that are due, without a JVM."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from memwal_airflow.hook import MemWalHook
from memwal_airflow.job_operators import MemWalRetry
from memwal_airflow.look import NoAnswer, look, tables_in

if TYPE_CHECKING:
    from airflow.sdk import Context


class MemWalPlanOperator(BaseOperator):
    """Returns the names of the tables that are due for a merge: [{"tables": name}, …], to be
    expanded over.

    A table that can't be read is named too: its own merge then fails, with the reason, and the
    others go on.

    :param tables: names in memwal.toml, or addresses (templated)
    :param conn_id: a `memwal` connection
    :param seconds_max: how long the look at all tables may take
    """

    template_fields: Sequence[str] = ("tables", "conn_id")
    ui_color = "#ede9fe"

    def __init__(
        self,
        *,
        tables: Sequence[str],
        conn_id: str = MemWalHook.default_conn_name,
        seconds_max: float = 600,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tables = tables
        self.conn_id = conn_id
        self.seconds_max = seconds_max

    def execute(self, context: Context) -> list[str]:
        """Look at the tables."""
        names = list(self.tables)
        if not names:
            self.log.info("No table is configured")
            return []
        jobs = MemWalHook(self.conn_id).environment()
        try:
            found = asyncio.run(look(jobs, ["status", *names], seconds_max=self.seconds_max))
        except NoAnswer as error:
            raise MemWalRetry(str(error)) from None
        answers = {str(table.get("table")): table for table in tables_in(found)}
        if not answers:
            raise MemWalRetry(f"memwal status: {found.get('error') or 'no table in its answer'}")
        return [name for name in names if self._is_due(name, answers.get(name))]

    def _is_due(self, name: str, table: Any) -> bool:
        if table is None or (table.get("outcome") not in ("done", "partial")):
            reason = table.get("error") if table else "status does not speak of it"
            self.log.error("%s can't be read: %s", name, reason)
            return True
        reasons = table.get("due_reasons") or []
        self.log.info("%s: %s", name, "; ".join(reasons[:5]) or "not due")
        return bool(table.get("due"))
