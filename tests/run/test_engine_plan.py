"""Where units run: what is asked for wins, and auto weighs the work against starting a JVM."""

from __future__ import annotations

import pytest

from memwal.run.engines.choice import (
    JVM_SECONDS,
    LOCAL_BYTES_PER_SECOND,
    EngineChoice,
    choose_engine,
)

MUCH = int(LOCAL_BYTES_PER_SECOND * JVM_SECONDS * 2)


def choose(asked: str, units: int, size: int, *, spark_installed: bool = True) -> EngineChoice:
    return choose_engine(asked, units=units, in_memory_bytes=size, spark_installed=spark_installed)


def test_what_is_asked_for_is_taken_but_an_empty_plan_starts_nothing() -> None:
    assert choose("spark", 1, 0, spark_installed=False).name == "spark"
    assert choose("local", 1, MUCH).name == "local"
    assert choose("spark", 0, 0).name == "none"


@pytest.mark.parametrize(
    ("units", "size", "name"),
    [
        (1, MUCH // 4, "local"),
        (1, MUCH, "spark"),
        (8, 1_000, "local"),
        (1_000, 1_000, "spark"),  # each unit opens its own stores
    ],
)
def test_auto_starts_a_jvm_for_large_plans_only(units: int, size: int, name: str) -> None:
    choice = choose("auto", units, size)
    assert choice.name == name
    assert " s of work" in choice.reason


def test_auto_stays_here_without_spark_and_says_so() -> None:
    choice = choose("auto", 1, MUCH, spark_installed=False)
    assert choice == EngineChoice(name="local", reason="pyspark is not installed")
