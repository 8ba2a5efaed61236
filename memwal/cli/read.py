"""`memwal read` and `memwal changes`: the rows of a table, base and MemWAL together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from rich.console import Console

from memwal.cli.console import stderr
from memwal.cli.flags import OneTable, ReadFlags, command
from memwal.cli.output import Document
from memwal.config import make_settings
from memwal.options import list_settings
from memwal.read.request import SHOWN_ROWS, ChangesAsked, ReadAsked

Asked = TypeVar("Asked", ReadAsked, ChangesAsked)


@command()
def read(table: OneTable, *, request: ReadAsked, flags: ReadFlags) -> Document:
    """Show a table's rows, base and MemWAL together.

    The newest row of each key, with deletes applied.
    """
    from memwal.read import job, show

    found = flags.table(table).with_settings(make_settings(**list_settings(request)))
    asked = request if request.explain else limit_shown(request, flags)
    options = job.ReadOptions(
        table=found, asked=asked, untested_lance_allowed=flags.allow_untested_lance
    )
    content = job.run_read(options, flags.run_id).to_json()

    def show_all(document: Mapping[str, Any], console: Console) -> None:
        show.show_rows(document, console)
        if unread := document["tables"][0]["unread_wal_entries"]:
            entries = "1 WAL entry is" if unread == 1 else f"{unread:,} WAL entries are"
            stderr().print(
                f"the rows of {entries} in no generation yet: --with-wal", style="yellow"
            )

    return Document(content=content, show=show.show_explain if request.explain else show_all)


@command()
def changes(table: OneTable, *, request: ChangesAsked, flags: ReadFlags) -> Document:
    """Show the rows that merges changed.

    Between two versions: inserts, updates and deletes, one row a key. A cursor stands where its
    consumer has come to: it moves with --commit only, and garbage collection keeps what it needs.
    """
    from memwal.read import changes as job
    from memwal.read import show

    options = job.ChangesOptions(
        table=flags.table(table),
        asked=limit_shown(request, flags),
        untested_lance_allowed=flags.allow_untested_lance,
    )
    content = job.run_changes(options, flags.run_id).to_json()
    return Document(content=content, show=show.show_changes)


def limit_shown(request: Asked, flags: ReadFlags) -> Asked:
    """The request, with a limit where people look and set none."""
    shown = not flags.as_json and request.output is None
    return replace(request, limit=SHOWN_ROWS) if shown and request.limit is None else request
