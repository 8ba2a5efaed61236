"""`memwal doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.flags import Job, ReadFlags, command

Place = Annotated[
    str,
    typer.Argument(metavar="URI|TABLE", help="A table, or any folder of a store."),
]


@command()
def doctor(table: Place, *, flags: ReadFlags) -> Job:
    """Try whether a store keeps what MemWAL writers and jobs need."""
    from memwal.jobs.doctor.job import run_doctor
    from memwal.run.options import RunOptions

    return flags.job(run_doctor, RunOptions, table)
