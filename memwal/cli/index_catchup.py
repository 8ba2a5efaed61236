"""`memwal index-catchup`."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.flags import Job, JobFlags, command
from memwal.cli.options import Tables
from memwal.cli.parse import parse_method
from memwal.config import make_settings

Indexes = Annotated[
    list[str] | None, typer.Option("--index", metavar="NAME", help="Only these; repeatable.")
]
MethodName = Annotated[
    str,
    typer.Option(
        "--method", metavar="auto|append|segments|retrain", help="Default: by cost and size."
    ),
]
AppendRowsMax = Annotated[
    int | None,
    typer.Option(
        "--append-rows-max",
        metavar="N",
        min=0,
        help="With more unindexed rows, build segments in parallel.",
    ),
]


@command(JobFlags)
def index_catchup(
    tables: Tables,
    index: Indexes = None,
    method: MethodName = "auto",
    append_rows_max: AppendRowsMax = None,
    *,
    flags: JobFlags,
) -> Job:
    """Extend every index over the rows that merging added."""
    from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
    from memwal.jobs.index_catchup.request import CatchupRequest

    return flags.job(
        run_index_catchup,
        IndexCatchupOptions,
        tables,
        request=CatchupRequest(names=tuple(index or ()), method=parse_method(method)),
        limits=make_settings(append_rows_max=append_rows_max),
    )
