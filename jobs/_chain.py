"""Several jobs on one table, one after the other: when to stop, and what they come to together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs._launch import Progress
from memwal.report import FAILED, HELD, REFUSED, TableReport, sum_up

# After one of these a table's later jobs would work on a state that somebody has to look at first.
# A partial outcome lets them go on: one sealed shard must not keep the others from being collected.
STOPPING = (FAILED, REFUSED, HELD)


def summed_fields(reports: Sequence[tuple[str, TableReport]]) -> dict[str, Any]:
    """The fields of one table's report (`MaintainTableReport`) out of its jobs' own reports."""
    outcome, code = sum_up(report for _, report in reports)
    versions = [r.version_before for _, r in reports if r.version_before is not None]
    after = [r.version_after for _, r in reports if r.version_after is not None]
    return {
        "outcome": outcome,
        "exit_code": code,
        "error": "; ".join(f"{name}: {r.error}" for name, r in reports if r.error) or None,
        "version_before": versions[0] if versions else None,
        "version_after": after[-1] if after else None,
        "jobs": tuple({"job": name, **r.model_dump(mode="json")} for name, r in reports),
    }


class Quiet:
    """The progress of a job inside another: the bar is the other's."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def start(self, what: str, total: int) -> None:
        """Not shown."""

    def done(self, count: int) -> None:
        """Not shown."""

    def say(self, text: str) -> None:
        """Not shown."""

    def trace(self, text: str) -> None:
        """A traceback of an error that nobody expected."""
        self._progress.trace(text)
