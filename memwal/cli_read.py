"""`memwal read`: the rows of a table, base and MemWAL together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memwal.console import RunProgress
from memwal.options import OneTable, ReadFlags, Version, with_flags

SHOWN_ROWS = 20


@with_flags(ReadFlags)
def read(
    table: OneTable,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="A,B", help="Default: all.")
    ] = None,
    condition: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="SQL",
            help="As Lance takes it: `Name` quotes a column, 'text' is a text.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=0,
            help=f"Default: {SHOWN_ROWS} for people, all with --json or --output.",
        ),
    ] = None,
    version: Version = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="K=V",
            help="The row with this key; once for each key column. Bytes as 0x….",
        ),
    ] = None,
    nearest: Annotated[
        str | None,
        typer.Option("--nearest", metavar="COLUMN=[…]", help="Rows with the nearest vectors."),
    ] = None,
    k: Annotated[
        int | None, typer.Option("--k", metavar="N", min=1, help="How many (default: 10).")
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", metavar="l2|cosine|dot", help="Default: the index's.")
    ] = None,
    nprobes: Annotated[
        int | None, typer.Option("--nprobes", metavar="N", min=1, help="Partitions to look into.")
    ] = None,
    with_wal: Annotated[
        bool, typer.Option("--with-wal", help="With rows that are in the WAL only.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what would be read, and by which index.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="Write rows to a .parquet, .arrow or .csv file."
        ),
    ] = None,
    allow_holes: Annotated[
        bool, typer.Option("--allow-holes", help="Pass over missing generations.")
    ] = False,
    allow_reinitialised: Annotated[
        bool,
        typer.Option(
            "--allow-reinitialised",
            help="Read generations that are older than the table's MemWAL index.",
        ),
    ] = False,
    *,
    flags: ReadFlags,
) -> None:
    """Show a table's rows as readers have to see them: the newest of each key, deletes applied."""

    def work(progress: RunProgress) -> dict[str, object]:
        from jobs._read import ReadOptions, run_read

        people = not flags.as_json and output is None and not explain
        return run_read(
            ReadOptions(
                table=flags.tables([table])[0],
                columns=columns,
                filter=condition,
                limit=SHOWN_ROWS if limit is None and people else limit,
                version=version,
                keys=key or (),
                nearest=nearest,
                k=k,
                metric=metric,
                nprobes=nprobes,
                with_wal=with_wal,
                explain=explain,
                output=output,
                holes_allowed=allow_holes,
                reinitialised_allowed=allow_reinitialised,
                untested_lance_allowed=flags.allow_untested_lance,
            )
        )

    from memwal.console_read import show_explain, show_rows

    flags.output("read", [table]).run_document(work, show_explain if explain else show_rows)
