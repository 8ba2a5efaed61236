"""`memwal changes`: what merges changed, for those who follow a table; and their cursors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from memwal.config import ResolvedTable
from memwal.errors import Usage
from memwal.format import layout
from memwal.model import Cursor
from memwal.read.output import check_file, tell_rows
from memwal.read.plan.changes import ChangesRequest
from memwal.read.report import ChangesDocument, ChangesTable
from memwal.read.request import ChangesAsked
from memwal.read.store.changes import Changes, open_changes
from memwal.report import DONE, CursorReport
from memwal.run.reports import describe_cursor
from memwal.run.stores import Stores, check_lance_version, open_stores
from memwal.store.records.process import this_holder


@dataclass(frozen=True, kw_only=True)
class ChangesOptions:
    """The options of `changes`."""

    table: ResolvedTable
    asked: ChangesAsked
    untested_lance_allowed: bool = False


def run_changes(options: ChangesOptions, run_id: str = "") -> ChangesDocument:
    """Read changes, or move a cursor. Raises as `open_range` and `move_cursor` do."""
    asked = options.asked
    check_file(asked.output)
    stores = open_table(options)
    began = stores.clock.monotonic_seconds()
    if asked.commit is not None or asked.drop:
        moved = describe_cursor(move_cursor(stores, asked), dropped=asked.drop)
        found: dict[str, Any] = {"cursor": moved}
    else:
        opened, cursor = open_range(stores, asked)
        rows = _limit(opened.read(), asked.limit)
        reader = pa.RecordBatchReader.from_batches(opened.schema, rows)
        found = tell_rows(reader, asked.output, stores.memory)
        found |= {"since": opened.since, "until": opened.until, "counts": opened.counts}
        found["cursor"] = None if cursor is None else describe_cursor(cursor)
    table = ChangesTable(table=options.table.name, outcome=DONE, error=None, **found)
    seconds = round(stores.clock.monotonic_seconds() - began, 3)
    return ChangesDocument(
        job="changes", outcome=DONE, seconds=seconds, run_id=run_id, tables=[table]
    )


def read_changes(options: ChangesOptions) -> pa.RecordBatchReader:
    """The rows alone, as they are read."""
    opened, _ = open_range(open_table(options), options.asked)
    metadata = {"memwal.since": str(opened.since), "memwal.until": str(opened.until)}
    schema = opened.schema.with_metadata(metadata)
    return pa.RecordBatchReader.from_batches(schema, (b.cast(schema) for b in opened.read()))


def commit_changes(options: ChangesOptions) -> CursorReport:
    """Move or drop the cursor alone."""
    moved = move_cursor(open_table(options), options.asked)
    return describe_cursor(moved, dropped=options.asked.drop)


def open_table(options: ChangesOptions) -> Stores:
    """The stores of the table. Raises Unsupported for an untested pylance."""
    check_lance_version(options.untested_lance_allowed)
    table = options.table
    limit = table.settings.memory_bytes_max
    return open_stores(table.find_uri(), table.storage_options, memory_bytes_max=limit)


def open_range(stores: Stores, asked: ChangesAsked) -> tuple[Changes, Cursor | None]:
    """Open the changes asked for. Raises as `open_changes` and `find_range`."""
    request, cursor = find_range(stores, asked)
    return open_changes(stores.tables, stores.table_manifests, request), cursor


def find_range(stores: Stores, asked: ChangesAsked) -> tuple[ChangesRequest, Cursor | None]:
    """Where the changes asked for begin. Raises Usage for unknown names."""
    cursor, since = None, asked.since
    if asked.cursor is not None:
        cursor = stores.cursors.find(asked.cursor)
        since = cursor.version
    elif asked.checkpoint is not None:
        since = stores.checkpoints.find(asked.checkpoint, stores.clock.now_nanos()).version
    request = ChangesRequest(
        since=since or 0,
        until=asked.until,
        columns=None if asked.columns is None else tuple(asked.columns),
        before=asked.before,
        passing=cursor is not None,
    )
    return request, cursor


def move_cursor(stores: Stores, asked: ChangesAsked) -> Cursor:
    """Move the cursor to a version, make it there, or drop it.

    Raises Usage for a version that the table does not have, or one before the cursor's: what that
    came from may be gone.
    """
    name = layout.parse_name(asked.cursor or "", "cursor")
    if asked.commit is None:
        found = stores.cursors.find(name)
        stores.cursors.drop(name)
        return found
    before = stores.cursors.read(name)
    if before is not None and asked.commit < before.version:
        raise Usage(
            f"{stores.uri}: cursor {name!r} is at version {before.version}, past "
            f"{asked.commit}: to read again, drop it, and make it there"
        )
    latest = stores.views.table_version()
    if asked.commit not in stores.table_manifests.attached_versions(latest):
        raise Usage(
            f"{stores.uri}: there is no version {asked.commit}, or not any more; the latest is "
            f"{latest}"
        )
    stores.prove_store()
    moved = Cursor(
        name=name,
        version=asked.commit,
        moved_at_nanos=stores.clock.now_nanos(),
        holder=this_holder().partition(":")[0],
        transaction=asked.transaction,
    )
    stores.cursors.put(moved)
    return moved


def _limit(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first rows. The others are read, too: they are counted, and have to add up."""
    left = limit
    for batch in batches:
        if left is None:
            yield batch
        elif left:
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
