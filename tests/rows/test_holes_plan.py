"""Which generations are missing, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.model import ShardId, ShardView
from memwal.rows.progress import Cause, Hole, find_holes, hole_text
from tests.support.views import make_shard

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")


def shard(
    *listed: int, current: int, merged: int = 0, before: Mapping[int, bool] | None = None
) -> ShardView:
    found = make_shard(SHARD, listed, merged=merged, current_generation=current)
    return replace(found, listed_before=before or {})


@given(
    merged=st.integers(0, 6),
    listed=st.sets(st.integers(1, 9)),
    ahead=st.integers(0, 3),
)
def test_what_is_neither_merged_nor_listed_is_missing(
    merged: int, listed: set[int], ahead: int
) -> None:
    current = max([*listed, merged]) + 1 + ahead
    found = find_holes(shard(*sorted(listed), merged=merged, current=current))
    numbers = [n for hole in found for n in range(hole.first, hole.last + 1)]
    assert numbers == [n for n in range(merged + 1, current) if n not in listed]


def test_the_generation_that_is_being_flushed_is_not_missing() -> None:
    assert list(find_holes(shard(current=1))) == []
    assert list(find_holes(shard(1, 2, current=3))) == []
    assert list(find_holes(shard(current=3, merged=2))) == []


def test_a_forged_number_of_generations_is_one_hole() -> None:
    assert list(find_holes(shard(current=2**64 - 1))) == [Hole(first=1, last=2**64 - 2)]


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ({1: True, 3: True}, Cause.DRAINED),
        ({1: False, 3: False}, Cause.NEVER_LISTED),
        ({1: True, 3: False}, Cause.UNKNOWN),
        ({1: True}, Cause.UNKNOWN),
        ({}, Cause.UNKNOWN),
    ],
)
def test_what_earlier_manifests_listed_tells_the_cause(
    before: Mapping[int, bool], cause: Cause
) -> None:
    (hole,) = find_holes(shard(4, current=5, before=before))
    assert hole == Hole(first=1, last=3, cause=cause)


def test_each_cause_is_told_with_what_the_override_means() -> None:
    def text(merged: int, before: Mapping[int, bool]) -> str:
        view = shard(current=merged + 2, merged=merged, before=before)
        (hole,) = find_holes(view)
        return hole_text(view, hole)

    drained, lost, unknown = text(2, {3: True}), text(2, {3: False}), text(2, {})
    for said in (drained, lost, unknown):
        assert said.startswith(
            f"shard {SHARD}: generation 3 is neither merged nor listed in manifest version 9"
        )
        assert "--allow-holes" in said
        assert "\n" not in said
    assert "another program took generation 3 off the list without marking it" in drained
    assert "initialised again" not in drained
    assert "initialised again" in text(0, {1: True})
    assert "a flush failed" in lost
    assert "another program" not in lost
    assert "failed flush" in unknown
    assert "another program" in unknown
