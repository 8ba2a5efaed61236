"""Shard manifests and lease claims: which names are free again, and who finds out that he lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from memwal.errors import Corruption, LeaseHeld, LostRace, OutcomeUnknown, StoreUnavailable
from memwal.format import codec, layout
from memwal.invariants import InvariantBroken
from memwal.jobs.garbage.apply.deletions import NumberedDeleter
from memwal.jobs.garbage.kinds import check_item, lease_claim, shard_manifest
from memwal.jobs.garbage.model import (
    Action,
    Evidence,
    GarbageLimits,
    GarbagePlan,
    ShardEvidence,
)
from memwal.jobs.garbage.store.shards import ShardFolders
from memwal.jobs.garbage.survey import Survey
from memwal.model import (
    FlushedGeneration,
    LeaseClaim,
    ShardId,
    ShardManifest,
    ShardStatus,
    ShardView,
    StoredFile,
)
from memwal.ports import DeleteResult
from memwal.store.records.lease import StoredLeases
from memwal.store.shards.manifests import ShardManifests
from memwal.testing import Fault, FaultyObjects
from memwal.testing.objects import ManualClock, MemoryObjects
from tests.support.fencing import claim_epoch
from tests.support.views import make_view

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
GRACE_SECONDS = 60
LIMITS = GarbageLimits(grace_seconds=GRACE_SECONDS, numbered_kept_min=1)


@dataclass
class Shard:
    """A shard whose manifests are written by letter: Claim, Flush, Drop; old unless said."""

    clock: ManualClock = field(default_factory=ManualClock)
    objects: MemoryObjects = field(init=False)

    def __post_init__(self) -> None:
        self.objects = MemoryObjects(clock=self.clock)

    @property
    def manifests(self) -> ShardManifests:
        return ShardManifests(self.objects)

    @property
    def latest(self) -> ShardManifest:
        found = self.manifests.latest(SHARD)
        assert found is not None
        return found

    def write(self, steps: str, *, then_seconds: float = 10 * GRACE_SECONDS) -> Shard:
        for step in steps:
            self.clock.sleep(1)
            if step == "C":
                claim_epoch(self.manifests, SHARD)
                continue
            now = self.latest
            number = now.current_generation
            listed = FlushedGeneration(generation=number, path=f"0a1b2c3d_gen_{number}")
            proposed = replace(now, flushed_generations=now.flushed_generations[1:])
            if step == "F":
                generations = (*now.flushed_generations, listed)
                proposed = replace(
                    now, current_generation=number + 1, flushed_generations=generations
                )
            self.manifests.commit(now, proposed)
        self.clock.sleep(then_seconds)
        return self

    def collect_and_die(self, left: int, **limits: int) -> None:
        """A run that is killed before the step after so many."""
        steps = count()

        def die(step: str) -> None:
            if next(steps) >= left:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            NumberedDeleter(objects=self.objects, steps=die).run(self.plan(**limits))

    def hint(self, data: bytes | None) -> Shard:
        if data is None:
            self.objects.delete([layout.version_hint_path(SHARD)])
        else:
            self.objects.put(layout.version_hint_path(SHARD), data)
        return self

    def stored(self) -> str:
        """Versions that are stored, stoppers with an s."""
        names = []
        for version in range(1, 60):
            path = layout.shard_manifest_path(SHARD, version)
            if self.objects.exists(path):
                stopped = layout.decode_stopper(self.objects.get(path)) is not None
                names.append(f"{version}{'s' * stopped}")
        return " ".join(names)

    def evidence(
        self, latest: ShardManifest | None = None, limits: GarbageLimits = LIMITS
    ) -> ShardEvidence:
        cutoff = self.clock.now_nanos() - GRACE_SECONDS * 10**9
        with ThreadPoolExecutor(1) as pool:
            (found,) = ShardFolders(self.objects).read(
                pool, {SHARD: latest or self.latest}, cutoff, limits=limits, whole=False
            )
        return found

    def plan(self, latest: ShardManifest | None = None, **limits: int) -> GarbagePlan:
        latest, chosen = latest or self.latest, replace(LIMITS, **limits)
        shards = [self.evidence(latest, chosen)]
        view = make_view(ShardView(manifest=latest, merged_generation=0))
        survey = Survey(
            view=view,
            version=1,
            evidence=Evidence(shards={s.shard_id: s for s in shards}),
            limits=chosen,
            now_nanos=self.clock.now_nanos(),
        )
        return GarbagePlan(items=tuple(shard_manifest.find_items(survey)))

    def collect(self, **limits: int) -> str:
        """What is left once the plan is carried out."""
        for deleted in NumberedDeleter(objects=self.objects).run(self.plan(**limits)):
            assert deleted.error is None
        return self.stored()

    def reasons(self) -> set[str]:
        return {item.reason for item in self.plan().items}


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ("CFFFF", "1s 5"),  # the writer stays open: only its last, and where old Lance starts
        ("CFFFD", "1s 4 5"),  # it believes 4 to be the latest, and must find 5 taken
        ("CFDFDFDD", "1s 6 7 8"),
        ("CFFCFF", "1s 4s 6"),  # the first writer may try for 4
        ("CFFDDCFF", "1s 4s 5s 6s 8"),  # or for 5 or 6, if it stalled after it met a drop
        ("CCCC", "1 2 3 4"),
        ("CFDCFDCFDC", "1s 3s 4s 6s 7s 8 9 10"),
    ],
)
def test_what_stays(steps: str, left: str) -> None:
    assert Shard().write(steps).collect() == left


@pytest.mark.parametrize("steps", ["CFFCFF", "CFDCFDCFDCFFFDD", "CFFDDCFFDCCFF"])
def test_run_after_run_leaves_the_same_as_one_run(steps: str) -> None:
    once, often = Shard().write(steps + "FFF"), Shard()
    for step in steps + "FFF":
        often.write(step).collect()
        assert often.latest.version == max(int(v) for v in often.stored().split() if "s" not in v)
    assert often.collect() == once.collect()


def test_a_writer_that_stalled_is_fenced_wherever_it_stands() -> None:
    steps = "CFDDCFFDCFFF"
    for stalled in range(1, len(steps)):
        shard = Shard().write(steps[:stalled])
        stands = shard.latest
        shard.write(steps[stalled:]).collect()
        ended = stands.writer_epoch < shard.latest.writer_epoch
        is_last = all(s == "D" for s in steps[stalled : steps.find("C", stalled)])
        if ended and is_last:
            with pytest.raises(Exception, match="written by someone else"):
                shard.manifests.commit(stands, replace(stands, current_generation=99))


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (b'{"version":3}', "the version hint's target, or newer"),
        (b"torn", "the version hint can't be read: a writer may start anywhere"),
        (None, "the version hint can't be read: a writer may start anywhere"),
    ],
)
def test_where_others_start_stays(hint: bytes | None, why: str) -> None:
    shard = Shard().write("CFFFFF").hint(hint)
    assert why in shard.reasons()
    assert shard.collect() == ("1s 3 4 5 6" if hint and b"3" in hint else "1 2 3 4 5 6")


@pytest.mark.parametrize("hint", [b'{"version":2}', b'{"version":3}', b"torn", None])
def test_a_hint_that_leads_nowhere_is_written_anew(hint: bytes | None) -> None:
    shard = Shard().write("CFCFFF")
    assert shard.collect() == "1s 3s 6"
    assert not shard.plan().has_mends
    (item,) = [i for i in shard.hint(hint).plan().items if i.replacement]
    assert "written anew" in item.reason
    assert shard.plan().has_mends
    assert shard.collect() == "1s 3s 6"
    assert shard.manifests.hint(SHARD) == 6


def test_what_was_the_latest_within_the_grace_stays() -> None:
    shard = Shard().write("CFFF").write("FF", then_seconds=GRACE_SECONDS / 2)
    assert shard.collect() == "1s 4 5 6"
    assert "the latest when the grace began, or newer" in shard.reasons()
    young = Shard().write("CFFF", then_seconds=GRACE_SECONDS / 2)
    assert young.reasons() == {"no manifest is older than the grace"}


def test_the_newest_few_stay_and_are_no_candidates() -> None:
    shard = Shard().write("CFFFFFFFFF")
    assert {i.path for i in shard.plan(numbered_kept_min=8).items} == {
        layout.shard_manifest_path(SHARD, version) for version in (1, 2)
    }
    assert shard.collect(numbered_kept_min=8) == "1s 3 4 5 6 7 8 9 10"


def test_no_more_than_some_go_in_a_run() -> None:
    shard = Shard().write("CFFFFFF")
    assert shard.collect(numbered_deletes_max=3) == "1s 4 5 6 7"
    assert shard.collect(numbered_deletes_max=3) == "1s 7"


def test_a_version_that_leads_nowhere_is_corruption_and_nothing_goes() -> None:
    """Somebody who slept for longer than the grace took a name that was collected."""
    shard = Shard().write("CFFCF")
    stalled = shard.latest
    shard.write("FFFF").collect()
    assert shard.stored() == "1s 4s 9"
    forked = replace(stalled, version=6, writer_epoch=3)
    shard.objects.put(layout.shard_manifest_path(SHARD, 6), codec.encode_shard_manifest(forked))
    before = shard.stored()
    assert shard.evidence().problem is not None
    assert re.search(
        f"{SHARD}: .*binpb .version 6. leads nowhere, as the latest version is 9",
        str(shard.evidence().problem),
    )
    assert shard.collect() == before
    assert all(item.action is Action.KEEP for item in shard.plan().items)
    shard.hint(b'{"version":6}')
    assert shard.latest.version == 6
    assert not any(item.replacement for item in shard.plan().items)
    shard.objects.delete([layout.shard_manifest_path(SHARD, 6)])
    shard.collect()
    assert shard.latest.version == 9
    assert shard.manifests.hint(SHARD) == 9


class Listed(MemoryObjects):
    """Lists what was there before, and not what is hidden."""

    hidden: tuple[int, ...] = ()
    deletes: tuple[int, ...] = ()

    def list(self, prefix: str) -> Iterator[StoredFile]:
        listed = [*super().list(prefix)]
        hidden = {layout.shard_manifest_path(SHARD, version) for version in self.hidden}
        self.delete([layout.shard_manifest_path(SHARD, version) for version in self.deletes])
        return (file for file in listed if file.path not in hidden)


def test_a_listing_that_misses_what_is_there_lets_nothing_go() -> None:
    shard = Shard().write("CFFFFFF")
    shard.objects = lagging = Listed(bucket=shard.objects.bucket, clock=shard.clock)
    lagging.hidden = (3,)
    assert isinstance(shard.evidence().problem, StoreUnavailable)
    assert shard.collect() == "1 2 3 4 5 6 7"


def test_names_that_are_deleted_while_they_are_listed_are_no_fork() -> None:
    shard = Shard().write("CFFFFFF")
    shard.objects = racing = Listed(bucket=shard.objects.bucket, clock=shard.clock)
    racing.hidden, racing.deletes = (2, 3), (1, 2, 3)
    assert "versions above it are missing" in shard.reasons()


@pytest.mark.parametrize("killed_after", [0, 2, 4, None])
def test_a_drop_that_stalled_takes_its_manifest_back(killed_after: int | None) -> None:
    """Wherever the run stopped that collected the name, and those above it."""
    shard = Shard().write("CFFDF")
    stands = shard.latest
    shard.write("FFFF")
    hinted = shard.manifests.hint(SHARD)
    shard.collect_and_die(4 + 4 if killed_after is None else 4 + killed_after)
    before = shard.stored()
    with pytest.raises(LostRace, match="written by someone else"):
        shard.manifests.commit(stands, replace(stands, flushed_generations=()))
    assert shard.stored() == before
    assert shard.manifests.hint(SHARD) == hinted
    assert claim_epoch(shard.manifests, SHARD).version == 10


@pytest.mark.parametrize(
    ("steps", "hint", "left"),
    [("FFFF", 9, "1s 9"), ("CFF", 8, "1s 5s 6s 8"), ("FFFF", 5, "1s 5 6 7 8 9")],
)
def test_a_commit_that_was_the_next_one_stays_though_the_one_before_was_collected_since(
    steps: str, hint: int, left: str
) -> None:
    """Its writer slept between its put and its look at the one before."""
    shard = Shard().write("CFFF")
    stands = shard.latest
    path = layout.shard_manifest_path(SHARD, 5)

    def sleep() -> None:
        shard.write(steps).hint(layout.encode_version_hint(hint)).collect()

    slept = Fault(operation="put_if_absent", path=path, when="after", hook=sleep)
    manifests = ShardManifests(FaultyObjects(shard.objects, slept))
    assert manifests.commit(stands, replace(stands, flushed_generations=())).version == 5
    assert shard.stored() == left
    assert shard.manifests.hint(SHARD) == hint


def test_what_cannot_be_taken_back_is_told() -> None:
    shard = Shard().write("CFFF")
    stands = shard.latest
    shard.write("FFFF").collect()
    proposed = replace(stands, flushed_generations=())
    error = StoreUnavailable("down")
    looks = Fault(operation="get", path=layout.shard_manifest_path(SHARD, 4), error=error)
    with pytest.raises(OutcomeUnknown, match="could be looked up"):
        ShardManifests(FaultyObjects(shard.objects, looks)).commit(stands, proposed)
    shard.objects.delete([layout.shard_manifest_path(SHARD, 5)])

    class Denied(MemoryObjects):
        def delete(self, paths: Iterable[str]) -> DeleteResult:
            return DeleteResult(failed=tuple((path, "denied") for path in paths))

    denied = Denied(bucket=shard.objects.bucket, clock=shard.clock)
    with pytest.raises(OutcomeUnknown, match="could not be taken back"):
        ShardManifests(denied).commit(stands, proposed)


def test_a_sealed_shard_and_unreadable_manifests_keep_all() -> None:
    shard = Shard().write("CFFFF")
    sealed = replace(shard.latest, status=ShardStatus.SEALED)
    assert not shard.plan(sealed).deletes
    shard.objects.put(layout.shard_manifest_path(SHARD, 4), b"torn")
    assert not shard.plan().deletes
    assert shard.reasons() == {"what the manifests say was not read"}
    shard.clock.sleep(10 * GRACE_SECONDS)
    path = layout.shard_manifest_path(SHARD, 5)
    shard.objects.put(path, shard.objects.get(path))
    assert isinstance(shard.evidence().problem, Corruption), "the one from before the grace"


def test_a_run_that_was_killed_leaves_what_leads_up() -> None:
    for survived in range(8):
        shard = Shard().write("CFFDCFFFF")
        shard.collect_and_die(survived)
        for version in range(1, 10):
            hinted = shard.hint(b'{"version":%d}' % version)
            assert hinted.latest.version == 9, (survived, version)


@pytest.mark.parametrize(
    ("steps", "limit"), [("CFFDDCFFDCFFFF", 7), ("CCDCFDCFFF", 1000), ("CFDCFFFF", 7)]
)
def test_names_are_stopped_by_the_runs_after_one_that_was_killed_or_full(
    steps: str, limit: int
) -> None:
    """A writer that stalled in an earlier epoch finds the next name taken whatever came between."""
    wanted = set(Shard().write(steps).collect().split())
    for survived in range(len(steps)):
        shard = Shard().write(steps)
        shard.collect_and_die(survived, numbered_deletes_max=limit)
        for _ in steps:
            shard.collect(numbered_deletes_max=limit)
        assert wanted <= set(shard.stored().split()), survived
        assert shard.latest.version == len(steps)


def test_what_cannot_be_deleted_ends_the_folder() -> None:
    shard = Shard().write("CFFFF")

    def lost() -> None:
        raise LeaseHeld("superseded")

    (deleted,) = NumberedDeleter(objects=shard.objects, before_commit=lost).run(shard.plan())
    assert deleted.error == "superseded"
    assert shard.stored() == "1 2 3 4 5"
    odd = replace(shard.plan().deletes[0], path=layout.version_hint_path(SHARD))
    with pytest.raises(InvariantBroken):
        check_item(odd)


# ---- lease claims


def claims_of(objects: MemoryObjects, clock: ManualClock, **limits: int) -> GarbagePlan:
    with ThreadPoolExecutor(1) as pool:
        found = lease_claim.read_evidence(objects, pool)
    survey = Survey(
        view=None,
        version=1,
        evidence=Evidence(outside={lease_claim.NAME: found}),
        limits=replace(LIMITS, **limits),
        now_nanos=clock.now_nanos(),
    )
    return GarbagePlan(items=tuple(lease_claim.find_items(survey)))


def tokens(objects: MemoryObjects) -> list[int]:
    found = (layout.parse_lease_claim(info.path) for info in objects.list(layout.LEASE))
    return sorted(token for token in found if token is not None)


@dataclass
class Table:
    """A table whose lease was held and given back some times."""

    clock: ManualClock = field(default_factory=ManualClock)
    objects: MemoryObjects = field(init=False)

    def __post_init__(self) -> None:
        self.objects = MemoryObjects(clock=self.clock)

    def leases(self) -> StoredLeases:
        return StoredLeases(self.objects, self.clock, holder="somebody")

    def hold(self, times: int) -> LeaseClaim:
        for _ in range(times):
            claim = self.leases().acquire("merge")
            self.leases().release(claim)
        self.clock.sleep(10 * GRACE_SECONDS)
        return claim

    def collect(self) -> list[int]:
        NumberedDeleter(objects=self.objects).run(claims_of(self.objects, self.clock))
        return tokens(self.objects)


def test_superseded_claims_go_and_the_lease_stays() -> None:
    table = Table()
    table.hold(5)
    assert table.collect() == [5]
    assert table.leases().acquire("merge").token == 6
    assert table.collect() == [6]


def test_claims_younger_than_the_grace_stay_with_all_above_them() -> None:
    table = Table()
    table.hold(3)
    table.objects.put(layout.lease_claim_path(2), table.objects.get(layout.lease_claim_path(2)))
    assert table.collect() == [2, 3]
    plan = claims_of(table.objects, table.clock, numbered_deletes_max=0)
    assert {i.reason for i in plan.items} == {"younger than the grace, or newer than one that is"}


def test_a_holder_that_stalled_does_not_commit_once_its_successor_was_collected() -> None:
    table = Table()
    table.hold(2)
    stalled = table.leases().acquire("merge")
    table.clock.sleep(1000)
    table.hold(3)
    assert table.collect() == [6]
    with pytest.raises(LeaseHeld, match="superseded"):
        table.leases().check(stalled.token)
    with pytest.raises(LeaseHeld):
        table.leases().renew(stalled)


@pytest.mark.parametrize("step", ["renew", "release"])
def test_a_holder_that_stalled_before_its_put_takes_it_back(step: str) -> None:
    table = Table()
    table.hold(2)
    stalled = table.leases().acquire("merge")

    def sleep() -> None:
        table.clock.sleep(1000)
        table.hold(3)
        assert table.collect() == [6]

    path = layout.lease_claim_path(stalled.token)
    put = Fault(operation="put", path=path, hook=sleep)
    leases = StoredLeases(FaultyObjects(table.objects, put), table.clock, holder="somebody")
    if step == "release":
        leases.release(stalled)
    else:
        with pytest.raises(LeaseHeld, match="superseded"):
            leases.renew(stalled)
    assert tokens(table.objects) == [6]


def test_a_holder_that_was_overtaken_leaves_its_claim_below_the_newer_one() -> None:
    table = Table()
    stalled = table.leases().acquire("merge")
    table.clock.sleep(1000)
    table.hold(2)
    table.leases().release(stalled)
    assert tokens(table.objects) == [1, 2, 3]


def test_a_claim_brought_back_from_the_dead_lets_nobody_win_the_next_number() -> None:
    """Its holder was killed right after the put of a renewal that had stalled."""
    table = Table()
    table.hold(2)
    dead = table.leases().acquire("merge")
    table.clock.sleep(1000)
    path = layout.lease_claim_path(dead.token)
    renewed = table.objects.get(path).replace(
        str(dead.expires_at_nanos).encode(), str(table.clock.now_nanos()).encode()
    )
    table.hold(3)
    table.collect()

    class Stalled(StoredLeases):
        def current(self) -> LeaseClaim | None:
            return dead

    table.objects.put(path, renewed)
    with pytest.raises(LeaseHeld):
        Stalled(table.objects, table.clock, holder="late").acquire("merge")
    assert tokens(table.objects) == [3, 6]
    table.objects.put(f"{layout.LEASE}/hint.json", b'{"token": 3}')
    assert table.leases().acquire("merge").token == 7


def test_a_claim_that_stalled_does_not_win_a_number_again() -> None:
    table = Table()
    before = table.hold(2)
    current = table.leases().current()
    assert current == replace(before, released=True, expires_at_nanos=current.expires_at_nanos)  # type: ignore[union-attr]
    table.hold(3)
    table.collect()

    class Stalled(StoredLeases):
        def current(self) -> LeaseClaim | None:
            return current

    with pytest.raises(LeaseHeld):
        Stalled(table.objects, table.clock, holder="late").acquire("merge")
    newest = table.leases().current()
    assert newest is not None
    assert newest.token == 5
    assert table.leases().acquire("merge").token == 6
