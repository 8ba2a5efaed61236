"""Waits in Airflow's triggerer, for a job that runs there or for a table."""

from __future__ import annotations

import asyncio
import contextvars
from abc import abstractmethod
from collections.abc import AsyncIterator
from functools import partial
from time import monotonic
from typing import Any

from airflow.sdk import BaseHook
from airflow.triggers.base import BaseTrigger, TriggerEvent

from memwal_airflow.hooks.memwal import MemWalHook
from memwal_airflow.hooks.spark_connection import read_spark_target
from memwal_airflow.operators.runs import JobOrder, run_job
from memwal_airflow.processes.process import run_apart

SETTLE_SECONDS = 10.0
"""No trigger fires, and no task is rescheduled, sooner than this. Airflow's scheduler learns late
that a task's process has ended in order to wait; if the task runs again before that, the scheduler
takes it for dead, and a try is lost."""


class MemWalTrigger(BaseTrigger):
    """Looks every `poll_seconds` until there is an event; its fields travel as they are."""

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self.fields = fields

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the triggerer needs to recreate it."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self.fields

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is an event, and fire once."""
        began = monotonic()
        while (event := await self.look()) is None:
            await asyncio.sleep(self.fields["poll_seconds"])
        await asyncio.sleep(began + SETTLE_SECONDS - monotonic())
        yield TriggerEvent(event)

    @abstractmethod
    async def look(self) -> dict[str, Any] | None:
        """Look once; returns the event, or None if it is too early."""


class MemWalJobTrigger(MemWalTrigger):
    """Runs a job here, in the triggerer, and fires when it is over (see `run_job`).

    The job ends when the task is killed, cleared or out of time, or the triggerer ends; another
    triggerer, or the next try, runs it again.
    """

    async def look(self) -> dict[str, Any]:
        """Run the job."""
        order = JobOrder(**self.fields)
        jobs = await MemWalHook(order.conn_id).environment_async()
        target = None
        if order.spark_conn_id:
            target = read_spark_target(await BaseHook.aget_connection(order.spark_conn_id))
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()

        def say(line: str) -> None:
            loop.call_soon_threadsafe(partial(self.log.info, line), context=context)

        return await run_apart(lambda runner: run_job(order, jobs, target, runner, say))
