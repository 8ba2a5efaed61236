"""Finds the tables that are due, without a JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.exceptions import AirflowFailException

from memwal.errors import Usage
from memwal.report import DONE, HELD, PARTIAL
from memwal_airflow.hooks.memwal import MemWalHook
from memwal_airflow.hooks.query import NoAnswer, ask
from memwal_airflow.hooks.request import find_configured_tables, is_true, parse_tables
from memwal_airflow.operators.base import MemWalRetry, describe
from memwal_airflow.processes.process import Runner
from memwal_airflow.settings import read_dag_config

if TYPE_CHECKING:
    from airflow.sdk import Context

Status = Mapping[str, Any]


class MemWalPlanOperator(BaseOperator):
    """Returns the names of the tables that are due for a merge, to be expanded over.

    A table that can't be read is named too: its own merge then fails and gives the reason, and the
    others go on. A table whose lease is held waits for the next look, since somebody is working on
    it. So does one whose store gives no answer, as its merge would hold up the run; if no store
    does, the task is tried again.

    :param tables: a name in memwal.toml, or an address; or a list of them (templated)
    :param configured_only: refuse a table that memwal.toml does not name, unless its `[airflow]
        any_address` is set; use it where whoever starts a run, or edits XComs, may name the tables
    :param due_only: if false, all tables count as due, and none is looked at (templated)
    :param conn_id: a `memwal` connection
    :param seconds_max: how long the look at all tables together may take
    """

    template_fields: Sequence[str] = ("tables", "due_only", "conn_id")
    ui_color = "#ede9fe"

    def __init__(
        self,
        *,
        tables: str | Sequence[str] | XComArg,
        configured_only: bool = False,
        due_only: bool | str = True,
        conn_id: str = MemWalHook.default_conn_name,
        seconds_max: float = 120,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("doc_md", describe(type(self)))
        super().__init__(**kwargs)
        self.tables: Any = tables
        self.configured_only = configured_only
        self.due_only = due_only
        self.conn_id = conn_id
        self.seconds_max = seconds_max

    def execute(self, context: Context) -> list[str]:
        """Choose the tables that are due."""
        try:
            names = parse_tables(self.tables)
            if self.configured_only:
                names = find_configured_tables(names, read_dag_config())
        except Usage as error:
            raise AirflowFailException(str(error)) from None
        if not names or not is_true(self.due_only):
            self.log.info("Named by hand, due or not: %s", ", ".join(names) or "no table")
            return names
        jobs = MemWalHook(self.conn_id).environment()
        try:
            answer = ask(Runner(), jobs, "status", names, seconds_max=self.seconds_max)
        except NoAnswer as error:
            raise MemWalRetry(str(error)) from None
        found = {str(table.get("table")): table for table in answer.tables}
        if not found:
            raise MemWalRetry(f"no table was looked at: {answer.document.get('error')}")
        if all(table.get("unreachable") is True for table in found.values()):
            raise MemWalRetry(f"no store answers: {next(iter(found.values())).get('error')}")
        missing = {"error": "status does not report it"}
        return [name for name in names if self._is_due(name, found.get(name, missing))]

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
