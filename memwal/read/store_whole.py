"""All rows of a small table without a query plan, which costs more than they do."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from memwal.store.generations import Source

# One batch of Lance's. To take rows one by one costs more than to scan, when they are many.
_ROWS_MAX = 8192
# Parts of the names of types that a scan may give in another form (blobs).
_SCANNED = ("binary", "extension")


def taken(source: Source, columns: Sequence[str]) -> list[pa.RecordBatch] | None:
    """These columns and `_rowaddr`, in the rows' order.

    None where only a scan tells: for more than one fragment, deleted rows, many rows, and columns
    that a scan may convert.
    """
    types = {column.name: column.type_text for column in source.columns}
    if any(kind in types[name] for name in columns for kind in _SCANNED):
        return None
    fragments = source.dataset.get_fragments()
    if len(fragments) != 1 or not 0 < fragments[0].physical_rows <= _ROWS_MAX:
        return None
    if fragments[0].deletion_file() is not None:
        return None
    session = fragments[0].open_session(columns=list(columns), with_row_address=True)
    table: pa.Table = session.take(list(range(fragments[0].physical_rows)))
    batches: list[pa.RecordBatch] = table.to_batches()
    return batches
