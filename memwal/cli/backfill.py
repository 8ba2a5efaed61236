"""`memwal backfill`: many tables in one run."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.console import RunProgress
from memwal.cli.options import (
    BytesPerCommitMax,
    GenerationsPerCommitMax,
    JobFlags,
    Shards,
    Tables,
    UntilGeneration,
    with_flags,
)
from memwal.cli.output import given_settings, parse_duration
from memwal.errors import Usage
from memwal.format.layout import parse_shard_id
from memwal.report import JobReport

Jobs = Annotated[
    str, typer.Option("--jobs", metavar="merge,index-catchup", help="One of them, or both.")
]
Concurrency = Annotated[
    int, typer.Option("--concurrency", metavar="N", min=1, max=256, help="Tables side by side.")
]
Deadline = Annotated[
    str | None,
    typer.Option(
        "--deadline", metavar="2h", help="Begin nothing after so long; what runs is finished."
    ),
]


def parse_jobs(text: str) -> tuple[str, ...]:
    """The jobs that are named. Raises Usage."""
    from memwal.jobs.backfill.job import ORDER

    named = [name.strip() for name in text.split(",")]
    for name in named:
        if name not in ORDER:
            raise Usage(f"--jobs {name!r}: expected {', '.join(ORDER)}")
    return tuple(job for job in ORDER if job in named)


@with_flags(JobFlags)
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
) -> None:
    """Merge many tables and catch their indexes up, the largest backlog first.

    Run it again after a failure, a kill or a deadline: it goes on with what is left. --report is
    kept up to date while it runs.
    """
    output = flags.output("backfill", tables)

    def work(progress: RunProgress) -> JobReport:
        from memwal.jobs.backfill.job import BackfillOptions, run_backfill
        from memwal.jobs.merge.plan import MergeRequest

        return run_backfill(
            flags.run_options(
                BackfillOptions,
                tables,
                jobs=parse_jobs(jobs),
                shards=[parse_shard_id(s) for s in shard or []],
                request=MergeRequest(until_generation=until_generation),
                limits=given_settings(
                    generations_per_commit_max=generations_per_commit_max,
                    bytes_per_commit_max=bytes_per_commit_max,
                ),
                concurrency=concurrency,
                deadline_seconds=(
                    None if deadline is None else parse_duration(deadline, "--deadline")
                ),
                so_far=output.so_far,
            ),
            progress,
        )

    output.run(work)
