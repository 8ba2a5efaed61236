"""`memwal read`: the rows of a table, base and MemWAL together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memwal.cli.flags import ReadFlags, command
from memwal.cli.options import (
    AllowHoles,
    AllowReinitialised,
    Consistency,
    MemoryMax,
    OneTable,
    Version,
)
from memwal.cli.output import Document
from memwal.cli.parse import parse_memory_max
from memwal.read.plan.request import parse_consistency

SHOWN_ROWS = 20

Columns = Annotated[str | None, typer.Option("--columns", metavar="A,B", help="Default: all.")]
Filter = Annotated[
    str | None,
    typer.Option("--filter", metavar="SQL", help="Lance's SQL: `Name` is a column, 'text' a text."),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        metavar="N",
        min=0,
        help=f"Default: {SHOWN_ROWS} for people, all with --json or --output.",
    ),
]
Key = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="K=V",
        help="The row with this key; once for each key column. Bytes as 0x….",
    ),
]
NearestTo = Annotated[
    str | None,
    typer.Option("--nearest", metavar="COLUMN=[…]", help="Rows with the nearest vectors."),
]
K = Annotated[
    int | None,
    typer.Option(
        "--k",
        metavar="N",
        min=1,
        help="How many (default: 10). More with --limit find more of the nearest.",
    ),
]
Metric = Annotated[
    str | None, typer.Option("--metric", metavar="l2|cosine|dot", help="Default: the index's.")
]
Probes = Annotated[
    int | None, typer.Option("--nprobes", metavar="N", min=1, help="Partitions to search.")
]
SearchFor = Annotated[
    str | None,
    typer.Option(
        "--search", metavar="COLUMN=TEXT", help="Rows whose text has these words, best first."
    ),
]
Operator = Annotated[
    str | None,
    typer.Option("--operator", metavar="or|and", help="Any of the words (default), or all."),
]
Phrase = Annotated[bool, typer.Option("--phrase", help="The words must follow one another.")]
WithWal = Annotated[bool, typer.Option("--with-wal", help="Include rows that are only in the WAL.")]
MergedOnly = Annotated[
    bool | None,
    typer.Option(
        "--merged-only/--with-pending",
        help="With --version: without, or with, generations that are listed now (default: with, "
        "and a warning).",
    ),
]
CheckpointName = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="NAME",
        help="The table as of that checkpoint, pending rows included.",
    ),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Show what would be read, and by which index.")
]
OutputFile = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="Write rows to a .parquet, .arrow or .csv file."),
]


def choose_limit(limit: int | None, *, shown: bool) -> int | None:
    """The limit asked for, or that of what people are shown."""
    return SHOWN_ROWS if limit is None and shown else limit


@command()
def read(
    table: OneTable,
    columns: Columns = None,
    condition: Filter = None,
    limit: Limit = None,
    version: Version = None,
    merged_only: MergedOnly = None,
    checkpoint: CheckpointName = None,
    key: Key = None,
    nearest: NearestTo = None,
    k: K = None,
    metric: Metric = None,
    nprobes: Probes = None,
    search: SearchFor = None,
    operator: Operator = None,
    phrase: Phrase = False,
    with_wal: WithWal = False,
    consistency: Consistency = "latest",
    explain: Explain = False,
    output: OutputFile = None,
    allow_holes: AllowHoles = False,
    allow_reinitialised: AllowReinitialised = False,
    memory_max: MemoryMax = None,
    *,
    flags: ReadFlags,
) -> Document:
    """Show a table's rows, base and MemWAL together.

    The newest row of each key, with deletes applied.
    """
    from memwal.read import job, show

    options = job.ReadOptions(
        table=flags.table(table).with_settings(parse_memory_max(memory_max)),
        columns=columns,
        filter=condition,
        limit=choose_limit(limit, shown=not flags.as_json and output is None and not explain),
        version=version,
        merged_only=merged_only,
        checkpoint=checkpoint,
        keys=key or (),
        nearest=nearest,
        k=k,
        metric=metric,
        nprobes=nprobes,
        search=search,
        operator=operator,
        phrase=phrase,
        with_wal=with_wal,
        consistency=parse_consistency(consistency),
        explain=explain,
        output=output,
        holes_allowed=allow_holes,
        reinitialised_allowed=allow_reinitialised,
        untested_lance_allowed=flags.allow_untested_lance,
    )
    content = job.run_read(options, flags.run_id).to_json()
    return Document(content=content, show=show.show_explain if explain else show.show_rows)
