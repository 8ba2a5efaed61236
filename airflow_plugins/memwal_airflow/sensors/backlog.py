"""Waits for a table: until it is due, or until its generations are merged, indexed or collected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException

from memwal.errors import LASTING_EXITS, Usage
from memwal.report import FAILED, REFUSED
from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.hooks.memwal import MemWalHook
from memwal_airflow.hooks.query import NoAnswer, query
from memwal_airflow.hooks.request import check_name, parse_shard
from memwal_airflow.operators.base import describe
from memwal_airflow.operators.page_links import MemWalPageLink
from memwal_airflow.triggers.jobs import MemWalTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

DUE = "due"
_STEPS = (DUE, "merged", "indexed", "collected")
_LOOK_SECONDS_MAX = 300.0


async def check_progress(
    jobs: JobsEnvironment, table: str, until: str, generations: Mapping[str, int]
) -> dict[str, Any]:
    """Look once; returns {"is_over", "seen"}, or {"error"} if the table can't be read.

    What was seen is {"due_reasons"} or {"target", "missing"}. Raises NoAnswer.
    """
    wanted = [f"--generation={shard}={n}" for shard, n in generations.items()]
    options = [] if until == DUE else [f"--until={until}", "--timeout=0s", *wanted]
    answer = await query(jobs, "status", [table], options, seconds_max=_LOOK_SECONDS_MAX)
    found = answer.tables[0] if answer.tables else answer.document
    if answer.exit_code in LASTING_EXITS:
        return {"error": f"{table}: {found.get('error')}"}
    if not answer.tables or found.get("outcome") in (FAILED, REFUSED):
        raise NoAnswer(f"{table}: {found.get('error') or 'no answer'}")
    seen: dict[str, Any]
    if until == DUE:
        seen = {"due_reasons": list(found.get("due_reasons") or [])[:20]}
        return {"is_over": bool(found.get("due")), "seen": seen}
    ended = found.get("until") or {}
    seen = {"target": ended.get("target") or {}, "missing": ended.get("missing") or {}}
    return {"is_over": bool(ended.get("reached")), "seen": seen}


class MemWalBacklogSensor(BaseSensorOperator):
    """Waits until a table is due for a merge, or its generations are merged, indexed or collected.

    :param table: a name in memwal.toml, or an address (templated)
    :param until: due, merged, indexed or collected (templated)
    :param generations: maps shards to the generations that have to be reached; by default each
        shard's highest flushed generation at the first look (templated, also as a JSON text). Not
        for `due`
    :param conn_id: a `memwal` connection
    :param deferrable: wait in the triggerer

    Returns what the last look saw. If the store does not answer, the sensor looks again later; a
    broken table fails it.
    """

    template_fields: Sequence[str] = ("table", "until", "generations", "conn_id")
    operator_extra_links = (MemWalPageLink(),)
    ui_color = "#e0f2fe"

    def __init__(
        self,
        *,
        table: str,
        until: str = DUE,
        generations: Mapping[str, int] | str | None = None,
        conn_id: str = MemWalHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("doc_md", describe(type(self)))
        super().__init__(**kwargs)
        self.table = table
        self.until = until
        self.generations: Any = generations
        self.conn_id = conn_id
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Wait here or in the triggerer."""
        try:
            self.generations = self._check()
        except Usage as error:
            raise AirflowFailException(str(error)) from None
        if not self.deferrable:
            return super().execute(context)
        # The first look is made here: it may be enough, and it fixes the target, which a restart of
        # the triggerer would lose.
        first = self.poke(context)
        if first.is_done:
            return first.xcom_value
        names = ("table", "until", "generations", "conn_id")
        return self.defer(
            trigger=MemWalBacklogTrigger(
                **{name: getattr(self, name) for name in names},
                poll_seconds=float(self.poke_interval),
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=float(self.timeout)),
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return what the trigger saw."""
        if event.get("error"):
            raise AirflowFailException(event["error"])
        return event["seen"]

    def poke(self, context: Context) -> PokeReturnValue:
        """One look."""
        try:
            jobs = MemWalHook(self.conn_id).environment()
            found = asyncio.run(check_progress(jobs, self.table, self.until, self.generations))
        except NoAnswer as error:
            self.log.warning("%s; looking again later", error)
            return PokeReturnValue(is_done=False)
        seen = self.execute_complete(context, found)
        # Keep the target of the first look; otherwise later flushes would keep moving it away.
        self.generations = self.generations or seen.get("target") or {}
        self.log.info("%s, until %s: %s", self.table, self.until, seen)
        return PokeReturnValue(is_done=found["is_over"], xcom_value=seen)

    def _check(self) -> dict[str, int]:
        """Return the generations that are asked for. Raises Usage for fields that are wrong."""
        check_name("table", self.table)
        if self.until not in _STEPS:
            raise Usage(f"until={self.until!r}: expected one of {', '.join(_STEPS)}")
        given = self.generations or {}
        try:
            parsed = json.loads(given) if isinstance(given, str) else given
            wanted = {parse_shard(shard): int(number) for shard, number in parsed.items()}
        except (ValueError, AttributeError, TypeError):
            raise Usage("generations: expected shard -> number") from None
        if wanted and self.until == DUE:
            raise Usage("generations: not for until='due'")
        if self.reschedule and not (self.deferrable or wanted or self.until == DUE):
            # Every reschedule starts a fresh process, which would not know the target.
            raise Usage(
                f"mode='reschedule' with until={self.until!r} needs generations=…; "
                "or use deferrable=True"
            )
        return wanted


class MemWalBacklogTrigger(MemWalTrigger):
    """Fires {"seen"} when the wait is over, {"error"} if it can never be over.

    Only the connection's name is sent to the triggerer, none of its contents.
    """

    async def look(self) -> dict[str, Any] | None:
        """Look at the table."""
        asked = {name: self.fields[name] for name in ("table", "until", "generations")}
        jobs = await MemWalHook(self.fields["conn_id"]).environment_async()
        try:
            found = await check_progress(jobs, **asked)
        except NoAnswer as error:
            self.log.warning("%s; looking again later", error)
            return None
        if "error" not in found and not self.fields["generations"]:
            self.fields["generations"] = found["seen"].get("target") or {}
        return found if found.get("is_over", True) else None
