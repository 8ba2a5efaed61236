"""Where units run: what is asked for wins, and auto weighs the work against starting a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwal.errors import Unsupported
from memwal.run.engines.choice import (
    JVM_SECONDS,
    LOCAL_BYTES_PER_SECOND,
    EngineChoice,
    choose_engine,
)
from memwal.run.engines.launcher import check_java, check_spark, find_obstacle
from memwal.run.submit import find_spark_submit

MUCH = int(LOCAL_BYTES_PER_SECOND * JVM_SECONDS * 2)


def choose(asked: str, units: int, size: int, *, obstacle: str | None = None) -> EngineChoice:
    return choose_engine(asked, units=units, in_memory_bytes=size, find_obstacle=lambda: obstacle)


def test_what_is_asked_for_is_taken_but_an_empty_plan_starts_nothing() -> None:
    assert choose("spark", 1, 0, obstacle="no Java").name == "spark"
    assert choose("local", 1, MUCH).name == "local"
    assert choose("spark", 0, 0).name == "none"


@pytest.mark.parametrize(
    ("units", "size", "name"),
    [
        (1, MUCH // 4, "local"),
        (1, MUCH, "spark"),
        (45, 1_000, "local"),
        (1_000, 1_000, "spark"),  # each unit opens its own stores
    ],
)
def test_auto_starts_a_jvm_for_large_plans_only(units: int, size: int, name: str) -> None:
    choice = choose("auto", units, size)
    assert choice.name == name
    assert " s of work" in choice.reason


def test_auto_stays_here_where_spark_cannot_be_started_and_says_so() -> None:
    choice = choose("auto", 1, MUCH, obstacle="no Java")
    assert choice == EngineChoice(name="local", reason="no Java")


@pytest.mark.integration
def test_without_java_spark_is_refused_with_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing of the set-up's own is read there, and Spark believes JAVA_HOME.
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    for script in ("exit 1", "echo 'openjdk version \"11.0.2\"' >&2"):
        old.write_text(f"#!/bin/sh\n{script}\n")
        old.chmod(0o755)
        assert "no Java" in str(find_obstacle())
        for check in (check_spark, lambda: check_java(find_spark_submit())):
            with pytest.raises(Unsupported, match=r"JAVA_HOME.*MW-E04"):
                check()
    old.write_text("#!/bin/sh\necho 'openjdk version \"21\" 2023-09-19' >&2\n")
    check_spark()
