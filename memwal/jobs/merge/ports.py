"""What a merge asks of the base table: folds of pending generations, and the commits of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from memwal.jobs.merge.plan.shard import CommitShape, FoldFacts
from memwal.model import FlushedGeneration, LeaseClaim, ShardId, SharedKey, TableView


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitStats:
    """What one marked commit did, in rows."""

    rows_inserted: int
    rows_updated: int
    rows_deleted: int


class Fold(Protocol):
    """Some generations of one shard, folded newest-wins, bound to one version of the base table.

    Both writing methods raise LostRace on a conflict, and StoreUnavailable for an error after which
    the commit may have landed all the same.
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
        """The same fold on a newer version. Reads no key again; columns are aligned anew."""
        ...

    def delete_pass(self, shape: CommitShape) -> tuple[int, int]:
        """Delete the tombstoned keys, unmarked, no retry; the handle's version after, and rows."""
        ...

    def commit(self, shape: CommitShape, mark: int) -> CommitStats:
        """Write the winners and record `mark` as merged, in one commit, without a retry."""
        ...


class Turns(Protocol):
    """Whose turn it is to commit to a table, among those who merge it from one host.

    It saves work and protects nothing: Lance decides which commits land.
    """

    def turn(
        self, inserts_many: Callable[[], bool] = lambda: False
    ) -> AbstractContextManager[bool]:
        """A commit's turn. True: the others wait until it ends, as they have been in the way, or
        would be: the commit is one of several that are made now, and tells that it inserts many.
        """
        ...

    def lost(self) -> None:
        """A commit was refused because of another one."""
        ...


class NoTurns:
    """Everybody commits at once; whoever is refused tries again."""

    @contextmanager
    def turn(self, inserts_many: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Never held."""
        yield False

    def lost(self) -> None:
        """Nothing to remember."""


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
        """The folds of several shards, of one version, as one; None where they can't be.

        That is when rows are made of the base's (a row-merge policy), for example. A key that two
        of them hold is returned instead: which of its rows is newer is not known. Reads the rows of
        all of them. Raises as `fold`.
        """
        ...


class SharedFold(Protocol):
    """The folds of several shards, to be committed together. Errors are those of `Fold`."""

    @property
    def bytes_read(self) -> int:
        """Bytes read for the commit so far, besides what the folds read."""
        ...

    def inserts_many(self) -> bool:
        """Whether it is known to insert so many keys that Lance would refuse it beside another such
        commit. May look at the base, where that takes less than what a refusal costs.
        """
        ...

    def commit(
        self, shape: CommitShape, marks: Mapping[ShardId, int]
    ) -> Mapping[ShardId, CommitStats]:
        """Write all winners and record all marks in one commit; what it did for each shard.

        Tombstones leave in the same commit, where the shape says so; never in a pass before.
        """
        ...


class Leases(Protocol):
    """The lease of one table, as a merge looks at it."""

    def current(self) -> LeaseClaim | None:
        """The newest claim, whatever its state; None when there never was one."""
        ...

    def is_live(self, claim: LeaseClaim) -> bool:
        """Whether the claim holds the lease now, by this host's clock."""
        ...

    def check(self, token: int) -> None:
        """Raise LeaseHeld when a newer claim exists."""
        ...
