"""Chooses the engine that runs a plan's units: this process, or Spark. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# Measured on 2 cores: a local session and its first Python task take 8 to 15 s;
# folding and merging in this process moves about 40 MB of in-memory bytes a second.
JVM_SECONDS = 12.0
LOCAL_BYTES_PER_SECOND = 40_000_000
LOCAL_SECONDS_PER_UNIT = 0.3


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineChoice:
    """`local` or `spark`, and why, for people to read."""

    name: str
    reason: str


def choose_engine(
    asked: str, *, units: int, in_memory_bytes: int, spark_installed: bool
) -> EngineChoice:
    """The engine for a plan. `asked` is auto, spark or local."""
    if units == 0:
        return EngineChoice(name="none", reason="the plan is empty, so nothing is started")
    if asked != "auto":
        return EngineChoice(name=asked, reason="asked for")
    if not spark_installed:
        return EngineChoice(name="local", reason="pyspark is not installed")
    seconds = in_memory_bytes / LOCAL_BYTES_PER_SECOND + units * LOCAL_SECONDS_PER_UNIT
    if seconds < JVM_SECONDS:
        return EngineChoice(
            name="local",
            reason=f"about {seconds:.1f} s of work; starting a JVM takes about {JVM_SECONDS:.0f} s",
        )
    return EngineChoice(name="spark", reason=f"about {seconds:.0f} s of work in one process")
