"""A rescue's order and its ends, over a shard in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from memwal.errors import LeaseHeld, LostRace, MemWalError, StoreUnavailable
from memwal.format.replay import WalEntry
from memwal.jobs.rescue.apply import ShardRescuer
from memwal.jobs.rescue.plan import RescueEvidence, RescueMark, ShardRescue, format_epoch
from memwal.jobs.rescue.request import RescueRequest
from memwal.model import FlushedGeneration, ShardId, ShardManifest, StoredFile
from memwal.testing import ManualClock

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
SECOND = 10**9
EMPTY = ShardManifest(shard_id=SHARD, version=1, writer_epoch=1, current_generation=1)
FLUSHED = replace(
    EMPTY,
    version=3,
    writer_epoch=2,
    current_generation=2,
    replay_after_wal_entry_position=3,
    flushed_generations=(FlushedGeneration(generation=1, path="0a1b2c3d_gen_1"),),
)


@dataclass
class FakeShard:
    """The ShardWal and ShardWriters ports in one. `log` is what was done."""

    clock: ManualClock
    idle_seconds: float = 900.0
    store_ahead_seconds: float = 0.0
    manifest: ShardManifest = EMPTY
    flushes: bool = True
    error: MemWalError | None = None
    unread: MemWalError | None = None
    log: list[str] = field(default_factory=list)

    @property
    def now_nanos(self) -> int:
        return self.clock.now_nanos() + int(self.store_ahead_seconds * SECOND)

    def read(self, shard_id: ShardId) -> RescueEvidence:
        if self.unread is not None and "claim" in self.log:
            raise self.unread
        written = self.now_nanos - int(self.idle_seconds * SECOND)
        entry = WalEntry(
            position=1, size_bytes=900, written_at_nanos=written, writer_epoch=1, generation=1,
            rows=2, batches=1,
        )  # fmt: skip
        return RescueEvidence(
            manifest=self.manifest,
            entries=(entry,),
            files=(StoredFile(path="wal/x", size_bytes=1, modified_at_nanos=written),),
        )

    def mark(self, shard_id: ShardId, mark: RescueMark) -> int:
        self.log.append("mark")
        return self.now_nanos

    def unmark(self, shard_id: ShardId) -> None:
        self.log.append("unmark")

    def claim(self, shard_id: ShardId, **bounds: int) -> Callable[[], None]:
        self.log.append("claim")
        return self.flush

    def flush(self) -> None:
        self.log.append("flush")
        if self.flushes:
            self.manifest = FLUSHED
        if self.error is not None:
            raise self.error


@pytest.fixture
def shard() -> FakeShard:
    return FakeShard(clock=ManualClock())


def rescuer(shard: FakeShard) -> ShardRescuer:
    return ShardRescuer(
        wal=shard,
        writers=shard,  # type: ignore[arg-type]
        clock=shard.clock,
        request=RescueRequest(idle_seconds=600),
        before_claim=lambda: shard.log.append("lease"),
    )


def rescue(shard: FakeShard) -> ShardRescue:
    done = rescuer(shard).run(SHARD)
    assert done is not None
    return done


def test_the_mark_comes_before_the_claim_and_goes_after_the_flush(shard: FakeShard) -> None:
    done = rescue(shard)
    assert (done.outcome, done.generations, done.writer_epoch_after) == ("done", (1,), 2)
    assert shard.log == ["mark", "lease", "claim", "flush", "unmark"]


def test_the_store_s_clock_decides(shard: FakeShard) -> None:
    """By this host's clock the shard is silent for long; by the store's it was written just now."""
    shard.store_ahead_seconds, shard.idle_seconds = -1000.0, 10.0
    done = rescue(shard)
    assert (done.outcome, shard.log) == ("refused", ["mark", "unmark"])


def test_nothing_unflushed_is_not_claimed(shard: FakeShard) -> None:
    shard.manifest = FLUSHED
    assert (rescue(shard).outcome, shard.log) == ("nothing_to_do", [])


def test_a_young_shard_is_not_even_marked(shard: FakeShard) -> None:
    shard.idle_seconds = 10.0
    assert (rescue(shard).outcome, shard.log) == ("refused", [])


def test_a_lost_lease_claims_nothing(shard: FakeShard) -> None:
    def lost() -> None:
        raise LeaseHeld("superseded")

    with pytest.raises(LeaseHeld):
        replace(rescuer(shard), before_claim=lost).run(SHARD)
    assert shard.log == ["mark"]


def test_a_flush_that_shows_nothing_is_not_believed(shard: FakeShard) -> None:
    shard.flushes = False
    done = rescue(shard)
    assert done.outcome == StoreUnavailable.outcome
    assert shard.log == ["mark", "lease", "claim", "flush"]


def test_an_error_after_the_commit_does_not_matter(shard: FakeShard) -> None:
    shard.error = LostRace("another writer flushed the same rows")
    done = rescue(shard)
    assert (done.outcome, done.error, shard.log[-1]) == ("done", None, "unmark")


def test_a_failed_flush_leaves_the_mark(shard: FakeShard) -> None:
    shard.error, shard.flushes = StoreUnavailable("down"), False
    done = rescue(shard)
    assert (done.outcome, done.error) == ("failed", str(shard.error))
    assert shard.log[-1] == "flush"


def test_a_shard_that_can_not_be_read_afterwards_counts_as_claimed(shard: FakeShard) -> None:
    shard.unread = StoreUnavailable("down")
    done = rescue(shard)
    assert (done.outcome, done.error, done.has_claimed) == ("failed", str(shard.unread), True)
    assert (format_epoch(done), shard.log[-1]) == ("1 -> ?", "flush")
