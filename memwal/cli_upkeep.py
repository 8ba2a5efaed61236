"""`memwal garbage` and `memwal maintain`: the commands that may delete."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.config import resolve_table
from memwal.console import RunProgress
from memwal.options import (
    ConfigFile,
    Debug,
    DryRun,
    EngineOption,
    Json,
    Master,
    NoLease,
    Report,
    StorageOption,
    Tables,
    Untested,
)
from memwal.output import Output, checked_engine, load, parse_duration
from memwal.plan.garbage_model import GarbageLimits
from memwal.report import JobReport

Retention = Annotated[
    str | None,
    typer.Option(
        "--retention",
        metavar="7d",
        help="With --execute: first expire table versions that are older. Default: none.",
    ),
]
Grace = Annotated[
    str, typer.Option("--grace", metavar="1h", help="How long unused things are kept for readers.")
]
Wal = Annotated[bool, typer.Option("--wal/--no-wal", help="Also delete covered WAL entries.")]
Execute = Annotated[
    bool, typer.Option("--execute", help="Drop and delete garbage; without it, only list.")
]
ShortRetention = Annotated[
    bool,
    typer.Option(
        "--allow-short-retention",
        help="Permit a retention under a day and a grace under ten minutes.",
    ),
]
AdoptOrphans = Annotated[
    bool,
    typer.Option(
        "--adopt-orphans", help="Also delete the shards of a table whose MemWAL index is gone."
    ),
]


def garbage(
    tables: Tables,
    retention: Retention = None,
    grace: Grace = "1h",
    wal: Wal = False,
    execute: Execute = False,
    allow_short_retention: ShortRetention = False,
    adopt_orphans: AdoptOrphans = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    config: ConfigFile = None,
    storage_option: StorageOption = None,
    engine: EngineOption = None,
    master: Master = None,
    no_lease: NoLease = False,
    debug: Debug = False,
    allow_untested_lance: Untested = False,
    report: Report = None,
) -> None:
    """List, or with --execute delete, what is provably unused: generations, WAL, orphans."""

    def work(progress: RunProgress) -> JobReport:
        from jobs._garbage import GarbageOptions, run_garbage

        loaded, options = load(config, storage_option)
        return run_garbage(
            GarbageOptions(
                tables=[resolve_table(t, loaded, options) for t in tables],
                engine=checked_engine(engine),
                master=master,
                dry_run=dry_run,
                lease=not no_lease,
                untested_lance_allowed=allow_untested_lance,
                execute=execute,
                retention_seconds=(
                    None if retention is None else parse_duration(retention, "--retention")
                ),
                short_allowed=allow_short_retention,
                limits=GarbageLimits(
                    grace_seconds=parse_duration(grace, "--grace"),
                    wal=wal,
                    adopt_orphans=adopt_orphans,
                ),
            ),
            progress,
        )

    Output("garbage", as_json=as_json, debug=debug, report=report).run(work)


def maintain(
    tables: Tables,
    compaction: Annotated[
        bool, typer.Option("--compaction", help="Also rewrite small fragments.")
    ] = False,
    retention: Retention = None,
    grace: Grace = "1h",
    wal: Wal = False,
    execute: Execute = False,
    allow_short_retention: ShortRetention = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    config: ConfigFile = None,
    storage_option: StorageOption = None,
    engine: EngineOption = None,
    master: Master = None,
    no_lease: NoLease = False,
    debug: Debug = False,
    allow_untested_lance: Untested = False,
    report: Report = None,
) -> None:
    """Merge, catch indexes up, refresh the snapshot, list garbage (delete it with --execute)."""

    def work(progress: RunProgress) -> JobReport:
        from jobs._maintain import MaintainOptions, run_maintain

        loaded, options = load(config, storage_option)
        return run_maintain(
            MaintainOptions(
                tables=[resolve_table(t, loaded, options) for t in tables],
                engine=checked_engine(engine),
                master=master,
                dry_run=dry_run,
                lease=not no_lease,
                untested_lance_allowed=allow_untested_lance,
                compaction=compaction,
                execute=execute,
                retention_seconds=(
                    None if retention is None else parse_duration(retention, "--retention")
                ),
                short_allowed=allow_short_retention,
                garbage=GarbageLimits(grace_seconds=parse_duration(grace, "--grace"), wal=wal),
            ),
            progress,
        )

    Output("maintain", as_json=as_json, debug=debug, report=report).run(work)
