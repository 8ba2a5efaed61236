"""The port of compaction: the base table's fragments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memwal.jobs.compaction.plan import CompactionLimits, CompactionTask, TableFragments


@dataclass(frozen=True, kw_only=True, slots=True)
class RewrittenFragments:
    """What one task wrote, not yet committed. `data` is Lance's own description."""

    fragment_ids: tuple[int, ...]
    data: str = field(repr=False)


class CompactionTable(Protocol):
    """The base table, as compaction needs it."""

    def fragments(self, version: int) -> TableFragments:
        """The fragments, files and rows of a version."""
        ...

    def plan(self, version: int, limits: CompactionLimits) -> Sequence[CompactionTask]:
        """What Lance would rewrite in that version, as independent tasks."""
        ...

    def commit(self, rewritten: Sequence[RewrittenFragments], limits: CompactionLimits) -> None:
        """Commit rewritten fragments.

        Raises LostRace on a conflict, Unsupported for what Lance can't do, and StoreUnavailable for
        an error that leaves open whether the commit has landed.
        """
        ...
