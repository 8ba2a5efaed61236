"""Writers that resume: they skip calls whose entries are in the WAL already.

See `memwal.store.records.ingests` for why entries can be counted. They are counted after our own
claim, whose sentinel ends every earlier writer's entries. An entry that is still stored is compared
with the call that it is taken for. One that was collected in the meantime had been merged: it is
counted by its position alone, as the sentinels around it are never collected (invariant 7).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from memwal.errors import Corruption, MemWalError, Missing, Refused
from memwal.format import layout
from memwal.ingest.values.operations import Kind
from memwal.model import ShardId
from memwal.ports import Steps, no_steps
from memwal.store.records.ingests import Round, SessionRecord
from memwal.store.shards.wal import ReadEntry, WalEntries, WalHead
from memwal.store.shards.writers import Claim, MemTable, OpenShard, ShardWriters, Tip
from memwal.threads import side_by_side

_READERS_MAX = 8


@dataclass(kw_only=True, slots=True)
class ShardCounts:
    """What one run did to one shard. `bytes_written` is the rows' size in memory."""

    writer_epoch: int
    entries: int = 0
    bytes_written: int = 0
    generations: int = 0
    rows: int = 0
    rows_deleted: int = 0
    entries_found: int = 0
    rows_found: int = 0


@dataclass(frozen=True)
class ResumingWriters:
    """Opens shards for writing, and skips what this round wrote to them before.

    `tips` are the ends of the WALs at the row where reading starts. `steps` is called with the name
    of each step before it is taken.
    """

    writers: ShardWriters
    records: Round
    tips: Mapping[ShardId, Tip]
    key: tuple[str, ...]
    steps: Steps = no_steps
    opened: dict[ShardId, ResumedShard] = field(init=False, default_factory=dict)

    def open(
        self,
        shard_id: ShardId,
        spec_id: int = 0,
        entries: tuple[tuple[str, bytes], ...] = (),
        after_epoch: int | None = None,
        batches_max: int | None = None,
    ) -> ResumedShard:
        """Claim the shard, and find out which calls are in its WAL already.

        One that was closed in between goes on from its last call.
        """
        self.steps("claim")
        inner = self.writers.open(shard_id, spec_id, entries, after_epoch, batches_max)
        before = self.opened.get(shard_id)
        own = self.records.read_sessions(shard_id)
        begun = self.records.read_calls(shard_id) if own else {}
        self.records.check_latest()  # without its sessions, a finished round looks like a new one
        tip = self.tips.get(shard_id) if before is None else before.tip
        done = find_written(self.writers.wal, inner.claim, tip, own)
        calls = 0 if tip is None else tip.calls
        opened = ResumedShard(self, inner, done, calls=calls, begun=begun)
        if before is not None:
            opened.follow(before)
        self.opened[shard_id] = opened
        return opened

    def check_all_used(self) -> None:
        """Raise Corruption when the WAL has entries of ours for which the source has no row."""
        for shard_id, shard in self.opened.items():
            if left := shard.entries_left:
                raise Corruption(
                    "MW-I06",
                    f"shard {shard_id}: {left} WAL entries of this ingest belong to no row "
                    "of its source: the source has changed",
                )

    def check_positions(self) -> None:
        """Check that each WAL ends where our last entry is. Raises Fenced, Corruption."""
        for shard in self.opened.values():
            shard.inner.check_position()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Call:
    """A call of a writer: its number, its kind, and its rows as they are written."""

    number: int
    kind: Kind
    rows: pa.Table

    @property
    def batches(self) -> int:
        """How many batches the rows are written in; if possible, other than the last call's."""
        return 1 + self.number % 2 if self.rows.num_rows > 1 else 1

    def looks_like(self, last: _Call, key: tuple[str, ...]) -> bool:
        """Whether this call's entry could be taken for a copy of the last call's."""
        alike = self.kind is last.kind and self.batches == last.batches
        return alike and _is_same(self.rows, last, key)

    def make_batches(self) -> pa.Table:
        """The rows, cut into that many batches."""
        whole = self.rows.combine_chunks()
        if self.batches == 1:
            return whole
        return pa.concat_tables([whole.slice(0, 1), whole.slice(1)])


class ResumedShard:
    """The writer of one shard, which skips calls whose entries are in the WAL already."""

    def __init__(
        self,
        owner: ResumingWriters,
        inner: OpenShard,
        done: Iterable[Tip],
        *,
        calls: int,
        begun: Mapping[int, int],
    ) -> None:
        """`done` are the entries of the calls from number `calls` on.

        `begun` has, by number of the recorded calls, the position after which each begins.
        """
        self._owner = owner
        self.inner = inner
        self._done = deque(done)
        self._calls = calls
        self._begun = begun
        self._last: _Call | None = None
        self._seen: tuple[int, ReadEntry | None] | None = None
        self._tip = inner.tip
        self._announced = False
        self.counts = ShardCounts(writer_epoch=inner.claim.writer_epoch)

    def follow(self, before: ResumedShard) -> None:
        """Go on where an earlier writer of this run ended."""
        self._last = before._last
        self.counts = replace(before.counts, writer_epoch=self.inner.claim.writer_epoch)

    @property
    def claim(self) -> Claim:
        """Our hold on the shard."""
        return self.inner.claim

    @property
    def memtable(self) -> MemTable:
        """What is in no generation."""
        return self.inner.memtable

    @property
    def tip(self) -> Tip:
        """The entry of the last call."""
        return replace(self._tip, calls=self._calls)

    def put(self, rows: pa.Table) -> None:
        """Write rows, unless they are in the WAL already."""
        if self._write(Kind.PUT, rows):
            self.counts.rows += rows.num_rows

    def delete(self, keys: pa.Table) -> None:
        """Delete keys, unless the tombstones are in the WAL already."""
        if self._write(Kind.DELETE, keys):
            self.counts.rows_deleted += keys.num_rows

    def close(self) -> None:
        """Flush to a generation and close."""
        self._owner.steps("close")
        self.inner.close()
        self.counts.generations += self.inner.count_generations()

    def abandon(self) -> None:
        """Close the writer after a failure, ignoring errors."""
        self.inner.abandon()
        with suppress(MemWalError):
            self.counts.generations += self.inner.count_generations()

    @property
    def entries_left(self) -> int:
        """How many entries no call has accounted for yet."""
        return len(self._done)

    def _write(self, kind: Kind, rows: pa.Table) -> bool:
        """Make the call unless it is done, and return whether it had to be made."""
        call = _Call(number=self._calls, kind=kind, rows=rows)
        done = self._is_done(call)
        if not done:
            self._announce(call)
            (self.inner.put if kind is Kind.PUT else self.inner.delete)(call.make_batches())
            self._owner.steps("written")
            self._tip = self.inner.tip
            self.counts.entries += 1
            self.counts.bytes_written += rows.nbytes
        self._calls, self._last = self._calls + 1, call
        return not done

    def _announce(self, call: _Call) -> None:
        if not self._announced:
            claim = self.inner.claim
            self._owner.steps("session")
            self._owner.records.add_session(
                claim.shard_id, claim.writer_epoch, claim.start_position
            )
            self._announced = True
        if self._last is not None and call.looks_like(self._last, self._owner.key):
            self._owner.steps("call")
            before = replace(self.inner.tip, calls=call.number)
            self._owner.records.add_call(self.inner.claim.shard_id, before)
        self._owner.steps("entry")

    def _is_done(self, call: _Call) -> bool:
        """Whether the call is in the WAL; if so, consumes its entry and any copies of it."""
        if not self._done:
            return False
        self._tip = self._done.popleft()
        self._check_own(self._tip.position, call)
        while self._done and self._is_copy(self._done[0], call):
            self._tip = self._done.popleft()
        self.counts.entries_found += 1
        self.counts.rows_found += call.rows.num_rows
        return True

    def _check_own(self, position: int, call: _Call) -> None:
        """Raise Corruption when an entry has other rows than the call.

        An entry that was collected counts by its position alone.
        """
        stored = self._read(position)
        if stored is not None and not self._holds(stored, call):
            raise Corruption(
                "MW-I06",
                f"shard {self.inner.claim.shard_id}: WAL position {position} holds other rows than "
                "the source gives for it now: the source has changed",
            )

    def _is_copy(self, found: Tip, last: _Call) -> bool:
        """Whether an entry is another copy of the last call's."""
        if last.number + 1 in self._begun:
            return found.position <= self._begun[last.number + 1]
        stored = self._read(found.position)
        if stored is None or not self._holds(stored, last):
            return False
        # A next call that looks like this one would have been recorded.
        return len(stored.batches) == last.batches

    def _holds(self, stored: ReadEntry, call: _Call) -> bool:
        rows = pa.Table.from_batches(stored.batches, schema=stored.schema)
        return _is_same(rows, call, self._owner.key)

    def _read(self, position: int) -> ReadEntry | None:
        """An entry; None when it was collected. The last one read is kept: it is compared twice."""
        if self._seen is None or self._seen[0] != position:
            try:
                stored = self._owner.writers.wal.rows(self.inner.claim.shard_id, position)
            except Missing:
                stored = None
            self._seen = position, stored
        return self._seen[1]


def _is_same(stored: pa.Table, call: _Call, columns: tuple[str, ...]) -> bool:
    """Whether an entry is what the call would write: as many rows, equal in `columns`."""
    if stored.num_rows != call.rows.num_rows:
        return False
    if layout.TOMBSTONE in stored.column_names:
        dead = stored[layout.TOMBSTONE].fill_null(False).to_pylist()
        if any(flag != (call.kind is Kind.DELETE) for flag in dead):
            return False
    return all(_has_same_values(stored[name], call.rows[name]) for name in columns)


def _has_same_values(stored: Any, wanted: Any) -> bool:
    return bool(stored.cast(wanted.type).combine_chunks().equals(wanted.combine_chunks()))


def find_written(
    wal: WalEntries, claim: Claim, tip: Tip | None, own: Mapping[int, SessionRecord]
) -> list[Tip]:
    """The entries that our earlier epochs wrote between `tip` and our new claim, in order."""
    earlier = {epoch: s for epoch, s in own.items() if epoch < claim.writer_epoch}
    if not earlier:
        return []
    if tip is None:
        first = min(earlier.values(), key=lambda session: session.start_position)
        tip = Tip(writer_epoch=first.writer_epoch, position=first.start_position, calls=0)
    if claim.writer_epoch - tip.writer_epoch >= layout.LEAP_MIN:
        raise Refused(
            "MW-I42",
            f"shard {claim.shard_id}: the table was restored after this ingest began, and nothing "
            "tells which of its rows came back: ingest again under another --id",
        )
    positions = range(tip.position + 1, claim.start_position)
    heads = _read_heads(wal, claim.shard_id, positions)
    epoch, found = tip.writer_epoch, []
    for position in positions:
        head = heads.get(position)
        # A missing entry was collected, so it was not a sentinel: those never are. A superseded
        # claim may leave its sentinel above the next claim's, and writes nothing after it.
        whose = epoch if head is None else head.writer_epoch
        epoch = max(epoch, whose)
        if whose in earlier and (head is None or not head.fence_sentinel):
            found.append(Tip(writer_epoch=whose, position=position, calls=0))
    return found


def _read_heads(wal: WalEntries, shard_id: ShardId, positions: range) -> dict[int, WalHead]:
    if not positions:
        return {}
    listed = {p: info for p, info in wal.list_entries(shard_id) if p in positions}

    def read_head(position: int) -> WalHead | None:
        info = listed[position]
        try:
            return wal.head(info.path, info.size_bytes)
        except Missing:
            return None

    heads = zip(listed, side_by_side(read_head, list(listed), _READERS_MAX), strict=True)
    return {position: head for position, head in heads if head is not None}
