"""What the indexes of a base table cover, and what is recorded of their progress. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memwal.format.layout import SYSTEM_INDEXES
from memwal.model import MemWalState, ShardId, VersionManifest

Progress = Mapping[ShardId, int]


def covering_indexes(manifest: VersionManifest, state: MemWalState) -> tuple[str, ...]:
    """Return the names of the indexes that have to catch up before a generation may be deleted.

    These are the maintained indexes that exist in the version, or all of its indexes if the table
    maintains all or names none. They are sorted.
    """
    there = {entry.name for entry in manifest.indexes} - SYSTEM_INDEXES
    named = set(state.maintained_indexes)
    everything = bool(state.maintain_all_indexes) or not named
    return tuple(sorted(there if everything else there & named))


def find_behind(recorded: Progress | None, merged: Progress) -> tuple[ShardId, ...]:
    """Return the shards whose merge progress is ahead of what is recorded for an index, sorted.

    With `recorded` None the index has no entry, and every shard is behind.
    """
    known = recorded or {}
    return tuple(sorted(s for s, generation in merged.items() if known.get(s, -1) < generation))


@dataclass(frozen=True, kw_only=True, slots=True)
class FragmentFacts:
    """A fragment of the version; `rows` does not count deleted ones, which `deleted_rows` are."""

    fragment_id: int
    rows: int
    deleted_rows: int = 0
    files: int = 1
    file_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentFacts:
    """One segment of an index; `fragment_ids` may still name fragments that are gone."""

    uuid: str
    fragment_ids: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFacts:
    """One logical index of a version.

    `partition_rows` are the rows that each segment of a vector index has in each partition, and
    `partition_target_rows` what the index was told to have in one. They are known only of an index
    that is about to be extended.
    """

    name: str
    kind: str
    columns: tuple[str, ...]
    segments: tuple[SegmentFacts, ...]
    partition_rows: tuple[tuple[int, ...], ...] = ()
    partition_target_rows: int | None = None

    @property
    def is_vector(self) -> bool:
        """Whether the index has a trained model."""
        return self.kind.startswith("IVF_")

    @property
    def is_nested(self) -> bool:
        """Whether its column is inside a struct, or has a name that needs quoting like one."""
        return any("." in column for column in self.columns)

    @property
    def covered(self) -> frozenset[int]:
        """Every fragment that a segment covers."""
        return frozenset[int]().union(*(s.fragment_ids for s in self.segments))


@dataclass(frozen=True, kw_only=True, slots=True)
class TableIndexes:
    """The fragments and indexes of one version, without Lance's own system indexes."""

    version: int
    fragments: tuple[FragmentFacts, ...]
    indexes: tuple[IndexFacts, ...]
    stable_row_ids: bool = False

    @property
    def rows(self) -> int:
        """Rows of the version."""
        return sum(f.rows for f in self.fragments)

    def index(self, name: str) -> IndexFacts | None:
        """The index of that name, if there still is one."""
        return next((i for i in self.indexes if i.name == name), None)

    def uncovered(self, index: IndexFacts) -> tuple[FragmentFacts, ...]:
        """Fragments that no segment of the index covers."""
        covered = index.covered
        return tuple(f for f in self.fragments if f.fragment_id not in covered)

    def uncovered_rows(self, index: IndexFacts) -> int:
        """Rows that the index does not cover."""
        return sum(f.rows for f in self.uncovered(index))
