"""The commits of a merge with their marks, and turns to make them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from lance.mem_wal import CompactedSsTable

from memwal.errors import Corruption, LostRace, StoreUnavailable
from memwal.jobs.merge.ports import CommitStats
from memwal.model import ShardId, SharedKey
from memwal.ports import Clock
from memwal.rows.keyset import KeySet, Places, find_shared_key, key_predicate
from memwal.rows.memory import Memory
from memwal.store.tables.datasets import count_copies
from memwal.store.tables.lance_calls import (
    ERRORS,
    Says,
    passed_over,
    says,
    tidy_text,
    translated,
)

REMEMBERED_SECONDS = 600.0
"""How long after a refused commit a table's merges take turns."""

WAIT_SECONDS_MAX = 120.0
"""The longest wait for a turn; after that, a merge commits alongside the others."""

_POLL_SECONDS = 0.02
_KEPT_SECONDS = 86_400.0
_OPEN = os.O_RDWR | os.O_NOFOLLOW


class HostCommitQueue:
    """The CommitQueue port: a lock file per table, which the kernel unlocks when its holder dies.

    Of two concurrent commits that insert 200 keys or more, Lance refuses the second, whose join and
    writes are wasted. Smaller ones both pass, so turns are taken only for a while after a refusal;
    the file's time says when that was. Where no file can be made, there are no turns.
    """

    def __init__(
        self,
        uri: str,
        clock: Clock,
        *,
        waiting: Callable[[], None] = lambda: None,
        folder: Path | None = None,
    ) -> None:
        """`waiting` is called while a turn is waited for, and may raise."""
        self._clock = clock
        self._waiting = waiting
        self._folder = folder or _own_folder()
        self._name = f"{hashlib.sha256(uri.encode()).hexdigest()[:32]}.turn"

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """See the port."""
        file = self._open_recent()
        if file is None:
            yield False
            return
        try:
            yield self._lock(file)
        finally:
            # Closing alone would leave the lock to a process that was forked meanwhile.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def lost(self) -> None:
        """See the port."""
        now = self._clock.now_nanos()
        with suppress(OSError):
            if self._folder is None:
                return
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if not _is_ours(self._folder):
                return
            file = os.open(self._folder / self._name, _OPEN | os.O_CREAT, 0o600)
            try:
                os.utime(file, ns=(now, now))
            finally:
                os.close(file)
            for other in self._folder.glob("*.turn"):
                if now - other.lstat().st_mtime_ns > _KEPT_SECONDS * 1e9:
                    other.unlink()

    def _open_recent(self) -> int | None:
        """The lock file, if a commit was refused lately."""
        if self._folder is None:
            return None
        try:
            if not _is_ours(self._folder):
                return None
            path = self._folder / self._name
            age_nanos = self._clock.now_nanos() - path.lstat().st_mtime_ns
            return os.open(path, _OPEN) if age_nanos < REMEMBERED_SECONDS * 1e9 else None
        except OSError:
            return None

    def _lock(self, file: int) -> bool:
        deadline = self._clock.monotonic_seconds() + WAIT_SECONDS_MAX
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.monotonic_seconds() >= deadline:
                    return False
                self._waiting()
                # A fixed pace, however long one has waited: polling takes no place in a queue.
                self._clock.sleep(_POLL_SECONDS * (0.5 + self._clock.random()))
            except OSError:
                return False  # a file system without locks
            else:
                return True


def _is_ours(folder: Path) -> bool:
    """Whether the folder is no link and owned by this user, so that no other user can block us."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _own_folder() -> Path | None:
    try:
        return Path(tempfile.gettempdir()) / f"memwal-turns-{os.getuid()}"
    except OSError:
        return None  # no folder that can be written to


def upsert(
    base: Any,
    keys: Sequence[str],
    rows: Callable[[], pa.Table | pa.RecordBatchReader],
    *,
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
    return _execute(base, builder, rows, marks=marks, cause=cause)


def delete_keys(
    base: Any, keys: Sequence[str], dead: pa.Table, *, marks: Mapping[ShardId, int]
) -> CommitStats:
    """Delete keys by a join, however many, in one commit without a retry on conflict.

    A retry would delete rows that a newer commit put back (seen on pylance 14). Raises as the Fold
    port says.
    """
    builder = base.merge_insert(list(keys)).when_matched_delete()
    return _execute(base, builder, lambda: dead, marks=marks)


def _execute(
    base: Any,
    builder: Any,
    rows: Callable[[], pa.Table | pa.RecordBatchReader],
    *,
    marks: Mapping[ShardId, int],
    cause: Callable[[], Exception | None] = lambda: None,
) -> CommitStats:
    builder = builder.conflict_retries(0).use_index(False)
    if marks:
        builder.mark_sstables_as_compacted([CompactedSsTable(*mark) for mark in marks.items()])
    stats = run_commit(base, lambda: builder.execute(rows()), cause)
    return CommitStats(
        rows_inserted=int(stats["num_inserted_rows"]),
        rows_updated=int(stats["num_updated_rows"]),
        rows_deleted=int(stats["num_deleted_rows"]),
    )


def run_commit(
    base: Any, call: Callable[[], Any], cause: Callable[[], Exception | None] = lambda: None
) -> Any:
    """Run a commit; conflicts become LostRace, unreadable or lost files of the base Corruption.

    Anything else becomes an error with an open outcome.
    """

    def explain(error: BaseException) -> Exception:
        # An error while reading rows for the commit is raised as it is: not the commit's fault.
        if (own := cause()) is not None:
            return own
        if says(error, Says.CONFLICT):
            return LostRace(tidy_text(error))
        if says(error, Says.DAMAGED):
            return Corruption("MW-F01", f"the base table can't be read: {tidy_text(error)}")
        if says(error, Says.GONE) and not says(error, Says.CANT) and is_latest():
            return Corruption("MW-F07", f"{tidy_text(error)}; the latest version needs it")
        return StoreUnavailable(tidy_text(error))

    def is_latest() -> bool:
        # A later version may be this very commit, or an expiry has taken the file after it.
        with passed_over():
            return bool(base.latest_version == base.version)
        return False

    with translated(explain, (*ERRORS, pa.ArrowException)):
        return call()


def count_bytes_read(datasets: Iterable[Any]) -> int:
    """Bytes read through these datasets since they were last counted."""
    return sum(int(dataset.io_stats_incremental().read_bytes) for dataset in datasets)


@dataclass(kw_only=True, slots=True, eq=False)
class SharedMember:
    """One shard's part: the rows to write, in the base's schema, and the keys to delete."""

    rows: pa.Table
    tombstones: pa.Table


def share_folds(
    members: Mapping[ShardId, SharedMember],
    keys: Sequence[str],
    base: Any,
    memory: Memory,
) -> LanceSharedFold | SharedKey | None:
    """Join the members; None when a shard's keys have another type than the base's.

    If two shards have the same key, that is returned instead: Lance would not notice, and its rows
    have no order.
    """
    try:
        parts = {
            shard: [
                key_table(part.select(list(keys)), base.schema)
                for part in (member.rows, member.tombstones)
            ]
            for shard, member in members.items()
        }
    except pa.ArrowException:
        return None  # a shard's writer had another type for the key
    every = pa.concat_tables([part for of_shard in parts.values() for part in of_shard])
    known = KeySet(every.columns)
    if known.count != len(every):
        return find_shared_key(parts, keys)
    return LanceSharedFold(members=members, base=base, every=every, keys=known, memory=memory)


@dataclass(kw_only=True, eq=False)
class LanceSharedFold:
    """The SharedFold port over Lance. The rows of all members are held in memory.

    `every` has the keys of all members, each once; `keys` is the set of them.
    """

    members: Mapping[ShardId, SharedMember]
    base: Any
    every: pa.Table
    keys: KeySet
    memory: Memory
    _bytes_read: int = 0

    @property
    def bytes_read(self) -> int:
        """Bytes read from the base for this commit so far."""
        self._bytes_read += count_bytes_read((self.base,))
        return self._bytes_read

    def commit(self, marks: Mapping[ShardId, int]) -> Mapping[ShardId, CommitStats]:
        """Upsert all winners and set all marks in one commit (see the port)."""
        made = {shard: self._count(shard) for shard in self.members}  # of the base as it is now
        members = self.members.values()
        rows = pa.concat_tables([member.rows for member in members])
        dead = pa.concat_tables([key_table(m.tombstones, self.every.schema) for m in members])
        keys, marks = self.every.column_names, {shard: marks[shard] for shard in self.members}
        if len(rows) or not len(dead):
            upsert(self.base, keys, lambda: rows, deletes=dead, marks=marks)
        else:
            delete_keys(self.base, keys, dead, marks=marks)
        return made

    def _count(self, shard_id: ShardId) -> CommitStats:
        """What the commit does for a shard: its keys are in the base, or they are not."""
        live, dead = self._copies[shard_id]
        updated = int(np.count_nonzero(live))
        return CommitStats(
            rows_inserted=len(live) - updated, rows_updated=updated, rows_deleted=int(dead.sum())
        )

    @property
    def double_keys(self) -> int:
        """See the port."""
        return sum(int(np.count_nonzero(live > 1)) for live, _ in self._copies.values())

    @cached_property
    def _copies(self) -> Mapping[ShardId, Sequence[Places]]:
        """For each shard's rows and tombstones, how many rows of the base have the key of each.

        Of the version that the commit is made on, and Lance refuses it when one of them has changed
        since.
        """
        copies = run_commit(
            self.base, lambda: count_copies(self.base, self.every, self.keys, self.memory)
        )
        sizes = [(len(m.rows), len(m.tombstones)) for m in self.members.values()]
        parts = iter(np.split(copies, np.cumsum(np.ravel(sizes))[:-1]))
        return {shard: (next(parts), next(parts)) for shard in self.members}


def key_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table's columns, cast to the types that they have in `schema`, without metadata."""
    names = table.column_names
    return pa.table([table[name].cast(schema.field(name).type) for name in names], names=names)
