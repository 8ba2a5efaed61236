"""What a merger folds next, how it commits it, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import Refused, StoreUnavailable, Unsupported
from memwal.invariants import InvariantBroken
from memwal.jobs.merge.plan import (
    Deletes,
    FoldFacts,
    MergeLimits,
    NextCommit,
    check_shard,
    check_table,
    choose_deletes,
    choose_generations,
    hold,
    is_guarded,
    plan_commit,
    plan_commits,
)
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.merge.store import LanceFold
from memwal.model import (
    FlushedGeneration,
    MemWalState,
    ShardId,
    ShardStatus,
    ShardView,
    TableView,
    VersionManifest,
)
from memwal.rows.keys import new_keys_are_compared
from memwal.rows.memory import needed_bytes
from memwal.rows.progress import check_lineage
from memwal.text import parse_bytes
from tests.support.views import FACTS, make_generation, make_shard

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
ALL = MergeRequest()


def generation(number: int, size_bytes: int | None = 10) -> FlushedGeneration:
    return make_generation(number, size_bytes)


def shard(*generations: FlushedGeneration | int, merged: int = 0, **facts: Any) -> ShardView:
    listed = [generation(g) if isinstance(g, int) else g for g in generations]
    return make_shard(SHARD, listed, merged=merged, **facts)


def numbers(commit: NextCommit | None) -> list[int]:
    assert commit is not None
    return [g.generation for g in commit.generations]


# ---- which generations


def test_pending_is_what_is_listed_above_the_watermark_oldest_first() -> None:
    view = shard(4, 2, 3, 1, merged=2)

    assert [g.generation for g in choose_generations(view, ALL)] == [3, 4]
    assert [g.generation for g in choose_generations(view, MergeRequest(until_generation=3))] == [3]


def test_nothing_pending_is_no_commit() -> None:
    assert plan_commit(shard(), ALL, MergeLimits()) is None
    assert plan_commit(shard(1, 2, merged=2), ALL, MergeLimits()) is None
    assert plan_commit(shard(1, 2), MergeRequest(until_generation=0), MergeLimits()) is None


def test_a_commit_takes_generations_up_to_the_count() -> None:
    limits = MergeLimits(generations_per_commit_max=2)

    plan = plan_commit(shard(1, 2, 3), ALL, limits)

    assert numbers(plan) == [1, 2]
    assert plan is not None and plan.mark == 2 and plan.in_memory_bytes == 20


def test_a_commit_takes_generations_up_to_the_bytes() -> None:
    limits = MergeLimits(bytes_per_commit_max=20)
    assert numbers(plan_commit(shard(1, 2, 3), ALL, limits)) == [1, 2]
    assert numbers(plan_commit(shard(generation(1, 11), 2), ALL, limits)) == [1]


def test_a_commit_takes_at_least_one_generation_whatever_its_size() -> None:
    limits = MergeLimits(bytes_per_commit_max=20)
    assert numbers(plan_commit(shard(generation(1, 10**12), 2), ALL, limits)) == [1]


def test_a_commit_takes_what_memory_has_room_for() -> None:
    sizes = [generation(number, 10**7) for number in (1, 2, 3)]
    limits = MergeLimits(memory_bytes_max=needed_bytes(hold(sizes[:2])))
    assert numbers(plan_commit(shard(*sizes), ALL, limits)) == [1, 2]
    few = replace(limits, bytes_per_commit_max=10**7)
    assert numbers(plan_commit(shard(*sizes), ALL, few)) == [1]
    assert numbers(plan_commit(shard(generation(1, None), 2), ALL, limits)) == [1]


def test_rows_take_memory_besides_their_bytes() -> None:
    narrow = [replace(generation(number, 10**6), physical_rows=10**6) for number in (1, 2)]
    limits = MergeLimits(memory_bytes_max=needed_bytes(hold(narrow)) - 1)
    assert numbers(plan_commit(shard(*narrow), ALL, limits)) == [1]


def test_a_generation_that_memory_has_no_room_for_is_refused() -> None:
    small = MergeLimits(memory_bytes_max=parse_bytes("500MB"))
    large = shard(1, generation(2, 10**9))
    text = rf"{large.shard_id}: generation 2 has 1,000 MB .* 2,388 MB .* up to 56 MB of such rows"
    with pytest.raises(Refused, match=text):
        plan_commits(large, ALL, small)
    with pytest.raises(Refused, match=r"generation 1 .* a task 300 MB, enough for none"):
        plan_commits(large, ALL, replace(small, memory_bytes_max=parse_bytes("300MB")))


def test_an_unknown_size_counts_as_full() -> None:
    limits = MergeLimits(bytes_per_commit_max=20)
    assert numbers(plan_commit(shard(generation(1, None), generation(2, 0)), ALL, limits)) == [1, 2]
    assert numbers(plan_commit(shard(generation(1, None), 2), ALL, limits)) == [1]
    assert numbers(plan_commit(shard(1, generation(2, None)), ALL, limits)) == [1]


def test_the_bytes_of_a_commit_are_unknown_when_any_is() -> None:
    assert NextCommit(generations=(generation(1, 5), generation(2, 0))).in_memory_bytes == 5
    assert NextCommit(generations=(generation(1, 5), generation(2, None))).in_memory_bytes is None


@pytest.mark.parametrize("listed", [(2, 3), (5,)])
def test_a_hole_above_the_watermark_is_refused(listed: tuple[int, ...]) -> None:
    with pytest.raises(Refused, match="--allow-holes") as refused:
        plan_commit(shard(*listed), ALL, MergeLimits())
    assert SHARD in str(refused.value)
    assert "manifest version 9" in str(refused.value)


def test_a_hole_is_told_by_its_numbers() -> None:
    with pytest.raises(Refused, match="generation 3 is neither merged nor listed"):
        check_shard(shard(4, merged=2), ALL)
    with pytest.raises(Refused, match="generations 3 to 5 are neither merged nor listed"):
        check_shard(shard(6, merged=2), ALL)


def test_a_commit_ends_before_a_hole() -> None:
    view = shard(1, 2, 4)

    assert numbers(plan_commit(view, ALL, MergeLimits())) == [1, 2]
    with pytest.raises(Refused, match="generation 3 is neither"):
        plan_commit(replace(view, merged_generation=2), ALL, MergeLimits())


def test_a_hole_behind_the_last_one_is_refused_once_that_is_merged() -> None:
    """Up to the number that was allotted last; what is in memory still is no hole."""
    view = shard(1, 2, current_generation=5)

    assert numbers(plan_commit(view, ALL, MergeLimits())) == [1, 2]
    with pytest.raises(Refused, match="generations 3 to 4 are neither"):
        plan_commit(replace(view, merged_generation=2), ALL, MergeLimits())
    with pytest.raises(Refused, match="generations 1 to 2 are neither"):
        plan_commit(shard(current_generation=3), ALL, MergeLimits())
    assert plan_commit(shard(1, 2, merged=2, current_generation=3), ALL, MergeLimits()) is None


def test_a_hole_is_passed_with_the_override() -> None:
    request = MergeRequest(allow_holes=True)
    assert numbers(plan_commit(shard(2, 5), request, MergeLimits())) == [2, 5]
    assert plan_commit(shard(current_generation=3), request, MergeLimits()) is None


def test_a_hole_beyond_the_request_does_not_matter() -> None:
    request = MergeRequest(until_generation=1)
    assert numbers(plan_commit(shard(1, 4), request, MergeLimits())) == [1]
    check_shard(shard(4, merged=1), request)
    check_shard(shard(merged=1, current_generation=4), request)
    with pytest.raises(Refused, match="generations 2 to 3 are neither"):
        check_shard(shard(4, merged=1), MergeRequest(until_generation=2))


@pytest.mark.parametrize("primary_key", [(), ("a`b",), ("id", 'a"b')])
def test_a_table_that_no_merge_can_work_on_is_unsupported(primary_key: tuple[str, ...]) -> None:
    state = MemWalState(index_uuid="", created_at_millis=0, merged={}, index_catchup={})
    view = TableView(
        uri="memory://t",
        version=1,
        primary_key=("id",),
        columns=(),
        rows=0,
        manifest=VersionManifest(version=1, timestamp_nanos=0, mem_wal=state),
        mem_wal=state,
        shards=(),
    )
    check_table(view)
    with pytest.raises(Unsupported):
        check_table(replace(view, primary_key=primary_key))


def test_a_commit_out_of_order_is_stopped_whatever_chose_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def newest_first(view: ShardView, request: MergeRequest) -> tuple[FlushedGeneration, ...]:
        return tuple(reversed(view.pending)) if view.pending[0].generation == 1 else view.pending

    monkeypatch.setattr("memwal.jobs.merge.plan.choose_generations", newest_first)
    monkeypatch.setattr("memwal.jobs.merge.plan.check_shard", lambda view, request: None)
    with pytest.raises(InvariantBroken):
        plan_commit(shard(1, 2), ALL, MergeLimits())


def test_a_sealed_shard_is_refused_when_it_has_work() -> None:
    with pytest.raises(Refused, match=f"{SHARD} is SEALED"):
        plan_commit(shard(1, status=ShardStatus.SEALED), ALL, MergeLimits())
    assert plan_commit(shard(1, merged=1, status=ShardStatus.SEALED), ALL, MergeLimits()) is None


views = st.builds(
    lambda listed, merged, ahead: shard(
        *(generation(n, size) for n, size in listed),
        merged=merged,
        current_generation=max(merged, *(n for n, _ in listed), 0) + 1 + ahead,
    ),
    st.lists(
        st.tuples(st.integers(1, 12), st.none() | st.integers(0, 30)),
        unique_by=lambda pair: pair[0],
        max_size=12,
    ),
    st.integers(0, 12),
    st.integers(0, 2),
)
requests = st.builds(
    MergeRequest, until_generation=st.none() | st.integers(0, 12), allow_holes=st.booleans()
)
limits = st.builds(
    MergeLimits,
    generations_per_commit_max=st.integers(1, 5),
    bytes_per_commit_max=st.integers(1, 60),
)


@given(views, requests, limits)
def test_a_run_covers_what_is_wanted_once_in_order_and_within_its_limits(
    view: ShardView, request: MergeRequest, limits: MergeLimits
) -> None:
    try:
        commits = plan_commits(view, request, limits)
    except Refused:
        last, until = view.manifest.current_generation - 1, request.until_generation
        asked = range(view.merged_generation + 1, min(last, last if until is None else until) + 1)
        holes = set(asked) - {g.generation for g in choose_generations(view, request)}
        assert holes and not request.allow_holes
        return

    folded = [g for commit in commits for g in commit.generations]
    assert folded == list(choose_generations(view, request))
    if not request.allow_holes:
        assert [g.generation for g in folded] == list(
            range(view.merged_generation + 1, view.merged_generation + 1 + len(folded))
        )
    for commit in commits:
        assert 1 <= len(commit.generations) <= limits.generations_per_commit_max
        if len(commit.generations) > 1:
            full = limits.bytes_per_commit_max
            sizes = [
                full if g.in_memory_bytes is None else g.in_memory_bytes for g in commit.generations
            ]
            assert sum(sizes) <= full
        assert commit.mark == max(g.generation for g in commit.generations)


# ---- how it is committed


def facts(**changes: object) -> FoldFacts:
    base = replace(FACTS, generations=3, live_rows=100)
    return replace(base, **changes)  # type: ignore[arg-type]


LIMITS = MergeLimits(tombstones_in_commit_max=10)


@pytest.mark.parametrize(
    ("tombstones", "deletes"),
    [
        (0, Deletes.NONE),
        (1, Deletes.SAME_COMMIT),
        (10, Deletes.SAME_COMMIT),
        (11, Deletes.PASS_BEFORE),
    ],
)
def test_tombstones_leave_in_the_commit_while_they_are_few(
    tombstones: int, deletes: Deletes
) -> None:
    assert choose_deletes(facts(tombstones=tombstones), LIMITS) is deletes


def test_deletes_alone_leave_with_their_mark_however_many_they_are() -> None:
    alone = facts(tombstones=11, live_rows=0, generations=1)
    assert choose_deletes(alone, LIMITS) is Deletes.SAME_COMMIT


def test_deletes_in_a_commit_of_rows_take_memory() -> None:
    assert MergeLimits().deletes_with_rows_max == 10_000
    sizes = [400, 450, 1_000, 10_000]
    found = [
        MergeLimits(
            memory_bytes_max=size * 2**20, tombstones_in_commit_max=5_000
        ).deletes_with_rows_max
        for size in sizes
    ]
    assert found == [548, 1_462, 5_000, 5_000]
    assert MergeLimits(memory_bytes_max=1).deletes_with_rows_max == 200
    small = MergeLimits(memory_bytes_max=400 * 2**20)
    assert choose_deletes(facts(tombstones=548), small) is Deletes.SAME_COMMIT
    assert choose_deletes(facts(tombstones=549), small) is Deletes.PASS_BEFORE


def test_keys_that_the_base_holds_twice_are_deleted_before_which_is_no_guard() -> None:
    double = facts(double_keys=1, anchored_in_base=True)
    assert choose_deletes(double, LIMITS) is Deletes.PASS_BEFORE
    # The pass may take the anchor out of the base, and then a race for it goes unnoticed.
    assert choose_deletes(replace(double, key_types=("int8",)), LIMITS) is None


def test_one_generation_needs_no_anchor() -> None:
    alone = facts(generations=1, anchored=False, key_types=("bool",))
    assert is_guarded(alone)


def test_an_anchor_in_the_base_guards_every_type() -> None:
    assert is_guarded(facts(anchored_in_base=True, key_types=("int8",)))


def test_a_new_anchor_guards_compared_types_only() -> None:
    assert is_guarded(facts())
    assert not is_guarded(facts(anchored=False))
    for uncompared in ("int8", "uint8", "int16", "uint16", "bool"):
        assert not is_guarded(facts(key_types=("int64", uncompared)))


def test_a_base_that_gives_no_answer_on_an_anchor_is_asked_again() -> None:
    folded = SimpleNamespace(anchors=pa.table({"k": [1]}), live_rows=1, tombstones=())
    columns = [SimpleNamespace(name="k", type_text="int8")]
    view = SimpleNamespace(columns=columns, primary_key=("k",))
    made: Any = LanceFold
    fold = made(owner=None, view=view, shard_id=SHARD, generations=(), sources=(), folded=folded)
    away = OSError("LanceError(IO): Generic S3 error: error sending request")
    fold._base = Mock(to_table=Mock(side_effect=away))
    with pytest.raises(StoreUnavailable):
        _ = fold.facts


@pytest.mark.parametrize("kind", ["int32", "int64", "uint64", "string", "large_string", "binary"])
def test_compared_types(kind: str) -> None:
    assert new_keys_are_compared([kind])


def test_a_fold_without_a_guard_is_not_committed() -> None:
    assert choose_deletes(facts(anchored=False), LIMITS) is None
    assert choose_deletes(facts(key_types=("bool",)), LIMITS) is None


@given(
    st.builds(
        FoldFacts,
        generations=st.integers(1, 4),
        live_rows=st.integers(0, 10**6),
        tombstones=st.integers(0, 30),
        anchored=st.booleans(),
        anchored_in_base=st.booleans(),
        key_types=st.lists(st.sampled_from(["int64", "bool", "string"]), min_size=1).map(tuple),
    )
)
def test_nothing_is_committed_without_a_guard(some: FoldFacts) -> None:
    deletes = choose_deletes(some, LIMITS)
    assert (deletes is None) == (not is_guarded(some))
    if deletes is None:
        assert some.generations > 1
    else:
        assert (deletes is Deletes.NONE) == (some.tombstones == 0)


# ---- lineage


def test_generations_older_than_the_mem_wal_index_are_refused() -> None:
    with pytest.raises(Refused, match="initialised after generation 3 was flushed") as refused:
        check_lineage(shard(3, 4, merged=2), 100, 101)
    assert "--allow-reinitialised" in str(refused.value)
    with pytest.raises(Refused, match="no retained version"):
        check_lineage(shard(3, merged=2), 100, None)


def test_generations_as_old_as_the_mem_wal_index_or_younger_pass() -> None:
    check_lineage(shard(3, merged=2), 100, 100)
    check_lineage(shard(3, merged=2), 100, 99)
