"""A shard's newest manifest that is damaged, or that is missing though something shows it.

Evidence: the newest manifest that can be read, and the WAL. A folder that it does not list is not
listed: it may be of a flush that never ended. Gate: the WAL has every row that was flushed since,
and can be replayed.

Cure: the shard is set back. Its next manifest lists the generations of the one that can be read,
and replay begins with the first WAL entry of a later one, of which each says to which it belongs.
pylance's own writer then flushes them again, in folders of other names. The manifest has a higher
epoch than any writer can have been given, so that none goes on from the former state, and a
version above all that anything recorded, so that nothing shows a newer one. Stoppers take the names
below it first: who probes upwards from an older version comes to it, and a stalled writer has no
name to go on at. What is damaged stays where it is: nobody reads any but the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from memwal.errors import Corruption
from memwal.format import layout
from memwal.format.replay import WalEntry, replay
from memwal.jobs.repair.model import (
    RESTORE,
    Damage,
    Effect,
    Evidence,
    Flush,
    PutManifest,
    PutStopper,
    ShardEvidence,
    TakeSnapshot,
)
from memwal.jobs.rescue.plan import size_memtable
from memwal.model import ShardManifest, ShardStatus
from memwal.text import count_of, name_some

_NAMED_MAX = 10
_CHECKS = (
    "shard manifests",
    "newest shard manifests",
    "a manifest for each shard",
    "shard snapshot",
    "hints",
)
# A hint is written unchecked: one so far above what is stored is not what a writer came to.
_LEAP_MAX = 10_000


def find_manifests(evidence: Evidence) -> Iterator[Damage]:
    """Every shard whose newest manifest can't be used, or is not the newest that there was."""
    for shard in evidence.shards:
        yield _judge(shard)


def _judge(shard: ShardEvidence) -> Damage:
    stored = shard.manifests
    finding = "; ".join(shard.newer) or str(shard.error or "there is no manifest of the shard")
    left = Damage(
        kind="shard_manifest",
        shard_id=shard.shard_id,
        path=layout.shard_manifest_path(shard.shard_id, max(1, stored.highest)),
        finding=stored.damaged.get(stored.highest, finding),
        evidence=RESTORE,
        lost=(_name_left(shard),),
        checks=_CHECKS,
    )
    if not stored.readable:
        return left
    base = stored.readable[max(stored.readable)]
    if base.version == stored.highest and not shard.newer:
        is_damage = isinstance(shard.error, Corruption) or shard.error is None
        why = RESTORE if is_damage else "that is no damage; see the message"
        lost_there = left.lost if is_damage else ()
        return left.model_copy(update={"evidence": why, "lost": lost_there})
    manifest, lost = set_back(shard, base)
    judged = replay(manifest, shard.entries)
    if lost or judged.problems or judged.refused:
        return left.model_copy(update={"lost": lost or left.lost})
    listed = count_of(len(manifest.flushed_generations), "generation")
    rows = count_of(sum(e.rows or 0 for e in judged.unflushed), "row")
    evidence = (
        f"from manifest version {base.version}; {listed} listed as before; its WAL has the rest, "
        f"{rows}, which are flushed again"
    )
    effects = tuple(_list_effects(shard, base, manifest, judged.unflushed))
    return left.model_copy(update={"evidence": evidence, "lost": (), "effects": effects})


def _list_effects(
    shard: ShardEvidence,
    base: ShardManifest,
    manifest: ShardManifest,
    unflushed: Sequence[WalEntry],
) -> Iterator[Effect]:
    highest = shard.manifests.highest_name
    at_nanos = shard.manifests.times.get(highest, 0)
    for version in range(highest + 1, manifest.version):
        yield PutStopper(shard_id=shard.shard_id, version=version, at_nanos=at_nanos)
    yield PutManifest(manifest=manifest)
    if unflushed and manifest.status is not ShardStatus.SEALED:
        rows, batches = size_memtable(manifest, unflushed)
        yield Flush(shard_id=shard.shard_id, memtable_rows_max=rows, memtable_batches_max=batches)
    if shard.named_version > base.version:
        yield TakeSnapshot()  # it may name folders that are listed no more


def set_back(shard: ShardEvidence, base: ShardManifest) -> tuple[ShardManifest, tuple[str, ...]]:
    """The shard's next manifest, from which its WAL brings back the rest; what it can't."""
    floor = max(base.current_generation, shard.merged + 1)
    replayed = base.replay_after_wal_entry_position
    rows = [e for e in shard.entries if e.writer_epoch is not None and not e.fence_sentinel]
    below = max((e.position for e in rows if e.generation and e.generation < floor), default=0)
    later = sorted(e.generation for e in rows if e.generation and e.generation >= floor)
    starts = sorted(e.position for e in shard.entries if _is_later(e, floor, below, replayed))
    stored = [e.position for e in shard.entries]
    after = starts[0] - 1 if starts else max(replayed, *stored, 0)
    gone = sorted(set(range(max(below, replayed) + 1, after + 1)) - set(stored))
    lost = [f"rows of WAL entries {_describe_span(gone)}, which are gone"] if gone else []
    if later and later[0] > floor:
        unlisted = _describe_span([floor, later[0] - 1])
        lost.append(f"generation {unlisted}, which the WAL lacks: nothing proves its folder whole")
    if floor > base.current_generation and any(
        e.generation is None and e.position > replayed for e in rows
    ):
        lost.append("rows of WAL entries that don't say to which generation they belong")
    return replace(
        base,
        version=_choose_version(shard),
        writer_epoch=_choose_epoch(shard, base),
        current_generation=max([floor, *later[:1]]),
        replay_after_wal_entry_position=after,
        wal_entry_position_last_seen=max(base.wal_entry_position_last_seen, *stored, after),
        flushed_generations=tuple(
            g
            for g in base.flushed_generations
            if g.generation > shard.merged or g.path in shard.folders
        ),
    ), tuple(f"{text}, of shard {shard.shard_id}" for text in lost)


def _is_later(entry: WalEntry, floor: int, below: int, replayed: int) -> bool:
    """Whether a replay has to begin with this entry, or before it."""
    if entry.writer_epoch is None:
        return entry.position > below
    if entry.generation is None:
        return not entry.fence_sentinel and entry.position > replayed
    return not entry.fence_sentinel and entry.generation >= floor


def _choose_version(shard: ShardEvidence) -> int:
    """The first version above all that are stored, or that a record names or the hint says."""
    known = max(shard.manifests.highest_name, shard.named_version)
    hint = shard.hint or 0
    return max(known, hint if hint - known <= _LEAP_MAX else 0) + 1


def _choose_epoch(shard: ShardEvidence, base: ShardManifest) -> int:
    """An epoch above all that were given: each version that is missing may have been a claim."""
    missing = max(shard.manifests.highest, shard.hint or 0, shard.named_version) - base.version
    seen = (e.writer_epoch or 0 for e in shard.entries)
    return max((base.writer_epoch + max(0, missing), *seen)) + 1


def _name_left(shard: ShardEvidence) -> str:
    """What a shard has beside its manifests, and nobody reads without the newest one."""
    folders = ", ".join(name_some(sorted(shard.folders), _NAMED_MAX, "more")) or "none"
    rows = [e.position for e in shard.entries if e.writer_epoch and not e.fence_sentinel]
    entries = _describe_span(rows) if rows else "none"
    return (
        f"shard {shard.shard_id}: generations {folders}; rows of WAL entries {entries}, as far as "
        f"they are not merged (up to generation {shard.merged})"
    )


def _describe_span(numbers: Sequence[int]) -> str:
    first, last = min(numbers), max(numbers)
    return str(first) if first == last else f"{first} to {last}"
