"""Waits for a table: until it is due, or until its generations are merged, indexed or collected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from memwal.errors import LASTING_EXITS, Usage
from memwal.report import FAILED, REFUSED
from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.hooks.memwal import MemWalHook
from memwal_airflow.hooks.query import Answer, NoAnswer, query
from memwal_airflow.hooks.request import check_name, parse_shard
from memwal_airflow.operators.base import describe
from memwal_airflow.operators.page_links import MemWalPageLink
from memwal_airflow.operators.task_metrics import measure_backlog
from memwal_airflow.triggers.jobs import SETTLE_SECONDS

if TYPE_CHECKING:
    from airflow.sdk import Context

DUE = "due"
_STEPS = (DUE, "merged", "indexed", "collected")
_LOOK_SECONDS_MAX = 300.0


class TableBroken(Exception):
    """The table can't be read, so there is no point in waiting."""


async def check_progress(
    jobs: JobsEnvironment, table: str, until: str, generations: Mapping[str, int]
) -> tuple[bool, dict[str, Any]]:
    """Look once, and return whether the wait is over and what was seen.

    What was seen is {"due_reasons"} or {"target", "missing"}. Raises NoAnswer, TableBroken.
    """
    wanted = [f"--generation={shard}={n}" for shard, n in generations.items()]
    options = [] if until == DUE else [f"--until={until}", "--timeout=0s", *wanted]
    found = _read_table(
        await query(jobs, "status", [table], options, seconds_max=_LOOK_SECONDS_MAX), table
    )
    # Does nothing in the triggerer, where Airflow does not set up metrics.
    measure_backlog(table, found, {})
    if until == DUE:
        return bool(found.get("due")), {"due_reasons": list(found.get("due_reasons") or [])[:20]}
    ended = found.get("until") or {}
    seen = {"target": ended.get("target") or {}, "missing": ended.get("missing") or {}}
    return bool(ended.get("reached")), seen


def _read_table(answer: Answer, table: str) -> Mapping[str, Any]:
    found = answer.tables[0] if answer.tables else answer.document
    if answer.exit_code in LASTING_EXITS:
        raise TableBroken(f"{table}: {found.get('error')}")
    if not answer.tables or found.get("outcome") in (FAILED, REFUSED):
        raise NoAnswer(f"{table}: {found.get('error') or 'no answer'}")
    return found


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
        self.generations = generations
        self.conn_id = conn_id
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Wait here or in the triggerer."""
        self._check()
        if not self.deferrable:
            return super().execute(context)
        # The first look is made here: it may be enough, and it fixes the target, which a restart of
        # the triggerer would lose.
        first = self.poke(context)
        if first.is_done:
            return first.xcom_value
        return self.defer(
            trigger=MemWalBacklogTrigger(
                table=self.table,
                until=self.until,
                generations=self._parse_generations(),
                conn_id=self.conn_id,
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
            over, seen = asyncio.run(
                check_progress(jobs, self.table, self.until, self._parse_generations())
            )
        except NoAnswer as error:
            self.log.warning("%s; looking again later", error)
            return PokeReturnValue(is_done=False)
        except TableBroken as error:
            raise AirflowFailException(str(error)) from None
        # Keep the target of the first look; otherwise later flushes would keep moving it away.
        self.generations = self._parse_generations() or seen.get("target")
        self.log.info("%s, until %s: %s", self.table, self.until, seen)
        return PokeReturnValue(is_done=over, xcom_value=seen)

    def _parse_generations(self) -> dict[str, int]:
        given = self.generations or {}
        try:
            parsed = json.loads(given) if isinstance(given, str) else given
            return {parse_shard(shard): int(number) for shard, number in parsed.items()}
        except (ValueError, AttributeError, TypeError):
            raise AirflowFailException("generations: expected shard -> number") from None
        except Usage as error:
            raise AirflowFailException(f"generations: {error}") from None

    def _check(self) -> None:
        try:
            check_name("table", self.table)
        except Usage as error:
            raise AirflowFailException(str(error)) from None
        if self.until not in _STEPS:
            raise AirflowFailException(f"until={self.until!r}: expected one of {', '.join(_STEPS)}")
        if self.generations and self.until == DUE:
            raise AirflowFailException("generations: not for until='due'")
        needs_target = self.until != DUE and not self.generations
        if self.mode == "reschedule" and not self.deferrable and needs_target:
            # Every reschedule starts a fresh process, which would not know the target.
            raise AirflowFailException(
                f"mode='reschedule' with until={self.until!r} needs generations=…; "
                "or use deferrable=True"
            )


class MemWalBacklogTrigger(BaseTrigger):
    """Fires once: {"seen"} when the wait is over, {"error"} if it can never be over.

    Only the connection's name is sent to the triggerer, none of its contents.
    """

    def __init__(
        self,
        *,
        table: str,
        until: str,
        generations: Mapping[str, int],
        conn_id: str,
        poll_seconds: float,
    ) -> None:
        super().__init__()
        self.table = table
        self.until = until
        self.generations = dict(generations)
        self.conn_id = conn_id
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the triggerer needs to recreate it."""
        fields = ("table", "until", "generations", "conn_id", "poll_seconds")
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {name: getattr(self, name) for name in fields},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Keep looking until the wait is over; first pause, as the task has just looked."""
        jobs = await MemWalHook(self.conn_id).environment_async()
        await asyncio.sleep(max(self.poll_seconds, SETTLE_SECONDS))
        while True:
            try:
                over, seen = await check_progress(jobs, self.table, self.until, self.generations)
            except NoAnswer as error:
                self.log.warning("%s; looking again later", error)
            except TableBroken as error:
                yield TriggerEvent({"error": str(error)})
                return
            else:
                self.generations = self.generations or seen.get("target") or {}
                if over:
                    yield TriggerEvent({"seen": seen})
                    return
            await asyncio.sleep(self.poll_seconds)
