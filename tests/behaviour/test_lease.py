"""The lease, on every store: one holder, tokens that only grow, records that stay."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobs._lease import HeldLease
from memwal.clock import SystemClock
from memwal.errors import Corruption, LeaseHeld, StoreUnavailable
from memwal.ports import Objects
from memwal.store.lease import FOLDER, StoredLeases, claim_path
from memwal.testing import Fault, FaultyObjects, ManualClock, MemoryBucket, MemoryObjects

Open = Callable[[], Objects]


def leases(objects: Objects, clock: ManualClock, holder: str) -> StoredLeases:
    return StoredLeases(objects, clock, holder=holder)


def test_a_held_lease_says_by_whom_since_and_until_when(open_store: Open) -> None:
    clock = ManualClock(start_nanos=1_700_000_000 * 10**9)
    held = leases(open_store(), clock, "ann@one:1").acquire("merge")
    assert held.token == 1
    with pytest.raises(LeaseHeld) as refused:
        leases(open_store(), clock, "bob@two:2").acquire("garbage")
    text = str(refused.value)
    assert "ann@one:1" in text
    assert "merge" in text
    assert "since 2023-11-14T22:13:20" in text
    assert "until 2023-11-14T22:18:20" in text
    assert refused.value.exit_code == 4


def test_release_lets_the_next_one_in_with_a_higher_token(open_store: Open) -> None:
    clock = ManualClock()
    first = leases(open_store(), clock, "a")
    claim = first.acquire("merge")
    first.release(claim)
    assert leases(open_store(), clock, "b").acquire("merge").token == claim.token + 1


def test_a_released_lease_is_free_though_its_holder_s_clock_was_ahead(open_store: Open) -> None:
    ahead = ManualClock(start_nanos=100 * 10**9)
    first = leases(open_store(), ahead, "a")
    first.release(first.acquire("merge"))
    behind = ManualClock(start_nanos=10 * 10**9)
    assert leases(open_store(), behind, "b").acquire("merge").token == 2


def test_an_expired_lease_is_taken_over_and_its_holder_stops(open_store: Open) -> None:
    clock = ManualClock()
    first = leases(open_store(), clock, "a")
    claim = first.acquire("merge")
    clock.advance(299)
    with pytest.raises(LeaseHeld):
        leases(open_store(), clock, "b").acquire("merge")
    clock.advance(2)
    first.check(claim.token)  # expired, but nobody took over: its commits are still its own
    taken = leases(open_store(), clock, "b").acquire("merge")
    assert taken.token == 2
    with pytest.raises(LeaseHeld, match="superseded"):
        first.check(claim.token)
    with pytest.raises(LeaseHeld):
        first.renew(claim)


def test_a_heartbeat_keeps_it(open_store: Open) -> None:
    clock = ManualClock()
    first = leases(open_store(), clock, "a")
    claim = first.acquire("merge")
    for _ in range(5):
        clock.advance(200)
        claim = first.renew(claim)
    with pytest.raises(LeaseHeld):
        leases(open_store(), clock, "b").acquire("merge")
    assert claim.token == 1


def test_nothing_is_deleted_and_breaking_leaves_a_record(open_store: Open) -> None:
    clock = ManualClock()
    first = leases(open_store(), clock, "a")
    claim = first.acquire("merge")
    broken = leases(open_store(), clock, "op").break_("host is gone")
    assert (broken.token, broken.reason, broken.holder) == (2, "host is gone", "op")
    with pytest.raises(LeaseHeld, match=r"broken by op.*host is gone"):
        first.check(claim.token)
    assert leases(open_store(), clock, "b").acquire("merge").token == 3
    kept = sorted(info.path for info in open_store().list(FOLDER) if "hint" not in info.path)
    assert kept == [claim_path(token) for token in (1, 2, 3)]


def test_racing_claims_have_one_winner(open_store: Open) -> None:
    clock = ManualClock()
    for round_ in range(1, 4):

        def claim(name: int) -> int | None:
            try:
                return leases(open_store(), clock, f"w{name}").acquire("merge").token
            except LeaseHeld:
                return None

        with ThreadPoolExecutor(8) as pool:
            tokens = [t for t in pool.map(claim, range(8)) if t is not None]
        assert tokens == [round_]
        clock.advance(301)


@pytest.mark.parametrize("hint", [b"", b"{}", b'{"token": 99}', b'{"token": -1}', b"\xff"])
def test_a_bad_hint_does_not_hide_the_lease(open_store: Open, hint: bytes) -> None:
    clock = ManualClock()
    leases(open_store(), clock, "a").acquire("merge")
    open_store().put(f"{FOLDER}/hint.json", hint)
    with pytest.raises(LeaseHeld):
        leases(open_store(), clock, "b").acquire("merge")


def test_an_old_hint_does_not_hide_a_newer_claim(open_store: Open) -> None:
    stored = leases(open_store(), ManualClock(), "a")
    for _ in range(2):
        stored.release(stored.acquire("merge"))
    newest = stored.acquire("merge")
    open_store().put(f"{FOLDER}/hint.json", b'{"token": 1}')
    assert stored.current() == newest
    with pytest.raises(LeaseHeld, match="until"):
        stored.acquire("merge")


def test_a_torn_claim_is_never_taken_for_a_free_lease(open_store: Open) -> None:
    clock = ManualClock()
    leases(open_store(), clock, "a").acquire("merge")
    open_store().put(claim_path(1), b'{"token": 1')
    with pytest.raises(Corruption, match=claim_path(1)):
        leases(open_store(), clock, "b").acquire("merge")


def test_skewed_clocks_cost_time_not_order(open_store: Open) -> None:
    slow, fast = ManualClock(), ManualClock()
    fast.advance(400)
    behind = leases(open_store(), slow, "slow")
    claim = behind.acquire("merge")
    # The fast host takes over early; the slow one finds that out before its next commit.
    assert leases(open_store(), fast, "fast").acquire("merge").token == 2
    with pytest.raises(LeaseHeld):
        behind.check(claim.token)


def test_a_claim_whose_reply_was_lost_is_ours() -> None:
    bucket, clock = MemoryBucket(), ManualClock()
    lost = FaultyObjects(
        MemoryObjects(bucket=bucket, clock=clock),
        Fault(
            operation="put_if_absent",
            path=f"{FOLDER}/*",
            nth=1,
            when="after",
            error=StoreUnavailable("reply lost"),
        ),
    )
    assert leases(lost, clock, "a").acquire("merge").token == 1
    with pytest.raises(LeaseHeld):
        leases(MemoryObjects(bucket=bucket, clock=clock), clock, "b").acquire("merge")


BEAT_SECONDS_MAX = 60.0
"""Of a heart that beats 20 times a second; for a machine on which much else runs."""


def test_the_heart_beats_and_notices_a_take_over() -> None:
    bucket, clock = MemoryBucket(), SystemClock()
    objects = MemoryObjects(bucket=bucket, clock=clock)
    stored = StoredLeases(objects, clock, ttl_seconds=0.15, holder="a")
    with HeldLease(stored, "merge") as held:
        first = stored.current()
        assert first is not None
        deadline = clock.monotonic_seconds() + BEAT_SECONDS_MAX
        while (renewed := stored.current()) == first:
            assert clock.monotonic_seconds() < deadline, "no beat"
            clock.sleep(0.02)
        assert renewed is not None
        assert renewed.token == first.token
        assert renewed.expires_at_nanos > first.expires_at_nanos
        held.check()
        StoredLeases(objects, clock, holder="op").break_("test")
        with pytest.raises(LeaseHeld):
            held.check()
    after = stored.current()
    assert after is not None
    assert after.reason == "test"


def test_a_claim_that_has_lapsed_is_told_although_nobody_took_it_over() -> None:
    clock = ManualClock()
    objects = MemoryObjects(bucket=MemoryBucket(), clock=clock)
    with HeldLease(StoredLeases(objects, clock, holder="a"), "snapshot") as held:
        clock.advance(299)
        held.check_unbroken()
        clock.advance(2)
        held.check()
        with pytest.raises(LeaseHeld, match="token 1 lapsed for a while"):
            held.check_unbroken()


def test_a_take_over_that_the_heart_noticed_is_remembered() -> None:
    bucket, clock = MemoryBucket(), SystemClock()
    objects = MemoryObjects(bucket=bucket, clock=clock)
    before = set(threading.enumerate())
    with HeldLease(StoredLeases(objects, clock, ttl_seconds=0.15, holder="a"), "merge") as held:
        (heart,) = (t for t in threading.enumerate() if t not in before)
        broken = StoredLeases(objects, clock, holder="op").break_("test")
        heart.join(BEAT_SECONDS_MAX)
        assert not heart.is_alive()
        # Whatever becomes of the newer claim, or of the store: this one is over.
        objects.delete([claim_path(broken.token)])
        with pytest.raises(LeaseHeld, match="superseded"):
            held.check()


def test_a_glance_is_what_is_current(open_store: Open) -> None:
    clock = ManualClock()
    stored = leases(open_store(), clock, "a")
    assert stored.glance() is None
    held = stored.acquire("merge")
    assert stored.glance() == stored.current() == held
    stored.release(held)
    stored.acquire("garbage")
    assert stored.glance() == stored.current()


def test_a_glance_at_more_claims_than_a_page_holds_goes_by_the_hint() -> None:
    objects = MemoryObjects()
    stored = leases(objects, ManualClock(), "a")
    for _ in range(objects.page_objects + 1):
        stored.release(stored.acquire("merge"))
    newest = stored.current()
    assert newest is not None
    assert newest.token == objects.page_objects + 1
    assert stored.glance() == newest
