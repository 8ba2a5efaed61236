"""Decides which WAL entries a replay takes, and whether that replay can be trusted. Pure.

Spec: WAL Replay, Writer Fencing, Appendix 1. A replay starts after the last covered position and
stops at the first missing one. An entry counts when its epoch is not above the manifest's: what a
writer stored before it was fenced is kept. Where pylance 14.0.2 goes beyond the spec, so does this
module (each case was seen on real tables):

- Positions start at 1; 0 means that nothing is covered.
- A claim leaves an empty entry, a sentinel, which holds no rows but takes up its position.
- An entry above the replay position whose generation is below the manifest's current one is in a
  flushed generation all the same: pylance understates the position when a MemTable fills up, and
  skips such entries.
- From one entry to the next the generation may stay the same, or go up by one or to the manifest's
  current one; the first may not be above the current one. pylance fails to open a writer otherwise.
- An entry with a lower epoch than one before it is replayed. It shows that fencing failed once. If
  its generation was flushed before it was put, no replay takes it, and its rows are lost.
- pylance silently ends a replay at a missing position, whatever is stored above it. Here that is
  corruption: those rows were acknowledged, and the next flush would leave them behind for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from memwal.model import ShardManifest, StoredFile

# A sentinel takes 200 bytes in pylance 14.0.2, the smallest entry with a row 904. This is only for
# counts made from a listing: when an entry is read, its schema tells what it is.
SENTINEL_BYTES_MAX = 400
# The smallest Arrow stream that names an epoch takes 128 bytes.
ENTRY_BYTES_MIN = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class WalEntry:
    """One stored entry. `position` is 1-based; `generation` is None where its writer left it out.

    `problem` says why the entry could not be read; epoch, rows and batches are None then. With
    `refused`, the entry is not damaged but larger than the limits allow. `torn` marks one that is
    cut off. `ended` is False for a stream without its end marker; Arrow permits that, and pylance
    replays it. `fields` are its columns, with the ids that their writer left.
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
    fields: tuple[tuple[int | None, str], ...] = ()


class Standing(Enum):
    """What becomes of an entry."""

    COVERED = "covered"
    """At or below the replay position, or of a generation that is flushed."""
    UNFLUSHED = "unflushed"
    """It counts: its rows are in no generation yet."""
    SENTINEL = "sentinel"
    """It fences older writers and holds no rows."""
    UNREACHED = "unreached"
    """Above a missing position, so no replay reaches it."""
    FORGED = "forged"
    """Its epoch is above the manifest's, or its generation is out of order."""
    LOST = "lost"
    """Put by a fenced writer after its generation was flushed, so no generation holds its rows."""
    TORN = "torn"
    """It could not be read."""
    TOO_LARGE = "too large"
    """It was not read because it is larger than the limits allow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """What a replay of one shard finds.

    `standings` has the position of every given entry. `unflushed` holds the entries that count,
    oldest first. `tip` is the first position above the replay position that holds no entry.
    `problems` says why the replay must not be trusted, `refused` why some entries could not be
    judged; `warnings` are harmless.
    """

    standings: Mapping[int, Standing]
    unflushed: tuple[WalEntry, ...]
    tip: int
    problems: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows in the entries that count."""
        return sum(entry.rows or 0 for entry in self.unflushed)

    @property
    def size_bytes(self) -> int:
        """The stored size of the entries that count."""
        return sum(entry.size_bytes for entry in self.unflushed)


def replay(manifest: ShardManifest, entries: Iterable[WalEntry]) -> Replay:
    """Judge each of a shard's stored entries by the shard's latest manifest."""
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
    """Whether an entry that names this generation is flushed, whatever its position.

    An entry that names none is not: a replay assigns it the current generation or a later one.
    """
    return generation is not None and generation < manifest.current_generation


def hole_text(tip: int, manifest: ShardManifest, highest_stored: int) -> str | None:
    """Says why the missing position `tip` is a hole; None when it is the tip of the WAL.

    `wal_entry_position_last_seen` counts as stored, because a writer saw an entry there. A covered
    position may be missing without harm: garbage collects it together with its generation.
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


def select_above(
    manifest: ShardManifest, listed: Iterable[tuple[int, StoredFile]]
) -> list[tuple[int, StoredFile]]:
    """Those of the listed entries that hold rows above the replay position.

    By the listing alone: an entry as small as a sentinel counts as one.
    """
    above = manifest.replay_after_wal_entry_position
    return [(p, file) for p, file in listed if p > above and file.size_bytes > SENTINEL_BYTES_MAX]
