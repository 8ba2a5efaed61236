"""`memwal merge`."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.flags import Job, JobFlags, command
from memwal.cli.options import (
    AllowHoles,
    AllowReinitialised,
    BytesPerCommitMax,
    GenerationsPerCommitMax,
    Shards,
    Tables,
    UntilGeneration,
)
from memwal.cli.parse import parse_shards, parse_size
from memwal.config import make_settings

AllowIndexJoin = Annotated[
    bool,
    typer.Option(
        "--allow-index-join",
        help="Probe the key's index where that costs less than a scan. Only if nobody else "
        "writes to the base table meanwhile.",
    ),
]


@command(JobFlags)
def merge(
    tables: Tables,
    shard: Shards = None,
    until_generation: UntilGeneration = None,
    generations_per_commit_max: GenerationsPerCommitMax = None,
    bytes_per_commit_max: BytesPerCommitMax = None,
    allow_index_join: AllowIndexJoin = False,
    allow_holes: AllowHoles = False,
    allow_reinitialised: AllowReinitialised = False,
    *,
    flags: JobFlags,
) -> Job:
    """Fold flushed generations into the base table, oldest first."""
    from memwal.jobs.merge.job import MergeOptions, run_merge
    from memwal.jobs.merge.request import MergeRequest

    return flags.job(
        run_merge,
        MergeOptions,
        tables,
        shards=parse_shards(shard),
        request=MergeRequest(
            until_generation=until_generation,
            holes_allowed=allow_holes,
            reinitialised_allowed=allow_reinitialised,
        ),
        limits=make_settings(
            generations_per_commit_max=generations_per_commit_max,
            bytes_per_commit_max=parse_size(bytes_per_commit_max, "--bytes-per-commit-max"),
            index_join_allowed=allow_index_join or None,
        ),
    )
