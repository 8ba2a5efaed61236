"""One lease for jobs that follow one another, and what others see of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from memwal.errors import LeaseHeld, LostRace, StoreUnavailable
from memwal.format.layout import lease_claim_path
from memwal.jobs.merge.apply import RefreshWatch
from memwal.model import LeaseClaim
from memwal.run.lease import ChainLeases, HeldLease
from memwal.store.records.lease import StoredLeases
from memwal.testing import Fault, FaultyObjects, ManualClock, MemoryBucket, MemoryObjects
from memwal.testing.objects import Call, HookedObjects, T

AWAY = StoreUnavailable("away")


@dataclass
class World:
    """A table's lease, a chain that takes it for its jobs, and somebody who looks."""

    clock: ManualClock = field(default_factory=ManualClock)
    ttl_seconds: float = 300.0
    away: int = 0
    """A claim that the store does not take at first."""
    bucket: MemoryBucket = field(default_factory=MemoryBucket)
    warned: list[str] = field(default_factory=list)
    put: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.chain = ChainLeases("maintain", self.warned.append)
        away = Fault(operation="put_if_absent", path=lease_claim_path(self.away), error=AWAY)
        stored = FaultyObjects(MemoryObjects(bucket=self.bucket, clock=self.clock), away)
        self.objects = HookedObjects(stored, self._note)
        self.others = self.leases("somebody")

    def _note(self, call: Call, effect: Callable[[], T]) -> T:
        found = effect()
        if call.operation == "put":
            self.put.set()
        return found

    def leases(self, holder: str) -> StoredLeases:
        ttl = self.ttl_seconds
        return StoredLeases(self.objects, self.clock, holder=holder, ttl_seconds=ttl)

    def take(self, job: str) -> HeldLease:
        """As a job of the chain does, each through stores of its own."""
        own = job == "snapshot"
        return self.chain.take("t", self.leases("me"), job, self.warned.append, own_claim=own)

    @property
    def claim(self) -> LeaseClaim:
        claim = self.others.current()
        assert claim is not None
        return claim


@pytest.fixture
def world() -> World:
    return World()


def test_jobs_share_one_claim_under_the_chain_s_name(world: World) -> None:
    tokens = [world.take(job).token for job in ("merge", "index-catchup", "compaction", "garbage")]
    assert (tokens, world.claim.job) == ([1, 1, 1, 1], "maintain")
    world.chain.give_back("t")
    assert world.claim.released
    assert world.take("merge").token == 2


def test_a_refresh_has_a_claim_of_its_own_and_nobody_gets_in_between(world: World) -> None:
    """Who merges without a lease goes by the newest claim: its number, and whether a refresh."""
    world.take("merge")
    before, during, after = (RefreshWatch(leases=world.others) for _ in range(3))
    before.before_view()
    refresh = world.take("snapshot")
    assert (refresh.token, world.claim.job) == (2, "snapshot")
    with pytest.raises(LeaseHeld, match="snapshot refresh"):
        during.before_view()
    with pytest.raises(LeaseHeld):
        world.others.acquire("merge")
    refresh.check_unbroken()
    assert (world.take("garbage").token, world.claim.job) == (2, "maintain")
    with pytest.raises(LostRace):
        before.before_commit()
    after.before_view()
    after.before_commit()


def test_that_a_refresh_was_cut_off_is_forgotten_once_another_has_committed(world: World) -> None:
    world.others.acquire("snapshot")
    world.clock.advance(10_000)
    assert world.take("merge").is_unfenced
    refresh = world.take("snapshot")
    assert (refresh.is_unfenced, world.claim.unfenced) == (True, True)
    refresh.note_fenced()
    assert (world.take("merge").is_unfenced, world.claim.unfenced) == (False, False)


def test_the_heart_beats_on_from_one_job_to_the_next(world: World) -> None:
    world.ttl_seconds = 0.15
    for job in ("merge", "snapshot", "garbage"):
        world.take(job)
        before = world.claim
        world.clock.advance(0.01)
        while world.claim.expires_at_nanos == before.expires_at_nanos:
            assert world.put.wait(10), f"no beat in {job}"
            world.put.clear()
    world.chain.give_back("t")


def test_a_lapse_before_the_refresh_is_nothing_to_it(world: World) -> None:
    held = world.take("merge")
    world.clock.advance(10_000)
    with pytest.raises(LeaseHeld):
        held.check_unbroken()
    world.take("snapshot").check_unbroken()


def test_a_lease_that_was_broken_does_not_go_on(world: World) -> None:
    world.take("merge")
    world.others.break_("a test")
    for job in ("snapshot", "garbage"):
        with pytest.raises(LeaseHeld, match="a test"):
            world.take(job).check()


def test_a_lease_that_another_has_taken_over_is_not_taken_back(world: World) -> None:
    world.take("merge")
    world.clock.advance(10_000)
    theirs = world.others.acquire("merge")
    for job in ("snapshot", "garbage"):
        with pytest.raises(LeaseHeld):
            world.take(job).check()
    world.chain.give_back("t")
    assert world.claim == theirs


def test_a_refresh_that_gets_no_claim_leaves_the_lease_as_it_was() -> None:
    world = World(away=2)
    world.take("merge")
    with pytest.raises(StoreUnavailable):
        world.take("snapshot")
    assert (world.claim.token, world.others.is_live(world.claim)) == (1, True)
    assert world.take("snapshot").token == 2
    world.chain.give_back("t")
    assert (world.claim.token, world.claim.released) == (2, True)


def test_whatever_is_held_is_given_back_at_the_end(world: World) -> None:
    with pytest.raises(ZeroDivisionError), world.chain:
        world.take("merge")
        raise ZeroDivisionError
    assert world.claim.released
    assert world.warned == []
