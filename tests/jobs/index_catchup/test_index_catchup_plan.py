"""How an index catches up: by coverage first, then by what is recorded, cost and size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import Usage
from memwal.indexes import (
    FragmentFacts,
    IndexFacts,
    Progress,
    SegmentFacts,
    TableIndexes,
    find_behind,
)
from memwal.jobs.index_catchup.plan import (
    CatchupLimits,
    IndexPlan,
    Method,
    check_names,
    count_crowded,
    count_mergeable,
    group_fragments,
    plan_index,
    plan_indexes,
)
from memwal.jobs.index_catchup.request import CatchupRequest
from memwal.model import ShardId

A = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
B = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c12")
MERGED = {A: 7, B: 3}
LIMITS = CatchupLimits()


def index(*segments: Sequence[int], kind: str = "BTREE", column: str = "k") -> IndexFacts:
    return IndexFacts(
        name="idx",
        kind=kind,
        columns=(column,),
        segments=tuple(
            SegmentFacts(uuid=str(n), fragment_ids=frozenset(s)) for n, s in enumerate(segments)
        ),
    )


def table(*rows: int, indexes: Sequence[IndexFacts] = ()) -> TableIndexes:
    """Fragments 0, 1, ... with so many rows."""
    return TableIndexes(
        version=5,
        fragments=tuple(FragmentFacts(fragment_id=n, rows=r) for n, r in enumerate(rows)),
        indexes=tuple(indexes),
    )


def plan(
    facts: IndexFacts,
    *rows: int,
    recorded: Progress | None = MERGED,
    asked: Method | None = None,
    limits: CatchupLimits = LIMITS,
) -> IndexPlan:
    return plan_index(table(*rows), facts, recorded, MERGED, asked, limits)


# ---- coverage and record


def test_full_coverage_and_current_progress_is_nothing_to_do() -> None:
    found = plan(index([0, 1]), 10, 5)
    assert (found.method, found.has_work) == (Method.NONE, False)


@pytest.mark.parametrize(
    ("recorded", "why"),
    [
        (None, "has no entry"),
        ({}, "old for 2 shards"),
        ({A: 7}, "old for 1 shard"),
        ({A: 7, B: 2}, "old for 1 shard"),
        ({A: 7, B: 0}, "old for 1 shard"),
    ],
)
def test_full_coverage_with_old_progress_only_records(recorded: Progress | None, why: str) -> None:
    found = plan(index([0, 1]), 10, 5, recorded=recorded)
    assert (found.method, found.records, found.indexes) == (Method.NONE, True, False)
    assert why in found.reason


def test_a_claim_of_progress_does_not_hide_missing_coverage() -> None:
    # Compaction leaves such a claim for zone maps and bloom filters.
    found = plan(index([0]), 10, 5, recorded=MERGED)
    assert (found.method, found.uncovered_rows) == (Method.APPEND, 5)


def test_fragments_that_are_gone_do_not_count() -> None:
    assert not plan(index([0, 1, 2, 9]), 10, 5).has_work


def test_no_merge_and_full_coverage_needs_no_entry() -> None:
    found = plan_index(table(10), index([0]), None, {}, None, LIMITS)
    assert not found.has_work


def test_an_empty_table_needs_nothing() -> None:
    found = plan_index(table(), index(), None, {}, None, LIMITS)
    assert not found.has_work


def test_rows_that_no_merge_brought_are_indexed_too() -> None:
    found = plan_index(table(10, 5), index([0]), None, {}, None, LIMITS)
    assert found.method is Method.APPEND


def test_progress_beyond_merged_is_not_behind() -> None:
    assert find_behind({A: 9, B: 9}, MERGED) == ()
    assert find_behind(None, {}) == ()
    assert find_behind({A: 7}, {A: 7, B: 0}) == (B,)


# ---- append or segments


def test_few_rows_are_appended() -> None:
    assert plan(index([0]), 1000, 10, 10).method is Method.APPEND


def test_many_rows_are_built_as_segments_side_by_side() -> None:
    limits = replace(LIMITS, append_rows_max=100, segment_rows_min=50)
    found = plan(index([0]), 10, 60, 60, 60, limits=limits)
    assert found.method is Method.SEGMENTS
    assert [[f.fragment_id for f in g] for g in found.groups] == [[1], [2], [3]]


def test_texts_become_segments_earlier_and_more() -> None:
    limits = replace(LIMITS, append_rows_max=20_000, segment_rows_min=100_000)
    rows = (10, 9_000, 9_000)
    assert plan(index([0]), *rows, limits=limits).method is Method.APPEND
    found = plan(index([0], kind="INVERTED"), *rows, limits=limits)
    assert (found.method, len(found.groups)) == (Method.SEGMENTS, 2)


def test_one_fragment_is_appended_however_large() -> None:
    limits = replace(LIMITS, append_rows_max=1)
    assert plan(index([0]), 10, 60, limits=limits).method is Method.APPEND


@pytest.mark.parametrize("kind", ["IVF_PQ", "IVF_FLAT", "IVF_HNSW_SQ", "ZONEMAP", "BLOOMFILTER"])
@pytest.mark.parametrize("asked", [None, Method.SEGMENTS])
def test_types_whose_segments_would_differ_are_appended(kind: str, asked: Method | None) -> None:
    limits = replace(LIMITS, append_rows_max=1)
    found = plan(index([0], kind=kind), 1000, 10, 10, limits=limits, asked=asked)
    assert found.method is Method.APPEND
    assert "segments" in found.reason


def test_a_nested_column_takes_segments_only() -> None:
    found = plan(index([0], column="nested.a"), 1000, 10)
    assert (found.method, len(found.groups)) == (Method.SEGMENTS, 1)
    refused = plan(index([0], column="nested.v", kind="IVF_FLAT"), 1000, 10)
    assert refused.refusal is not None
    assert not refused.has_work


def test_an_asked_method_beats_the_cost() -> None:
    limits = replace(LIMITS, append_rows_max=1)
    assert plan(index([0]), 10, 60, 60, limits=limits, asked=Method.APPEND).method is Method.APPEND
    assert plan(index([0]), 10, 1, asked=Method.SEGMENTS).method is Method.SEGMENTS
    assert plan(index([0, 1]), 10, 1, asked=Method.RETRAIN).method is Method.RETRAIN
    assert plan(index([0, 1]), 10, 1, asked=Method.APPEND).method is Method.NONE


def test_with_stable_row_ids_no_old_segment_is_left_beside_a_new_one() -> None:
    facts = index([0], [1])
    stable = replace(table(1000, 10, 10), stable_row_ids=True)
    limits = replace(LIMITS, append_rows_max=100)

    def found(facts: IndexFacts, asked: Method | None = None) -> IndexPlan:
        return plan_index(stable, facts, None, MERGED, asked, limits)

    assert (found(facts).method, found(facts).segments_to_merge) == (Method.APPEND, 2)
    vector = found(index([0], [1], kind="IVF_FLAT"))
    assert (vector.method, vector.segments_to_merge) == (Method.APPEND, 2)
    for rebuilt in (
        found(facts, Method.SEGMENTS),
        found(index([0], [1], column="nested.a")),
        found(index([1])),  # large
    ):
        assert rebuilt.method is Method.RETRAIN
        assert [f.fragment_id for g in rebuilt.groups for f in g] == [0, 1, 2]


# ---- merging segments while appending


def test_similar_segments_are_merged_and_the_large_ones_left_alone() -> None:
    facts = index([0], [1], [2])
    assert count_mergeable(table(1_000_000, 30, 10, 10), facts, 10) == 2
    assert count_mergeable(table(1_000_000, 90, 10, 10), facts, 10) == 1
    assert count_mergeable(table(1_000_000, 90, 30, 10), facts, 10) == 0
    assert count_mergeable(table(5, 1, 1, 10), facts, 10) == 3


def test_the_first_segment_of_a_vector_index_is_never_merged() -> None:
    facts = index([0], [1], kind="IVF_FLAT")
    assert count_mergeable(table(1, 1, 100), facts, 100) == 1
    assert count_mergeable(table(1, 100), index([0], kind="IVF_FLAT"), 100) == 0


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60))
def test_segments_stay_few_whatever_is_appended(appends: list[int]) -> None:
    segments: list[list[int]] = [[0]]
    rows = [1000]
    for size in appends:
        rows.append(size)
        merge = count_mergeable(table(*rows), index(*segments), size)
        kept, merged = segments[: len(segments) - merge], segments[len(segments) - merge :]
        segments = [*kept, [f for s in merged for f in s] + [len(rows) - 1]]
    assert len(segments) <= 2 + sum(rows).bit_length()


# ---- partitions


@pytest.mark.parametrize(
    ("kind", "parts", "target", "crowded"),
    [
        ("IVF_FLAT", [(10_000, 10), (10_001, 0)], None, 20_001),
        ("IVF_FLAT", [(10_000, 10), (9_000, 0)], None, 0),  # has not doubled
        ("IVF_PQ", [(10_000, 10), (10_001, 0)], None, 0),  # its partitions may be larger
        ("IVF_HNSW_SQ", [(10_000, 10), (1_000_000, 0)], None, 0),
        ("IVF_PQ", [(10, 0), (0, 300), (0, 200)], 100, 500),
        ("IVF_PQ", [(10, 0), (0, 300), (0, 100)], 100, 0),
        ("IVF_PQ", [(2_000_000,)], 100, 0),
        ("IVF_PQ", [], 100, 0),
    ],
)
def test_a_partition_that_has_grown_large_is_split(
    kind: str, parts: list[tuple[int, ...]], target: int | None, crowded: int
) -> None:
    facts = replace(
        index([0], [1], kind=kind), partition_rows=tuple(parts), partition_target_rows=target
    )
    assert count_crowded(facts) == crowded
    found = plan(facts, 1000, 900, 10)
    assert found.method is Method.APPEND
    assert (found.segments_to_merge is None) == bool(crowded)
    assert ("is split" in found.reason) == bool(crowded)
    stable = replace(table(1000, 900, 10), stable_row_ids=True)
    assert plan_index(stable, facts, None, MERGED, None, LIMITS).segments_to_merge == 2


# ---- retrain


def test_too_many_segments_are_rebuilt_as_fewer() -> None:
    limits = replace(LIMITS, retrain_segments_max=3)
    scalar = plan(index([0], [1], [2], [3]), 10, 10, 10, 10, limits=limits)
    assert scalar.method is Method.RETRAIN
    assert [f.fragment_id for g in scalar.groups for f in g] == [0, 1, 2, 3]
    assert len(scalar.groups) == 1
    vector = plan(index([0], [1], [2], [3], kind="IVF_FLAT"), 10, 10, 10, 10, limits=limits)
    assert (vector.method, vector.groups) == (Method.RETRAIN, ())
    zones = plan(index([0], [1], [2], [3], kind="ZONEMAP"), 10, 10, 10, 10, limits=limits)
    assert (zones.method, zones.segments_to_merge) == (Method.RETRAIN, 4)
    assert plan(index([0], [1], [2]), 10, 10, 10, limits=limits).method is Method.NONE


def test_a_rebuild_never_makes_too_many_segments_itself() -> None:
    limits = replace(LIMITS, retrain_segments_max=2, segment_rows_min=1, segment_tasks_max=64)
    found = plan(index(*([n] for n in range(9))), *([10] * 9), limits=limits)
    assert len(found.groups) == 2


def test_a_vector_index_over_few_of_the_rows_is_trained_again() -> None:
    assert plan(index([0], kind="IVF_PQ"), 1000, 900).method is Method.APPEND
    found = plan(index([0], kind="IVF_PQ"), 1000, 1100)
    assert found.method is Method.RETRAIN
    assert "52 %" in found.reason
    # A scalar index has no model that could be stale.
    assert plan(index([0]), 1000, 1100).method is Method.APPEND


@pytest.mark.parametrize("kind", ["IVF_PQ", "IVF_HNSW_PQ"])
def test_a_codebook_is_never_trained_on_too_few_rows(kind: str) -> None:
    # Lance would leave an index that covers nothing, without an error.
    few = index([0], kind=kind)
    for asked in (None, Method.RETRAIN):
        found = plan(few, 100, 155, asked=asked)
        assert (found.method, found.refusal) == (Method.APPEND, None)
    assert not plan(index([0, 1], kind=kind), 100, 155, asked=Method.RETRAIN).has_work
    empty = plan(index([], kind=kind), 100, 155)
    assert empty.refusal is not None
    assert "256" in empty.refusal
    assert plan(index([], kind=kind), 100, 156).method is Method.RETRAIN
    assert plan(index([], kind="IVF_FLAT"), 5).method is Method.RETRAIN


# ---- groups


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50), st.integers(1, 12))
def test_groups_hold_every_fragment_once_and_keep_the_bounds(rows: list[int], tasks: int) -> None:
    limits = replace(LIMITS, segment_tasks_max=tasks, segment_rows_min=100)
    groups = group_fragments(table(*rows).fragments, limits)
    assert [f.fragment_id for g in groups for f in g] == list(range(len(rows)))
    assert 1 <= len(groups) <= tasks
    assert all(groups)
    assert len(groups) <= max(1, -(-sum(rows) // 100))


def test_groups_are_about_equal() -> None:
    limits = replace(LIMITS, segment_tasks_max=3, segment_rows_min=1)
    groups = group_fragments(table(*([10] * 9)).fragments, limits)
    assert [len(g) for g in groups] == [3, 3, 3]


# ---- requests


def test_only_named_indexes_are_planned_and_unknown_ones_are_refused() -> None:
    other = replace(index([0]), name="other")
    facts = table(10, indexes=[index([0]), other])
    request = CatchupRequest(indexes=("other",))
    found = plan_indexes(facts, {}, MERGED, request, LIMITS)
    assert [p.name for p in found] == ["other"]
    check_names(facts, ["idx", "other"], "uri")
    with pytest.raises(Usage, match=r"no index 'nope'; it has: idx, other"):
        check_names(facts, ["nope"], "uri")


@given(
    st.lists(st.integers(0, 500), max_size=6),
    st.lists(st.frozensets(st.integers(0, 7), max_size=6), max_size=4),
    st.sampled_from(["BTREE", "INVERTED", "ZONEMAP", "IVF_FLAT", "IVF_PQ"]),
    st.sampled_from([None, *[m for m in Method if m is not Method.NONE]]),
    st.sampled_from([None, {}, {A: 7}, MERGED]),
)
def test_what_is_not_caught_up_is_worked_on_or_refused(
    rows: list[int],
    segments: list[frozenset[int]],
    kind: str,
    asked: Method | None,
    recorded: Progress | None,
) -> None:
    facts = index(*segments, kind=kind)
    found = plan(facts, *rows, recorded=recorded, asked=asked)
    is_recorded = not rows or not find_behind(recorded, MERGED)  # of no rows nothing can be
    complete = facts.covered >= set(range(len(rows))) and is_recorded
    assert complete or found.has_work or found.refusal
    assert not (found.has_work and found.refusal)
    if complete and asked is None:
        assert found.method in (Method.NONE, Method.RETRAIN)
