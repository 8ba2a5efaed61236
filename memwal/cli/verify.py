"""`memwal verify`."""

from __future__ import annotations

from memwal.cli.flags import Job, ReadFlags, command
from memwal.cli.options import Tables


@command()
def verify(tables: Tables, *, flags: ReadFlags) -> Job:
    """Check the invariants on a table at rest. Changes nothing; exit code 8 when one is broken."""
    from memwal.jobs.verify.job import run_verify
    from memwal.run.options import RunOptions

    return flags.job(run_verify, RunOptions, tables)
