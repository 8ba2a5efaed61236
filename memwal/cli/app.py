"""The commands. Wiring and jobs live in `jobs/`; this is arguments and output."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from memwal import __version__
from memwal.cli import gc_pause
from memwal.cli.backfill import backfill
from memwal.cli.console import RunProgress, stderr, stdout
from memwal.cli.ingest import ingest
from memwal.cli.inspect import inspect_app
from memwal.cli.options import (
    BytesPerCommitMax,
    Debug,
    GenerationsPerCommitMax,
    JobFlags,
    Json,
    Master,
    OneTable,
    ReadFlags,
    Shards,
    Tables,
    UntilGeneration,
    with_flags,
)
from memwal.cli.output import Output, checked_engine, given_settings, parse_method
from memwal.cli.read import read
from memwal.cli.rescue import rescue
from memwal.cli.runs import runs, wait
from memwal.cli.upkeep import garbage, maintain
from memwal.config import environment_settings
from memwal.errors import Usage
from memwal.format.layout import parse_shard_id
from memwal.identity import DISTRIBUTION
from memwal.report import JobReport


def show_version(asked: bool) -> None:
    """Which memwal this is, and the libraries it would run with; imports none of them."""
    if not asked:
        return
    stdout().print(f"memwal {__version__} ({DISTRIBUTION})", highlight=False)
    for library in ("pylance", "pyspark"):
        try:
            found = version(library)
        except PackageNotFoundError:
            found = "not installed"
        stdout().print(f"{library} {found}", highlight=False)
    raise typer.Exit


app = typer.Typer(
    name="memwal",
    help="Keeps the MemWAL write tier of Lance tables healthy.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(inspect_app, name="inspect")
app.command()(backfill)
app.command()(garbage)
app.command()(ingest)
app.command()(maintain)
app.command()(rescue)
app.command()(runs)
app.command()(wait)
app.command()(read)
lease_app = typer.Typer(help="The table's lease.", no_args_is_help=True)
app.add_typer(lease_app, name="lease")


@app.callback()
def begin(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=show_version,
            is_eager=True,
            help="Show the versions of memwal, pylance and pyspark.",
        ),
    ] = False,
) -> None:
    """What stands before a command."""


@app.command()
@with_flags(ReadFlags)
def status(
    tables: Tables,
    *,
    flags: ReadFlags,
) -> None:
    """Show shards, pending generations, merge progress and index lag."""

    def work(progress: RunProgress) -> JobReport:
        # Imported late, here and below: lance alone takes longer to import than --help may take.
        from memwal.jobs.status.job import run_status
        from memwal.run.open import RunOptions

        return run_status(
            flags.run_options(
                RunOptions,
                tables,
            )
        )

    flags.output("status", tables).run(work)


@app.command()
@with_flags(JobFlags)
def merge(
    tables: Tables,
    shard: Shards = None,
    until_generation: UntilGeneration = None,
    generations_per_commit_max: GenerationsPerCommitMax = None,
    bytes_per_commit_max: BytesPerCommitMax = None,
    allow_index_join: Annotated[
        bool,
        typer.Option(
            "--allow-index-join",
            help="Probe the key's index where that costs less than a scan. Only if nobody else "
            "writes to the base table meanwhile.",
        ),
    ] = False,
    allow_holes: Annotated[
        bool, typer.Option("--allow-holes", help="Pass over missing generation numbers.")
    ] = False,
    allow_reinitialised: Annotated[
        bool,
        typer.Option(
            "--allow-reinitialised",
            help="Merge generations that are older than the table's MemWAL index.",
        ),
    ] = False,
    *,
    flags: JobFlags,
) -> None:
    """Fold flushed generations into the base table, oldest first."""

    def work(progress: RunProgress) -> JobReport:
        from memwal.jobs.merge.job import MergeOptions, run_merge
        from memwal.jobs.merge.plan import MergeRequest

        return run_merge(
            flags.run_options(
                MergeOptions,
                tables,
                shards=[parse_shard_id(s) for s in shard or []],
                request=MergeRequest(
                    until_generation=until_generation,
                    holes_allowed=allow_holes,
                    reinitialised_allowed=allow_reinitialised,
                ),
                limits=given_settings(
                    generations_per_commit_max=generations_per_commit_max,
                    bytes_per_commit_max=bytes_per_commit_max,
                    index_join_allowed=allow_index_join or None,
                ),
            ),
            progress,
        )

    flags.output("merge", tables).run(work)


@app.command()
def demo(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Default: a new temporary folder.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="auto|spark|local", help="Where the work runs (default: spark)."),
    ] = None,
    master: Master = None,
    debug: Debug = False,
    as_json: Json = False,
) -> None:
    """Make a real table with a live MemWAL, run the jobs on it, show before and after."""

    def work(progress: RunProgress) -> JobReport:
        from memwal.jobs.demo.job import run_demo

        gc_pause.resume()
        # With --json the story goes to stderr: stdout holds one document.
        shown = stderr() if as_json else stdout()
        told = environment_settings()
        return run_demo(
            folder,
            shown,
            progress,
            engine=checked_engine(engine) or told.get("engine", "spark"),
            master=master or told.get("master"),
        )

    Output("demo", as_json=as_json, debug=debug, shows=False).run(work)


@app.command()
@with_flags(JobFlags)
def snapshot(
    tables: Tables,
    *,
    flags: JobFlags,
) -> None:
    """Refresh the shard snapshot in the MemWAL index."""

    def work(progress: RunProgress) -> JobReport:
        from memwal.jobs.snapshot.job import run_snapshot
        from memwal.run.open import RunOptions

        return run_snapshot(
            flags.run_options(
                RunOptions,
                tables,
            ),
            progress,
        )

    flags.output("snapshot", tables).run(work)


@app.command("index-catchup")
@with_flags(JobFlags)
def index_catchup(
    tables: Tables,
    index: Annotated[
        list[str] | None, typer.Option("--index", metavar="NAME", help="Only these; repeatable.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method", metavar="auto|append|segments|retrain", help="Default: by cost and size."
        ),
    ] = "auto",
    append_rows_max: Annotated[
        int | None,
        typer.Option(
            "--append-rows-max",
            metavar="N",
            min=0,
            help="Above so many unindexed rows, segments are built side by side.",
        ),
    ] = None,
    *,
    flags: JobFlags,
) -> None:
    """Extend every index over what merging added, so that its progress is recorded."""

    def work(progress: RunProgress) -> JobReport:
        from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
        from memwal.jobs.index_catchup.plan import CatchupRequest

        return run_index_catchup(
            flags.run_options(
                IndexCatchupOptions,
                tables,
                request=CatchupRequest(names=tuple(index or ()), method=parse_method(method)),
                limits=given_settings(append_rows_max=append_rows_max),
            ),
            progress,
        )

    flags.output("index-catchup", tables).run(work)


@app.command()
@with_flags(JobFlags)
def compaction(
    tables: Tables,
    target_rows_per_fragment: Annotated[
        int | None,
        typer.Option(
            "--target-rows-per-fragment",
            metavar="N",
            min=1,
            help="Smaller fragments are put together (default: 1048576).",
        ),
    ] = None,
    tasks_max: Annotated[
        int | None,
        typer.Option(
            "--tasks-max",
            metavar="N",
            min=1,
            help="Rewrites in one run (default: 256).",
        ),
    ] = None,
    materialize_deletions_threshold: Annotated[
        float | None,
        typer.Option(
            "--materialize-deletions-threshold",
            metavar="FRACTION",
            min=0.0,
            max=1.0,
            help="Deleted part of a fragment from which on it is rewritten (default: 0.1).",
        ),
    ] = None,
    *,
    flags: JobFlags,
) -> None:
    """Rewrite the small fragments that merging leaves, and catch the indexes up again."""

    def work(progress: RunProgress) -> JobReport:
        from memwal.jobs.compaction.job import CompactionOptions, run_compaction

        return run_compaction(
            flags.run_options(
                CompactionOptions,
                tables,
                limits=given_settings(
                    target_rows_per_fragment=target_rows_per_fragment,
                    compaction_tasks_max=tasks_max,
                    materialize_deletions_threshold=materialize_deletions_threshold,
                ),
            ),
            progress,
        )

    flags.output("compaction", tables).run(work)


@app.command()
@with_flags(ReadFlags)
def verify(
    tables: Tables,
    *,
    flags: ReadFlags,
) -> None:
    """Check the invariants on a table at rest. Changes nothing; exit code 8 when one is broken."""

    def work(progress: RunProgress) -> JobReport:
        from memwal.jobs.verify.job import run_verify
        from memwal.run.open import RunOptions

        return run_verify(
            flags.run_options(
                RunOptions,
                tables,
            ),
            progress,
        )

    flags.output("verify", tables).run(work)


@lease_app.command("break")
@with_flags(ReadFlags)
def lease_break(
    table: OneTable,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept as a record.")],
    *,
    flags: ReadFlags,
) -> None:
    """Take a dead run's lease away; a run that is alive after all stops before its next commit."""

    def work(progress: RunProgress) -> JobReport:
        from memwal.jobs.lease.job import run_lease_break

        if not reason.strip():
            raise Usage("--reason must say something: it is the record of why the lease was broken")
        return run_lease_break(flags.tables([table])[0], reason)

    flags.output("lease break", [table]).run(work)
