"""Arguments and options that several commands share, by the names of design section 6."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Tables = Annotated[
    list[str],
    typer.Argument(metavar="TABLE...", help="Path, s3:// address, or name in the config file."),
]
OneTable = Annotated[
    str, typer.Argument(metavar="TABLE", help="Path, s3:// address, or name in the config file.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="Default: ./memwal.toml if present.")
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option("--storage-option", metavar="K=V", help="As pylance takes them; repeatable."),
]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", metavar="auto|spark|local", envvar="MEMWAL_ENGINE",
                 help="Where the work runs (default: auto)."),
]  # fmt: skip
Master = Annotated[
    str | None, typer.Option("--master", envvar="MEMWAL_MASTER", help="Spark master.")
]
NoLease = Annotated[
    bool, typer.Option("--no-lease", help="Work without the table's lease: right, but wasteful.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell what would be done; change nothing.")]
Debug = Annotated[
    bool, typer.Option("--debug", envvar="MEMWAL_DEBUG", help="Show tracebacks of errors.")
]
Untested = Annotated[
    bool, typer.Option("--allow-untested-lance", help="Run on a pylance that was never tested.")
]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write the JSON document here too.")
]


Version = Annotated[
    int | None, typer.Option("--version", metavar="N", min=1, help="Default: the latest.")
]
Shard = Annotated[str | None, typer.Option("--shard", metavar="ID", help="Only this one.")]
