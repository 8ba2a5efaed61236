"""Where units run: what is asked for wins, and auto weighs the work against starting a JVM."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.run.engines.choice import JVM_SECONDS, LOCAL_BYTES_PER_SECOND, choose_engine

MUCH = int(LOCAL_BYTES_PER_SECOND * JVM_SECONDS * 2)


@pytest.mark.parametrize("asked", ["auto", "spark", "local"])
def test_an_empty_plan_starts_nothing(asked: str) -> None:
    choice = choose_engine(asked, units=0, in_memory_bytes=0, spark_installed=True)
    assert choice.name == "none"
    assert "empty" in choice.reason


@pytest.mark.parametrize("asked", ["spark", "local"])
@pytest.mark.parametrize("in_memory_bytes", [0, MUCH])
@pytest.mark.parametrize("installed", [True, False])
def test_what_is_asked_for_is_taken(asked: str, in_memory_bytes: int, installed: bool) -> None:
    choice = choose_engine(
        asked, units=1, in_memory_bytes=in_memory_bytes, spark_installed=installed
    )
    assert (choice.name, choice.reason) == (asked, "asked for")


@pytest.mark.parametrize(
    ("units", "in_memory_bytes", "name"),
    [
        (1, 1_000, "local"),
        (1, MUCH, "spark"),
        (8, 1_000, "local"),
        (1_000, 1_000, "spark"),  # each unit opens its own stores
    ],
)
def test_auto_starts_a_jvm_for_large_plans_only(
    units: int, in_memory_bytes: int, name: str
) -> None:
    choice = choose_engine(
        "auto", units=units, in_memory_bytes=in_memory_bytes, spark_installed=True
    )
    assert choice.name == name
    assert " s of work" in choice.reason


def test_auto_stays_here_without_spark_and_says_so() -> None:
    choice = choose_engine("auto", units=1, in_memory_bytes=MUCH, spark_installed=False)
    assert choice.name == "local"
    assert "pyspark is not installed" in choice.reason


@given(st.integers(1, 500), st.integers(0, 10**12), st.integers(0, 10**12))
def test_more_work_never_turns_spark_into_local(units: int, one: int, other: int) -> None:
    names = [
        choose_engine("auto", units=units, in_memory_bytes=size, spark_installed=True).name
        for size in sorted((one, other))
    ]
    assert names != ["spark", "local"]
