"""Carrying a garbage plan out: lost races, lost leases, refused deletes. In memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from memwal.errors import LeaseHeld, LostRace, Refused
from memwal.format import layout
from memwal.jobs.garbage.apply.deletions import Deleted, Deleter, GenerationDropper
from memwal.jobs.garbage.model import Action, GarbageLimits, GarbagePlan, Item
from memwal.model import FlushedGeneration, ShardId, ShardManifest, ShardStatus, StoredFile
from memwal.ports import DeleteResult
from memwal.store.shards.manifests import ShardManifests
from memwal.testing import FaultyObjects, ManualClock, MemoryObjects

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")


def name(number: int) -> str:
    return f"0a1b2c3d_gen_{number}"


def below(path: str) -> str:
    return f"{layout.shard_folder(SHARD)}/{path}"


@pytest.fixture
def manifests() -> ShardManifests:
    stored = ShardManifests(MemoryObjects())
    first = ShardManifest(
        shard_id=SHARD,
        version=1,
        writer_epoch=3,
        current_generation=4,
        replay_after_wal_entry_position=7,
        flushed_generations=tuple(FlushedGeneration(generation=n, path=name(n)) for n in (1, 2, 3)),
    )
    stored.commit(None, first)
    return stored


def latest(manifests: ShardManifests) -> ShardManifest:
    found = manifests.latest(SHARD)
    assert found is not None
    return found


def drop_of(*numbers: int) -> GarbagePlan:
    items = [
        Item(kind="generation", shard_id=SHARD, path=below(name(n)), bytes=1,
             action=Action.DROP, reason="", generation=n)
        for n in numbers
    ]  # fmt: skip
    return GarbagePlan(items=tuple(items))


def drop(manifests: ShardManifests, **settings: Any) -> Any:
    dropper = GenerationDropper(manifests=manifests, clock=ManualClock(), **settings)
    (done,) = dropper.run(drop_of(1, 2), lambda shards: None)
    return done


def test_only_what_the_plan_names_is_dropped_and_nothing_else_changes(
    manifests: ShardManifests,
) -> None:
    before = latest(manifests)
    done = drop(manifests)
    assert (done.error, done.attempts) == (None, 1)
    kept = before.flushed_generations[2:]
    after = replace(latest(manifests), raw=b"")
    assert after == replace(before, version=2, flushed_generations=kept, raw=b"")


def test_a_lost_race_is_tried_again_on_what_the_winner_wrote(manifests: ShardManifests) -> None:
    won: list[int] = []

    def overtake(step: str) -> None:
        if step == "before_drop" and not won:
            current = latest(manifests)
            flushed = FlushedGeneration(generation=4, path=name(4))
            listed = (*current.flushed_generations, flushed)
            later = replace(current, current_generation=5, flushed_generations=listed)
            won.append(manifests.commit(current, later).version)

    done = drop(manifests, steps=overtake)
    assert (done.error, done.attempts, won) == (None, 2, [2])
    assert [g.generation for g in latest(manifests).flushed_generations] == [3, 4]


def test_races_without_end_are_given_up(manifests: ShardManifests) -> None:
    def overtake(step: str) -> None:
        if step == "before_drop":
            manifests.commit(latest(manifests), latest(manifests))

    done = drop(manifests, steps=overtake, limits=GarbageLimits(drop_attempts_max=3))
    assert isinstance(done.error, LostRace)
    assert (done.attempts, len(latest(manifests).flushed_generations)) == (3, 3)


def test_a_shard_that_was_sealed_since_the_plan_is_left_alone(manifests: ShardManifests) -> None:
    current = latest(manifests)
    manifests.commit(current, replace(current, status=ShardStatus.SEALED))
    assert isinstance(drop(manifests).error, Refused)
    assert len(latest(manifests).flushed_generations) == 3


def test_a_drop_without_the_lease_writes_nothing(manifests: ShardManifests) -> None:
    def lost() -> None:
        raise LeaseHeld("superseded")

    assert isinstance(drop(manifests, before_commit=lost).error, LeaseHeld)
    assert latest(manifests).version == 1


# ---- deletes


class Stubborn(FaultyObjects):
    """Refuses to delete what has a word in its path."""

    word = "never"

    def delete(self, paths: Iterable[str]) -> DeleteResult:
        wanted = list(paths)
        kept = [path for path in wanted if self.word in path]
        done = super().delete([path for path in wanted if self.word not in path])
        return DeleteResult(deleted=done.deleted, failed=tuple((p, "AccessDenied") for p in kept))


def deletion(number: int, *stages: tuple[str, ...]) -> Item:
    path = below(name(number))
    return Item(
        kind="generation",
        shard_id=SHARD,
        path=path,
        bytes=1,
        action=Action.DELETE,
        reason="",
        stages=tuple(
            tuple(
                StoredFile(path=f"{path}/{file}", size_bytes=10, modified_at_nanos=0)
                for file in stage
            )
            for stage in stages
        ),
    )


def stored(*deletions: Item, word: str = "never") -> Stubborn:
    objects = Stubborn(MemoryObjects())
    objects.word = word
    for each in deletions:
        for stage in each.stages:
            for file in stage:
                objects.put(file.path, b"x" * 10)
    objects.calls.clear()
    return objects


def left(objects: FaultyObjects) -> list[str]:
    return sorted(info.path.rsplit("/", 1)[-1] for info in objects.list(""))


def delete(
    objects: FaultyObjects,
    *deletions: Item,
    objects_max: int = 100,
    before_commit: Callable[[], None] = lambda: None,
) -> tuple[Deleted, ...]:
    limits = GarbageLimits(delete_call_objects_max=objects_max)
    return Deleter(objects=objects, limits=limits, before_commit=before_commit).run(deletions)


def test_stages_go_one_after_the_other() -> None:
    one, other = deletion(1, ("a",), ("b", "c")), deletion(2, ("d",))
    objects = stored(one, other)
    done = delete(objects, one, other)
    assert [(d.objects, d.size_bytes, d.error) for d in done] == [(3, 30, None), (1, 10, None)]
    order = [path.rsplit("/", 1)[-1] for operation, path in objects.calls if operation == "delete"]
    assert order == ["a", "d", "b", "c"]


def test_an_object_that_is_refused_keeps_its_item_s_later_stages() -> None:
    one, other = deletion(1, ("a-stubborn", "b"), ("c",)), deletion(2, ("d",), ("e",))
    objects = stored(one, other, word="stubborn")
    first, second = delete(objects, one, other)
    assert first.error is not None
    assert "AccessDenied" in first.error
    assert (first.objects, second.objects, second.error) == (1, 2, None)
    assert left(objects) == ["a-stubborn", "c"]


def test_a_call_takes_so_many_objects() -> None:
    one = deletion(1, tuple("abcdef"))
    objects = stored(one)
    asked: list[int] = []
    delete(objects, one, objects_max=4, before_commit=lambda: asked.append(len(left(objects))))
    assert asked == [6, 2]
    assert left(objects) == []


def test_a_lost_lease_keeps_what_is_left() -> None:
    one = deletion(1, tuple("abcd"))
    objects = stored(one)

    def check() -> None:
        if len(left(objects)) < 4:
            raise LeaseHeld("superseded")

    (done,) = delete(objects, one, objects_max=2, before_commit=check)
    assert done.error == "superseded"
    assert left(objects) == ["c", "d"]
