"""`memwal changes`: what merges changed, for those who follow a table; and their cursors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from memwal.config import ResolvedTable
from memwal.errors import Usage
from memwal.format import layout
from memwal.model import Cursor
from memwal.read.output import check_file, write_file
from memwal.read.plan.changes import ChangesRequest
from memwal.read.report import ChangesDocument, ChangesTable
from memwal.read.store.changes import Changes, open_changes
from memwal.report import DONE, CursorReport
from memwal.rows.json_values import rows_to_json
from memwal.run.reports import describe_cursor
from memwal.run.stores import Stores, check_lance_version, open_stores
from memwal.store.records.process import this_holder


@dataclass(frozen=True, kw_only=True)
class ChangesOptions:
    """What is asked of `changes`, on the command line or in Python.

    The range begins after `since`, the version of a `checkpoint`, or where a `cursor` stands. With
    `commit` or `drop`, no rows are read: the cursor is moved to that version, or dropped.
    """

    table: ResolvedTable
    since: int | None = None
    checkpoint: str | None = None
    cursor: str | None = None
    until: int | None = None
    columns: tuple[str, ...] | None = None
    before: bool = False
    limit: int | None = None
    output: Path | None = None
    commit: int | None = None
    transaction: str | None = None
    drop: bool = False
    untested_lance_allowed: bool = False

    def __post_init__(self) -> None:
        """Raise Usage for options that exclude each other."""
        if sum(start is not None for start in (self.since, self.checkpoint, self.cursor)) != 1:
            raise Usage("say from where: one of --since, --from and --cursor")
        if (self.commit is not None or self.drop) and self.cursor is None:
            raise Usage("--commit and --drop go with --cursor")
        if self.drop and self.commit is not None:
            raise Usage("a cursor is moved or dropped, not both")
        if self.transaction is not None and self.commit is None:
            raise Usage("--transaction goes with --commit")


def run_changes(options: ChangesOptions, run_id: str = "") -> ChangesDocument:
    """Read changes, or move a cursor. Raises as `open_range` and `move_cursor` do."""
    check_lance_version(options.untested_lance_allowed)
    if options.output is not None:
        check_file(options.output)
    stores = open_table(options.table)
    began = stores.clock.monotonic_seconds()
    if options.commit is not None or options.drop:
        moved = describe_cursor(move_cursor(stores, options), dropped=options.drop)
        found: dict[str, Any] = {"cursor": moved}
    else:
        opened, cursor = open_range(stores, options)
        found = _write_rows(opened, options, stores)
        found["cursor"] = None if cursor is None else describe_cursor(cursor)
    table = ChangesTable(table=options.table.name, outcome=DONE, error=None, **found)
    seconds = round(stores.clock.monotonic_seconds() - began, 3)
    return ChangesDocument(
        job="changes", outcome=DONE, seconds=seconds, run_id=run_id, tables=[table]
    )


def read_changes(options: ChangesOptions) -> pa.RecordBatchReader:
    """The rows alone, as they are read."""
    check_lance_version(options.untested_lance_allowed)
    opened, _ = open_range(open_table(options.table), options)
    metadata = {"memwal.since": str(opened.since), "memwal.until": str(opened.until)}
    schema = opened.schema.with_metadata(metadata)
    return pa.RecordBatchReader.from_batches(schema, (b.cast(schema) for b in opened.read()))


def commit_changes(options: ChangesOptions) -> CursorReport:
    """Move or drop the cursor alone."""
    return describe_cursor(move_cursor(open_table(options.table), options), dropped=options.drop)


def open_table(table: ResolvedTable) -> Stores:
    """The stores of a table."""
    limit = table.settings.memory_bytes_max
    return open_stores(table.find_uri(), table.storage_options, memory_bytes_max=limit)


def open_range(stores: Stores, options: ChangesOptions) -> tuple[Changes, Cursor | None]:
    """Open the changes asked for. Raises as `open_changes` and `find_range`."""
    request, cursor = find_range(stores, options)
    return open_changes(stores.tables, stores.table_manifests, request), cursor


def find_range(stores: Stores, options: ChangesOptions) -> tuple[ChangesRequest, Cursor | None]:
    """Where the changes asked for begin. Raises Usage for unknown names."""
    cursor, since = None, options.since
    if options.cursor is not None:
        cursor = stores.cursors.find(options.cursor)
        since = cursor.version
    elif options.checkpoint is not None:
        since = stores.checkpoints.find(options.checkpoint, stores.clock.now_nanos()).version
    request = ChangesRequest(
        since=since or 0,
        until=options.until,
        columns=options.columns,
        before=options.before,
        passing=cursor is not None,
    )
    return request, cursor


def move_cursor(stores: Stores, options: ChangesOptions) -> Cursor:
    """Move the cursor to a version, make it there, or drop it.

    Raises Usage for a version that the table does not have, or one before the cursor's: what that
    came from may be gone.
    """
    name = layout.parse_cursor_name(options.cursor or "")
    if options.commit is None:
        found = stores.cursors.find(name)
        stores.cursors.drop(name)
        return found
    before = stores.cursors.read(name)
    if before is not None and options.commit < before.version:
        raise Usage(
            f"{stores.uri}: cursor {name!r} is at version {before.version}, past "
            f"{options.commit}: to read again, drop it, and make it there"
        )
    latest = stores.views.table_version()
    if options.commit not in stores.table_manifests.attached_versions(latest):
        raise Usage(
            f"{stores.uri}: there is no version {options.commit}, or not any more; the latest is "
            f"{latest}"
        )
    stores.prove_store()
    moved = Cursor(
        name=name,
        version=options.commit,
        moved_at_nanos=stores.clock.now_nanos(),
        holder=this_holder().partition(":")[0],
        transaction=options.transaction,
    )
    stores.cursors.put(moved)
    return moved


def _write_rows(opened: Changes, options: ChangesOptions, stores: Stores) -> dict[str, Any]:
    reader = pa.RecordBatchReader.from_batches(opened.schema, _limit(opened.read(), options.limit))
    output, rows = options.output, None
    if output is None:
        rows = rows_to_json(reader)
    count = len(rows or ()) if output is None else write_file(reader, output, stores.memory)
    return {
        "since": opened.since,
        "until": opened.until,
        "counts": opened.counts,
        "schema": [{"name": f.name, "type": str(f.type)} for f in opened.schema],
        "num_rows": count,
        "rows": rows,
        "output": None if output is None else str(output),
    }


def _limit(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first rows. The others are read, too: they are counted, and have to add up."""
    left = limit
    for batch in batches:
        if left is None:
            yield batch
        elif left:
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
