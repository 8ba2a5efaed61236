"""`memwal status`."""

from __future__ import annotations

from memwal.cli.flags import ReadFlags, command
from memwal.cli.options import Consistency, Tables
from memwal.read.plan.request import parse_consistency
from memwal.report import JobReport


@command()
def status(tables: Tables, *, consistency: Consistency = "latest", flags: ReadFlags) -> JobReport:
    """Show shards, pending generations, merge progress and index lag."""
    # Imported late, as in every command: lance alone takes longer to import than --help may take.
    from memwal.jobs.status.job import run_status
    from memwal.run.options import RunOptions

    asked = parse_consistency(consistency)
    return run_status(flags.run_options(RunOptions, tables), consistency=asked)
