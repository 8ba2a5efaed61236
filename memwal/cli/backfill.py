"""`memwal backfill`: many tables in one run."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.flags import Job, JobFlags, command
from memwal.cli.options import (
    BytesPerCommitMax,
    GenerationsPerCommitMax,
    Shards,
    Tables,
    UntilGeneration,
)
from memwal.cli.output import Output
from memwal.cli.parse import parse_duration, parse_shards, parse_size
from memwal.config import make_settings
from memwal.errors import Usage

Jobs = Annotated[str, typer.Option("--jobs", metavar="merge,index-catchup", help="Jobs to run.")]
Concurrency = Annotated[
    int,
    typer.Option(
        "--concurrency", metavar="N", min=1, max=256, help="Tables processed in parallel."
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option(
        "--deadline", metavar="2h", help="After this long start no job; running ones finish."
    ),
]


@command(JobFlags)
def backfill(
    tables: Tables,
    *,
    jobs: Jobs = "merge,index-catchup",
    shard: Shards = None,
    until_generation: UntilGeneration = None,
    generations_per_commit_max: GenerationsPerCommitMax = None,
    bytes_per_commit_max: BytesPerCommitMax = None,
    concurrency: Concurrency = 4,
    deadline: Deadline = None,
    flags: JobFlags,
    results: Output,
) -> Job:
    """Merge and index-catchup on many tables, largest first.

    Run it again after a failure, a kill or a deadline: it continues with what is left. --report is
    kept up to date while it runs.
    """
    from memwal.jobs.backfill.job import BackfillOptions, run_backfill
    from memwal.jobs.merge.request import MergeRequest

    return flags.job(
        run_backfill,
        BackfillOptions,
        tables,
        jobs=_parse_jobs(jobs),
        shards=parse_shards(shard),
        request=MergeRequest(until_generation=until_generation),
        limits=make_settings(
            generations_per_commit_max=generations_per_commit_max,
            bytes_per_commit_max=parse_size(bytes_per_commit_max, "--bytes-per-commit-max"),
        ),
        concurrency=concurrency,
        deadline_seconds=None if deadline is None else parse_duration(deadline, "--deadline"),
        so_far=results.so_far,
    )


def _parse_jobs(text: str) -> tuple[str, ...]:
    """Return the jobs that `--jobs` names, in the order in which they run. Raises Usage."""
    from memwal.jobs.backfill.plan import ORDER

    named = [name.strip() for name in text.split(",")]
    for name in named:
        if name not in ORDER:
            raise Usage(f"--jobs {name!r}: expected {', '.join(ORDER)}")
    return tuple(job for job in ORDER if job in named)
