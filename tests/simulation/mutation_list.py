"""What a mutation is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Change:
    """Text that is in the file once, and what it becomes."""

    file: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A safety check that is switched off.

    More than one change is made where one gate stands behind another: each would go unnoticed
    without the other. `tests` are pytest's arguments; empty: seeds of the simulation.
    """

    name: str
    changes: tuple[Change, ...]
    tests: str = ""


def mutations(file: str, tests: str, *found: tuple[str, str, str]) -> tuple[Mutation, ...]:
    """Mutations of one file that the same tests notice: (name, before, after)."""
    return tuple(
        Mutation(name=name, changes=(Change(file=file, before=before, after=after),), tests=tests)
        for name, before, after in found
    )
