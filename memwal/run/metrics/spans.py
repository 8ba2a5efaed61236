"""Spans of a job, a table or a commit; they cost nothing unless a tracer was set up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Attribute = str | int | float | bool | None
Tell = Callable[..., None]


@contextmanager
def span(name: str, **facts: Attribute) -> Iterator[Tell]:
    """A span around the block, marked as failed when the block raises.

    Yields a function that adds more facts to it.
    """
    tracer = _find_tracer()
    if tracer is None:
        yield _ignore
        return
    with tracer.start_as_current_span(name, attributes=_name(facts)) as begun:
        yield lambda **more: begun.set_attributes(_name(more))


def add_span(name: str, began_at_nanos: int, ended_at_nanos: int, **facts: Attribute) -> None:
    """Record a span of something that has already ended."""
    tracer = _find_tracer()
    if tracer is not None:
        began = tracer.start_span(name, start_time=began_at_nanos, attributes=_name(facts))
        began.end(end_time=ended_at_nanos)


def _find_tracer() -> Any:
    # Whoever set one up has imported it: memwal itself (`telemetry`), or the program around it.
    trace = sys.modules.get("opentelemetry.trace")
    return None if trace is None else trace.get_tracer("memwal")


def _name(facts: dict[str, Attribute]) -> dict[str, str | int | float | bool]:
    return {f"memwal.{key}": value for key, value in facts.items() if value is not None}


def _ignore(**facts: Attribute) -> None:
    """Do nothing: there is no tracer."""
