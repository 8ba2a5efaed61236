"""WAL entries, deleted with `--wal` once the generation that covered them is deleted (invariant 7).

Entries stay by which a writer finds its place, is fenced, or gets from an unfinished claim to a
newer sentinel.

Not every entry has to be read to tell. An epoch has one sentinel, its first entry. So where the
sentinels of all epochs up to the present one were read, every other entry is a row, written by the
newest epoch whose sentinel is below it (`infer_epochs`). And a manifest tells what covered an
entry: at or below the manifest's replay position, it is of a generation before the manifest's
current one. `make model` checks both, and shows what is lost where a sentinel is overlooked or
taken for that of another epoch: the sentinels themselves have to be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from memwal.format import layout
from memwal.format.replay import SENTINEL_BYTES_MAX
from memwal.jobs.garbage.model import (
    Evidence,
    GarbagePlan,
    GenerationFolder,
    Item,
    ShardEvidence,
    UntilGrace,
    WalFile,
    plan_delete,
)
from memwal.jobs.garbage.survey import ShardSurvey, Survey
from memwal.model import ShardId, ShardManifest

NAME = "wal_entry"


def find_items(survey: Survey) -> Iterator[Item]:
    """Every entry of the shards that have a manifest."""
    for shard in survey.shards if survey.limits.wal else ():
        yield from _find_entries(shard)


def may_delete(item: Item) -> bool:
    """Whether it is the file of a WAL entry."""
    match item.path.split("/"):
        case [layout.MEM_WAL, shard, "wal", name] if layout.is_shard_folder(shard):
            return layout.parse_wal_entry_name(name) is not None and item.kind == NAME
    return False


def _find_entries(shard: ShardSurvey) -> Iterator[Item]:
    stored = shard.found.wal
    highest = max((w.position for w in stored), default=0)
    numbers = find_numbers(shard.manifest, shard.found.folders)
    claims = hold_for_claims(stored, shard.manifest.writer_epoch)
    unknown = find_unknown(stored)
    for entry in stored:
        yield plan_delete(
            NAME,
            entry.file.path,
            (entry.file,),
            why="every generation that may have covered it is deleted"
            if entry.inferred
            else f"generation {entry.generation}, which covered it, is deleted",
            held=shard.shut
            or _hold_entry(shard, entry, highest, numbers)
            or _hold_led(entry, claims)
            or _hold_below_unknown(entry, unknown),
            shard_id=shard.shard_id,
            generation=entry.generation,
        )


def _hold_entry(shard: ShardSurvey, entry: WalFile, highest: int, numbers: set[int]) -> str | None:
    """Why an entry is kept for its own sake, cheapest checks first; None when nothing holds it."""
    manifest, past = shard.manifest, shard.past
    replay = manifest.replay_after_wal_entry_position
    if entry.position > replay:
        return f"not covered: the replay position is {replay}"
    if entry.position > manifest.wal_entry_position_last_seen:
        return "above the last position seen: the next writer may look for the tip there"
    if entry.position == highest:
        return "the highest position: the next writer finds its place by it"
    if past is None:
        return UntilGrace("no manifest is older than the grace")
    if entry.position > _wal_floor(past):
        return UntilGrace("was covered after the grace began")
    if entry.file.modified_at_nanos > shard.cutoff_nanos:
        return UntilGrace("younger than the grace")
    if entry.problem is not None:
        return f"can't be read: {entry.problem}"
    if entry.inferred:
        return _hold_inferred(shard, entry, numbers)
    if not entry.read:
        was = "a fence sentinel when it was last read: " if entry.fence_sentinel else ""
        return f"{was}not looked at in this run"
    if entry.fence_sentinel:
        return "a fence sentinel: it stops a stalled writer"
    if entry.generation is None or entry.generation < 1:
        return "does not say which generation covers it"
    if entry.generation in numbers:
        return f"generation {entry.generation}, which covers it, is not deleted yet"
    if entry.generation >= manifest.current_generation:
        return f"generation {entry.generation} is not flushed yet"
    return shard.gates.version_holds(shard.shard_id, entry.generation)


def _hold_inferred(shard: ShardSurvey, entry: WalFile, numbers: set[int]) -> str | None:
    """Why an entry is kept that was not read itself, judged by the manifest that covers it.

    What its writer noted of its generation is not known.
    """
    cover = shard.found.cover
    if cover is None or not is_covered(shard.found, entry):
        return "a generation that may cover it is not deleted yet"
    if min(numbers, default=layout.U64_MAX) < cover.current_generation:
        return "a generation that may have covered it is not deleted yet"
    return shard.gates.version_holds(shard.shard_id, cover.current_generation - 1)


def _hold_led(entry: WalFile, claims: Mapping[int, int]) -> str | None:
    """Why an entry is kept for a writer that may be stalled in its claim (`hold_for_claims`)."""
    epoch = claims.get(entry.position)
    if epoch is None:
        return None
    return f"leads the claim of epoch {epoch}, which left no row, to a newer sentinel"


def _hold_below_unknown(entry: WalFile, unknown: int) -> str | None:
    """Why an entry is kept for one above it that is not known, and may be what ends a claim."""
    if entry.position >= unknown:
        return None
    return f"below position {unknown}, which was not looked at or can't be read"


# ---- what has to be read, and what that says


def find_numbers(manifest: ShardManifest, folders: Iterable[GenerationFolder]) -> set[int]:
    """The numbers of all generations that are listed or still have a folder."""
    return {g.generation for g in manifest.flushed_generations} | {f.generation for f in folders}


def find_sentinel_like(wal: Sequence[WalFile]) -> tuple[WalFile, ...]:
    """Entries as small as a sentinel, newest first.

    Should a sentinel be larger, it is missed here; `infer_epochs` notices, and all are read.
    """
    return tuple(e for e in reversed(wal) if _is_small(e))


def _is_small(entry: WalFile) -> bool:
    return entry.file.size_bytes <= SENTINEL_BYTES_MAX


def find_earlier(wal: Iterable[WalFile], lowest: int) -> tuple[int, ...]:
    """The epochs of sentinels below a position, whether read by this run or remembered."""
    below = (e for e in wal if e.fence_sentinel and e.position < lowest)
    return tuple(e.writer_epoch or 0 for e in below if _is_small(e))


def infer_epochs(
    wal: Sequence[WalFile], epoch: int, lowest: int = 0, earlier: Iterable[int] = ()
) -> tuple[WalFile, ...]:
    """The entries, with the epochs of unread rows from `lowest` on told by the sentinels.

    They come back unchanged unless the sentinels of all epochs are known. `epoch` is that of the
    manifest, read before the entries were listed: whoever claimed the shard since has put its
    sentinel above what that manifest covers. `earlier` are epochs whose sentinels are below
    `lowest`. There the word of former runs is good enough, for epochs before the one that begins
    at `lowest`: all they say is which small file is an epoch's sentinel. An entry as small as a
    sentinel is never told, but has to be read.
    """
    known = {e.position: e.writer_epoch or 0 for e in wal if e.is_known and e.fence_sentinel}
    begins = known.get(lowest, 1)
    located = {*known.values(), *(e for e in earlier if e < begins)}
    if not all(e in located for e in range(2, epoch + 1)):
        return tuple(wal)
    found = []
    present = 1
    for entry in wal:
        present = max(present, known.get(entry.position, 1))
        unread = not entry.read and entry.problem is None
        if entry.position >= lowest and unread and not _is_small(entry):
            entry = replace(entry, inferred=True, writer_epoch=present, fence_sentinel=False)
        found.append(entry)
    return tuple(found)


def must_be_read(shard: ShardEvidence, latest: ShardManifest, entry: WalFile) -> bool:
    """Whether only the entry itself can tell which generation covered it.

    That is so for an entry that is not told, and for one beyond the cover where a generation from
    before the grace is gone and an older one is not.
    """
    if not entry.inferred or is_covered(shard, entry):
        return not entry.inferred
    return has_gone_between(shard, latest)


def is_covered(shard: ShardEvidence, entry: WalFile) -> bool:
    """Whether all generations that may have covered the entry are gone."""
    return shard.cover is not None and entry.position <= _wal_floor(shard.cover)


def has_gone_between(shard: ShardEvidence, latest: ShardManifest) -> bool:
    """Whether a generation from before the grace is gone, and an older one is not."""
    numbers = find_numbers(latest, shard.folders)
    past = 0 if shard.past is None else shard.past.current_generation
    return sum(n < past for n in numbers) < past - min(numbers, default=past)


def find_coverable(
    positions: Sequence[int], latest: ShardManifest, past: ShardManifest | None
) -> tuple[int, ...]:
    """Positions whose entries are worth reading, newest first.

    They are covered and recorded as seen, both in the latest manifest and in that from before the
    grace (`past`). The highest is left out: the next writer finds its place by it. They are newest
    first because sentinels stay for good, and would in time use up all reads of a bounded run.
    """
    if past is None or not positions:
        return ()
    last = min(_wal_floor(latest), _wal_floor(past))
    highest = max(positions)
    return tuple(sorted((p for p in positions if p <= last and p != highest), reverse=True))


def _wal_floor(manifest: ShardManifest) -> int:
    """The last position that is both covered by a generation and recorded as seen.

    pylance 14.0.2 takes the first free position after the last one seen for the tip. A hole above
    it would draw the next sentinel away from the real tip, where it would fence nobody.
    """
    return min(manifest.replay_after_wal_entry_position, manifest.wal_entry_position_last_seen)


def hold_for_claims(wal: Sequence[WalFile], current_epoch: int) -> Mapping[int, int]:
    """Positions that have to stay for claims that may still be under way, each with its epoch.

    A writer that has committed its epoch works from the manifest that it claimed: it writes its
    sentinel at the tip, and then replays upwards from what its manifest covers, until a position is
    missing or holds a newer epoch. If it stalls before that, only the entries below a newer
    sentinel lead it there. Without them it takes a hole for the tip, and acknowledges writes that
    are lost (seen on 14.0.2, before and after its sentinel; `make model` shows it). An epoch with a
    stored row is past that point; one with only a stored sentinel may not be.

    What such an epoch needs ends at the first newer entry, and begins above the highest missing
    position below that. This rule itself keeps everything the epoch needs, so a missing position
    must be covered by the epoch's manifest. An epoch's first entry is its sentinel; where a bounded
    run has not read that far down, the lowest row that it knows stands for it, so that a long WAL
    is collected from its newer end. Where nothing newer is known, everything stays.
    """
    known = [w for w in wal if w.is_known]
    with_rows = {w.writer_epoch for w in known if not w.fence_sentinel}
    first: dict[int, int] = {}
    for entry in known:
        epoch = entry.writer_epoch or 0
        first[epoch] = min(entry.position, first.get(epoch, entry.position))
    stored = {w.position for w in wal}
    held: dict[int, int] = {}
    # Newest first. All epochs between two known ones have the same first newer entry.
    newer: int | None = None
    above = current_epoch
    for low in [*sorted((e for e in first if e > 1), reverse=True), 1]:
        epoch = min(above, current_epoch) - 1
        while epoch in with_rows and epoch >= low:
            epoch -= 1
        if epoch >= low and newer is None:
            return dict.fromkeys(stored, epoch)
        if epoch >= low and newer is not None:
            _hold_down_from(newer, epoch, stored, held)
        position = first.get(low, layout.U64_MAX)
        newer = position if newer is None else min(newer, position)
        above = low
    return held


def find_unknown(wal: Sequence[WalFile]) -> int:
    """The highest position that is not known although a higher one is; 0 when there is none.

    It may be the sentinel that ends a claim, and the entries below it may be what leads there.
    """
    top = max((w.position for w in wal if w.is_known), default=0)
    return max((w.position for w in wal if w.position < top and not w.is_known), default=0)


def find_deciding(plan: GarbagePlan, evidence: Evidence) -> Mapping[ShardId, int]:
    """The position in each shard from which on WAL entries decide about what the plan deletes.

    Whether an entry may go depends on those above it (`hold_for_claims`, `find_unknown`), and on
    where its own epoch begins. Shards without WAL entries to delete are left out.
    """
    deleted = {item.path for item in plan.deletes if item.kind == NAME}
    needed: dict[ShardId, int] = {}
    for shard_id, shard in evidence.shards.items() if deleted else ():
        going = [entry for entry in shard.wal if entry.file.path in deleted]
        if going:
            epoch = min(going, key=lambda entry: entry.position).writer_epoch
            mine = (e.position for e in shard.wal if e.is_known and e.writer_epoch == epoch)
            needed[shard_id] = min(mine)
    return needed


def _hold_down_from(last: int, epoch: int, stored: set[int], held: dict[int, int]) -> None:
    position = last
    while position in stored and position not in held:
        held[position] = epoch
        position -= 1
