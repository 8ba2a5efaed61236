"""The refresh of the shard snapshot: progress is never left lowered, whatever comes between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from memwal.errors import (
    Corruption,
    LeaseHeld,
    LostRace,
    Missing,
    OutcomeUnknown,
    Refused,
    StoreUnavailable,
)
from memwal.jobs.snapshot.apply import SnapshotRefresher
from memwal.jobs.snapshot.plan import (
    SnapshotLimits,
    SnapshotTableReport,
    Storage,
    Stored,
    choose_storage,
    collect_manifests,
    find_lowered,
)
from memwal.model import BrokenShard, MemWalState, ShardId, ShardManifest, ShardView, TableView
from memwal.testing import ManualClock
from tests.support.views import make_manifest, make_state, make_view

A = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
B = ShardId("11111111-2222-4333-8444-555555555555")
Progress = Mapping[ShardId, int]


@dataclass
class FakeTable:
    """Progress by version, from 1; the Views and the Snapshots port in one.

    A commit replaces the entry by what it was in the version that it names, as Lance does.
    """

    progress: list[dict[ShardId, int]] = field(default_factory=lambda: [{A: 3}])
    snapshot: bytes | None = None
    others: list[ShardId] = field(default_factory=list)
    """Shards besides A."""
    rows: int = 7
    rows_lost: int = 0
    before: list[Callable[[], None]] = field(default_factory=list)
    """Called one by one, each right before a commit lands."""
    errors: list[Exception | None] = field(default_factory=list)
    """Raised one by one, each right after a commit landed."""
    commits: list[tuple[int, dict[ShardId, int]]] = field(default_factory=list)
    uuid: str = ""
    confirmed: tuple[int, str, bytes] | None = None
    times: list[int] = field(default_factory=list)
    stored_millis: int = 0
    made_by: dict[int, str] = field(default_factory=dict)
    """By version: the uuid of the refresh that made it, or what a user did."""
    confirmed_at: list[dict[ShardId, int]] = field(default_factory=list)
    """Progress at each confirmation."""

    def merge(self, shard: ShardId, generation: int) -> None:
        self.progress.append({**self.progress[-1], shard: generation})

    def restore(self, version: int) -> None:
        self.progress.append(self.progress[version - 1])
        self.made_by[len(self.progress)] = "restore"

    def is_turned_back(self, version: int) -> bool | None:
        return self.made_by.get(version) == "restore"

    def flush(self, shard: ShardId) -> None:
        self.others.append(shard)

    def view(self) -> TableView:
        return self.table()

    def table(self) -> TableView:
        version = len(self.progress)
        state = make_state(merged=self.progress[-1], num_shards=1 if self.snapshot else 0)
        found = [make_manifest(shard) for shard in (A, *self.others)]
        shards = [ShardView(manifest=m, merged_generation=0) for m in found]
        return make_view(*shards, state=state, version=version)

    def table_version(self) -> int:
        return len(self.progress)

    def mem_wal(self, version: int) -> MemWalState:
        state = make_state(merged=self.progress[version - 1])
        uuid = self.made_by.get(version, "")
        return replace(state, snapshot_ts_millis=self.stored_millis, index_uuid=uuid)

    def compare(self, state: MemWalState, data: bytes) -> Stored:
        if self.snapshot is None:
            return Stored.NONE
        if self.snapshot != data:
            return Stored.OTHER
        return Stored.SAME if self.confirmed is not None else Stored.UNCONFIRMED

    def confirm(self, *, taken_at_millis: int, index_uuid: str, data: bytes) -> None:
        assert (index_uuid, data) == (self.uuid, self.snapshot)
        self.confirmed = (taken_at_millis, index_uuid, data)
        self.confirmed_at.append(self.progress[-1])

    def encode(self, manifests: Sequence[ShardManifest], specs: object) -> bytes:
        return repr(manifests).encode()

    def commit(
        self,
        *,
        version: int,
        data: bytes,
        merged: Progress,
        index_uuid: str,
        taken_at_millis: int,
        **rest: Any,
    ) -> int:
        self.times.append(taken_at_millis)
        if self.before:
            self.before.pop(0)()
        if any(self.is_turned_back(n) for n in range(version + 1, len(self.progress) + 1)):
            raise LostRace("incompatible with a restore")
        kept = self.progress[version - 1]
        self.commits.append((version, dict(merged)))
        self.progress.append({s: max(kept.get(s, 0), merged.get(s, 0)) for s in {*kept, *merged}})
        self.snapshot, self.uuid, self.confirmed = data, index_uuid, None
        self.made_by[len(self.progress)] = index_uuid
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return len(self.progress)

    def fragments_and_rows(self, version: int) -> tuple[int, int]:
        return 1, self.rows - (self.rows_lost if version == len(self.progress) else 0)


@pytest.fixture
def table() -> FakeTable:
    return FakeTable()


def refresh(
    where: FakeTable,
    read: Callable[[], TableView] | None = None,
    *,
    dry_run: bool = False,
    **settings: Any,
) -> SnapshotTableReport:
    refresher = SnapshotRefresher(
        name="t",
        views=where,  # type: ignore[arg-type]
        snapshots=where,  # type: ignore[arg-type]
        read=read or where.view,
        **{"clock": ManualClock(), **settings},
    )
    return refresher.run(where.view(), dry_run=dry_run)


def test_a_refresh_and_then_nothing_to_do(table: FakeTable) -> None:
    assert refresh(table).outcome == "done"
    assert refresh(table).outcome == "nothing_to_do"
    assert table.progress[-1] == {A: 3}
    assert len(table.commits) == 1


def test_a_merge_that_was_overwritten_is_put_right(table: FakeTable) -> None:
    table.before = [lambda: table.merge(A, 5), lambda: table.merge(B, 2)]
    done = refresh(table)
    assert (done.outcome, done.repairs) == ("done", 2)
    assert table.progress[-1] == {A: 5, B: 2}


def test_the_entry_is_read_again_at_the_last_moment(table: FakeTable) -> None:
    def read() -> TableView:
        view = table.view()
        table.merge(A, 5)  # while manifests were read
        return view

    done = refresh(table, read)
    assert (done.repairs, table.progress[-1]) == (0, {A: 5})
    assert table.commits == [(2, {})]


def test_a_repair_whose_reply_was_lost_is_looked_into(table: FakeTable) -> None:
    """The first commit lowers progress and reports an error."""
    table.before = [lambda: table.merge(A, 5)]
    table.errors = [StoreUnavailable("no reply")]
    done = refresh(table)
    assert (done.outcome, table.progress[-1]) == ("done", {A: 5})


def test_what_it_lowered_is_put_right_also_when_another_run_confirmed_the_snapshot(
    table: FakeTable,
) -> None:
    """The other run began after our commit, so it took the lowered progress for the table's."""

    def read() -> TableView:
        if table.commits:
            assert table.snapshot is not None
            table.confirm(taken_at_millis=1, index_uuid=table.uuid, data=table.snapshot)
        return table.view()

    table.before = [lambda: table.merge(A, 5)]
    table.errors = [StoreUnavailable("no reply")]
    done = refresh(table, read)
    assert (done.outcome, done.repairs, table.progress[-1]) == ("done", 1, {A: 5})


def test_later_attempts_look_back_as_far_as_the_first(table: FakeTable) -> None:
    table.before = [lambda: table.merge(A, 5), lambda: table.merge(B, 1)]
    table.errors = [StoreUnavailable("no reply"), LostRace("no reply either")]
    assert refresh(table).outcome == "done"
    assert table.progress[-1] == {A: 5, B: 1}


def test_what_another_refresh_lowered_meanwhile_is_put_right(table: FakeTable) -> None:
    def merged_and_lowered_again() -> None:
        table.merge(A, 5)
        table.merge(A, 3)

    table.before = [merged_and_lowered_again]
    assert refresh(table).repairs == 1
    assert table.progress[-1] == {A: 5}


def test_a_repair_that_did_not_land_is_made_by_the_next_attempt(table: FakeTable) -> None:
    def lose() -> None:
        raise LostRace("somebody else's refresh")

    table.before = [lambda: table.merge(A, 5), lose]
    table.errors = [StoreUnavailable("no reply")]
    assert refresh(table).outcome == "done"
    assert table.progress[-1] == {A: 5}


@pytest.mark.parametrize("landed", [False, True])
def test_a_restore_is_not_undone(table: FakeTable, landed: bool) -> None:
    """Whether a commit of its own landed before, with or without a reply, or none did."""
    table.progress = [{A: 3}, {A: 5}]
    if landed:
        table.before = [lambda: table.merge(A, 6), lambda: table.restore(1)]
        table.errors = [StoreUnavailable("no reply")]
    else:
        table.before = [lambda: table.restore(1)]
    done = refresh(table)
    assert (done.outcome, table.progress[-1]) == ("done", {A: 3})
    assert table.confirmed is not None


def test_shards_read_before_a_restore_are_not_stored_beside_its_progress(table: FakeTable) -> None:
    table.progress = [{A: 6}, {}]
    views: list[int] = []

    def read() -> TableView:
        view = table.view()
        if not views:
            table.restore(1)
        views.append(view.version)
        return view

    assert refresh(table, read).outcome == "done"
    assert (views, table.commits) == ([2, 3], [(3, {})])


def test_after_a_restore_it_raises_what_it_lowers_then(table: FakeTable) -> None:
    table.progress = [{A: 3}, {A: 5}]
    table.before = [lambda: table.restore(1), lambda: table.merge(A, 4)]
    assert (refresh(table).repairs, table.progress[-1]) == (1, {A: 4})


def test_what_it_lowered_is_raised_after_a_repair_that_lost_to_a_merge(table: FakeTable) -> None:
    def lose() -> None:
        table.merge(B, 1)
        raise LostRace("somebody else's refresh")

    table.before = [lambda: table.merge(A, 5), lose]
    assert refresh(table).repairs == 2
    assert table.progress[-1] == {A: 5, B: 1}


def test_where_it_is_not_known_whether_a_user_turned_back_nothing_is_raised() -> None:
    class Expired(FakeTable):
        def is_turned_back(self, version: int) -> bool | None:
            return None if version == 3 else super().is_turned_back(version)

    table = Expired()
    table.before = [lambda: table.merge(A, 5)]
    table.errors = [StoreUnavailable("no reply")]
    with pytest.raises(OutcomeUnknown):
        refresh(table)
    assert table.progress[-1] == {A: 3}
    assert table.confirmed is None


def test_repairs_have_a_bound_and_an_error_says_so(table: FakeTable) -> None:
    numbers = iter(range(4, 9999))
    table.before = [lambda: table.merge(A, next(numbers))] * 500
    limits = SnapshotLimits(repairs_max=3, attempts_max=2)
    with pytest.raises(LostRace, match="progress may be too low"):
        refresh(table, limits=limits)
    assert len(table.commits) <= 6


def test_a_store_that_is_away_is_not_a_lost_race(table: FakeTable) -> None:
    clock, asked = ManualClock(), list[int]()

    def read() -> TableView:
        asked.append(1)
        raise StoreUnavailable("no answer")

    with pytest.raises(StoreUnavailable):
        refresh(table, read, clock=clock)
    assert (len(asked), clock.monotonic_seconds()) == (1, ManualClock().monotonic_seconds())


def test_no_commit_without_the_lease(table: FakeTable) -> None:
    asked: list[int] = []

    def lost() -> None:
        asked.append(len(table.commits))
        raise LeaseHeld("superseded")

    with pytest.raises(LeaseHeld):
        refresh(table, before_commit=lost)
    assert table.commits == []
    assert asked == [0]


def test_no_repair_once_others_may_have_built_on_the_lowered_progress(table: FakeTable) -> None:
    def lapsed() -> None:
        raise LeaseHeld("lapsed")

    table.before = [lambda: table.merge(A, 5)]
    with pytest.raises(LeaseHeld, match="lapsed; merge progress stays lower than it was") as told:
        refresh(table, before_repair=lapsed)
    assert f"({A}: 5)" in str(told.value)
    assert len(table.commits) == 1


def test_a_refresh_that_changed_the_data_is_corruption(table: FakeTable) -> None:
    table.rows_lost = 1
    with pytest.raises(Corruption, match="instead of"):
        refresh(table)


def test_a_broken_shard_is_not_hidden(table: FakeTable) -> None:
    broken = BrokenShard(shard_id=B, error=Corruption("MW-M01", "torn"))
    with pytest.raises(Refused, match="would hide them"):
        collect_manifests(replace(table.view(), broken=(broken,)))


def test_what_fell_is_told_for_each_shard_by_its_highest() -> None:
    before = [make_state(merged={A: 5}), make_state(merged={A: 4, B: 0})]
    assert find_lowered(before, make_state(merged={A: 5, B: 0})) == {}
    assert find_lowered(before, make_state(merged={A: 4, B: 0})) == {A: 5}
    assert find_lowered(before, make_state(merged={A: 5})) == {B: 0}
    assert find_lowered(before, make_state(merged={A: 6, B: 1})) == {}


def test_many_shards_are_stored_outside(table: FakeTable) -> None:
    assert choose_storage(3, SnapshotLimits(inline_shards_max=3)) is Storage.INLINE
    assert choose_storage(3, SnapshotLimits(inline_shards_max=2)) is Storage.EXTERNAL


# ---- what readers may go by


def test_it_is_of_the_time_before_anything_was_read(table: FakeTable) -> None:
    clock = ManualClock()
    began = clock.now_nanos() // 10**6

    def read() -> TableView:
        clock.sleep(60)
        return table.view()

    refresh(table, read, clock=clock)
    assert table.confirmed is not None
    assert began - 10 < table.confirmed[0] <= began


def test_each_commit_says_another_time(table: FakeTable) -> None:
    """Else a reader that holds a lowered version would take its snapshot for the confirmed one."""
    table.before = [lambda: table.merge(A, 5), lambda: table.merge(A, 6)]
    table.errors = [None, StoreUnavailable("no reply")]
    refresh(table)
    assert len(table.commits) == len(set(table.times)) > 2
    assert table.confirmed is not None
    assert table.confirmed[0] == table.times[-1]
    # The one that is stored may be of a host whose clock is ahead.
    table.snapshot = b"old"
    table.stored_millis = ManualClock().now_nanos() // 10**6 - 1
    refresh(table)
    assert table.times[-1] != table.stored_millis


def test_it_is_confirmed_once_nothing_is_lowered(table: FakeTable) -> None:
    table.before = [lambda: table.merge(A, 5), lambda: table.merge(A, 6)]
    assert refresh(table).repairs == 2
    assert table.confirmed_at == [{A: 6}]


def test_it_is_not_confirmed_where_nobody_can_tell_what_it_lowered() -> None:
    class Expiring(FakeTable):
        def mem_wal(self, version: int) -> MemWalState:
            if version == 2:
                raise Missing("version 2 was expired")
            return super().mem_wal(version)

    table = Expiring()
    table.before = [lambda: table.merge(A, 5)]
    with pytest.raises(OutcomeUnknown, match="versions 2 were expired"):
        refresh(table)
    assert table.confirmed is None
    # The next one writes it again, although manifests say what it says.
    assert refresh(table).outcome == "done"
    assert table.confirmed is not None


def test_what_can_t_be_confirmed_is_written_again(table: FakeTable) -> None:
    left = [StoreUnavailable("no reply")]
    confirm = table.confirm

    def failing(**what: Any) -> None:
        if left:
            raise left.pop()
        confirm(**what)

    table.confirm = failing  # type: ignore[method-assign]
    assert refresh(table).outcome == "done"
    assert (len(table.commits), table.confirmed is not None) == (2, True)


# ---- in which order


def test_the_lease_is_taken_first_and_everything_is_read_again_then(table: FakeTable) -> None:
    done: list[str] = []

    def take_lease() -> None:
        done.append("lease")
        table.flush(B)  # by somebody who held it until now

    def read() -> TableView:
        done.append("read")
        return table.view()

    refresh(table, read, take_lease=take_lease, steps=done.append)
    assert done == ["lease", "read", "commit", "committed", "confirm"]
    assert table.snapshot == table.encode(collect_manifests(table.view()), ())


def test_a_lease_that_is_held_leaves_the_table_as_it_is(table: FakeTable) -> None:
    def held() -> None:
        raise LeaseHeld("by somebody")

    with pytest.raises(LeaseHeld):
        refresh(table, take_lease=held)
    assert table.commits == []


def test_what_writes_nothing_takes_no_lease(table: FakeTable) -> None:
    asked: list[str] = []
    lease = {"take_lease": lambda: asked.append("lease")}
    assert refresh(table, dry_run=True, **lease).reason == "would write: there is no snapshot"
    assert (table.commits, asked) == ([], [])
    refresh(table, **lease)
    assert (refresh(table, **lease).outcome, asked) == ("nothing_to_do", ["lease"])
