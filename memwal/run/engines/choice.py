"""Chooses the engine that runs a plan's units: this process, or Spark. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Measured on 2 cores: a local session and its first Python task take 8 to 15 s; folding and merging
# in this process moves about 40 MB of in-memory bytes a second, and 45 tiny tables take 5.4 s.
JVM_SECONDS = 12.0
LOCAL_BYTES_PER_SECOND = 40_000_000
LOCAL_SECONDS_PER_UNIT = 0.12


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineChoice:
    """`local` or `spark`, and why, for people to read."""

    name: str
    reason: str


def choose_engine(
    asked: str, *, units: int, in_memory_bytes: int, find_obstacle: Callable[[], str | None]
) -> EngineChoice:
    """The engine for a plan. `asked` is auto, spark or local.

    `find_obstacle` says why Spark can't be started here; it is asked where Spark would pay.
    """
    if units == 0:
        return EngineChoice(name="none", reason="the plan is empty, so nothing is started")
    if asked != "auto":
        return EngineChoice(name=asked, reason="asked for")
    seconds = in_memory_bytes / LOCAL_BYTES_PER_SECOND + units * LOCAL_SECONDS_PER_UNIT
    if seconds < JVM_SECONDS:
        return EngineChoice(
            name="local",
            reason=f"about {seconds:.1f} s of work; starting a JVM takes about {JVM_SECONDS:.0f} s",
        )
    if obstacle := find_obstacle():
        return EngineChoice(name="local", reason=obstacle)
    return EngineChoice(name="spark", reason=f"about {seconds:.0f} s of work in one process")
