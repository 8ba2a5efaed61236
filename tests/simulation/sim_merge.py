"""The simulation's folds of a merge: of one shard, and of several that share a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memwal.errors import Missing, StoreUnavailable
from memwal.jobs.merge.plan import Deletes, FoldFacts
from memwal.jobs.merge.ports import CommitStats
from memwal.model import ShardId, TableView
from tests.simulation.lake import Version

if TYPE_CHECKING:
    from tests.simulation.sim_ports import SimStores


def land(
    stores: SimStores,
    what: str,
    read: int,
    live: Mapping[int, int],
    gone: frozenset[int],
    marks: Mapping[ShardId, int],
) -> Version:
    """One commit on the version that was read."""

    def commit() -> Version:
        try:
            return stores.lake.merge(read, live, gone, marks)
        except Missing as error:
            raise StoreUnavailable(str(error)) from None

    return stores.actor.step(f"{what} on {read}", commit)


@dataclass(kw_only=True)
class SimFold:
    """The Fold port."""

    stores: SimStores
    read: int
    shard_id: ShardId
    generations: int
    changes: Mapping[int, int | None]
    anchors: frozenset[int]
    base: Mapping[int, tuple[int, int]]
    bytes_read: int = 0
    double_keys: int = 0

    @property
    def facts(self) -> FoldFacts:
        live = self._live()
        return FoldFacts(
            generations=self.generations,
            live_rows=len(live),
            tombstones=len(self.changes) - len(live),
            anchored=bool(self.anchors),
            anchored_in_base=bool(self.anchors & self.base.keys()),
            key_types=(self.stores.lake.key_type,),
            deletes_with_rows=self.stores.rules.policy_text is not None,
        )

    def rebase(self, view: TableView) -> SimFold:
        return replace(self, read=view.version, base=self.stores.base_rows(view.version))

    def delete_pass(self) -> tuple[int, int]:
        gone = self._dead_in_base()
        if gone:
            self.read = self._commit("delete pass", {}, gone, {}).number
        return self.read, len(gone)

    def commit(self, deletes: Deletes, mark: int) -> CommitStats:
        live, gone = self.writes(deletes)
        self._commit(f"merge to {mark}", live, gone, {self.shard_id: mark})
        return self.stats(deletes)

    def writes(self, deletes: Deletes) -> tuple[dict[int, int], frozenset[int]]:
        """What the commit writes, and the keys that it takes out."""
        gone = self._dead_in_base() if deletes is Deletes.SAME_COMMIT else frozenset()
        return self._live(), gone

    def stats(self, deletes: Deletes) -> CommitStats:
        """What the commit did."""
        live, gone = self.writes(deletes)
        updated = len(live.keys() & self.base.keys())
        return CommitStats(
            rows_inserted=len(live) - updated,
            rows_updated=updated,
            rows_deleted=len(gone),
        )

    def _commit(
        self, what: str, live: Mapping[int, int], gone: frozenset[int], marks: Mapping[ShardId, int]
    ) -> Version:
        return land(self.stores, f"{what} of {self.shard_id[:4]}", self.read, live, gone, marks)

    def _live(self) -> dict[int, int]:
        """What the base is to have, folded with what it has at the version that was read."""
        live = {key: self.base[key][0] for key in self.changes if key in self.base}
        self.stores.rules.apply(live, self.changes)
        return live

    def _dead_in_base(self) -> frozenset[int]:
        return frozenset(k for k, v in self.changes.items() if v is None and k in self.base)


def shared(stores: SimStores, folds: Sequence[SimFold]) -> SimSharedFold | None:
    """The folds as one; None when two hold a key, or when rows are folded with the base's."""
    keys = [key for fold in folds for key in fold.changes]
    if len(keys) > len(set(keys)) or stores.rules.policy_text is not None:
        return None
    return SimSharedFold(stores=stores, folds=tuple(folds))


@dataclass(frozen=True, kw_only=True)
class SimSharedFold:
    """The SharedFold port."""

    stores: SimStores
    folds: tuple[SimFold, ...]
    bytes_read: int = 0
    double_keys: int = 0

    def commit(self, marks: Mapping[ShardId, int]) -> Mapping[ShardId, CommitStats]:
        live: dict[int, int] = {}
        gone: frozenset[int] = frozenset()
        for fold in self.folds:
            written, taken_out = fold.writes(Deletes.SAME_COMMIT)
            live |= written
            gone |= taken_out
        land(self.stores, "shared merge", self.folds[0].read, live, gone, marks)
        return {fold.shard_id: fold.stats(Deletes.SAME_COMMIT) for fold in self.folds}
