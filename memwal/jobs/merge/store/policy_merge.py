"""Merging into a table with a row-merge policy: the Fold port by `memwal.policy`'s rules.

All rows of the prefix are held in memory, which `bytes_per_commit_max` bounds. The base's rows are
read when the commit is made, at the version that it is made against. If one of them has changed
since, the commit fails (see `memwal.policy`), and the next attempt reads it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from memwal.errors import Refused
from memwal.jobs.merge.plan.shard import CommitShape, FoldFacts, Join
from memwal.jobs.merge.ports import CommitStats, Fold
from memwal.jobs.merge.store.commit import count_bytes_read, run_commit, upsert
from memwal.model import FlushedGeneration, ShardId, TableView
from memwal.ports import Clock
from memwal.rows.policy import RowPolicy
from memwal.rows.policy_fold import Layer, PolicyFold
from memwal.store.tables.datasets import LanceTables
from memwal.store.tables.generations import Source, reading
from memwal.store.tables.policy_rows import read_all_rows, read_base_rows
from memwal.store.tables.stored_policy import key_types


def read_layers(
    tables: LanceTables,
    shard_id: ShardId,
    generations: Sequence[FlushedGeneration],
    sources: Sequence[Source],
    schema: pa.Schema,
) -> list[Layer]:
    """Read all rows of opened generations. Raises Missing, Corruption, Refused."""
    layers = []
    for generation, source in zip(generations, sources, strict=True):
        try:
            with reading(tables.uri, shard_id, generation):
                rows = read_all_rows(source, generation, schema)
        except Refused as error:
            raise error.at(f"shard {shard_id}") from None
        layers.append(Layer(name=f"generation {generation.generation}", table=rows))
    return layers


@dataclass(kw_only=True, eq=False)
class LancePolicyFold:
    """The Fold port over Lance, for a table with a policy. `refold` makes a fold from scratch."""

    tables: LanceTables
    clock: Clock
    view: TableView
    policy: RowPolicy
    shard_id: ShardId
    generations: Sequence[FlushedGeneration]
    sources: Sequence[Source]
    layers: Sequence[Layer]
    refold: Callable[[TableView], Fold]
    _bytes_read: int = 0

    def __post_init__(self) -> None:
        """Raises Refused for a NULL in a key."""
        self._base = self.tables.at(self.view.version)
        first, last = self.generations[0].generation, self.generations[-1].generation
        self._where = f"shard {self.shard_id}, generations {first} to {last}"
        try:
            self._fold = PolicyFold(
                self.policy,
                self.view.primary_key,
                self._base.schema,
                self.layers,
                now_nanos=self.clock.now_nanos(),
            )
        except Refused as error:
            raise error.at(self._where) from None

    def rebase(self, view: TableView) -> Fold:
        """The same fold on a newer version, with the time of now.

        Rows are read again if the columns or the policy changed.
        """
        if (view.columns, view.policy_text) != (self.view.columns, self.view.policy_text):
            return self.refold(view)
        return replace(self, view=view, _bytes_read=self.bytes_read)

    @property
    def facts(self) -> FoldFacts:
        """What the plan needs; a policy demands the scan join and a single commit."""
        live, deleted = self._fold.counts()
        return FoldFacts(
            generations=len(self.generations),
            live_rows=live,
            tombstones=deleted,
            anchored=len(self._fold.anchors) > 0,
            anchored_in_base=False,
            base_rows=self.view.rows,
            key_types=key_types(self.view),
            key_indexed=False,
            deletes_with_rows=True,
        )

    @property
    def bytes_read(self) -> int:
        """Bytes read for this fold so far, base table included."""
        self._bytes_read += count_bytes_read((self._base, *(s.dataset for s in self.sources)))
        return self._bytes_read

    def delete_pass(self, shape: CommitShape) -> tuple[int, int]:
        """Raise Refused: with a policy, keys are always deleted in the commit of the rows."""
        raise Refused(
            "MW-P14", f"{self._where}: a table with a row-merge policy has no delete pass"
        )

    def commit(self, shape: CommitShape, mark: int) -> CommitStats:
        """Fold with the base's rows, then write the result, delete keys, and mark in one commit."""
        try:
            base = run_commit(
                lambda: read_base_rows(self._base, self._fold.base_keys, self._base.schema.names)
            )
            outcome = self._fold.finish(base)
        except Refused as error:
            raise error.say(f"{self._where}: {error.text}; nothing of it was merged") from None
        return upsert(
            self._base,
            self.view.primary_key,
            lambda: outcome.rows,
            join=Join.SCAN,
            deletes=outcome.deleted,
            marks={self.shard_id: mark},
        )
