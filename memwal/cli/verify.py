"""`memwal verify`."""

from __future__ import annotations

from memwal.cli.console import RunProgress
from memwal.cli.flags import ReadFlags, command
from memwal.cli.options import Tables
from memwal.report import JobReport


@command()
def verify(tables: Tables, *, flags: ReadFlags, progress: RunProgress) -> JobReport:
    """Check the invariants on a table at rest. Changes nothing; exit code 8 when one is broken."""
    from memwal.jobs.verify.job import run_verify
    from memwal.run.options import RunOptions

    return run_verify(flags.run_options(RunOptions, tables), progress)
