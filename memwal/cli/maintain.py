"""`memwal maintain`."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.flags import Job, command
from memwal.cli.garbage import DeletingFlags
from memwal.cli.options import Tables

Compaction = Annotated[bool, typer.Option("--compaction", help="Also rewrite small fragments.")]


@command(DeletingFlags)
def maintain(
    tables: Tables,
    *,
    compaction: Compaction = False,
    flags: DeletingFlags,
) -> Job:
    """Merge, index-catchup, snapshot and garbage, in this order.

    Garbage is only listed without --execute.
    """
    from memwal.jobs.maintain.job import MaintainOptions, run_maintain

    options = flags.garbage_options()
    return flags.job(run_maintain, MaintainOptions, tables, compaction=compaction, **options)
