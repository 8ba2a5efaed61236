"""What `status` reads of a table besides its view."""

from __future__ import annotations

from collections.abc import Sequence

from memwal.errors import MemWalError, Missing, StoreUnavailable
from memwal.model import ShardManifest, StoredFile, TableView
from memwal.report import RunRecord
from memwal.run.stores import Stores

_RECORDS_MAX = 8  # those of two rounds of maintenance, each of whose jobs may leave one


def read_records(stores: Stores, view: TableView) -> Sequence[RunRecord]:
    """The newest run records, which may tell why something is pending; none if nothing is.

    None either if they can't be read, since nothing depends on them.
    """
    if not any(shard.pending for shard in view.shards):
        return ()
    try:
        return stores.run_records.newest(_RECORDS_MAX).records
    except MemWalError:
        return ()


def is_covered(stores: Stores, manifest: ShardManifest, position: int, entry: StoredFile) -> bool:
    """Whether a WAL entry is in a generation, by its own head, in one request."""
    try:
        head = stores.wal.head(entry.path, entry.size_bytes)
    except (Missing, StoreUnavailable):
        return False
    return head.generation is not None and head.generation < manifest.current_generation
