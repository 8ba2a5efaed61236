"""Which WAL entries a replay takes, and whether it may be trusted. Pure.

Spec: WAL Replay, Writer Fencing, Appendix 1. A replay starts behind the last covered position and
goes up to the first one that is missing. An entry counts when its epoch is not above the
manifest's: what a fenced writer got in before it was fenced is kept. Where pylance 14.0.2 goes
further, so does this (each was seen on real tables):

- Positions start at 1; 0 means that nothing is covered.
- A claim leaves an empty entry, a sentinel, which counts for nothing but takes its position.
- An entry above the replay position whose generation is below the manifest's current one is in a
  flushed generation all the same: pylance understates the position when a MemTable fills up, and
  passes over such entries.
- Generations in entries may only stay or go up by one, and never above the manifest's current one
  at first. pylance fails to open a writer otherwise.
- An entry with a lower epoch than one before it is replayed. It shows that fencing failed once. If
  its generation was flushed before it was put, no replay takes it: then its rows are lost.
- A missing position ends the replay without a word, whatever is stored above it. Here that is
  corruption: those rows were acknowledged, and the next flush would leave them behind for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from memwal.model import ShardManifest

# One sentinel takes 200 bytes in pylance 14.0.2, the least entry with a row 904. Only for counts
# that are made from a listing: what an entry is, its schema says.
SENTINEL_BYTES_MAX = 400
# The least Arrow stream that names an epoch takes 128.
ENTRY_BYTES_MIN = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class WalEntry:
    """One stored entry. `position` is 1-based; `generation` is None where its writer left it out.

    `problem` tells why the entry could not be read: epoch, rows and batches are None then. It is no
    damage when `refused`: the entry is larger than the limits allow. `torn` is one that is cut off.
    `ended` is False for a stream
    without its end marker; Arrow permits that, and pylance replays it.
    """

    position: int
    size_bytes: int
    written_at_nanos: int
    writer_epoch: int | None = None
    generation: int | None = None
    fence_sentinel: bool = False
    rows: int | None = None
    batches: int | None = None
    ended: bool = True
    problem: str | None = None
    refused: bool = False
    torn: bool = False


class Standing(Enum):
    """What becomes of an entry."""

    COVERED = "covered"
    """At or below the replay position, or of a generation that was flushed since."""
    UNFLUSHED = "unflushed"
    """Counts: its rows are in no generation yet."""
    SENTINEL = "sentinel"
    """Fences older writers; holds no rows."""
    UNREACHED = "unreached"
    """Above a missing position: no replay gets there."""
    FORGED = "forged"
    """Its epoch was never stored, or its generation is out of turn."""
    LOST = "lost"
    """Put after its generation was flushed, by a writer that was fenced: no generation holds it."""
    TORN = "torn"
    """Could not be read."""
    TOO_LARGE = "too large"
    """Was not read: the limits forbid it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """What a replay of one shard finds.

    `standings` has every given entry's position. `unflushed` are the entries that count, oldest
    first. `tip` is the first position above the replay position that holds no entry. `problems`
    say why the replay must not be trusted, `refused` why entries could not be judged; `warnings`
    do no harm.
    """

    standings: Mapping[int, Standing]
    unflushed: tuple[WalEntry, ...]
    tip: int
    problems: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of the entries that count."""
        return sum(entry.rows or 0 for entry in self.unflushed)

    @property
    def size_bytes(self) -> int:
        """Stored bytes of the entries that count."""
        return sum(entry.size_bytes for entry in self.unflushed)


def replay(manifest: ShardManifest, entries: Iterable[WalEntry]) -> Replay:
    """Judge each of a shard's stored entries by its latest manifest."""
    ordered = sorted(entries, key=lambda e: e.position)
    replayed_to = manifest.replay_after_wal_entry_position
    stored = {entry.position for entry in ordered}
    tip = replayed_to + 1
    while tip in stored:
        tip += 1
    above = [e for e in ordered if e.position > replayed_to]
    reached = [e for e in above if e.position < tip]
    standings = {e.position: Standing.COVERED for e in ordered if e.position <= replayed_to}
    standings |= {e.position: Standing.UNREACHED for e in above if e.position > tip}
    judged, problems = _judge(manifest, reached)
    standings |= judged
    hole = hole_text(tip, manifest, max(stored, default=0))
    return Replay(
        standings=standings,
        unflushed=tuple(e for e in reached if standings[e.position] is Standing.UNFLUSHED),
        tip=tip,
        problems=(*problems, *((hole,) if hole else ())),
        refused=tuple(e.problem or "" for e in reached if e.refused),
        warnings=tuple(_warn(reached, standings)),
    )


def is_flushed(manifest: ShardManifest, generation: int | None) -> bool:
    """Whether the rows of an entry that names it are in a generation, whatever its position.

    Those of one that names none aren't: its replay gives it the current one, or a later one.
    """
    return generation is not None and generation < manifest.current_generation


def hole_text(tip: int, manifest: ShardManifest, highest_stored: int) -> str | None:
    """Why the missing position `tip` is no tip but a hole; None when it is the tip.

    `wal_entry_position_last_seen` counts as stored: a writer saw an entry there. A position that
    is covered may be gone, collected together with its generation.
    """
    highest = max(highest_stored, manifest.wal_entry_position_last_seen)
    if tip > highest:
        return None
    return f"position {tip} is missing, but {highest} was written: entries are lost in between"


def _judge(
    manifest: ShardManifest, reached: Sequence[WalEntry]
) -> tuple[dict[int, Standing], list[str]]:
    standings: dict[int, Standing] = {}
    problems: list[str] = []
    current, before, epoch = manifest.current_generation, None, 0
    for entry in reached:
        if entry.refused:
            standings[entry.position] = Standing.TOO_LARGE
            continue
        if entry.problem is not None or entry.writer_epoch is None:
            standings[entry.position] = Standing.TORN
            problems.append(entry.problem or f"position {entry.position} has no writer epoch")
            continue
        if entry.writer_epoch > manifest.writer_epoch:
            standings[entry.position] = Standing.FORGED
            problems.append(
                f"position {entry.position} has writer epoch {entry.writer_epoch}, above the "
                f"manifest's {manifest.writer_epoch}"
            )
            continue
        if entry.fence_sentinel:
            standings[entry.position] = Standing.SENTINEL
            epoch = max(epoch, entry.writer_epoch)
            continue
        generation = entry.generation
        if generation is None:
            generation = max(current, before or 0)
        least, most = (0, current) if before is None else (before, max(before + 1, current))
        if not least <= generation <= most:
            standings[entry.position] = Standing.FORGED
            problems.append(
                f"position {entry.position} has generation {generation}, where {least} to {most} "
                "may follow"
            )
            continue
        flushed = is_flushed(manifest, entry.generation)
        standings[entry.position] = Standing.COVERED if flushed else Standing.UNFLUSHED
        if flushed and entry.writer_epoch < epoch:
            standings[entry.position] = Standing.LOST
            problems.append(
                f"position {entry.position} has writer epoch {entry.writer_epoch} after {epoch}, "
                f"and generation {generation} was flushed already: its rows are in none"
            )
        before, epoch = generation, max(epoch, entry.writer_epoch)
    return standings, problems


def _warn(reached: Sequence[WalEntry], standings: Mapping[int, Standing]) -> Iterable[str]:
    highest = 0
    for entry in reached:
        if standings[entry.position] in (Standing.TORN, Standing.FORGED, Standing.TOO_LARGE):
            continue
        epoch = entry.writer_epoch or 0
        if epoch < highest and standings[entry.position] is Standing.UNFLUSHED:
            yield (
                f"position {entry.position} has writer epoch {epoch} after {highest}: a fenced "
                "writer wrote it; it is replayed all the same"
            )
        highest = max(highest, epoch)
        if not entry.ended:
            yield f"position {entry.position} has no end marker; batches may have been cut off"


def count_unflushed(manifest: ShardManifest, listed: Iterable[tuple[int, int]]) -> int:
    """How many entries hold rows that no generation covers, by (position, bytes) alone.

    An estimate for status, which opens no entry: one as small as a sentinel counts as a sentinel.
    """
    replayed_to = manifest.replay_after_wal_entry_position
    return sum(
        1 for position, size in listed if position > replayed_to and size > SENTINEL_BYTES_MAX
    )
