"""What indexing is expected to take: by bytes, and and what that decides."""

from __future__ import annotations

from dataclasses import replace

from memwal.indexes import FragmentFacts, IndexFacts
from memwal.jobs.index_catchup.plan import CatchupLimits, expect_seconds, group_fragments

TEXTS = IndexFacts(name="texts", kind="INVERTED", columns=("t",), segments=(), row_bytes=4096.0)


def test_wide_rows_take_longer_than_narrow_ones() -> None:
    narrow = replace(TEXTS, row_bytes=40.0)
    assert expect_seconds(TEXTS, 100_000) > 30
    assert expect_seconds(narrow, 100_000) < 1
    assert expect_seconds(replace(TEXTS, row_bytes=None), 100_000) < 1


def test_a_retrain_with_a_codebook_is_bounded_by_the_rows_that_train_it() -> None:
    vectors = replace(TEXTS, kind="IVF_PQ", row_bytes=512.0)
    training = expect_seconds(vectors, 60_000, retrain=True) - expect_seconds(vectors, 60_000)
    more = expect_seconds(vectors, 600_000, retrain=True) - expect_seconds(vectors, 600_000)
    assert training > 10
    assert more < 1.2 * training


def test_wide_rows_are_built_in_more_segments_than_their_number_asks_for() -> None:
    fragments = [FragmentFacts(fragment_id=n, rows=10_000) for n in range(8)]
    limits = CatchupLimits()
    assert len(group_fragments(fragments, limits)) == 1
    assert len(group_fragments(fragments, limits, seconds=35.0)) == 4
    assert len(group_fragments(fragments, limits, seconds=1e9)) == limits.segment_tasks_max
    assert len(group_fragments(fragments, replace(limits, append_seconds_max=0.0), 35.0)) == 1
