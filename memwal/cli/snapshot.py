"""`memwal snapshot`."""

from __future__ import annotations

from memwal.cli.console import RunProgress
from memwal.cli.flags import JobFlags, command
from memwal.cli.options import Tables
from memwal.report import JobReport


@command(JobFlags)
def snapshot(tables: Tables, *, flags: JobFlags, progress: RunProgress) -> JobReport:
    """Refresh the shard snapshot in the MemWAL index."""
    from memwal.jobs.snapshot.job import run_snapshot
    from memwal.run.options import RunOptions

    return run_snapshot(flags.run_options(RunOptions, tables), progress)
