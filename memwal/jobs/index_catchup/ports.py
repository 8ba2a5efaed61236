"""What index catch-up asks of the base table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memwal.indexes import FragmentFacts, TableIndexes


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentTask:
    """Build one segment of an index over some fragments of a version, in about `seconds`."""

    version: int
    index: str
    kind: str
    fragments: tuple[FragmentFacts, ...]
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltSegment:
    """A segment that was written, in `seconds`, but is not committed yet.

    `data` is Lance's own description of it, pickled.
    """

    index: str
    data: bytes = field(repr=False)
    seconds: float = 0.0


class IndexTable(Protocol):
    """The base table, as index catch-up needs it.

    The methods that commit raise LostRace on a conflict, Unsupported for what Lance can't do, and
    StoreUnavailable for an error that leaves open whether the commit has landed. None of them
    promises coverage: the caller reads the table again.
    """

    def facts(self, version: int) -> TableIndexes:
        """The fragments and indexes of a version."""
        ...

    def record(self, name: str) -> None:
        """Commit without indexing, which records progress for every index with full coverage."""
        ...

    def append(self, name: str, segments_to_merge: int) -> None:
        """Index the rows of the latest version that the index lacks."""
        ...

    def retrain(self, name: str, segments_to_merge: int) -> None:
        """Retrain a vector index on all rows; for another index, merge that many segments."""
        ...

    def commit_segments(self, version: int, name: str, segments: Sequence[BuiltSegment]) -> None:
        """Commit segments that were built on `version`; the progress recorded is that version's."""
        ...
