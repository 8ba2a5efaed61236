"""`memwal compaction`."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.flags import Job, JobFlags, command
from memwal.cli.options import Tables
from memwal.config import make_settings

TargetRowsPerFragment = Annotated[
    int | None,
    typer.Option(
        "--target-rows-per-fragment",
        metavar="N",
        min=1,
        help="Smaller fragments are combined (default: 1048576).",
    ),
]
TasksMax = Annotated[
    int | None,
    typer.Option("--tasks-max", metavar="N", min=1, help="Rewrites in one run (default: 256)."),
]
DeletionsThreshold = Annotated[
    float | None,
    typer.Option(
        "--materialize-deletions-threshold",
        metavar="FRACTION",
        min=0.0,
        max=1.0,
        help="Rewrite fragments with at least this part deleted (default: 0.1).",
    ),
]


@command(JobFlags)
def compaction(
    tables: Tables,
    target_rows_per_fragment: TargetRowsPerFragment = None,
    tasks_max: TasksMax = None,
    materialize_deletions_threshold: DeletionsThreshold = None,
    *,
    flags: JobFlags,
) -> Job:
    """Rewrite the small fragments that merging leaves.

    Indexes are caught up before and after.
    """
    from memwal.jobs.compaction.job import CompactionOptions, run_compaction

    return flags.job(
        run_compaction,
        CompactionOptions,
        tables,
        limits=make_settings(
            target_rows_per_fragment=target_rows_per_fragment,
            compaction_tasks_max=tasks_max,
            materialize_deletions_threshold=materialize_deletions_threshold,
        ),
    )
