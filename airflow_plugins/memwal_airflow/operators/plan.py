"""Finds the tables that are due, without a JVM."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.exceptions import AirflowFailException

from memwal.errors import Usage
from memwal.report import DONE, HELD, PARTIAL
from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.hooks.memwal import MemWalHook
from memwal_airflow.hooks.query import NoAnswer, query
from memwal_airflow.hooks.request import find_configured_tables, is_true
from memwal_airflow.operators.base import MemWalRetry, describe
from memwal_airflow.settings import read_dag_config

if TYPE_CHECKING:
    from airflow.sdk import Context

Status = Mapping[str, Any]

_QUERIES_IN_FLIGHT_MAX = 4


class MemWalPlanOperator(BaseOperator):
    """Returns the names of the tables that are due for a merge, to be expanded over.

    A table that can't be read is named too: its own merge then fails and gives the reason, and the
    others go on. A table whose lease is held waits for the next look, since somebody is working on
    it. So does one whose store gives no answer, as its merge would hold up the run; if no store
    does, the task is tried again.

    :param tables: names in memwal.toml, or addresses (templated)
    :param configured_only: refuse a table that memwal.toml does not name, unless its `[airflow]
        any_address` is set; use it where whoever starts a run, or edits XComs, may name the tables
    :param due_only: if false, all tables count as due, and none is looked at (templated)
    :param conn_id: a `memwal` connection
    :param seconds_max: how long the look at all tables together may take
    :param seconds_per_table_max: how long the look at one table may take, if the look at all failed
    """

    template_fields: Sequence[str] = ("tables", "due_only", "conn_id")
    ui_color = "#ede9fe"

    def __init__(
        self,
        *,
        tables: Sequence[str] | XComArg,
        configured_only: bool = False,
        due_only: bool | str = True,
        conn_id: str = MemWalHook.default_conn_name,
        seconds_max: float = 120,
        seconds_per_table_max: float = 90,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("doc_md", describe(type(self)))
        super().__init__(**kwargs)
        self.tables: Any = tables
        self.configured_only = configured_only
        self.due_only = due_only
        self.conn_id = conn_id
        self.seconds_max = seconds_max
        self.seconds_per_table_max = seconds_per_table_max

    def execute(self, context: Context) -> list[str]:
        """Choose the tables that are due."""
        names = list(self.tables)
        if self.configured_only:
            try:
                names = find_configured_tables(self.tables, read_dag_config())
            except Usage as error:
                raise AirflowFailException(str(error)) from None
        if not names or not is_true(self.due_only):
            self.log.info("Named by hand, due or not: %s", ", ".join(names) or "no table")
            return names
        found = asyncio.run(self._look(MemWalHook(self.conn_id).environment(), names))
        if all(table.get("unreachable") is True for table in found.values()):
            raise MemWalRetry(f"no store answers: {found[names[0]].get('error')}")
        return [name for name in names if self._is_due(name, found[name])]

    async def _look(self, jobs: JobsEnvironment, names: list[str]) -> dict[str, Status]:
        """Ask for the status of each table; {"error", "unreachable"} if there is no answer."""
        try:
            return await _read_status(jobs, names, self.seconds_max)
        except NoAnswer as error:
            # One table can spoil the answer for all: an unset variable, a store that hangs.
            self.log.warning("%s; looking at the tables one by one", error)
        slots = asyncio.Semaphore(_QUERIES_IN_FLIGHT_MAX)

        async def look(name: str) -> Status:
            async with slots:
                try:
                    return (await _read_status(jobs, [name], self.seconds_per_table_max))[name]
                except NoAnswer as error:
                    return {"error": str(error), "unreachable": error.late}

        found = dict(zip(names, await asyncio.gather(*map(look, names)), strict=True))
        if all("outcome" not in s and not s["unreachable"] for s in found.values()):
            raise MemWalRetry(f"no table could be looked at: {found[names[0]]['error']}")
        return found

    def _is_due(self, name: str, table: Status) -> bool:
        if table.get("outcome") not in (DONE, PARTIAL):
            lost = table.get("unreachable") is True
            trouble = "is unreachable, left to the next run" if lost else "can't be read"
            self.log.error("%s %s: %s", name, trouble, table.get("error"))
            return not lost
        lease = table.get("lease") or {}
        if lease.get("state") == HELD:
            self.log.info("%s: %s is at work on it", name, lease.get("holder"))
            return False
        reasons = table.get("due_reasons") or []
        self.log.info("%s: %s", name, "; ".join(reasons[:5]) or "not due")
        return bool(table.get("due"))


async def _read_status(
    jobs: JobsEnvironment, names: Sequence[str], seconds_max: float
) -> dict[str, Status]:
    answer = await query(jobs, "status", names, seconds_max=seconds_max)
    found = {str(table.get("table")): table for table in answer.tables}
    if any(name not in found for name in names):
        raise NoAnswer(str(answer.document.get("error") or "status does not report every table"))
    return found
