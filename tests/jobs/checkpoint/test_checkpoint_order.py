"""The order in which a checkpoint is made, and what others do in between; all in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from memwal.errors import LeaseHeld, LostRace, Refused, StoreUnavailable, Usage
from memwal.format import layout
from memwal.invariants import InvariantBroken
from memwal.jobs.checkpoint.apply import CheckpointMaker
from memwal.jobs.checkpoint.plan import CheckpointLimits, CheckpointRequest, check_request
from memwal.jobs.garbage.apply.deletions import check_below
from memwal.jobs.garbage.kinds import check_item
from memwal.jobs.garbage.model import plan_delete
from memwal.model import Checkpoint, ShardId, StoredFile, TableView
from memwal.ports import DeleteResult
from memwal.store.records.checkpoints import StoredCheckpoints
from memwal.testing import Call, HookedObjects, ManualClock, MemoryBucket, MemoryObjects
from tests.support.memory_table import MemoryTable

SHARD = ShardId("00000000-0000-4000-8000-000000000001")
ASKED = CheckpointRequest(name="monday", holder="ann")


def nothing(*_: object) -> None:
    pass


@dataclass(kw_only=True)
class World:
    """One table, its records, and its tags. `tagging` and `lease` are called at that moment."""

    clock: ManualClock = field(default_factory=ManualClock)
    tags: dict[str, int] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    tagging: Callable[[str, int], None] = nothing
    lease: Callable[[], None] = nothing
    later: list[int] = field(default_factory=list)
    """By how much the version goes up at each look for the latest number."""

    def __post_init__(self) -> None:
        self.table = MemoryTable(clock=self.clock)
        bucket = MemoryBucket()
        self.objects = MemoryObjects(bucket=bucket, clock=self.clock)
        self.records = StoredCheckpoints(self.objects, readers_max=1)
        self.number = 5

    def list(self) -> list[Checkpoint]:
        return list(self.records.list())

    def put(self, checkpoint: Checkpoint) -> None:
        self.done.append("ready" if checkpoint.ready else "record")
        self.records.put(checkpoint)

    def remove(self, checkpoint: Checkpoint) -> None:
        self.tags.pop(layout.checkpoint_tag(checkpoint.key), None)
        self.records.remove(checkpoint)

    def tag(self, name: str, version: int) -> None:
        self.tagging(name, version)
        self.done.append("tag")
        self.tags[name] = version

    def view(self, *, probed: bool = False) -> TableView:
        assert probed
        return replace(self.table.table(), version=self.number)

    def table_version(self) -> int:
        self.done.append("latest?")
        self.number += self.later.pop(0) if self.later else 0
        return self.number

    def maker(self, **limits: int) -> CheckpointMaker:
        return CheckpointMaker(
            uri="memory://t",
            views=_Views(self),
            checkpoints=self,
            tags=self,
            clock=self.clock,
            take_lease=lambda: self.done.append("lease"),
            before_commit=lambda: self.lease(),
            limits=CheckpointLimits(**limits),
        )

    def left(self) -> tuple[list[str], list[int]]:
        return [c.name for c in self.list()], sorted(self.tags.values())


@dataclass(frozen=True)
class _Views:
    world: World

    def table(self, *, probed: bool = False) -> TableView:
        return self.world.view(probed=probed)

    def table_version(self) -> int:
        return self.world.table_version()


def test_the_record_comes_before_the_tag_and_the_latest_is_asked_for_after_it() -> None:
    world = World()
    made = world.maker().create(ASKED)
    assert world.done == ["lease", "record", "tag", "latest?", "ready"]
    assert (made.ready, world.tags) == (True, {layout.checkpoint_tag(made.key): 5})


def test_a_version_that_was_overtaken_is_not_kept() -> None:
    # A cleanup may have begun before the tag was there, and have it on its list.
    world = World(later=[1, 2])
    made = world.maker().create(ASKED)
    assert made.version == 8
    assert world.left() == (["monday"], [8])


def test_a_version_that_is_gone_by_the_tag_is_not_kept() -> None:
    def gone(name: str, version: int) -> None:
        if version == 5:
            world.number = 6
            raise LostRace("version not found")

    world = World(tagging=gone)
    assert world.maker().create(ASKED).version == 6
    assert world.left() == (["monday"], [6])


def test_a_table_that_never_rests_is_told() -> None:
    world = World(later=[1] * 9)
    with pytest.raises(LostRace, match="others committed"):
        world.maker(attempts_max=3).create(ASKED)
    assert world.left() == ([], [])


def test_a_tag_that_fails_leaves_nothing() -> None:
    def fail(name: str, version: int) -> None:
        world.tags[name] = version  # it landed all the same
        raise StoreUnavailable("no reply")

    world = World(tagging=fail)
    with pytest.raises(StoreUnavailable):
        world.maker().create(ASKED)
    assert world.left() == ([], [])


def test_who_lost_the_lease_leaves_nothing() -> None:
    def lose(name: str, version: int) -> None:
        world.lease = taken

    def taken() -> None:
        raise LeaseHeld("superseded")

    world = World(tagging=lose)
    with pytest.raises(LeaseHeld):
        world.maker().create(ASKED)
    assert world.left() == ([], [])


def test_of_two_that_are_made_at_a_time_one_stays() -> None:
    def other(name: str, version: int) -> None:
        world.tagging = nothing
        world.maker().create(ASKED)

    world = World(tagging=other)
    with pytest.raises(Refused, match="choose another name"):
        world.maker().create(ASKED)
    assert world.left() == (["monday"], [5])


def test_what_a_killed_run_left_of_the_name_goes_and_no_other() -> None:
    world = World()
    unfinished = world.maker().plan(ASKED)
    other = world.maker().plan(replace(ASKED, name="tuesday"))
    for found in (unfinished, other):
        world.put(found)
        world.tag(layout.checkpoint_tag(found.key), 5)
    made = world.maker().create(ASKED)
    assert {c.key for c in world.list()} == {made.key, other.key}
    assert layout.checkpoint_tag(unfinished.key) not in world.tags


def test_a_shard_without_generations_is_in_the_cut() -> None:
    world = World()
    world.table.flush(SHARD, {})
    cut = {s.shard_id: (s.generation, len(s.pending)) for s in world.maker().plan(ASKED).shards}
    assert cut == {SHARD: (1, 1)}


@pytest.mark.parametrize("asked", [{"holder": " "}, {"holder": "x" * 201}, {"expires_seconds": 0}])
def test_a_request_that_makes_no_sense(asked: dict[str, object]) -> None:
    with pytest.raises(Usage):
        check_request(replace(ASKED, **asked))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a/b", "", ".a", "a.", "a..b", "é", "a b", "x" * 65, "-a"])
def test_names_that_no_tag_can_have(name: str) -> None:
    with pytest.raises(Usage, match="is not a checkpoint's name"):
        layout.parse_name(name, "checkpoint")


@pytest.mark.parametrize("key", ["monday", "monday.1234567", "monday.1234567G", ".12345678"])
def test_other_files_are_no_records(key: str) -> None:
    assert layout.parse_checkpoint_path(layout.checkpoint_path(key)) is None
    assert layout.parse_checkpoint_path(f"other/{key}.json") is None
    assert layout.parse_checkpoint_path(layout.checkpoint_path("a.b.12345678")) == "a.b.12345678"


# ---- what garbage may delete with it


def _file(path: str) -> StoredFile:
    return StoredFile(path=path, size_bytes=0, modified_at_nanos=0)


def test_with_a_record_goes_no_tag_but_its_own() -> None:
    path = layout.checkpoint_path("monday.12345678")
    check_below(path, _file(path))
    check_below(path, _file(layout.checkpoint_tag_path("monday.12345678")))
    for other in ("_refs/tags/monday.json", layout.checkpoint_tag_path("monday.12345679")):
        with pytest.raises(InvariantBroken):
            check_below(path, _file(other))


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("checkpoint", "_maintenance/checkpoints/notes.txt"),
        ("checkpoint", "_refs/tags/monday.json"),
        ("orphan", layout.checkpoint_path("monday.12345678")),
    ],
)
def test_nothing_but_records_is_deleted_as_a_checkpoint(kind: str, path: str) -> None:
    item = plan_delete(kind, path, [_file(path)], why="", held=None)
    with pytest.raises(InvariantBroken):
        check_item(item)


def test_one_that_is_being_dropped_is_over_whatever_is_left_of_it() -> None:
    world = World()
    made = world.maker().create(ASKED)

    def keep(call: Call, effect: Callable[[], object]) -> object:
        if call.operation == "delete":
            return DeleteResult(failed=((call.paths[0], "no rights"),))
        return effect()

    shut = StoredCheckpoints(HookedObjects(world.objects, keep), readers_max=1)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable, match="has ended"):
        shut.remove(made)
    (left,) = world.list()
    assert left.is_expired(world.clock.now_nanos())
