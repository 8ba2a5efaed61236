"""The arguments and options that several commands share, each declared once."""

from __future__ import annotations

from typing import Annotated

import typer

Tables = Annotated[
    list[str],
    typer.Argument(
        metavar="TABLE...",
        help="Path, address (s3, gs, az), or name in the config file; 'a_*' is every name that "
        "begins so. NAMESPACE:schema.table is a name in a Lance namespace.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="Every table of the configuration.")]
OneTable = Annotated[
    str,
    typer.Argument(metavar="TABLE", help="Path, address (s3, gs, az), or name in the config file."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="Default: ./memwal.toml if present.")
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="K=V",
        help="As pylance takes them; repeatable. Beats MEMWAL_STORAGE_OPTIONS (JSON), where "
        "secrets belong: other users of this host see a command line.",
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="auto|spark|local",
        help="Where the work runs (default: auto).",
    ),
]
Master = Annotated[str | None, typer.Option("--master", help="Spark master.")]
NoLease = Annotated[
    bool,
    typer.Option(
        "--no-lease",
        help="Work without the table's lease: wasteful; snapshot and maintain refuse it.",
    ),
]
Audit = Annotated[
    str | None,
    typer.Option(
        "--audit",
        metavar="PLACE",
        help="A folder or address for audit trails (default: as configured).",
    ),
]
MemoryMax = Annotated[
    str | None,
    typer.Option(
        "--memory-max",
        metavar="1GiB",
        help="What this process, or each of Spark's executors, may take; what can't fit is refused "
        "(default: no limit).",
    ),
]
# Accepted everywhere, so that one set of options works with every command. Commands that only look
# ignore them: they work in this process and need no lease.
UnusedEngine = Annotated[
    str | None, typer.Option("--engine", metavar="auto|spark|local", hidden=True)
]
UnusedMaster = Annotated[str | None, typer.Option("--master", hidden=True)]
UnusedNoLease = Annotated[bool, typer.Option("--no-lease", hidden=True)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
Debug = Annotated[
    bool, typer.Option("--debug", envvar="MEMWAL_DEBUG", help="Show tracebacks of errors.")
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        envvar="MEMWAL_LOG_FORMAT",
        metavar="text|json",
        help="With json each line on stderr is a JSON object (default: text).",
    ),
]
Untested = Annotated[
    bool, typer.Option("--allow-untested-lance", help="Run on a pylance that was never tested.")
]
Report = Annotated[
    str | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write the JSON document here too: a path, or an object (s3://bucket/key; with the "
        "first table's storage options).",
    ),
]

Consistency = Annotated[
    str,
    typer.Option(
        "--consistency",
        metavar="latest|snapshot",
        help="Shards from their manifests, or from the shard snapshot: far fewer requests where "
        "they are many, and nothing that was flushed since it was taken.",
    ),
]
Version = Annotated[
    int | None, typer.Option("--version", metavar="N", min=1, help="Default: the latest.")
]
