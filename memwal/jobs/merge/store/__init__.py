"""The merger's side of the base table: reading generations, and the commits of a merge.

With a row-merge policy, folds follow `memwal.rows.policy`'s rules. All rows of the prefix are held
in memory, which `bytes_per_commit_max` bounds. The base's rows are read when the commit is made, at
the version that it is made against. If one of them has changed since, the commit fails (see
`memwal.rows.policy`), and the next attempt reads it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from memwal.errors import LostRace, MemWalError, Refused
from memwal.jobs.merge.plan import Deletes, FoldFacts
from memwal.jobs.merge.ports import CommitStats, Fold
from memwal.jobs.merge.store.commits import (
    LanceSharedFold,
    SharedMember,
    count_bytes_read,
    delete_keys,
    key_table,
    run_commit,
    share_folds,
    upsert,
)
from memwal.model import FlushedGeneration, ShardId, SharedKey, TableView
from memwal.ports import Clock
from memwal.rows import fold
from memwal.rows.keys import new_keys_are_compared
from memwal.rows.keyset import KeySet, key_predicate, show_keys
from memwal.rows.policy import RowPolicy
from memwal.rows.policy_fold import Layer, PolicyFold
from memwal.store.tables.blobs import with_whole_blobs
from memwal.store.tables.datasets import LanceTables, find_double_keys
from memwal.store.tables.field_ids import FieldIds
from memwal.store.tables.generations import (
    Generations,
    Source,
    as_base_rows,
    is_reading_fault,
    reading,
    unreadable_text,
)
from memwal.store.tables.policy_rows import key_types, read_all_rows, read_base_rows, read_policy
from memwal.text import count_of
from memwal.threads import side_by_side

# Folds up to this size go to Lance as a table, whose known size lets it hash the smaller side of
# the join (5 times faster on 40 million rows); larger ones are streamed.
_IN_MEMORY_BYTES_MAX = 128 * 1024 * 1024
_READERS_MAX = 4


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
    field_ids: FieldIds
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
        given = self.field_ids.find_given
        if (view.columns, view.policy_text, given(view.version)) != (
            self.view.columns,
            self.view.policy_text,
            given(self.view.version),
        ):
            return self.refold(view)
        return replace(self, view=view, _bytes_read=self.bytes_read)

    @property
    def facts(self) -> FoldFacts:
        """What the plan needs; a policy demands a single commit."""
        live, deleted = self._fold.counts()
        return FoldFacts(
            generations=len(self.generations),
            live_rows=live,
            tombstones=deleted,
            anchored=len(self._fold.anchors) > 0,
            anchored_in_base=False,
            key_types=key_types(self.view),
            deletes_with_rows=True,
        )

    @property
    def double_keys(self) -> int:
        """None: where the base holds a key more than once, the commit is refused."""
        return 0

    @property
    def bytes_read(self) -> int:
        """Bytes read for this fold so far, base table included."""
        self._bytes_read += count_bytes_read((self._base, *(s.dataset for s in self.sources)))
        return self._bytes_read

    def delete_pass(self) -> tuple[int, int]:
        """Raise Refused: with a policy, keys are always deleted in the commit of the rows."""
        raise Refused(
            "MW-P14", f"{self._where}: a table with a row-merge policy has no delete pass"
        )

    def commit(self, deletes: Deletes, mark: int) -> CommitStats:
        """Fold with the base's rows, then write the result, delete keys, and mark in one commit."""
        try:
            base = run_commit(
                self._base,
                lambda: read_base_rows(self._base, self._fold.base_keys, self._base.schema.names),
            )
            outcome = self._fold.finish(base)
            self._check_once(outcome.rows.select(self.view.primary_key))
        except Refused as error:
            raise error.say(f"{self._where}: {error.text}; nothing of it was merged") from None
        return upsert(
            self._base,
            self.view.primary_key,
            lambda: outcome.rows,
            deletes=outcome.deleted,
            marks={self.shard_id: mark},
        )

    def _check_once(self, keys: pa.Table) -> None:
        """Refuse keys that the base holds more than once, beside those that were folded with it.

        Which of several rows is the value is not known, and an update would keep them all.
        """
        folded = KeySet(self._fold.base_keys.columns)
        hidden = keys.filter(pa.array(~folded.contains(keys.columns)))
        found = run_commit(
            self._base, lambda: find_double_keys(self._base, hidden, self.tables.memory)
        )
        if len(found):
            raise Refused("MW-P11", f"the base table holds {show_keys(found)[0]} more than once")


class LanceMergeTable:
    """The MergeTable port over Lance."""

    def __init__(self, generations: Generations, clock: Clock) -> None:
        self.generations = generations
        self.tables = generations.tables
        self._clock = clock

    def fold(
        self, view: TableView, shard_id: ShardId, generations: Sequence[FlushedGeneration]
    ) -> LanceFold | LancePolicyFold:
        """Read the generations' keys and fold them against `view` (see the port)."""
        policy = read_policy(view, self.tables.at)
        sources = side_by_side(
            lambda generation: self.generations.open(view, shard_id, generation),
            generations,
            _READERS_MAX,
        )
        if policy is not None:
            schema = self.tables.at(view.version).schema
            return LancePolicyFold(
                tables=self.tables,
                clock=self._clock,
                view=view,
                policy=policy,
                shard_id=shard_id,
                generations=generations,
                sources=sources,
                layers=read_layers(self.tables, shard_id, generations, sources, schema),
                refold=lambda newer: self.fold(newer, shard_id, generations),
                field_ids=self.generations.field_ids,
            )
        tables = side_by_side(
            lambda of: self.generations.keys(shard_id, *of, view.primary_key),
            list(zip(generations, sources, strict=True)),
            _READERS_MAX,
        )
        try:
            folded = fold.fold(tables, view.primary_key)
        except Refused as error:
            raise error.at(
                f"shard {shard_id}, generations {generations[0].generation} to "
                f"{generations[-1].generation}"
            ) from None
        made = LanceFold(
            owner=self,
            view=view,
            shard_id=shard_id,
            generations=generations,
            sources=sources,
            folded=folded,
        )
        made.count_reads()
        return made

    def share(self, folds: Mapping[ShardId, Fold]) -> LanceSharedFold | SharedKey | None:
        """Join the folds of several shards and read their rows (see the port)."""
        own = {s: folded for s, folded in folds.items() if isinstance(folded, LanceFold)}
        if len(own) < len(folds):
            return None
        view = next(iter(own.values())).view
        if any(folded.view.version != view.version for folded in own.values()):
            raise LostRace(f"{view.uri}: shards were folded against different versions")
        base = self.tables.at(view.version)
        members: dict[ShardId, SharedMember] = {}
        for shard_id, folded in own.items():
            members[shard_id] = folded.read_member(base.schema)
            folded.count_reads()
        return share_folds(members, view.primary_key, base, self.tables.memory)


@dataclass(kw_only=True, eq=False)
class LanceFold:
    """The Fold port over Lance. Keys are held in memory, payload is streamed at commit."""

    owner: LanceMergeTable
    view: TableView
    shard_id: ShardId
    generations: Sequence[FlushedGeneration]
    sources: Sequence[Source]
    folded: fold.Folded
    _bytes_read: int = 0
    _member: SharedMember | None = None

    @cached_property
    def _base(self) -> Any:
        """The fold's own handle, as a commit moves it on; folds that share a commit open none."""
        return self.owner.tables.at(self.view.version)

    @cached_property
    def facts(self) -> FoldFacts:
        """What the plan needs to shape the commit."""
        by_name = {c.name: c for c in self.view.columns}
        keys = [by_name[key] for key in self.view.primary_key]
        key_types = tuple(c.type_text for c in keys)
        # Looked up only where the answer can matter, as it may cost a scan of the key column.
        matters = not new_keys_are_compared(key_types)
        return FoldFacts(
            generations=len(self.generations),
            live_rows=self.folded.live_rows,
            tombstones=len(self.folded.tombstones),
            anchored=len(self.folded.anchors) > 0,
            anchored_in_base=matters and self._anchored_in_base(),
            key_types=key_types,
        )

    @property
    def double_keys(self) -> int:
        """How many keys of live winners the base holds more than once."""
        return len(self._doubles)

    @cached_property
    def _doubles(self) -> pa.Table:
        try:
            keys = key_table(self.folded.live_keys, self._base.schema)
        except pa.ArrowException:
            return self.folded.tombstones.slice(0, 0)  # the commit will say that rows do not fit
        memory = self.owner.tables.memory
        return run_commit(self._base, lambda: find_double_keys(self._base, keys, memory))

    def _anchored_in_base(self) -> bool:
        if not len(self.folded.anchors):
            return False
        base, name = self._base, self.view.primary_key[0]
        wanted = key_predicate(self.folded.anchors)
        found = run_commit(base, lambda: base.to_table(columns=[name], filter=wanted, limit=1))
        return len(found) > 0

    @property
    def bytes_read(self) -> int:
        """Bytes read for this fold so far, base table included."""
        self.count_reads()
        return self._bytes_read

    def count_reads(self) -> None:
        """Add the bytes read since the last count.

        Datasets of one session share a counter, so each fold has to count right after it reads.
        """
        opened = [vars(self)["_base"]] if "_base" in vars(self) else []
        self._bytes_read += count_bytes_read((*opened, *(s.dataset for s in self.sources)))

    def rebase(self, view: TableView) -> Fold:
        """The same winners on a newer version of the base."""
        if view.policy_text != self.view.policy_text:
            return self.owner.fold(view, self.shard_id, self.generations)
        line_up = self.owner.generations.line_up
        sources = [
            replace(
                source,
                alignment=line_up(view, self.shard_id, generation, source.dataset).alignment,
            )
            for generation, source in zip(self.generations, self.sources, strict=True)
        ]
        member = self._member if view.columns == self.view.columns else None
        self.count_reads()
        return replace(self, view=view, sources=sources, _member=member)

    def read_member(self, schema: pa.Schema) -> SharedMember:
        """Read the fold's rows for a shared commit; they are kept for a retry after a lost race.

        Raises as `MergeTable.fold`.
        """
        if self._member is not None and self._member.rows.schema.equals(schema):
            return self._member
        payload = _Payload(schema, self)
        try:
            rows = payload.open(stream=False)
        except BaseException as error:
            if payload.error is not None:
                raise payload.error from None
            if is_reading_fault(error):
                raise unreadable_text(self.owner.tables.uri, error) from None
            raise
        self._member = SharedMember(rows=rows, tombstones=self.folded.tombstones)
        return self._member

    def delete_pass(self) -> tuple[int, int]:
        """Delete the tombstoned and double keys, unmarked and without a retry on conflict.

        Rows that fit into memory are read before. So the base lacks the keys only for as long as
        the next commit takes, and nothing is deleted if the rows can't be read.
        """
        if not self.streams:
            self.read_member(self._base.schema)
        parts = (self.folded.tombstones, self._doubles)
        dead = pa.concat_tables([key_table(part, self._base.schema) for part in parts])
        stats = delete_keys(self._base, self.view.primary_key, dead, marks={})
        return int(self._base.version), stats.rows_deleted

    def commit(self, deletes: Deletes, mark: int) -> CommitStats:
        """Upsert the winners and mark the prefix, in one commit without a retry on conflict."""
        marks = {self.shard_id: mark}
        dead = self.folded.tombstones if deletes is Deletes.SAME_COMMIT else None
        if dead is not None and not self.folded.live_rows:
            return delete_keys(self._base, self.view.primary_key, dead, marks=marks)
        payload = _Payload(self._base.schema, self)
        return upsert(
            self._base,
            self.view.primary_key,
            lambda: self._member.rows if self._member else payload.open(stream=self.streams),
            deletes=dead,
            marks=marks,
            cause=lambda: payload.error,
        )

    @property
    def streams(self) -> bool:
        """Whether the payload is streamed to Lance: when it is large, or its size is not certain.

        Never with a memory limit: for a stream Lance hashes all keys of the base, for which there
        would be no room, and that limit already keeps commits small enough to hold.
        """
        if self.owner.tables.memory.bytes_max is not None:
            return False
        sizes = [None if g.estimated else g.in_memory_bytes for g in self.generations]
        return None in sizes or sum(s or 0 for s in sizes) > _IN_MEMORY_BYTES_MAX


class _Payload:
    """The winners' rows in the base's schema, read generation by generation."""

    def __init__(self, schema: pa.Schema, folded: LanceFold) -> None:
        self._schema = with_whole_blobs(schema)
        self._sources = folded.sources
        self._folded = folded.folded
        # Each reader reads ahead, and also holds rows that are not winners.
        limited = folded.owner.tables.memory.bytes_max is not None
        self._readers_max = 1 if limited else _READERS_MAX
        self._lock = threading.Lock()
        self.error: Exception | None = None

    def open(self, *, stream: bool) -> pa.Table | pa.RecordBatchReader:
        """A stream of batches, or a table, whose generations are read side by side."""
        parts = [
            part
            for part in zip(self._sources, self._folded.winners, self._folded.reach, strict=True)
            if len(part[1])
        ]
        if not stream:
            read = side_by_side(lambda part: list(self._read(*part)), parts, self._readers_max)
            return pa.Table.from_batches(chain.from_iterable(read), schema=self._schema)
        batches = chain.from_iterable(self._read(*part) for part in parts)
        return pa.RecordBatchReader.from_batches(self._schema, batches)

    def _read(self, source: Source, winners: np.ndarray, reach: int) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._generation(source, winners, reach)
        except (OSError, ValueError, pa.ArrowException, MemWalError) as error:
            ours = isinstance(error, MemWalError)
            with self._lock:
                self.error = error if ours else unreadable_text(source.dataset.uri, error)
            raise

    def _generation(
        self, source: Source, winners: np.ndarray, reach: int
    ) -> Iterator[pa.RecordBatch]:
        """The winners' rows; raises OSError when some are not found where their keys were read."""
        left = len(winners)
        scanner = source.dataset.scanner(
            columns=source.project(self._schema.names),
            batch_size=source.batch_rows,
            limit=reach,
            **(source.blobs.options | {"with_row_address": True}),
        )
        for batch in scanner.to_batches():
            kept = fold.keep_winners(batch, winners)
            left -= kept.num_rows
            if kept.num_rows:
                values = source.blobs.read(kept, committing=True)
                yield as_base_rows(source, values, self._schema)
        if left:
            raise OSError(
                f"{left} of {count_of(len(winners), 'row')} to merge were not found again"
            )
