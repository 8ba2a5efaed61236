"""`memwal snapshot`."""

from __future__ import annotations

from memwal.cli.flags import Job, JobFlags, command
from memwal.cli.options import Tables


@command(JobFlags)
def snapshot(tables: Tables, *, flags: JobFlags) -> Job:
    """Refresh the shard snapshot in the MemWAL index."""
    from memwal.jobs.snapshot.job import run_snapshot
    from memwal.run.options import RunOptions

    return flags.job(run_snapshot, RunOptions, tables)
