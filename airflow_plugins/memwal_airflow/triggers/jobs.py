"""Waits in Airflow's triggerer for a job's process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from memwal_airflow.hooks.memwal import MemWalHook
from memwal_airflow.hooks.redaction import hide_secrets
from memwal_airflow.operators.outcomes import judge, summarize
from memwal_airflow.processes.submission import GRACE_SECONDS, Submission

SETTLE_SECONDS = 10.0
"""No trigger fires, and no task is rescheduled, sooner than this. Airflow's scheduler learns late
that a task's process has ended in order to wait; if the task runs again before that, the scheduler
takes it for dead, and a try is lost."""


JOB_LOG = "The job's log"


@contextmanager
def log_group(log: Any, name: str) -> Iterator[None]:
    """Have Airflow's page fold the lines logged in between into a group of this name."""
    log.info("::group::%s", name)
    try:
        yield
    finally:
        log.info("::endgroup::")


class MemWalJobTrigger(BaseTrigger):
    """Fires once, when the job in `folder` is over.

    The event is {"folder", "exit_code", "why", "verdict", "text", "summary"}. The job's log is
    copied to the task's log while it runs, from `log_position` on. If the triggerer restarts, only
    this copying starts over.
    """

    def __init__(
        self, *, folder: str, conn_id: str, poll_seconds: float = 2.0, log_position: int = 0
    ) -> None:
        super().__init__()
        self.folder = folder
        self.conn_id = conn_id
        self.poll_seconds = poll_seconds
        self.log_position = log_position

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the triggerer needs to recreate it."""
        names = ("folder", "conn_id", "poll_seconds", "log_position")
        fields = {name: getattr(self, name) for name in names}
        return f"{type(self).__module__}.{type(self).__qualname__}", fields

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch the job until it ends."""
        began = time.monotonic()
        submission = Submission(self.folder)
        submission.log_position = self.log_position
        secrets = await self._secrets()
        with log_group(self.log, JOB_LOG):
            while True:
                await asyncio.to_thread(submission.mark_watched)
                ended, lines = await asyncio.to_thread(submission.follow)
                for line in lines:
                    self.log.info(hide_secrets(line, secrets))
                if ended is not None:
                    break
                await asyncio.sleep(self.poll_seconds)
        report = await asyncio.to_thread(submission.read_report)
        last_line = await asyncio.to_thread(submission.read_last_line)
        decision, text = judge(ended, report, last_line, secrets)
        event = {"verdict": decision.value, "text": text, "summary": summarize(report, secrets)}
        await asyncio.sleep(began + SETTLE_SECONDS - time.monotonic())
        yield TriggerEvent({"folder": self.folder, **asdict(ended), **event})

    async def _secrets(self) -> list[str]:
        # A job keeps its secrets to itself; in case one does not, this process must know them.
        try:
            return (await MemWalHook(self.conn_id).environment_async()).secrets
        except Exception as error:
            self.log.warning("connection %s can't be read: %s", self.conn_id, error)
            return []

    async def on_kill(self) -> None:
        """End the job, because somebody cleared or marked the task.

        Airflow may also call this when another triggerer has taken over the trigger. The job is
        then ended and tried again, which loses only time.
        """
        submission = Submission(self.folder)
        await asyncio.to_thread(submission.cancel)
        waited = 0.0
        while waited < GRACE_SECONDS and await asyncio.to_thread(submission.read_end) is None:
            await asyncio.sleep(0.5)
            waited += 0.5
