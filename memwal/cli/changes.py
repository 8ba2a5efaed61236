"""`memwal changes`: the rows that merges changed."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.flags import ReadFlags, command
from memwal.cli.options import OneTable
from memwal.cli.output import Document
from memwal.cli.read import Columns, Limit, OutputFile, choose_limit

Since = Annotated[
    int | None,
    typer.Option("--since", metavar="VERSION", min=0, help="Changes after it. 0: all rows."),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="CHECKPOINT", help="Changes after that checkpoint's version."),
]
CursorName = Annotated[
    str | None, typer.Option("--cursor", metavar="NAME", help="Changes after where it stands.")
]
Until = Annotated[
    int | None,
    typer.Option("--until", metavar="VERSION", min=1, help="The last version (default: newest)."),
]
Before = Annotated[bool, typer.Option("--before", help="With the row as it was, in _before.")]
Commit = Annotated[
    int | None,
    typer.Option(
        "--commit",
        metavar="VERSION",
        min=1,
        help="Move the cursor there, or make it: changes up to that version are done.",
    ),
]
Transaction = Annotated[
    str | None,
    typer.Option(
        "--transaction", metavar="ID", help="What to keep beside it, such as that of your database."
    ),
]
Drop = Annotated[bool, typer.Option("--drop", help="Drop the cursor: it keeps no versions then.")]


@command()
def changes(
    table: OneTable,
    since: Since = None,
    checkpoint: From = None,
    cursor: CursorName = None,
    until: Until = None,
    columns: Columns = None,
    before: Before = False,
    limit: Limit = None,
    output: OutputFile = None,
    commit: Commit = None,
    transaction: Transaction = None,
    drop: Drop = False,
    *,
    flags: ReadFlags,
) -> Document:
    """Show the rows that merges changed.

    Between two versions: inserts, updates and deletes, one row a key. A cursor stands where its
    consumer has come to: it moves with --commit only, and garbage collection keeps what it needs.
    """
    from memwal.read import changes as job
    from memwal.read import show
    from memwal.read.job import split_names

    options = job.ChangesOptions(
        table=flags.table(table),
        since=since,
        checkpoint=checkpoint,
        cursor=cursor,
        until=until,
        columns=split_names(columns),
        before=before,
        limit=choose_limit(limit, shown=not flags.as_json and output is None),
        output=output,
        commit=commit,
        transaction=transaction,
        drop=drop,
        untested_lance_allowed=flags.allow_untested_lance,
    )
    content = job.run_changes(options, flags.run_id).to_json()
    return Document(content=content, show=show.show_changes)
