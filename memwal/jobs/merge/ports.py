"""What a merge asks of the base table: folds of pending generations, and the commits of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from memwal.jobs.merge.plan import Deletes, FoldFacts
from memwal.model import FlushedGeneration, ShardId, SharedKey, TableView


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitStats:
    """What one marked commit did, in rows."""

    rows_inserted: int
    rows_updated: int
    rows_deleted: int


class Fold(Protocol):
    """Some generations of one shard, folded newest-wins, bound to one version of the base table.

    Both writing methods raise LostRace on a conflict, and StoreUnavailable for an error that leaves
    open whether the commit has landed.
    """

    @property
    def facts(self) -> FoldFacts:
        """What the plan needs to shape the commit."""
        ...

    @property
    def bytes_read(self) -> int:
        """Bytes read from storage for this fold so far."""
        ...

    def rebase(self, view: TableView) -> Fold:
        """The same fold on a newer version; keys are not read again, columns are realigned."""
        ...

    @property
    def double_keys(self) -> int:
        """How many keys with a live row the base holds more than once. May scan the base's keys."""
        ...

    def delete_pass(self) -> tuple[int, int]:
        """Delete the tombstoned and the double keys in a commit without a mark and without a retry.

        Returns the version that it committed, and the number of rows deleted.
        """
        ...

    def commit(self, deletes: Deletes, mark: int) -> CommitStats:
        """Write the winners and record `mark` as merged, in one commit, without a retry."""
        ...


class CommitQueue(Protocol):
    """Lets the merges of one table on one host take turns to commit.

    This only saves work that a conflict would waste: Lance decides which commits land.
    """

    def turn(self) -> AbstractContextManager[bool]:
        """Take a turn for a commit; yields whether the others wait until it ends.

        They wait only after a recent conflict.
        """
        ...

    def lost(self) -> None:
        """Note that a commit was refused because of another one."""
        ...


class NoCommitQueue:
    """The CommitQueue port without turns: everybody commits at once, and retries when refused."""

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Commit at once; nobody waits."""
        yield False

    def lost(self) -> None:
        """Do nothing."""


class MergeTable(Protocol):
    """The base table, as the merger needs it."""

    def fold(
        self, view: TableView, shard_id: ShardId, generations: Sequence[FlushedGeneration]
    ) -> Fold:
        """Fold generations, oldest first, against the view's version.

        Raises Missing when a generation's folder is gone, Refused for schema drift that would drop
        data or for NULL keys, Corruption for a generation that can't be read.
        """
        ...

    def share(self, folds: Mapping[ShardId, Fold]) -> SharedFold | SharedKey | None:
        """Join the folds of several shards, all of one version; None where that can't be done.

        It can't, for example, with a row-merge policy, which computes rows from the base's. If two
        of the folds hold the same key, that SharedKey is returned instead: nobody knows which of
        its rows is newer. Reads the rows of all folds. Raises as `fold`.
        """
        ...


class SharedFold(Protocol):
    """The folds of several shards, to be committed together. Errors are those of `Fold`."""

    @property
    def bytes_read(self) -> int:
        """Bytes read for the commit so far, not counting what the folds have read."""
        ...

    @property
    def double_keys(self) -> int:
        """As that of `Fold`, of all folds together."""
        ...

    def commit(self, marks: Mapping[ShardId, int]) -> Mapping[ShardId, CommitStats]:
        """Write all winners and record all marks in one commit; returns each shard's statistics.

        Tombstoned keys are deleted in the same commit, never in a pass before.
        """
        ...
