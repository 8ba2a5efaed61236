"""The state of a shard from which its WAL brings the rest back. Pure.

A shard whose newest manifest is gone, or a generation of which is, is set back: its next manifest
lists the generations before that point, and replay begins with the first WAL entry that belongs to
a later one. Each entry says to which generation it belongs. pylance's own writer then flushes them
again, one generation for each, in folders of other names. The manifest has a higher epoch than any
writer can have been given, so that none goes on from the former state, and a version above all that
anything recorded, so that nothing shows a newer one. Stoppers take the names below it first: who
probes upwards from an older version comes to it, and a stalled writer has no name to go on at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from memwal.format.replay import WalEntry, replay
from memwal.jobs.repair.model import (
    Effect,
    Flush,
    PutManifest,
    PutStopper,
    ShardEvidence,
    TakeSnapshot,
    describe_span,
)
from memwal.jobs.rescue.plan import size_memtable
from memwal.model import FlushedGeneration, ShardManifest, ShardStatus
from memwal.text import count_of

# A hint is written unchecked: one so far above what is stored is not what a writer came to.
_LEAP_MAX = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SetBack:
    """A shard's next manifest, what brings its rows back, and what is lost nevertheless.

    `gone` are the positions of WAL entries that may have had some of that.
    """

    manifest: ShardManifest
    effects: tuple[Effect, ...]
    evidence: str
    lost: tuple[str, ...]
    gone: tuple[int, ...]


def list_rows(shard: ShardEvidence) -> list[WalEntry]:
    """The entries with rows that can be read, in order."""
    found = [e for e in shard.entries if e.writer_epoch is not None and not e.fence_sentinel]
    return sorted(found, key=lambda e: e.position)


def set_back(
    shard: ShardEvidence,
    base: ShardManifest,
    listed: Sequence[FlushedGeneration],
    floor: int,
) -> SetBack | None:
    """The shard with `listed`, where the WAL brings back everything from generation `floor` on.

    None where the entries don't tell to which generation they belong.
    """
    rows = list_rows(shard)
    replayed = base.replay_after_wal_entry_position
    unnamed = [e for e in rows if e.generation is None and e.position > replayed]
    if unnamed and floor != base.current_generation:
        return None
    later = [e for e in rows if e.generation is not None and e.generation >= floor]
    below = max((e.position for e in rows if _is_below(e, floor)), default=0)
    torn = [e for e in shard.entries if e.writer_epoch is None and e.position > below]
    starts = [e.position for e in (*later[:1], *torn, *unnamed)]
    stored = [e.position for e in shard.entries]
    after = min(starts) - 1 if starts else max(replayed, *stored, 0)
    first = later[0].generation if later else None
    manifest = replace(
        base,
        version=_choose_version(shard),
        writer_epoch=_choose_epoch(shard, base),
        current_generation=max(floor, first or 0),
        replay_after_wal_entry_position=after,
        wal_entry_position_last_seen=max(stored, default=after),
        flushed_generations=tuple(sorted(listed, key=lambda g: g.generation)),
    )
    gone = _find_gap(shard, max(below, replayed), min(starts, default=0))
    lost = [_tell_gap(shard, gone)] if gone else []
    if first is not None and first > floor:
        lost.append(_name_unlisted(shard, range(floor, first)))
    effects: list[Effect] = [*_stop_below(shard, manifest.version), PutManifest(manifest=manifest)]
    if (flush := plan_flush(manifest, shard.entries)) is not None:
        effects.append(flush)
    if shard.snapshot is not None:
        effects.append(TakeSnapshot())  # it names folders that are listed no more
    return SetBack(
        manifest=manifest,
        effects=tuple(effects),
        evidence=_describe(listed, replay(manifest, shard.entries).unflushed),
        lost=tuple(lost),
        gone=gone,
    )


def plan_flush(manifest: ShardManifest, entries: Sequence[WalEntry]) -> Flush | None:
    """The claim and flush of a shard whose entries are these; None where nothing can be flushed."""
    judged = replay(manifest, entries)
    sealed = manifest.status is ShardStatus.SEALED
    if sealed or not judged.unflushed or judged.problems or judged.refused:
        return None
    rows, batches = size_memtable(manifest, judged.unflushed)
    return Flush(shard_id=manifest.shard_id, memtable_rows_max=rows, memtable_batches_max=batches)


def _is_below(entry: WalEntry, floor: int) -> bool:
    return entry.generation is not None and entry.generation < floor


def _choose_version(shard: ShardEvidence) -> int:
    """The first version above all that are stored, or that a record names or the hint says."""
    known = max(shard.manifests.highest_name, shard.named_version)
    hint = shard.hint or 0
    return max(known, hint if hint - known <= _LEAP_MAX else 0) + 1


def _stop_below(shard: ShardEvidence, version: int) -> Iterator[PutStopper]:
    """Stoppers between what is stored and that version; where nothing is, no gap can show."""
    highest = shard.manifests.highest_name
    at_nanos = shard.manifests.times.get(highest, 0)
    for missing in range(highest + 1, version) if highest else ():
        yield PutStopper(shard_id=shard.shard_id, version=missing, at_nanos=at_nanos)


def _choose_epoch(shard: ShardEvidence, base: ShardManifest) -> int:
    """An epoch above all that were given: each version that is missing may have been a claim."""
    missing = max(shard.manifests.highest, shard.hint or 0, shard.named_version) - base.version
    seen = (e.writer_epoch or 0 for e in shard.entries)
    known = 0 if shard.snapshot is None else shard.snapshot.writer_epoch
    return max((base.writer_epoch + max(0, missing), known, *seen)) + 1


def _find_gap(shard: ShardEvidence, after: int, start: int) -> tuple[int, ...]:
    """Positions between what is covered and the start of the replay that nothing is stored at."""
    stored = {e.position for e in shard.entries}
    return tuple(p for p in range(after + 1, start) if p not in stored)


def _tell_gap(shard: ShardEvidence, gone: Sequence[int]) -> str:
    return (
        f"WAL entries {describe_span(gone)} of shard {shard.shard_id} are gone: nothing in the "
        "table has the rows of them that were not merged; a backup may: --from"
    )


def _name_unlisted(shard: ShardEvidence, numbers: Sequence[int]) -> str:
    ends = tuple(f"_gen_{number}" for number in numbers)
    folders = sorted(name for name in shard.folders if name.endswith(ends))
    text = (
        f"generation {describe_span(numbers)} of shard {shard.shard_id}: its WAL entries are gone"
    )
    if not folders:
        return f"{text}, and so is its folder"
    return f"{text}; nothing proves that {', '.join(folders)} is complete, so it is not listed"


def _describe(listed: Sequence[FlushedGeneration], entries: Sequence[WalEntry]) -> str:
    kept = f"{count_of(len(listed), 'generation')} listed as before"
    if not entries:
        return f"{kept}; its WAL has nothing to flush"
    numbers = describe_span([e.position for e in entries])
    rows = count_of(sum(e.rows or 0 for e in entries), "row")
    return f"{kept}; its WAL has the rest: entries {numbers}, {rows}, which are flushed again"
