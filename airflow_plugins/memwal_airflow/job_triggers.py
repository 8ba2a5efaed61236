"""Waits in Airflow's triggerer for a job's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from memwal_airflow.hook import MemWalHook
from memwal_airflow.outcomes import judge, summarize
from memwal_airflow.redaction import hide_secrets
from memwal_airflow.submission import GRACE_SECONDS, Submission


class MemWalJobTrigger(BaseTrigger):
    """Fires once, when the job in `folder` is over.

    The event: {"folder", "exit_code", "why", "verdict", "text", "summary"}. The job's log goes to
    the task's log while it runs. A restart of the triggerer begins the log again, and nothing else.
    """

    def __init__(self, *, folder: str, conn_id: str, poll_seconds: float = 2.0) -> None:
        super().__init__()
        self.folder = folder
        self.conn_id = conn_id
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """How the triggerer makes it again."""
        fields = {"folder": self.folder, "conn_id": self.conn_id, "poll_seconds": self.poll_seconds}
        return f"{type(self).__module__}.{type(self).__qualname__}", fields

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch until the end."""
        submission = Submission(self.folder)
        secrets = await self._secrets()
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
        yield TriggerEvent({"folder": self.folder, **asdict(ended), **event})

    async def _secrets(self) -> list[str]:
        # A job keeps its secrets to itself; if one did not, this process has to know what to hide.
        try:
            return (await MemWalHook(self.conn_id).environment_async()).secrets
        except Exception as error:
            self.log.warning("connection %s can't be read: %s", self.conn_id, error)
            return []

    async def on_kill(self) -> None:
        """The task was cleared or marked by somebody: the job ends too.

        Airflow may call this as well when another triggerer has taken the trigger over: then the
        job is ended and tried again, which loses time and nothing else.
        """
        submission = Submission(self.folder)
        await asyncio.to_thread(submission.cancel)
        waited = 0.0
        while waited < GRACE_SECONDS and await asyncio.to_thread(submission.read_end) is None:
            await asyncio.sleep(0.5)
            waited += 0.5
