"""Races between commits, the same on the simulation's lake and on real tables of pylance 14.

What the lake says here is what the simulation's proof stands on. Everything goes through the ports
that the jobs use, so that what a job does about an outcome is not in question, only the outcome.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from memwal.errors import LostRace, Missing, OutcomeUnknown, StoreUnavailable
from memwal.jobs.compaction.apply import RewrittenFragments
from memwal.jobs.compaction.plan import CompactionLimits, CompactionTask
from memwal.jobs.garbage.model import GarbageLimits
from memwal.jobs.index_catchup.apply import SegmentTask
from memwal.jobs.merge.apply import ShardMerger
from memwal.jobs.merge.apply.shared_commits import SharedMerger
from memwal.jobs.merge.plan import Deletes
from memwal.jobs.merge.ports import CommitStats, Fold
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.snapshot.apply import SnapshotRefresher
from memwal.jobs.snapshot.plan import Storage
from memwal.model import ShardId, TableView
from memwal.store.tables.view import StoredViews
from memwal.testing import Call, HookedObjects, ManualClock
from tests.store.race_worlds import BASE, INDEXES, LakeWorld, LanceWorld, World, fold, state
from tests.support.s3server import S3Server

SMALL = CompactionLimits(target_rows_per_fragment=1000)


# What a commit depends on the store for; what conflicts with what, Lance decides by itself.
ON_S3 = {
    "test_of_two_folds_that_share_a_key_the_second_is_refused",
    "test_of_two_refreshes_the_second_is_refused",
    "test_cleanup_leaves_the_latest_and_what_is_referred_to",
}
LOCAL, S3 = (
    pytest.param("local", marks=pytest.mark.integration),
    pytest.param("s3", marks=pytest.mark.nightly),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        s3 = [S3] if metafunc.function.__name__ in ON_S3 else []
        metafunc.parametrize("world", ["lake", LOCAL, *s3], indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "lake":
        return LakeWorld()
    if request.param == "local":
        return LanceWorld(tmp_path / "t")
    server: S3Server = request.getfixturevalue("s3_server")
    return LanceWorld(f"s3://{server.make_bucket()}/t", server.storage_options)


Changes = Mapping[int, int | None]


def flush(world: World, shard: int, *generations: dict[int, int | None]) -> None:
    for changes in generations:
        world.flush(world.shards[shard], changes)


def merge(world: World, shard: int = 0, generations: int = 99) -> CommitStats:
    """A merge that nobody disturbs."""
    view = world.view()
    made = fold(world, view, shard, generations)
    return made.commit(deletes(made), last(world, view, shard, generations))


def deletes(made: Fold) -> Deletes:
    return Deletes.SAME_COMMIT if made.facts.tombstones else Deletes.NONE


def last(world: World, view: TableView, shard: int, generations: int) -> int:
    found = next(s for s in view.shards if s.shard_id == world.shards[shard])
    return int(found.pending[:generations][-1].generation)


def progress(world: World) -> list[int]:
    merged = state(world).merged
    return [merged.get(shard, 0) for shard in world.shards]


def caught_up(world: World, name: str) -> list[int] | None:
    """An index's entry; None when there is none. A shard that it lacks counts as 0."""
    entry = state(world).index_catchup.get(name)
    return None if entry is None else [entry.get(shard, 0) for shard in world.shards]


def uncovered(world: World, name: str) -> int:
    """Rows that an index does not cover."""
    found = world.indexes.facts(world.view().version)
    index = found.index(name)
    assert index is not None
    return sum(f.rows for f in found.fragments if f.fragment_id not in index.covered)


# ---- merges beside merges


def test_of_two_folds_that_share_a_key_the_second_is_refused(world: World) -> None:
    flush(world, 0, {10: 1, 50: 2}, {11: 3})
    view = world.view()
    longer, shorter = fold(world, view, 0, 2), fold(world, view, 0, 1)
    shorter.commit(Deletes.NONE, 1)
    with pytest.raises(LostRace):
        longer.commit(Deletes.NONE, 2)
    assert progress(world) == [1, 0]
    assert world.rows() == {**BASE, 10: 1, 50: 2}
    longer.rebase(world.view()).commit(Deletes.NONE, 2)
    assert progress(world) == [2, 0]
    assert world.rows() == {**BASE, 10: 1, 50: 2, 11: 3}


# What two shards' merges on one view do, and whether the first refuses the second.
TWO: dict[str, tuple[Changes, Changes, bool]] = {
    # Why a later prefix must not be folded before the earlier one is in (see the merge plan).
    "other keys": ({10: 1, 50: 1}, {20: 3, 60: 3}, False),
    "the same new key": ({50: 1}, {50: 2}, True),
    "an update and a delete": ({10: 5}, {10: None, 11: 1}, True),
    # The trap that a fold's anchor guards against (see the merge plan): the row stays.
    "a delete of an absent key": ({50: 5}, {50: None, 11: 1}, False),
}


@pytest.mark.parametrize("two", TWO)
def test_what_lands_on_top_of_another_shard_s_merge(world: World, two: str) -> None:
    *changes, is_refused = TWO[two]
    for number, made in enumerate(changes):
        flush(world, number, dict(made))
    view = world.view()
    one, other = fold(world, view, 0, 1), fold(world, view, 1, 1)
    one.commit(deletes(one), 1)
    if is_refused:
        with pytest.raises(LostRace):
            other.commit(deletes(other), 1)
        assert (progress(world), world.rows()) == ([1, 0], applied(changes[0]))
        other.rebase(world.view()).commit(deletes(other), 1)
        assert world.rows() == applied({**changes[0], **changes[1]})
    else:
        other.commit(deletes(other), 1)
        assert world.rows() == applied({**changes[1], **changes[0]})
    assert progress(world) == [1, 1]


def test_a_mark_that_is_not_above_the_recorded_one_is_refused(world: World) -> None:
    flush(world, 0, {10: 1}, {11: 2})
    old = fold(world, world.view(), 0, 1)
    merge(world)
    before = world.view().version
    for mark in (1, 2):
        with pytest.raises(LostRace):
            old.rebase(world.view()).commit(Deletes.NONE, mark)
    assert (world.view().version, progress(world)) == (before, [2, 0])
    assert world.rows() == {**BASE, 10: 1, 11: 2}


def test_a_mark_may_pass_over_generations(world: World) -> None:
    """Neither of them keeps the order: that is left to the plan (invariant 2)."""
    flush(world, 0, {10: 1}, {11: 2}, {12: 3})
    view = world.view()
    fold(world, view, 0, 1).commit(Deletes.NONE, 3)
    assert progress(world) == [3, 0]
    assert world.rows() == {**BASE, 10: 1}


# ---- deletes


def test_a_stale_delete_pass_does_not_take_a_newer_row(world: World) -> None:
    """From a fresh view it does: so it has to look at progress on its own handle's version."""
    flush(world, 0, {10: None}, {10: 7})
    stale = fold(world, world.view(), 0, 1)
    merge(world)
    with pytest.raises(LostRace):
        stale.delete_pass()
    assert world.rows() == {**BASE, 10: 7}
    assert stale.rebase(world.view()).delete_pass()[1] == 1
    assert 10 not in world.rows()


def test_a_delete_pass_is_a_version_of_its_own_and_marks_nothing(world: World) -> None:
    flush(world, 0, {10: None, 11: 1, 99: None})
    view = world.view()
    made = fold(world, view, 0, 1)
    assert made.delete_pass() == (view.version + 1, 1)
    assert progress(world) == [0, 0]
    assert 10 not in world.rows()
    made.commit(Deletes.PASS_BEFORE, 1)
    assert progress(world) == [1, 0]
    assert world.rows() == {k: v for k, v in {**BASE, 11: 1}.items() if k != 10}


# ---- what others commit beside a merge


def prepared(world: World, changes: Changes) -> Fold:
    flush(world, 0, dict(changes))
    return fold(world, world.view(), 0, 1)


ROWS, DELETES, BOTH = {50: 1}, {10: None}, {10: None, 12: 1}
# What a merge does, what is written in between, and whether that refuses it.
BESIDE: dict[str, tuple[Changes, Changes, bool]] = {
    "rows, an append": (ROWS, {70: 1}, True),
    "both, an append": (BOTH, {70: 1}, True),
    "deletes, an append": (DELETES, {70: 1}, False),
    # Of whatever row: Lance can't tell that it made none anew.
    "rows, an update of another row": (ROWS, {13: 5}, True),
    "both, an update of another row": (BOTH, {13: 5}, True),
    "deletes, an update of another row": (DELETES, {13: 5}, False),
    "deletes, an update of the row": (DELETES, {10: 5}, True),
    "rows, a delete of another row": (ROWS, {11: None}, False),
    "both, a delete of another row": (BOTH, {11: None}, False),
    "an update, a delete of the row": ({10: 1}, {10: None}, True),
    "deletes, a delete of the row": (DELETES, {10: None}, True),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_what_lands_beside_a_merge(world: World, beside: str) -> None:
    changes, written, is_refused = BESIDE[beside]
    made = prepared(world, changes)
    for key, n in written.items():
        if n is None:
            world.delete(key)
        elif key in BASE:
            world.update(key, n)
        else:
            world.append({key: n})
    if is_refused:
        with pytest.raises(LostRace):
            made.commit(deletes(made), 1)
        assert (progress(world), world.rows()) == ([0, 0], applied(written))
        made = made.rebase(world.view())
    made.commit(deletes(made), 1)
    assert (progress(world), world.rows()) == ([1, 0], applied({**written, **changes}))


def test_deletes_alone_bring_their_mark_with_them(world: World) -> None:
    """By a join, also of keys that the base lacks; and when they find nothing."""
    made = prepared(world, {10: None, 99: None})
    late = fold(world, world.view(), 0, 1)
    before = world.view().version
    made.commit(Deletes.SAME_COMMIT, 1)
    assert (world.view().version, progress(world)) == (before + 1, [1, 0])
    assert world.rows() == applied({10: None})
    with pytest.raises(LostRace):
        late.commit(Deletes.SAME_COMMIT, 1)
    prepared(world, {98: None}).commit(Deletes.SAME_COMMIT, 2)
    assert progress(world) == [2, 0]


def applied(changes: Changes) -> dict[int, int]:
    return {key: n for key, n in {**BASE, **changes}.items() if n is not None}


# ---- index catch-up


def test_an_index_is_credited_with_the_version_that_it_covers(world: World) -> None:
    flush(world, 0, {50: 1}, {51: 2})
    merge(world, generations=1)
    assert {name: caught_up(world, name) for name in INDEXES} == dict.fromkeys(INDEXES)
    world.indexes.append(["key_idx"], 0)
    assert caught_up(world, "key_idx") == [1, 0]
    assert caught_up(world, "n_idx") is None
    merge(world)
    assert caught_up(world, "key_idx") == [1, 0]
    assert uncovered(world, "key_idx") == 1
    world.indexes.append(["n_idx"], 0)
    assert caught_up(world, "n_idx") == [2, 0]
    assert caught_up(world, "key_idx") == [1, 0]


def test_recording_credits_every_index_with_full_coverage_and_no_other(world: World) -> None:
    flush(world, 0, {50: 1})
    merge(world)
    world.indexes.append(["key_idx"], 0)
    flush(world, 1, {51: None, 10: None})
    merge(world, 1)
    assert (uncovered(world, "key_idx"), uncovered(world, "n_idx")) == (0, 1)
    world.indexes.record("key_idx")
    assert caught_up(world, "key_idx") == [1, 1]
    assert caught_up(world, "n_idx") is None


def test_a_merge_that_empties_all_that_an_index_covers_erases_its_entry(world: World) -> None:
    flush(world, 0, {50: 1})
    merge(world)
    world.indexes.append(["key_idx"], 0)
    assert caught_up(world, "key_idx") == [1, 0]
    flush(world, 0, dict.fromkeys([*BASE, 50]), {60: 1})
    merge(world)
    assert caught_up(world, "key_idx") is None
    assert world.rows() == {60: 1}


# ---- the snapshot's commit


def replace_entry(world: World, view: TableView, *, raised: Mapping[ShardId, int] = {}) -> int:
    """Replace the MemWAL entry by what it was in `view`, with progress raised; the version."""
    landed: int = world.snapshots.commit(
        version=view.version,
        state=view.mem_wal,
        index_uuid=str(uuid.uuid4()),
        data=world.snapshots.encode([], []),
        storage=Storage.INLINE,
        num_shards=2,
        taken_at_millis=1,
        merged=raised,
    )
    return landed


def test_a_stale_refresh_overwrites_newer_progress(world: World) -> None:
    """Nothing conflicts: why apply.snapshot looks at what landed, and repairs."""
    flush(world, 0, {10: 1}, {11: 2})
    merge(world, generations=1)
    view = world.view()
    merge(world)
    assert replace_entry(world, view) == view.version + 2
    assert progress(world) == [1, 0]
    assert world.rows() == {**BASE, 10: 1, 11: 2}
    replace_entry(world, world.view(), raised={world.shards[0]: 2})
    assert progress(world) == [2, 0]


@pytest.mark.parametrize("seen", [True, False])
def test_a_refresh_that_cannot_see_what_it_overwrote_says_so(world: World, seen: bool) -> None:
    """Found by seed 40 of the simulation, where users clean up in between."""
    flush(world, 0, {10: 1})

    def steps(step: str) -> None:
        if step == "commit" and progress(world) == [0, 0]:
            merge(world)
        if step == "committed" and not seen:
            world.expire()

    refresher = SnapshotRefresher(
        name="t",
        views=world.views,
        snapshots=world.snapshots,
        clock=ManualClock(),
        read=world.view,
        steps=steps,
    )
    if seen:
        assert refresher.run(world.view()).repairs == 1
        assert progress(world) == [1, 0]
    else:
        with pytest.raises(OutcomeUnknown, match="expired before it could be seen"):
            refresher.run(world.view())
    assert world.rows() == {**BASE, 10: 1}


def test_of_two_refreshes_the_second_is_refused(world: World) -> None:
    view = world.view()
    replace_entry(world, view)
    with pytest.raises(LostRace):
        replace_entry(world, view)


def test_a_merge_that_began_before_a_refresh_lands_on_it(world: World) -> None:
    flush(world, 0, {10: 1})
    made = fold(world, world.view(), 0, 1)
    replace_entry(world, world.view())
    made.commit(Deletes.NONE, 1)
    assert progress(world) == [1, 0]
    assert state(world).num_shards == 2


def test_a_refresh_credits_indexes_as_any_index_commit_does(world: World) -> None:
    flush(world, 0, {50: 1})
    merge(world)
    world.indexes.append(["key_idx"], 0)
    flush(world, 1, {51: None, 10: None})
    merge(world, 1)
    assert caught_up(world, "key_idx") == [1, 0]
    replace_entry(world, world.view())
    assert caught_up(world, "key_idx") == [1, 1]
    assert caught_up(world, "n_idx") is None


# ---- compaction


def compaction_of(world: World) -> list[RewrittenFragments]:
    """Everything that is small, rewritten and not committed yet."""
    tasks = world.compaction.plan(world.view().version, SMALL)
    return [world.compaction.rewrite(task) for task in tasks]


def commit(world: World, rewritten: Sequence[RewrittenFragments]) -> None:
    world.compaction.commit(rewritten)


def merged_twice(world: World) -> None:
    flush(world, 0, {50: 1}, {51: 2})
    for _ in range(2):
        merge(world, generations=1)


def merged_and_covered(world: World) -> None:
    """Two merges more, and every index up to date."""
    merged_twice(world)
    for name in INDEXES:
        world.indexes.append([name], 0)


def test_compaction_keeps_rows_and_coverage_and_erases_entries(world: World) -> None:
    merged_and_covered(world)
    before, rows = world.view().version, world.rows()
    commit(world, compaction_of(world))
    assert world.view().version == before + 2
    assert world.compaction.fragments(before + 2).fragments < 3
    assert world.rows() == rows
    assert [uncovered(world, name) for name in INDEXES] == [0, 0]
    assert [caught_up(world, name) for name in INDEXES] == [None, None]
    assert progress(world) == [2, 0]
    world.indexes.record("key_idx")
    assert [caught_up(world, name) for name in INDEXES] == [[2, 0], [2, 0]]


def test_fragments_that_differ_in_coverage_stay_apart(world: World) -> None:
    merged_twice(world)
    tasks = world.compaction.plan(world.view().version, SMALL)
    assert [len(task.fragment_ids) for task in tasks] == [2]
    commit(world, [world.compaction.rewrite(task) for task in tasks])
    assert world.compaction.fragments(world.view().version).fragments == 2
    assert uncovered(world, "key_idx") == 2


def append_to_index(world: World) -> None:
    world.indexes.append(["key_idx"], 0)


def change_columns(world: World) -> None:
    world.alter(world.view().version)


@pytest.mark.parametrize(
    ("work", "is_refused"),
    [
        (lambda world: merged_again(world, 51), True),
        (lambda world: merged_again(world, 60), False),
        (append_to_index, True),
        (lambda world: commit(world, compaction_of(world)), True),
        (change_columns, True),
    ],
    ids=["a merge into them", "a merge of new keys", "an index's", "a compaction", "columns"],
)
def test_what_refuses_the_compaction_of_fragments(
    world: World, work: Callable[[World], None], is_refused: bool
) -> None:
    merged_twice(world) if work is append_to_index else merged_and_covered(world)
    rewritten = compaction_of(world)
    work(world)
    rows, merged = world.rows(), progress(world)
    if is_refused:
        with pytest.raises(LostRace):
            commit(world, rewritten)
    else:
        commit(world, rewritten)
        assert uncovered(world, "key_idx") == 1
    assert (world.rows(), progress(world)) == (rows, merged)


def merged_again(world: World, key: int) -> None:
    flush(world, 0, {key: 9})
    merge(world)


@pytest.mark.parametrize("key", [50, 60], ids=["update", "insert"])
def test_a_merge_that_began_before_a_compaction(world: World, key: int) -> None:
    merged_and_covered(world)
    flush(world, 0, {key: 9})
    made = fold(world, world.view(), 0, 1)
    commit(world, compaction_of(world))
    if key == 50:
        with pytest.raises(LostRace):
            made.commit(Deletes.NONE, 3)
        made = made.rebase(world.view())
    made.commit(Deletes.NONE, 3)
    assert world.rows() == {**BASE, 50: 1, 51: 2, key: 9}


# ---- changes of columns


@pytest.mark.parametrize("write", ["merge", "append", "update", "delete"])
def test_rows_that_landed_meanwhile_refuse_a_change_of_columns(world: World, write: str) -> None:
    flush(world, 0, {50: 1})
    before = world.view().version
    writes: dict[str, Callable[[], object]] = {
        "merge": lambda: merge(world), "append": lambda: world.append({70: 1}),
        "update": lambda: world.update(13, 5), "delete": lambda: world.delete(11),
    }  # fmt: skip
    writes[write]()
    with pytest.raises(LostRace):
        world.alter(before)
    rows = world.rows()
    world.alter(world.view().version)
    assert world.rows() == rows


@pytest.mark.parametrize("changes", [ROWS, DELETES, BOTH], ids=["rows", "deletes", "both"])
def test_a_merge_that_began_before_a_change_of_columns_is_refused(
    world: World, changes: Changes
) -> None:
    made = prepared(world, changes)
    change_columns(world)
    with pytest.raises(LostRace):
        made.commit(deletes(made), 1)
    merge(world)
    assert world.rows() == applied(changes)


def test_index_work_and_a_change_of_columns_let_each_other_be(world: World) -> None:
    flush(world, 0, {50: 1})
    merge(world)
    before = world.view().version
    world.indexes.append(["key_idx"], 0)
    world.alter(before)
    assert uncovered(world, "key_idx") == 0
    assert progress(world) == [1, 0]


# ---- cleanup


def retained(world: World) -> dict[tuple[bool, int], int]:
    """Merge progress of shard 0 by version, as the garbage job reads it: main's, and others'."""
    view = world.view()
    found = world.evidence.read(
        {s.shard_id: s.manifest for s in view.shards},
        limits=GarbageLimits(),
        now_nanos=0,
        verified=True,
    )
    assert not found.problems
    return {
        (v.on_main, v.version): (v.merged or {}).get(world.shards[0], 0) for v in found.versions
    }


def test_cleanup_leaves_the_latest_and_what_is_referred_to(world: World) -> None:
    flush(world, 0, {10: 1}, {11: 2}, {12: 3}, {13: 4})
    versions = []
    for _ in range(4):
        merge(world, generations=1)
        versions.append(world.view().version)
    world.tag("kept", versions[0])
    world.branch("side", versions[2])
    world.expire()
    assert world.versions() == [versions[0], versions[2], versions[3]]
    assert {v: g for (main, v), g in retained(world).items() if main} == {
        versions[0]: 1,
        versions[2]: 3,
        versions[3]: 4,
    }
    assert {g for (main, _), g in retained(world).items() if not main} == {3}
    assert world.evidence.referenced_versions() == {versions[0], versions[2]}


def expired_view(world: World) -> TableView:
    view = world.view()
    world.append({70: 1})
    world.append({71: 1})
    world.expire()
    return view


def test_a_view_that_expired_before_the_fold_or_after_it_is_a_lost_race(world: World) -> None:
    flush(world, 0, {10: 1}, {20: 2})
    made = fold(world, world.view(), 0, 1)
    view = expired_view(world)
    with pytest.raises((LostRace, Missing, StoreUnavailable)):
        made.commit(Deletes.NONE, 1)
    with pytest.raises(LostRace):
        fold(world, view, 0, 2).commit(Deletes.NONE, 2)
    fresh = fold(world, world.view(), 0, 2)
    with pytest.raises(LostRace):
        fresh.rebase(view).commit(Deletes.NONE, 2)
    assert progress(world) == [0, 0]
    fresh.rebase(world.view()).commit(Deletes.NONE, 2)
    assert progress(world) == [2, 0]


class _Expiring:
    """A MergeTable whose views expire before some of its folds."""

    def __init__(self, world: World, folds: int) -> None:
        self._world, self._left = world, folds

    def fold(self, *arguments: Any) -> Fold:
        if self._left:
            self._left -= 1
            self._world.append({70 + self._left: 1})
            self._world.expire()
        made: Fold = self._world.merge_table.fold(*arguments)
        return made

    def share(self, folds: Mapping[ShardId, Fold]) -> Any:
        return self._world.merge_table.share(folds)


@pytest.mark.parametrize("together", [False, True])
def test_a_merge_goes_on_from_a_fresh_view_when_its_own_expires(
    world: World, together: bool
) -> None:
    flush(world, 0, {10: 1}, {50: 2})
    flush(world, 1, {11: 3})
    world.tag("proof", world.view().version)  # that the MemWAL index is older
    world.append({72: 1})
    table = _Expiring(world, 2)
    merger = ShardMerger(views=world.views, table=table, clock=ManualClock())
    if together:
        done = SharedMerger(single=merger).run(world.shards, MergeRequest())
    else:
        done = tuple(merger.run(shard, MergeRequest()) for shard in world.shards)
    assert [(m.outcome, m.error) for m in done] == [("done", None)] * 2
    assert world.rows() == {**BASE, 10: 1, 50: 2, 11: 3, 70: 1, 71: 1, 72: 1}


def test_folded_keys_are_put_on_the_fresh_view(world: World) -> None:
    flush(world, 0, {10: 1, 50: 2})
    updated: list[int] = []

    def steps(step: str) -> None:
        if step == "commit" and not updated:
            world.update(10, 7)
            updated.append(10)

    merger = ShardMerger(
        views=world.views, table=world.merge_table, clock=ManualClock(), steps=steps
    )
    merge = merger.run(world.shards[0], MergeRequest())
    assert (merge.outcome, merge.conflicts, merge.commits) == ("done", 1, 1)
    assert world.rows() == {**BASE, 10: 1, 50: 2}


def test_what_maintains_an_expired_version_loses_its_race(world: World) -> None:
    version = expired_view(world).version
    task = CompactionTask(version=version, fragment_ids=(0, 1), file_bytes=0, data="{}")
    segment = SegmentTask(version=version, index="n_idx", kind="BTREE", fragments=())
    works: list[Callable[[], object]] = [lambda: world.compaction.rewrite(task)]
    if isinstance(world, LanceWorld):
        works.append(lambda: world.indexes.build(segment))
        works.append(lambda: world.indexes.commit_segments(version, "n_idx", ()))
    for work in works:
        with pytest.raises(LostRace):
            work()


@pytest.mark.integration
def test_a_view_is_taken_anew_when_the_latest_version_expires_in_between(tmp_path: Path) -> None:
    world = LanceWorld(tmp_path / "t")
    expired: list[str] = []

    def hook(call: Call, effect: Callable[[], Any]) -> Any:
        if "_versions" in call.paths[0] and call.operation == "get_tail" and not expired:
            expired.append(call.paths[0])
            world.append({70: 1})
            world.expire()
        return effect()

    stores = world.table.stores
    views = StoredViews(HookedObjects(stores.objects, hook), stores.tables)
    assert views.table().version == world.versions()[-1]
    assert expired
