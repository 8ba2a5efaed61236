"""Names of run records: a listing in order of names has the newest first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.format.layout import RUNS, parse_run_record_name, run_record_path

NANOS = st.integers(min_value=0, max_value=2**63 - 1)
IDS = st.integers(min_value=0, max_value=2**128 - 1).map("{:032x}".format)


@given(NANOS, IDS)
def test_a_name_tells_the_run(nanos: int, run_id: str) -> None:
    folder, _, name = run_record_path(nanos, run_id).rpartition("/")
    assert folder == RUNS
    assert parse_run_record_name(name) == run_id


@given(NANOS, NANOS, IDS, IDS)
def test_names_sort_newest_first(older: int, newer: int, one: str, other: str) -> None:
    older, newer = sorted((older, newer))
    if older < newer:
        assert run_record_path(newer, one) < run_record_path(older, other)


@pytest.mark.parametrize("nanos", [-1, 2**63])
def test_a_time_that_fits_no_name_is_refused(nanos: int) -> None:
    with pytest.raises(ValueError, match="not a run's time"):
        run_record_path(nanos, "0" * 32)


@pytest.mark.parametrize("run_id", ["", "0" * 31, "G" * 32, "../" + "0" * 29, "A" * 32])
def test_an_id_that_is_none_is_refused(run_id: str) -> None:
    with pytest.raises(ValueError, match="not a run's time"):
        run_record_path(1, run_id)


@pytest.mark.parametrize(
    "name",
    ["", "hint.json", f"{1:019d}-{'0' * 32}.json.tmp", f"{1:018d}-{'0' * 32}.json",
     f"{1:019d}-{'0' * 31}.json", f"{1:019d}-{'0' * 32}.JSON", f"x/{1:019d}-{'0' * 32}.json"],
)  # fmt: skip
def test_other_names_are_no_record(name: str) -> None:
    assert parse_run_record_name(name) is None
