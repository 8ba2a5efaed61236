"""Replaces the MemWAL index entry of a table's latest version.

Lance also accepts such a commit from a stale version and reports no conflict: it overwrites newer
progress. So callers must read the entry just before the commit, and check afterwards what landed in
between.
"""

from __future__ import annotations

from datetime import UTC, datetime

import lance
from lance.commit import CommitConflictError
from lance.dataset import Index

from memwal.errors import LostRace, StoreUnavailable
from memwal.format import layout
from memwal.store.tables.datasets import LanceTables, tidy_text

LET_GO_MESSAGE = "memwal: lets go of inherited merge progress"
"""The commit message that marks a commit which lowers progress on purpose."""
_TYPE_URL = "/lance.table.MemWalIndexDetails"


def replace_mem_wal_entry(
    tables: LanceTables,
    *,
    version: int,
    index_uuid: str,
    created_at_millis: int,
    details: bytes,
    message: str | None = None,
) -> int:
    """Replace the entry that `version` has; returns the version that landed.

    Raises LostRace for a conflict, StoreUnavailable for an error with an open outcome.
    """
    entry = Index(
        uuid=index_uuid,
        name=layout.MEM_WAL_INDEX_NAME,
        fields=[],
        dataset_version=version,
        fragment_ids=set(),
        index_version=0,
        created_at=datetime.fromtimestamp(created_at_millis / 1000, UTC),
        index_details=(_TYPE_URL, details),
    )
    base = tables.at(version)
    operation = lance.LanceOperation.CreateIndex(new_indices=[entry], removed_indices=[])
    try:
        landed = lance.LanceDataset.commit(
            base, operation, read_version=version, max_retries=0, commit_message=message
        )
    except CommitConflictError as error:
        raise LostRace(tidy_text(error)) from None
    except (OSError, ValueError, RuntimeError) as error:
        text = tidy_text(error)
        if "conflict" in text.lower():
            raise LostRace(text) from None
        raise StoreUnavailable(text) from None
    return int(landed.version)


def lets_go_of_progress(tables: LanceTables, version: int) -> bool:
    """Whether a version's commit lowered progress on purpose, as it was not of its shards."""
    transaction = tables.transaction(version)
    said = {} if transaction is None else transaction.transaction_properties or {}
    return LET_GO_MESSAGE in said.values()
