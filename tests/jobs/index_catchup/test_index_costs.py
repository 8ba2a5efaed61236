"""What indexing is expected to take: by bytes, and corrected by the last runs within bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.indexes import FragmentFacts, IndexFacts
from memwal.jobs.index_catchup.plan import (
    CORRECTION_MAX,
    COSTS,
    TELLING_SECONDS_MIN,
    CatchupLimits,
    PastRun,
    group_fragments,
)

TEXTS = IndexFacts(name="texts", kind="INVERTED", columns=("t",), segments=(), row_bytes=4096.0)


def past(seconds: float, **changes: object) -> PastRun:
    """A run over 10,000 texts of 4 KB, for which 4 s are expected."""
    run = PastRun(
        index="texts", kind="INVERTED", retrained=False, rows=10_000, column_bytes=40_960_000,
        seconds=seconds,
    )  # fmt: skip
    return replace(run, **changes)  # type: ignore[arg-type]


def test_wide_rows_take_longer_than_narrow_ones() -> None:
    narrow = replace(TEXTS, row_bytes=40.0)
    assert COSTS.seconds(TEXTS, 100_000) > 30
    assert COSTS.seconds(narrow, 100_000) < 1
    assert COSTS.seconds(replace(TEXTS, row_bytes=None), 100_000) < 1


def test_a_retrain_with_a_codebook_is_bounded_by_the_rows_that_train_it() -> None:
    vectors = replace(TEXTS, kind="IVF_PQ", row_bytes=512.0)
    training = COSTS.seconds(vectors, 60_000, retrain=True) - COSTS.seconds(vectors, 60_000)
    more = COSTS.seconds(vectors, 600_000, retrain=True) - COSTS.seconds(vectors, 600_000)
    assert training > 10
    assert more < 1.2 * training


def test_what_the_last_runs_took_corrects_the_estimate() -> None:
    plain = COSTS.seconds(TEXTS, 100_000)
    slow = COSTS.corrected([past(12), past(12), past(400), past(1)])
    assert slow.seconds(TEXTS, 100_000) == pytest.approx(3 * plain, rel=0.1)
    quick = COSTS.corrected([past(2)])
    assert quick.seconds(TEXTS, 100_000) == pytest.approx(plain / 2, rel=0.1)


def test_only_runs_of_the_same_kind_of_work_count() -> None:
    plain = COSTS.seconds(TEXTS, 100_000)
    other = [past(40, index="x"), past(40, kind="NGRAM"), past(40, retrained=True)]
    assert COSTS.corrected(other).seconds(TEXTS, 100_000) == plain


def test_short_runs_tell_nothing() -> None:
    short = past(0.9 * TELLING_SECONDS_MIN, rows=10, column_bytes=40_960)
    assert COSTS.corrected([short]).corrections == {}
    assert COSTS.corrected([replace(short, seconds=30.0)]).corrections != {}


def test_only_the_newest_runs_are_heeded() -> None:
    plain = COSTS.seconds(TEXTS, 100_000)
    runs = [past(4.1)] * 5 + [past(40)] * 100
    assert COSTS.corrected(runs).seconds(TEXTS, 100_000) == pytest.approx(plain, rel=0.1)


@given(
    runs=st.lists(
        st.builds(
            PastRun,
            index=st.just("texts"),
            kind=st.just("INVERTED"),
            retrained=st.booleans(),
            rows=st.integers(0, 2**63 - 1),
            column_bytes=st.integers(0, 2**63 - 1),
            seconds=st.floats(0, allow_nan=False, allow_infinity=False),
        ),
        max_size=8,
    )
)
def test_whatever_records_say_the_correction_is_bounded(runs: list[PastRun]) -> None:
    plain = COSTS.seconds(TEXTS, 100_000)
    found = COSTS.corrected(runs).seconds(TEXTS, 100_000)
    assert plain / CORRECTION_MAX <= found * 1.000001
    assert found <= plain * CORRECTION_MAX * 1.000001


def test_wide_rows_are_built_in_more_segments_than_their_number_asks_for() -> None:
    fragments = [FragmentFacts(fragment_id=n, rows=10_000) for n in range(8)]
    limits = CatchupLimits()
    assert len(group_fragments(fragments, limits)) == 1
    assert len(group_fragments(fragments, limits, seconds=35.0)) == 4
    assert len(group_fragments(fragments, limits, seconds=1e9)) == limits.segment_tasks_max
    assert len(group_fragments(fragments, replace(limits, append_seconds_max=0.0), 35.0)) == 1
