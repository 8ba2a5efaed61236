"""Merging into a table with a row-merge policy: the Fold port by `memwal.policy`'s rules.

All rows of the prefix are held in memory, which `bytes_per_commit_max` bounds. The base's rows are
read when the commit is made, at the version that the commit is made against: one that was changed
since makes the commit fail (see `memwal.policy`), and the next attempt reads it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from memwal.errors import Refused
from memwal.jobs.merge.plan import CommitShape, FoldFacts, Join
from memwal.jobs.merge.ports import CommitStats
from memwal.jobs.merge.store_commit import guarded, upsert
from memwal.model import FlushedGeneration, ShardId, TableView
from memwal.ports import Clock
from memwal.rows import sql
from memwal.rows.policy import RowPolicy
from memwal.rows.policy_fold import Layer, Outcome, PolicyFold
from memwal.rows.policy_rows import all_rows, base_rows
from memwal.store.generations import Source, is_reading_fault, unreadable
from memwal.store.stored_policy import key_types
from memwal.store.table import LanceTables


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySources:
    """What a fold reads: generations of one shard, opened and lined up."""

    tables: LanceTables
    shard_id: ShardId
    generations: tuple[FlushedGeneration, ...]
    sources: tuple[Source, ...]


def policy_layers(opened: PolicySources, schema: pa.Schema) -> list[Layer]:
    """All rows of the generations. Raises Missing, Corruption, Refused."""
    layers = []
    for generation, source in zip(opened.generations, opened.sources, strict=True):
        try:
            rows = all_rows(source, generation, schema)
        except Refused as error:
            raise Refused(f"shard {opened.shard_id}: {error}") from None
        except BaseException as error:  # a panic in Lance's Rust code is no Exception
            if is_reading_fault(error):
                raise unreadable(opened.tables.uri, opened.shard_id, generation, error) from None
            raise
        layers.append(Layer(name=f"generation {generation.generation}", table=rows))
    return layers


class LancePolicyFold:
    """The Fold port over Lance, for a table with a policy."""

    def __init__(
        self,
        *,
        view: TableView,
        policy: RowPolicy,
        opened: PolicySources,
        layers: Sequence[Layer],
        clock: Clock,
        refold: Callable[[TableView], LancePolicyFold],
    ) -> None:
        """`refold` folds from the start. Raises Refused for a NULL in a key."""
        self._view = view
        self._policy = policy
        self._opened = opened
        self._layers = layers
        self._clock = clock
        self._refold = refold
        self._base = opened.tables.at(view.version)
        self._bytes_read = 0
        first, last = opened.generations[0].generation, opened.generations[-1].generation
        self._where = f"shard {opened.shard_id}, generations {first} to {last}"
        try:
            self._fold = PolicyFold(
                policy,
                view.primary_key,
                self._base.schema,
                layers,
                now_nanos=clock.now_nanos(),
            )
        except Refused as error:
            raise Refused(f"{self._where}: {error}") from None

    def rebased(self, view: TableView) -> LancePolicyFold:
        """The same on a newer version, at a new instant; rows are read again if columns changed."""
        same = (view.columns, view.policy_text) == (self._view.columns, self._view.policy_text)
        if not same:
            return self._refold(view)
        rebased = LancePolicyFold(
            view=view,
            policy=self._policy,
            opened=self._opened,
            layers=self._layers,
            clock=self._clock,
            refold=self._refold,
        )
        rebased._bytes_read = self.bytes_read
        return rebased

    @property
    def facts(self) -> FoldFacts:
        """What the plan needs: the scan join, and one commit for all (`memwal.policy`)."""
        live, deleted = self._fold.counts()
        return FoldFacts(
            generations=len(self._opened.generations),
            live_rows=live,
            tombstones=deleted,
            anchored=len(self._fold.anchors) > 0,
            anchored_in_base=False,
            base_rows=self._view.rows,
            key_types=key_types(self._view),
            key_indexed=False,
            deletes_with_rows=True,
        )

    @property
    def bytes_read(self) -> int:
        """Bytes read for this fold so far, base table included."""
        for dataset in (self._base, *(s.dataset for s in self._opened.sources)):
            self._bytes_read += dataset.io_stats_incremental().read_bytes
        return self._bytes_read

    def delete_pass(self, shape: CommitShape) -> tuple[int, int]:
        """Never asked for: tombstones leave in the commit of the rows."""
        raise Refused(f"{self._where}: a table with a row-merge policy has no delete pass")

    def commit(self, shape: CommitShape, mark: int) -> CommitStats:
        """Fold with the base's rows and write what comes out, tombstones and mark in one commit."""
        outcome = self._finished()
        keys = self._view.primary_key
        deletes = None
        if len(outcome.deleted):
            columns = [column.to_pylist() for column in outcome.deleted.columns]
            deletes = sql.keys_in(keys, zip(*columns, strict=True))
        return upsert(
            self._base,
            keys,
            lambda: outcome.rows,
            join=Join.SCAN,
            deletes=deletes,
            marks={self._opened.shard_id: mark},
        )

    def _finished(self) -> Outcome:
        names = self._base.schema.names
        try:
            base = guarded(lambda: base_rows(self._base, self._fold.base_keys, names))
            return self._fold.finish(base)
        except Refused as error:
            raise type(error)(f"{self._where}: {error}; nothing of it was merged") from None
