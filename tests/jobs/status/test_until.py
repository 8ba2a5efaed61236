"""What `status --until` waits for, how far a shard has come, and when it looks again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from memwal.errors import Corruption, Missing, NotATable, StoreUnavailable, Usage
from memwal.jobs.status.until import (
    Step,
    Waiter,
    choose_target,
    describe_missing,
    find_collected,
    find_indexed,
    find_merged,
    find_missing,
)
from memwal.model import (
    BrokenShard,
    MemWalState,
    ShardId,
    ShardManifest,
    ShardView,
    VersionManifest,
)
from memwal.testing import ManualClock
from tests.support.views import make_manifest, make_shard, make_state, make_version, make_view

A = ShardId("00000000-0000-4000-8000-00000000000a")
B = ShardId("00000000-0000-4000-8000-00000000000b")


def shard(name: ShardId, listed: range, merged: int) -> ShardView:
    return make_shard(name, listed, merged=merged)


def test_the_target_is_the_highest_that_was_flushed_listed_or_merged() -> None:
    pending, collected, empty = (
        shard(A, range(3, 6), 2),
        shard(B, range(0), 7),
        shard(ShardId("c"), range(0), 0),
    )
    assert choose_target(make_view(pending, collected, empty), {}) == {A: 5, B: 7}
    assert choose_target(make_view(), {}) == {}


def test_named_generations_are_the_whole_target_and_may_be_still_to_come() -> None:
    assert choose_target(
        make_view(shard(A, range(1, 3), 0), shard(B, range(1, 9), 0)), {A: 12}
    ) == {A: 12}
    with pytest.raises(Usage, match=f"no shard {B}"):
        choose_target(make_view(shard(A, range(1, 3), 0)), {B: 1})


def test_a_broken_shard_has_no_target_so_it_can_t_be_waited_for() -> None:
    torn = (BrokenShard(shard_id=B, error=Corruption("MW-M01", "torn")),)
    with pytest.raises(Corruption, match="torn"):
        choose_target(make_view(shard(A, range(1, 3), 0), broken=torn), {})
    with pytest.raises(Corruption, match="torn"):
        choose_target(make_view(shard(A, range(1, 3), 0), broken=torn), {B: 1})
    assert choose_target(make_view(shard(A, range(1, 3), 0), broken=torn), {A: 1}) == {A: 1}


@pytest.mark.parametrize(
    ("held", "reached"),
    [
        (make_state(merged={A: 5}), 0),  # an index that is absent is not known to be caught up
        (make_state(merged={A: 5}, index_catchup={"i": {A: 3}, "j": {A: 5}}), 3),
        (make_state(merged={A: 5}, index_catchup={"i": {A: 5}, "j": {A: 5}}), 5),
        (make_state(merged={A: 5}, index_catchup={"i": {A: 5}, "j": {B: 5}}), 0),
        (make_state(merged={A: 2}, index_catchup={"i": {A: 5}, "j": {A: 5}}), 2),
        (make_state(merged={A: 5}, index_catchup={"i": {A: 4}}, maintained_indexes=("i",)), 4),
        (
            make_state(
                merged={A: 5},
                index_catchup={"i": {A: 4}},
                maintained_indexes=("i",),
                maintain_all_indexes=True,
            ),
            0,
        ),
    ],
)
def test_indexed_is_what_the_slowest_index_has_that_must_catch_up(
    held: MemWalState, reached: int
) -> None:
    assert find_indexed(make_version(held, "i", "j", "__lance_frag_reuse"), held, A) == reached


def test_without_an_index_merged_is_indexed() -> None:
    held = make_state(merged={A: 5})
    assert find_merged(held, A) == find_indexed(make_version(held), held, A) == 5
    assert find_merged(held, B) == 0


@pytest.mark.parametrize(
    ("merged", "left", "reached"),
    [(5, (), 5), (5, (6, 7), 5), (5, (5, 6), 4), (5, (3, 9), 2), (5, (1,), 0), (0, (), 0)],
)
def test_collected_ends_where_the_first_one_is_left(
    merged: int, left: tuple[int, ...], reached: int
) -> None:
    assert find_collected(merged, left) == reached


def test_what_is_missing_is_told_in_one_bounded_line() -> None:
    assert find_missing({A: 3, B: 2}, {A: 3}) == {B: 0}
    assert find_missing({A: 3}, {A: 9}) == {}
    many = {ShardId(f"s{n}"): 5 for n in range(30)}
    text = describe_missing(Step.INDEXED, many, dict.fromkeys(many, 0))
    assert re.search(r"^indexed: 0 of 30 shards; .*s9 at 0 of 5; and 20 more$", text)


# ---- the looks


@dataclass
class Tables:
    """The ports of one table. `script` changes it, or raises, before the nth look."""

    merged: dict[ShardId, int] = field(default_factory=dict)
    listed: dict[ShardId, tuple[int, ...]] = field(default_factory=dict)
    folders: dict[ShardId, tuple[int, ...]] = field(default_factory=dict)
    script: dict[int, Callable[[], object]] = field(default_factory=dict)
    has_index: bool = True
    version: int = 1
    looks: int = 0
    calls: list[str] = field(default_factory=list)

    def table_version(self) -> int:
        self.calls.append("version")
        self.looks += 1
        if self.looks in self.script:
            self.script[self.looks]()
        return self.version

    def manifest(self, version: int) -> VersionManifest:
        self.calls.append(f"manifest {version}")
        state = make_state(merged=dict(self.merged))
        return make_version(state if self.has_index else None, version=version)

    def latest(self, shard_id: ShardId) -> ShardManifest:
        self.calls.append(f"shard {shard_id[-1]}")
        return make_manifest(shard_id, self.listed.get(shard_id, ()))

    def folders_of(self, shard_id: ShardId) -> Iterable[int]:
        self.calls.append(f"folders {shard_id[-1]}")
        return self.folders.get(shard_id, ())

    def merge(self, **to: int) -> None:
        """A new version with this progress, by the shard's last letter."""
        self.version += 1
        self.merged.update({{"a": A, "b": B}[name]: number for name, number in to.items()})


def wait(
    tables: Tables,
    target: Mapping[ShardId, int],
    step: Step = Step.MERGED,
    *,
    timeout: float = 600,
    clock: ManualClock | None = None,
    told: list[Mapping[ShardId, int]] | None = None,
) -> Mapping[ShardId, int]:
    return Waiter(
        views=tables,  # type: ignore[arg-type]
        shards=tables,  # type: ignore[arg-type]
        folders=tables.folders_of,
        clock=clock or ManualClock(),
        tell=(told if told is not None else []).append,
    ).run(step, target, timeout_seconds=timeout)


def raising(error: Exception) -> Callable[[], object]:
    def go() -> None:
        raise error

    return go


def test_it_looks_again_and_tells_only_what_has_changed() -> None:
    tables = Tables(script={3: lambda: tables.merge(a=2), 5: lambda: tables.merge(a=9, b=4)})
    told: list[Mapping[ShardId, int]] = []
    done = wait(tables, {A: 3, B: 4}, told=told)
    assert (done, tables.looks) == ({}, 5)
    assert told == [{A: 0, B: 0}, {A: 2, B: 0}, {}]


def test_a_look_at_an_unchanged_table_is_one_question() -> None:
    tables = Tables(script={4: lambda: tables.merge(a=3)})
    wait(tables, {A: 3})
    assert tables.calls == ["version", "manifest 1", *["version"] * 3, "manifest 2"]


def test_waits_grow_to_a_bound_and_end_at_the_deadline() -> None:
    clock = ManualClock()
    tables = Tables()
    assert wait(tables, {A: 3}, timeout=100, clock=clock) == {A: 0}
    waits = clock.slept_seconds
    assert sum(waits) == pytest.approx(100)
    assert 0.375 <= waits[0] <= 0.625
    assert all(w <= 12.5 for w in waits)
    assert max(waits) > 7.5
    # 0.5 s, then half as much again each time: bounded in number, too.
    assert tables.looks == len(waits) + 1 <= 22


def test_it_looks_once_more_at_the_very_end() -> None:
    clock = ManualClock()
    tables = Tables(script={2: lambda: tables.merge(a=3)})
    assert wait(tables, {A: 3}, timeout=0.1, clock=clock) == {}
    assert sum(clock.slept_seconds) == pytest.approx(0.1)
    clock = ManualClock()
    tables = Tables()
    wait(tables, {A: 3}, timeout=0, clock=clock)
    assert tables.looks == 1
    assert clock.slept_seconds == []


@pytest.mark.parametrize("error", [StoreUnavailable("down"), Missing("expired meanwhile")])
def test_a_store_that_does_not_answer_is_asked_again(error: Exception) -> None:
    tables = Tables(merged={A: 3}, script={1: raising(error), 2: raising(error)})
    assert (wait(tables, {A: 3}), tables.looks) == ({}, 3)
    tables = Tables(merged={A: 3}, script=dict.fromkeys(range(1, 100), raising(error)))
    with pytest.raises(StoreUnavailable, match=str(error)):
        wait(tables, {A: 3}, timeout=60)


def test_a_version_that_expires_under_the_last_look_is_no_store_that_is_down() -> None:
    """Found by the simulation (seeds 8468 and 9985)."""
    expired = raising(Missing("version 3 has no manifest"))
    tables = Tables(merged={A: 3}, script={1: expired, 2: expired})
    assert (wait(tables, {A: 3}, timeout=0), tables.looks) == ({}, 3)
    endless = Tables(script=dict.fromkeys(range(1, 100), expired))
    with pytest.raises(StoreUnavailable, match="no manifest"):
        wait(endless, {A: 3}, timeout=0)
    assert endless.looks < 10


def test_a_table_that_loses_its_mem_wal_or_is_damaged_ends_it() -> None:
    def lose() -> None:
        tables.version, tables.has_index = 2, False

    tables = Tables(script={2: lose})
    with pytest.raises(NotATable, match="version 2 has no MemWAL index"):
        wait(tables, {A: 3})
    with pytest.raises(Corruption):
        wait(Tables(script={2: raising(Corruption("MW-M01", "torn"))}), {A: 3})


# ---- collected


def test_collected_is_merged_unlisted_and_without_a_folder() -> None:
    tables = Tables(
        merged={A: 3},
        listed={A: (2, 3, 4)},
        folders={A: (1, 2, 3, 4)},
        script={
            2: lambda: tables.listed.update({A: (4,)}),
            3: lambda: tables.folders.update({A: (2, 4)}),
            4: lambda: tables.folders.update({A: (4,)}),
        },
    )
    told: list[Mapping[ShardId, int]] = []
    done = wait(tables, {A: 3}, Step.COLLECTED, told=told)
    assert (done, tables.looks) == ({}, 4)
    assert told == [{A: 0}, {A: 1}, {}]
