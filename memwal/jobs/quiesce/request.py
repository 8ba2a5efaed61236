"""What one may ask of `quiesce`."""

from __future__ import annotations

from dataclasses import dataclass

from memwal.jobs.garbage.request import Retention
from memwal.jobs.rescue.request import IDLE_SECONDS, Idle, Yes


@dataclass(frozen=True, kw_only=True)
class QuiesceRequest(Retention):
    """How to bring a table to rest: which writers count as gone, and what garbage may go."""

    idle_seconds: Idle = IDLE_SECONDS
    yes: Yes = False
