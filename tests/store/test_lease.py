"""The lease, on every store: one holder, tokens that only grow, records that stay."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from memwal.clock import SystemClock
from memwal.errors import BadCredentials, Corruption, LeaseHeld, MemWalError, StoreUnavailable
from memwal.format.layout import LEASE, lease_claim_path
from memwal.grid import describe_lease as show_lease
from memwal.model import LOWERING_JOB
from memwal.ports import Objects
from memwal.run.lease import HeldLease, describe_lease
from memwal.store.records.lease import RELEASE_SECONDS_MAX, StoredLeases
from memwal.store.records.process import is_gone, this_holder
from memwal.testing import Fault, FaultyObjects, ManualClock, MemoryBucket, MemoryObjects

Open = Callable[[], Objects]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_nanos=1_700_000_000 * 10**9)


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


def leases(objects: Objects, clock: ManualClock, holder: str) -> StoredLeases:
    return StoredLeases(objects, clock, holder=holder)


# ---- on every store


def test_a_held_lease_says_by_whom_since_and_until_when(
    open_store: Open, clock: ManualClock
) -> None:
    held = leases(open_store(), clock, "ann@one:1").acquire("merge")
    assert held.token == 1
    with pytest.raises(LeaseHeld) as refused:
        leases(open_store(), clock, "bob@two:2").acquire("garbage")
    for part in ("ann@one:1", "merge", "since 2023-11-14T22:13:20", "until 2023-11-14T22:18:20"):
        assert part in str(refused.value)
    assert refused.value.exit_code == 4


def test_nothing_is_deleted_and_breaking_leaves_a_record(
    open_store: Open, clock: ManualClock
) -> None:
    first = leases(open_store(), clock, "a")
    claim = first.acquire("merge")
    broken = leases(open_store(), clock, "op").break_("host is gone")
    assert broken is not None
    assert (broken.token, broken.reason, broken.holder) == (2, "host is gone", "op")
    with pytest.raises(LeaseHeld, match=r"broken by op.*host is gone"):
        first.check(claim.token)
    assert leases(open_store(), clock, "b").acquire("merge").token == 3
    kept = sorted(info.path for info in open_store().list(LEASE) if "hint" not in info.path)
    assert kept == [lease_claim_path(token) for token in (1, 2, 3)]


def claim_side_by_side(open_one: Open, clock: ManualClock) -> list[int]:
    """The tokens of those of eight that got the lease."""

    def claim(name: int) -> int | None:
        try:
            return leases(open_one(), clock, f"w{name}").acquire("merge").token
        except LeaseHeld:
            return None

    with ThreadPoolExecutor(8) as pool:
        return [token for token in pool.map(claim, range(8)) if token is not None]


def test_racing_claims_have_one_winner(open_store: Open, clock: ManualClock) -> None:
    for round_ in range(1, 4):
        assert claim_side_by_side(open_store, clock) == [round_]
        clock.advance(301)


# ---- a refresh that was cut off


def test_a_refresh_that_was_cut_off_is_told_until_another_has_committed(
    objects: MemoryObjects, clock: ManualClock
) -> None:
    lease = leases(objects, clock, "a")
    lease.acquire(LOWERING_JOB)
    clock.advance(301)
    told = [lease.acquire("garbage")]
    lease.release(lease.renew(told[0]))
    told.append(lease.acquire("merge"))
    broken = lease.break_("a test")
    assert broken is not None
    told += [broken, lease.acquire("merge")]
    told.append(lease.acquire(LOWERING_JOB, before=told[-1]))
    assert all(claim.unfenced for claim in told)
    lease.release(replace(told[-1], unfenced=False))
    assert not lease.acquire("merge").unfenced


@pytest.mark.parametrize("job", ["merge", LOWERING_JOB])
def test_no_refresh_was_cut_off_where_it_ended_by_itself(
    objects: MemoryObjects, clock: ManualClock, job: str
) -> None:
    lease = leases(objects, clock, "a")
    refresh = lease.acquire(LOWERING_JOB)
    later = lease.acquire(job, before=refresh)
    lease.release(later)
    merge = lease.acquire("merge")
    clock.advance(301)
    assert not any(claim.unfenced for claim in (refresh, later, merge, lease.acquire("merge")))


# ---- whose it is, and for how long


def test_a_released_lease_is_free_though_its_holder_s_clock_was_ahead(
    objects: MemoryObjects, clock: ManualClock
) -> None:
    first = leases(objects, clock, "a")
    first.release(first.acquire("merge"))
    behind = ManualClock(start_nanos=10 * 10**9)
    assert leases(objects, behind, "b").acquire("merge").token == 2


def test_an_expired_lease_is_taken_over_and_its_holder_stops(
    objects: MemoryObjects, clock: ManualClock
) -> None:
    first, second = leases(objects, clock, "a"), leases(objects, clock, "b")
    claim = first.acquire("merge")
    clock.advance(299)
    with pytest.raises(LeaseHeld):
        second.acquire("merge")
    clock.advance(2)
    first.check(claim.token)  # expired, but nobody took over: its commits are still its own
    assert second.acquire("merge").token == 2
    with pytest.raises(LeaseHeld, match="superseded"):
        first.check(claim.token)
    with pytest.raises(LeaseHeld):
        first.renew(claim)


def test_each_claim_lasts_for_as_long_as_its_own_holder_says(
    objects: MemoryObjects, clock: ManualClock
) -> None:
    long = StoredLeases(objects, clock, ttl_seconds=3600, holder="long")
    short = StoredLeases(objects, clock, ttl_seconds=20, holder="short")
    claim = long.acquire("snapshot")
    assert short.skew_text(claim) is None
    clock.advance(3599)  # long over, by the other's setting
    with pytest.raises(LeaseHeld):
        short.acquire("merge")
    assert short.is_live(claim)
    # Whoever renews a claim keeps to its length.
    assert short.renew(claim).expires_at_nanos == clock.now_nanos() + 3600 * 10**9
    clock.advance(3601)
    brief = short.acquire("merge")
    assert brief.length_nanos == 20 * 10**9
    with pytest.raises(LeaseHeld):
        long.acquire("merge")
    clock.advance(21)
    assert long.acquire("merge").token == brief.token + 1


def test_a_claim_that_says_no_length_has_the_one_of_former_builds(
    objects: MemoryObjects, clock: ManualClock
) -> None:
    stored = StoredLeases(objects, clock, ttl_seconds=20, holder="a")
    stored.acquire("merge")
    document = json.loads(objects.get(lease_claim_path(1)))
    del document["length_nanos"]
    objects.put(lease_claim_path(1), json.dumps(document).encode())
    claim = stored.current()
    assert claim is not None
    assert stored.renew(claim).expires_at_nanos == clock.now_nanos() + 300 * 10**9


@pytest.mark.parametrize("hint", [b"{}", b'{"token": 99}', b'{"token": 2}', b"\xff"])
def test_a_bad_or_old_hint_does_not_hide_the_lease(
    objects: MemoryObjects, clock: ManualClock, hint: bytes
) -> None:
    stored = leases(objects, clock, "a")
    for _ in range(2):
        stored.release(stored.acquire("merge"))
    newest = stored.acquire("merge")
    objects.put(f"{LEASE}/hint.json", hint)
    assert stored.current() == newest
    with pytest.raises(LeaseHeld):
        leases(objects, clock, "b").acquire("merge")


def test_a_torn_claim_is_never_taken_for_a_free_lease(
    objects: MemoryObjects, clock: ManualClock
) -> None:
    leases(objects, clock, "a").acquire("merge")
    objects.put(lease_claim_path(1), b'{"token": 1')
    with pytest.raises(Corruption, match=lease_claim_path(1)):
        leases(objects, clock, "b").acquire("merge")


def test_skewed_clocks_cost_time_not_order(objects: MemoryObjects) -> None:
    slow, fast = ManualClock(), ManualClock()
    fast.advance(400)
    behind = leases(objects, slow, "slow")
    claim = behind.acquire("merge")
    # The fast host takes over early; the slow one finds that out before its next commit.
    assert leases(objects, fast, "fast").acquire("merge").token == 2
    with pytest.raises(LeaseHeld):
        behind.check(claim.token)


def test_a_claim_whose_reply_was_lost_is_ours(objects: MemoryObjects, clock: ManualClock) -> None:
    error = StoreUnavailable("reply lost")
    lost = Fault(operation="put_if_absent", path=f"{LEASE}/*", when="after", error=error)
    assert leases(FaultyObjects(objects, lost), clock, "a").acquire("merge").token == 1
    with pytest.raises(LeaseHeld):
        leases(objects, clock, "b").acquire("merge")


# ---- the heart, which beats 20 times a second in these

BEAT_SECONDS_MAX = 60.0


def beating(objects: Objects) -> StoredLeases:
    return StoredLeases(objects, SystemClock(), ttl_seconds=0.15, holder="a")


def test_the_heart_beats_and_notices_a_take_over(objects: MemoryObjects) -> None:
    beat, before = threading.Event(), set(threading.enumerate())
    second = Fault(operation="put", path=lease_claim_path(1), nth=2, hook=beat.set)
    stored = beating(FaultyObjects(objects, second))
    with HeldLease(stored, "merge") as held:
        (heart,) = (t for t in threading.enumerate() if t not in before)
        claimed = stored.current()
        assert beat.wait(BEAT_SECONDS_MAX)
        renewed = stored.current()
        assert claimed is not None and renewed is not None
        assert renewed.token == claimed.token
        assert renewed.expires_at_nanos > claimed.expires_at_nanos
        held.check()
        broken = StoredLeases(objects, SystemClock(), holder="op").break_("test")
        assert broken is not None
        heart.join(BEAT_SECONDS_MAX)
        assert not heart.is_alive()
        with pytest.raises(LeaseHeld):
            held.check()
        # Whatever becomes of the newer claim, or of the store: this one is over.
        objects.delete([lease_claim_path(broken.token)])
        with pytest.raises(LeaseHeld, match="superseded"):
            held.check()


def test_a_heart_that_meets_a_bug_beats_on_and_says_so(objects: MemoryObjects) -> None:
    beat, told = threading.Event(), list[str]()
    odd = Fault(operation="put", path=lease_claim_path(1), nth=1, error=ValueError("odd"))
    next_ = Fault(operation="put", path=lease_claim_path(1), nth=2, hook=beat.set)
    with HeldLease(beating(FaultyObjects(objects, odd, next_)), "merge", told.append):
        assert beat.wait(BEAT_SECONDS_MAX)
    assert told == ["the lease could not be renewed: ValueError: odd"]


def test_a_claim_that_has_lapsed_is_told_although_nobody_took_it_over(
    objects: MemoryObjects, clock: ManualClock
) -> None:
    with HeldLease(StoredLeases(objects, clock, holder="a"), "snapshot") as held:
        clock.advance(299)
        held.check_unbroken()
        clock.advance(2)
        held.check()
        with pytest.raises(LeaseHeld, match="token 1 lapsed for a while"):
            held.check_unbroken()


def test_a_glance_is_what_is_current_also_of_more_claims_than_a_page_holds(
    objects: MemoryObjects, clock: ManualClock
) -> None:
    stored = leases(objects, clock, "a")
    assert stored.glance() is None
    held = stored.acquire("merge")
    assert stored.glance() == stored.current() == held
    stored.release(held)
    for _ in range(objects.page_objects):
        stored.release(stored.acquire("merge"))
    newest = stored.current()
    assert newest is not None
    assert newest.token == objects.page_objects + 1
    assert stored.glance() == newest  # by the hint


# ---- holders that have ended


def gone_holder() -> str:
    """Of a process whose pid is used again: by this one."""
    return this_holder().replace("(start ", "(start 1")


@pytest.mark.nightly
@pytest.mark.parametrize("fetched", [True, False], ids=["", "its parent does not ask"])
def test_the_lease_of_a_killed_process_is_taken_over_at_once(
    objects: MemoryObjects, clock: ManualClock, fetched: bool
) -> None:
    code = (
        "from memwal.store.records.process import this_holder; "
        "print(this_holder(), flush=True); input()"
    )
    words = [sys.executable, "-c", code]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        holder = process.stdout.readline().strip()
        leases(objects, clock, holder).acquire("merge")
        with pytest.raises(LeaseHeld, match="is held by"):
            leases(objects, clock, "next").acquire("merge")
        process.kill()
        if fetched:
            process.wait()
        deadline = SystemClock().monotonic_seconds() + 60
        while not is_gone(holder):
            assert SystemClock().monotonic_seconds() < deadline
        assert leases(objects, clock, "next").acquire("merge").token == 2


def test_the_lease_of_a_process_that_has_ended_is_taken_over_by_one(clock: ManualClock) -> None:
    bucket = MemoryBucket()
    objects = MemoryObjects(bucket=bucket, clock=clock)
    claim = leases(objects, clock, gone_holder()).acquire("merge")
    told = describe_lease(claim, clock.now_nanos())
    assert told is not None and told.ended and "next run takes it over" in show_lease(told).plain
    assert claim_side_by_side(lambda: MemoryObjects(bucket=bucket, clock=clock), clock) == [2]


def test_a_pid_that_is_used_again_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = this_holder()
    assert not is_gone(holder)
    assert is_gone(gone_holder())
    assert is_gone(re.sub(":[0-9]+ ", ":4194304 ", holder))  # above any that Linux gives
    assert not is_gone(re.sub(":[0-9]+ ", ":4294967297 ", holder))

    def not_ours(pid: int, number: int) -> None:
        raise PermissionError(pid, number)

    monkeypatch.setattr(os, "kill", not_ours)
    assert not is_gone(holder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r", boot [0-9a-f]{4}", ", boot ffff"),
        (r" \(.*", ""),
        (r"\(start [0-9]+", "(start -1"),
        (r":[0-9]+ ", ":99999999999 "),
        (r":[0-9]+ ", ":0 "),
        (r"\)$", ") and more"),
    ],
    ids=["another namespace", "a bare pid", "no start", "no pid", "a group", "a tail"],
)
def test_what_proves_nothing_is_waited_for(
    objects: MemoryObjects, clock: ManualClock, old: str, new: str
) -> None:
    unproven, changed = re.subn(old, new, gone_holder())
    assert changed == 1
    leases(objects, clock, unproven).acquire("merge")
    with pytest.raises(LeaseHeld):
        leases(objects, clock, "next").acquire("merge")


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A /proc with no more than what is asked for."""
    for name in ("sys/kernel/random/boot_id", "self/status", "self/stat"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((Path("/proc") / name).read_text())
    (tmp_path / "self/ns").mkdir()
    for name in ("self/ns/pid", "self/ns/time"):
        (tmp_path / name).symlink_to((Path("/proc") / name).readlink())
    (tmp_path / str(os.getpid())).symlink_to("self")
    monkeypatch.setattr("memwal.store.records.process._PROC", tmp_path)
    return tmp_path


def test_a_process_whose_end_nobody_fetched_has_ended(proc: Path) -> None:
    here, stat = this_holder(), proc / "self/stat"
    name, _, fields = stat.read_text().rpartition(")")
    words = fields.split()
    assert not is_gone(here)
    for threads, over in (("2", False), ("1", True)):
        stat.write_text(f"{name}) Z {' '.join([*words[1:17], threads, *words[18:]])}")
        assert is_gone(here) is over


@pytest.mark.parametrize(
    "file", ["sys/kernel/random/boot_id", "self/ns/pid", "self/status", "self/stat"]
)
def test_a_host_that_does_not_tell_all_of_it_proves_nothing(proc: Path, file: str) -> None:
    """Nor does one whose /proc is of another pid namespace."""
    gone = gone_holder()
    assert is_gone(gone)
    if file == "self/status":
        text = (proc / file).read_text()
        (proc / file).write_text(text.replace("NSpid:\t", "NSpid:\t4711\t"))
    else:
        (proc / file).unlink()
    assert this_holder().endswith(f":{os.getpid()}")
    assert not is_gone(gone)


# ---- releases, and what a newer build writes


@pytest.mark.parametrize("error", [StoreUnavailable("disk full"), BadCredentials("who?")])
def test_a_release_that_fails_says_that_the_lease_stands_and_until_when(
    objects: MemoryObjects, clock: ManualClock, error: MemWalError
) -> None:
    full = Fault(operation="put", path=lease_claim_path(1), nth=None, error=error)
    stored = leases(FaultyObjects(objects, full), clock, "a")
    claim = stored.acquire("merge")
    with pytest.raises(type(error), match=r"stands until 2023-11-14T22:18:20.*lease break "):
        stored.release(claim)
    slept = sum(clock.slept_seconds)
    is_away = isinstance(error, StoreUnavailable)
    assert RELEASE_SECONDS_MAX - 1 < slept <= RELEASE_SECONDS_MAX if is_away else slept == 0


def test_a_release_is_tried_again(objects: MemoryObjects, clock: ManualClock) -> None:
    full = [
        Fault(operation="put", path=lease_claim_path(1), nth=n, error=StoreUnavailable("disk full"))
        for n in (1, 2, 3)
    ]
    stored = leases(FaultyObjects(objects, *full), clock, "a")
    stored.release(stored.acquire("merge"))
    assert stored.acquire("merge").token == 2


def test_fields_of_a_newer_build_are_passed_over_and_kept(
    objects: MemoryObjects, clock: ManualClock
) -> None:
    stored = leases(objects, clock, "a")
    stored.acquire("merge")
    for path in (lease_claim_path(1), f"{LEASE}/hint.json"):
        document = json.loads(objects.get(path))
        objects.put(path, json.dumps({**document, "zone": {"of": [1]}, "unknown": 2}).encode())
    with pytest.raises(LeaseHeld, match="held by a for merge"):
        leases(objects, clock, "b").acquire("merge")
    claim = stored.current()
    assert claim is not None
    stored.release(stored.renew(claim))
    assert stored.acquire("merge").token == 2
    for path in (lease_claim_path(1), f"{LEASE}/hint.json"):
        document = json.loads(objects.get(path))
        assert (document["zone"], document["unknown"]) == ({"of": [1]}, 2)


def test_a_lease_that_is_dated_too_far_ahead_is_told_as_clock_skew(objects: MemoryObjects) -> None:
    here, ahead = ManualClock(), ManualClock()
    claim = leases(objects, ahead, "far").acquire("merge")
    assert leases(objects, here, "b").skew_text(claim) is None
    ahead.advance(3600)
    claim = leases(objects, ahead, "far").renew(claim)
    with pytest.raises(LeaseHeld, match="clock skew: the lease of far ends 3600 s later"):
        leases(objects, here, "b").acquire("merge")
    assert leases(objects, ahead, "b").skew_text(claim) is None


@pytest.mark.parametrize("left", ["nothing", "released", "expired", "broken"])
def test_a_lease_that_nobody_holds_is_not_broken(
    objects: MemoryObjects, clock: ManualClock, left: str
) -> None:
    stored = leases(objects, clock, "a")
    if left != "nothing":
        claim = stored.acquire("merge")
        if left == "released":
            stored.release(claim)
        elif left == "broken":
            assert stored.break_("first") is not None
        else:
            clock.advance(301)
    before = dict(objects.bucket.objects)
    assert stored.break_("host is gone") is None
    assert objects.bucket.objects == before


def test_a_claim_of_another_format_is_refused_and_never_superseded(
    objects: MemoryObjects, clock: ManualClock
) -> None:
    stored = leases(objects, clock, "a")
    stored.release(stored.acquire("merge"))
    document = json.loads(objects.get(lease_claim_path(1)))
    assert document["format"] == 1
    data = json.dumps({**document, "format": 2}).encode()
    objects.put(lease_claim_path(1), data)
    with pytest.raises(Corruption, match=f"{lease_claim_path(1)}.*newer memwal"):
        leases(objects, clock, "b").acquire("merge")
    assert objects.get(lease_claim_path(1)) == data
