"""What one may ask of a chain of jobs: `maintain`, `backfill` and `quiesce`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from memwal.config import CompactionMode
from memwal.jobs.garbage.request import DeletingRequest, Retention
from memwal.jobs.merge.request import MergeBounds
from memwal.jobs.rescue.request import IDLE_SECONDS, Idle, Yes
from memwal.options import Option

BackfillJob = Literal["merge", "index-catchup"]


@dataclass(frozen=True, kw_only=True)
class MaintainRequest(DeletingRequest):
    """All jobs in a row."""

    compaction: Annotated[
        CompactionMode | None,
        Option(
            meaning="Also rewrite small fragments; with auto, where advised. Default: as "
            "configured, else never."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BackfillRequest(MergeBounds):
    """A merge and an index catch-up of many tables."""

    jobs: Annotated[
        Sequence[BackfillJob],
        Option(
            meaning="Jobs to run, always in the order merge, index-catchup.",
            metavar="merge,index-catchup",
        ),
    ] = ("merge", "index-catchup")
    concurrency: Annotated[
        int,
        Option(meaning="Tables processed in parallel.", least=1, most=256, form="Concurrency"),
    ] = 4
    deadline_seconds: Annotated[
        float | None,
        Option(
            meaning="After this long start no job; running ones finish.",
            metavar="2h",
            form="Deadline",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class QuiesceRequest(Retention):
    """How to bring a table to rest: which writers count as gone, and what garbage may go."""

    idle_seconds: Idle = IDLE_SECONDS
    yes: Yes = False
