"""What one may ask of a backfill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from memwal.jobs.merge.request import MergeBounds
from memwal.options import Option

BackfillJob = Literal["merge", "index-catchup"]


@dataclass(frozen=True, kw_only=True)
class BackfillRequest(MergeBounds):
    """A merge and an index catch-up of many tables."""

    jobs: Annotated[
        Sequence[BackfillJob],
        Option(meaning="Jobs to run, in this order.", metavar="merge,index-catchup"),
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
