"""Waits for a table: until it is due, or until its write tier got somewhere."""

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

from memwal.errors import Usage
from memwal_airflow.asked import checked_name, checked_shard
from memwal_airflow.command import JobsEnvironment
from memwal_airflow.hook import MemWalHook
from memwal_airflow.look import Answer, NoAnswer, look, tables_in
from memwal_airflow.page_links import MemWalPageLink

if TYPE_CHECKING:
    from airflow.sdk import Context

DUE = "due"
_STEPS = (DUE, "merged", "indexed", "collected")
_LOOK_SECONDS_MAX = 300.0
# Exit codes that waiting does not mend: usage, guard, unsupported, corruption.
_BROKEN = (2, 5, 7, 8)


class TableBroken(Exception):
    """The table can't be read, so that waiting on does not help."""


async def reached(
    jobs: JobsEnvironment, table: str, until: str, generations: Mapping[str, int]
) -> tuple[bool, dict[str, Any]]:
    """One look. Returns whether the wait is over, and what was seen: {"due_reasons"} or
    {"target", "missing"}. Raises NoAnswer, TableBroken.
    """
    if until == DUE:
        found = _only(await look(jobs, "status", [table], seconds_max=_LOOK_SECONDS_MAX), table)
        return bool(found.get("due")), {"due_reasons": list(found.get("due_reasons") or [])[:20]}
    wanted = [f"--generation={shard}={n}" for shard, n in generations.items()]
    options = [f"--until={until}", "--timeout=0s", *wanted]
    found = _only(await look(jobs, "wait", [table], options, seconds_max=_LOOK_SECONDS_MAX), table)
    seen = {"target": found.get("target") or {}, "missing": found.get("missing") or {}}
    return bool(found.get("reached")), seen


def _only(answer: Answer, table: str) -> Mapping[str, Any]:
    tables = tables_in(answer.document)
    found = tables[0] if tables else answer.document
    if answer.exit_code in _BROKEN:
        raise TableBroken(f"{table}: {found.get('error')}")
    if not tables or found.get("outcome") in ("failed", "refused"):
        raise NoAnswer(f"{table}: {found.get('error') or 'no answer'}")
    return found


class MemWalBacklogSensor(BaseSensorOperator):
    """Waits until a table is due for a merge, or until merging, indexing or collecting got as far.

    :param table: a name in memwal.toml, or an address (templated)
    :param until: due, merged, indexed or collected (templated)
    :param generations: shard -> generation that has to be reached; None: each shard's highest
        flushed generation at the first look (templated, also as a JSON text). Not for `due`
    :param conn_id: a `memwal` connection
    :param deferrable: wait in the triggerer

    Returns what the last look saw. A store that does not answer is asked again at the next look; a
    table that is broken fails the sensor.
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
        super().__init__(**kwargs)
        self.table = table
        self.until = until
        self.generations = generations
        self.conn_id = conn_id
        self.deferrable = deferrable

    @property
    def tables(self) -> str:
        """For the link to the page."""
        return self.table

    def execute(self, context: Context) -> Any:
        """Wait here or in the triggerer."""
        self._check()
        if not self.deferrable:
            return super().execute(context)
        # The first look is made here: it may be enough, and it fixes the aim, which a restart of
        # the triggerer would forget.
        first = self.poke(context)
        if first.is_done:
            return first.xcom_value
        return self.defer(
            trigger=MemWalBacklogTrigger(
                table=self.table,
                until=self.until,
                generations=self._wanted(),
                conn_id=self.conn_id,
                poll_seconds=float(self.poke_interval),
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=float(self.timeout)),
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Go on after the trigger saw it."""
        if event.get("error"):
            raise AirflowFailException(event["error"])
        return event["seen"]

    def poke(self, context: Context) -> PokeReturnValue:
        """One look."""
        try:
            jobs = MemWalHook(self.conn_id).environment()
            over, seen = asyncio.run(reached(jobs, self.table, self.until, self._wanted()))
        except NoAnswer as error:
            self.log.warning("%s; looking again later", error)
            return PokeReturnValue(is_done=False)
        except TableBroken as error:
            raise AirflowFailException(str(error)) from None
        # What the first look aims at stays the aim: later flushes would move it away for ever.
        self.generations = self._wanted() or seen.get("target")
        self.log.info("%s, until %s: %s", self.table, self.until, seen)
        return PokeReturnValue(is_done=over, xcom_value=seen)

    def _wanted(self) -> dict[str, int]:
        given = self.generations or {}
        try:
            parsed = json.loads(given) if isinstance(given, str) else given
            return {checked_shard(shard): int(number) for shard, number in parsed.items()}
        except (ValueError, AttributeError, TypeError):
            raise AirflowFailException("generations: expected shard -> number") from None
        except Usage as error:
            raise AirflowFailException(f"generations: {error}") from None

    def _check(self) -> None:
        try:
            checked_name("table", self.table)
        except Usage as error:
            raise AirflowFailException(str(error)) from None
        if self.until not in _STEPS:
            raise AirflowFailException(f"until={self.until!r}: expected one of {', '.join(_STEPS)}")
        if self.generations and self.until == DUE:
            raise AirflowFailException("generations: not for until='due'")
        if self.mode == "reschedule" and not self.deferrable and self._aims_at_now():
            # Every reschedule is a fresh process, which would forget the aim.
            raise AirflowFailException(
                f"mode='reschedule' with until={self.until!r} needs generations=…; "
                "or use deferrable=True"
            )

    def _aims_at_now(self) -> bool:
        return self.until != DUE and not self.generations


class MemWalBacklogTrigger(BaseTrigger):
    """Fires once: {"seen"} when the wait is over, {"error"} when it never can be.

    Only the connection's name travels to the triggerer, nothing of what is in it.
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
        """How the triggerer makes it again."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "table": self.table,
                "until": self.until,
                "generations": self.generations,
                "conn_id": self.conn_id,
                "poll_seconds": self.poll_seconds,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until it is so."""
        jobs = await MemWalHook(self.conn_id).environment_async()
        while True:
            try:
                over, seen = await reached(jobs, self.table, self.until, self.generations)
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
