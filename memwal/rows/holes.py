"""Which generations are missing from a shard: allotted, and neither merged nor listed. Pure.

The one rule for holes: merge, maintain and read refuse by it, verify and status tell it.

A writer lists a generation and raises `current_generation` past it in one manifest version, so a
generation that is still in memory, or being flushed, has the number `current_generation` itself,
however long that takes (pylance 14.0.2 flushes one at a time; every manifest version that it left
under kills and full memtables says so). Every number below was allotted to rows that were put. What
then is neither listed nor merged has either never got onto the list (a flush failed and the writer
went on: lance issue 8293), or was taken off by another program: memwal drops merged generations
only. The manifest version that got past a generation tells the two apart.

A MemWAL index that is initialised again knows of no progress, and every generation that was merged
and collected before looks missing. It is no hole where the version that is looked at descends from
one that had it merged (`rows/former_merges.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from memwal.errors import Refused
from memwal.model import ShardView


class Cause(Enum):
    """How a hole came about."""

    DRAINED = "drained"
    """It was listed: another program took it off the list without marking it as merged."""
    NEVER_LISTED = "never_listed"
    """Its flush failed, and its writer went on."""
    UNKNOWN = "unknown"
    """The shard's earlier manifests don't tell, or tell both of parts of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hole:
    """Generations `first` to `last`, which are missing."""

    first: int
    last: int
    cause: Cause = Cause.UNKNOWN

    def __str__(self) -> str:
        if self.first == self.last:
            return f"generation {self.first}"
        return f"generations {self.first} to {self.last}"


def find_holes(shard: ShardView) -> Iterator[Hole]:
    """The shard's holes above its merge progress, ascending."""
    expected = first_due(shard)
    for generation in shard.pending:
        if generation.generation > expected:
            yield _make_hole(shard, expected, generation.generation - 1)
        expected = generation.generation + 1
    if shard.manifest.current_generation > expected:
        yield _make_hole(shard, expected, shard.manifest.current_generation - 1)


def first_due(shard: ShardView) -> int:
    """The first generation that is neither merged nor settled; all below it are."""
    return max(shard.merged_generation, shard.settled_generation) + 1


def is_at_rest(shard: ShardView) -> bool:
    """Whether all that was allotted is merged, and collected."""
    listed = shard.manifest.flushed_generations
    return not listed and first_due(shard) >= shard.manifest.current_generation


def _make_hole(shard: ShardView, first: int, last: int) -> Hole:
    told = {shard.listed_before.get(number) for number in (first, last)}
    cause = Cause.UNKNOWN
    if told == {True}:
        cause = Cause.DRAINED
    elif told == {False}:
        cause = Cause.NEVER_LISTED
    return Hole(first=first, last=last, cause=cause)


def refuse_hole(shard: ShardView, hole: Hole) -> Refused:
    """The error of a hole; its message is what status and verify tell of it, too."""
    return Refused("MW-H01", hole_text(shard, hole))


def hole_text(shard: ShardView, hole: Hole) -> str:
    """What an operator needs to know about a hole, and what passing over it would mean."""
    them = "it" if hole.first == hole.last else "them"
    found = missing_text(shard, hole)
    if hole.cause is Cause.DRAINED:
        # An index that knows the shard was not initialised since.
        again = ", or the table's MemWAL was initialised again without `memwal quiesce` before"
        again = "" if shard.merged_generation else again
        return (
            f"{found}: another program took {hole} off the list without marking {them} as merged, "
            f"which memwal never does{again}. If the table has the rows, nothing is missing, and "
            f"--allow-holes goes on (`memwal merge`, `memwal read`). If not, keep a copy of {them} "
            "first: folders that are left go once a merge has passed. Let one program maintain a "
            "table"
        )
    if hole.cause is Cause.NEVER_LISTED:
        return (
            f"{found}, nor in any before: a flush failed, and the writer went on. "
            "`memwal inspect wal` shows whether the WAL still has the rows; --allow-holes goes on "
            "without them"
        )
    return (
        f"{found}: look for a failed flush, a restored table, or another program that maintains it "
        "(`memwal inspect shard`), and pass --allow-holes once you know that nothing is missing"
    )


def missing_text(shard: ShardView, hole: Hole) -> str:
    """Which generations are missing, and from which manifest."""
    return (
        f"shard {shard.shard_id}: {hole} {'is' if hole.first == hole.last else 'are'} neither "
        f"merged nor listed in manifest version {shard.manifest.version}"
    )
