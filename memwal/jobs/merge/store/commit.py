"""The commits of a merge, with their marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from lance.mem_wal import CompactedSsTable

from memwal.errors import LostRace, StoreUnavailable
from memwal.jobs.merge.plan.shard import Join
from memwal.jobs.merge.ports import CommitStats
from memwal.model import ShardId
from memwal.rows.keyset import key_predicate
from memwal.run.metrics.spans import span
from memwal.store.tables.datasets import is_panic, tidy_text

_CONFLICT = re.compile(
    r"too many concurrent writers|commit conflict|preempted by concurrent|"
    r"incompatible transaction|stale sstable|concurrent modification",
    re.IGNORECASE,
)


def upsert(
    base: Any,
    keys: Sequence[str],
    rows: Callable[[], pa.Table | pa.RecordBatchReader],
    *,
    join: Join,
    deletes: pa.Table | None,
    marks: Mapping[ShardId, int],
    cause: Callable[[], Exception | None] = lambda: None,
) -> CommitStats:
    """Write rows, delete keys, and mark, in one commit without a retry on conflict.

    Raises as the Fold port says. `cause` gives the error, if any, of reading rows for the commit.
    """
    builder = base.merge_insert(list(keys)).when_matched_update_all().when_not_matched_insert_all()
    if deletes is not None and len(deletes):
        builder = builder.when_not_matched_by_source_delete(key_predicate(deletes))
    return _execute(base, builder, rows, join=join, marks=marks, cause=cause)


def delete_keys(
    base: Any, keys: Sequence[str], dead: pa.Table, *, join: Join, marks: Mapping[ShardId, int]
) -> CommitStats:
    """Delete keys by a join, however many, in one commit without a retry on conflict.

    A retry would delete rows that a newer commit put back (seen on pylance 14). Raises as the Fold
    port says.
    """
    builder = base.merge_insert(list(keys)).when_matched_delete()
    return _execute(base, builder, lambda: dead, join=join, marks=marks)


def _execute(
    base: Any,
    builder: Any,
    rows: Callable[[], pa.Table | pa.RecordBatchReader],
    *,
    join: Join,
    marks: Mapping[ShardId, int],
    cause: Callable[[], Exception | None] = lambda: None,
) -> CommitStats:
    builder = builder.conflict_retries(0).use_index(join is Join.INDEX)
    if marks:
        builder.mark_sstables_as_compacted([CompactedSsTable(*mark) for mark in marks.items()])
    with span("memwal merge commit", table=base.uri, shards=len(marks)) as tell:
        stats = run_commit(lambda: builder.execute(rows()), cause)
        found = CommitStats(
            rows_inserted=int(stats["num_inserted_rows"]),
            rows_updated=int(stats["num_updated_rows"]),
            rows_deleted=int(stats["num_deleted_rows"]),
        )
        tell(version=base.version, **asdict(found))
    return found


def run_commit(
    call: Callable[[], Any], cause: Callable[[], Exception | None] = lambda: None
) -> Any:
    """Run a commit; conflicts become LostRace, anything else an error with an open outcome."""
    try:
        return call()
    except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
        # An error while reading rows for the commit is raised as it is: not the commit's fault.
        if (own := cause()) is not None:
            raise own from None
        text = tidy_text(error)
        if _CONFLICT.search(str(error)):
            raise LostRace(text) from None
        raise StoreUnavailable(text) from None
    except BaseException as error:
        if is_panic(error):
            raise StoreUnavailable(f"Lance panicked: {tidy_text(error)}") from None
        raise


def count_bytes_read(datasets: Iterable[Any]) -> int:
    """Bytes read through these datasets since they were last counted."""
    return sum(int(dataset.io_stats_incremental().read_bytes) for dataset in datasets)
