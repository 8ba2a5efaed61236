"""A WAL entry that can't be read, or is missing while there are later ones.

Evidence: the generations of the entries around it. If one after it belongs to a generation that is
flushed, its own rows are flushed as well, and nothing is lost.

Gate: for rows that are in no generation, no sign of life of the shard's writer: one that is open
has them in memory, and its next flush saves them. An entry that is only too large is no damage.

Cure: an empty entry, as of a claim, takes its position, so that what is behind it is replayed. Its
bytes are kept in quarantine. Then the WAL is flushed, which fences a writer that is open after all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memwal.format import layout
from memwal.format.replay import WalEntry, is_flushed
from memwal.jobs.repair.model import Action, Damage, Evidence, Flush, PutSentinel
from memwal.jobs.repair.model import ShardEvidence as Shard
from memwal.jobs.repair.shards import list_rows, plan_flush
from memwal.jobs.rescue.plan import size_memtable
from memwal.model import ShardManifest, ShardStatus
from memwal.text import format_age

NAME = "wal_entry"
_SENTINEL_CHECK = "newest fence sentinel"
_CHECKS = ("WAL continuous above the replay position", "WAL", _SENTINEL_CHECK)


def find(evidence: Evidence) -> Iterator[Damage]:
    """Entries of every shard whose manifest is sound; then sentinels that are lost."""
    unfenced = evidence.broken(_SENTINEL_CHECK)
    for shard in evidence.shards:
        if shard.view is not None and not shard.newer:
            found = list(_judge(evidence, shard, shard.view.manifest))
            yield from found
            if unfenced is not None and not found and shard.shard_id in unfenced.detail:
                yield _claim_again(shard, shard.view.manifest, unfenced.detail)


def _claim_again(shard: Shard, manifest: ShardManifest, finding: str) -> Damage:
    """A claim of the next epoch leaves a sentinel of its own, which fences all before it."""
    rows, batches = size_memtable(manifest, list_rows(shard))
    flush = Flush(shard_id=shard.shard_id, memtable_rows_max=rows, memtable_batches_max=batches)
    is_open = manifest.status is not ShardStatus.SEALED
    return Damage(
        kind=NAME,
        shard_id=shard.shard_id,
        path=layout.wal_folder(shard.shard_id),
        action=Action.MEND if is_open else Action.LEAVE,
        finding=finding,
        evidence="a new claim leaves a sentinel of the next epoch" if is_open else "it is SEALED",
        fences=is_open,
        effects=(flush,) if is_open else (),
        checks=(_SENTINEL_CHECK,),
    )


def _judge(evidence: Evidence, shard: Shard, manifest: ShardManifest) -> Iterator[Damage]:
    stored = {e.position: e for e in shard.entries}
    torn = {p: e for p, e in stored.items() if e.problem is not None and not e.refused}
    first = manifest.replay_after_wal_entry_position + 1
    seen = manifest.wal_entry_position_last_seen
    gone = [p for p in range(first, max((seen, *stored)) + 1) if p not in stored]
    if not torn and not gone:
        return
    flushed = max((e.position for e in list_rows(shard) if _is_in(manifest, e)), default=0)
    mended = {e.position: e for e in shard.entries if e.position not in torn}
    bad = sorted({*torn, *gone})
    fences = _find_fences(shard, manifest, bad)
    for position in bad:
        epoch = fences.get(position, 0) or _choose_epoch(shard, manifest, position)
        mended[position] = _make_sentinel(position, epoch)
    flush = plan_flush(manifest, list(mended.values()))
    lost = [p for p in bad if p > max(flushed, first - 1) and p not in fences]
    last = max((*lost, *(p for p in fences if p >= first)), default=0)
    for position in bad:
        path = layout.wal_entry_path(shard.shard_id, position)
        sentinel = PutSentinel(
            shard_id=shard.shard_id,
            position=position,
            writer_epoch=mended[position].writer_epoch or 0,
            digest=evidence.digests.get(path) if position in torn else None,
        )
        found = Damage(
            kind=NAME,
            shard_id=shard.shard_id,
            path=path,
            action=Action.MEND,
            finding=_tell_torn(torn[position]) if position in torn else _tell_gone(position),
            evidence="what it held is in a generation that is flushed",
            effects=(sentinel,),
            checks=_CHECKS,
            objects=(path,),
        )
        if flush is not None and position == last:
            found = replace(found, effects=(sentinel, flush), fences=True)
        if position in fences:
            text = f"it is the sentinel of writer epoch {fences[position]}, which held no rows"
            found = replace(found, evidence=text)
        elif position in lost:
            found = _judge_lost(evidence, shard, found, torn)
        yield found


def _find_fences(shard: Shard, manifest: ShardManifest, bad: list[int]) -> dict[int, int]:
    """The bad positions that can only have been sentinels, with their epochs.

    From the second epoch on, a claim writes one before any rows. So where an epoch has none, and
    one position alone is bad between the entries before the epoch and its first, that was it.
    """
    known = [e for e in shard.entries if e.writer_epoch is not None]
    fenced = {e.writer_epoch for e in known if e.fence_sentinel}
    epochs = {e.writer_epoch or 0 for e in known} | {manifest.writer_epoch}
    found: dict[int, int] = {}
    for epoch in sorted(e for e in epochs if e >= 2 and e not in fenced):
        before = max((e.position for e in known if (e.writer_epoch or 0) < epoch), default=0)
        behind = [e.position for e in known if (e.writer_epoch or 0) >= epoch]
        until = min(behind, default=max((*bad, before)) + 1)
        between = [p for p in bad if before < p < until]
        if len(between) == 1:
            found[between[0]] = epoch
    return found


def _judge_lost(
    evidence: Evidence, shard: Shard, found: Damage, torn: dict[int, WalEntry]
) -> Damage:
    """The damage with the rows that it costs, unless a writer may have them."""
    idle = (evidence.now_nanos - shard.newest_at_nanos) / 1e9
    if idle < evidence.idle_seconds:
        why = (
            f"its writer may be open, and have these rows: the shard changed {format_age(idle)} "
            "ago. Let it flush, or pass --idle 0s once it is gone"
        )
        return replace(found, action=Action.LEAVE, evidence=why, effects=())
    position = found.effects[0].position if isinstance(found.effects[0], PutSentinel) else 0
    size = f" of {torn[position].size_bytes} bytes" if position in torn else ""
    epochs = sorted({e.writer_epoch or 0 for e in shard.entries if e.writer_epoch})
    return replace(
        found,
        action=Action.SALVAGE,
        evidence="nothing in the table has its rows; a backup may: --from. It is put aside, so "
        "that those behind it are read",
        loses_rows=True,
        lost=(
            f"shard {shard.shard_id}, WAL position {position}: the rows of one put{size}, by a "
            f"writer of epoch {max((e for e in epochs), default=0)} or before; which keys is not "
            "known: write again what was put then",
        ),
        fences=True,
    )


def _is_in(manifest: ShardManifest, entry: WalEntry) -> bool:
    return is_flushed(manifest, entry.generation)


def _tell_torn(entry: WalEntry) -> str:
    """What is wrong with an entry, without the advice for when nothing is behind it."""
    return (entry.problem or "").partition(". If no rows are behind it")[0]


def _tell_gone(position: int) -> str:
    return f"WAL position {position} is missing, and was written"


def _choose_epoch(shard: Shard, manifest: ShardManifest, position: int) -> int:
    """The lowest epoch behind the position, so that epochs stay in order; else the manifest's."""
    behind = [e.writer_epoch for e in shard.entries if e.position > position and e.writer_epoch]
    return min(behind, default=manifest.writer_epoch)


def _make_sentinel(position: int, epoch: int) -> WalEntry:
    return WalEntry(
        position=position, size_bytes=0, written_at_nanos=0, writer_epoch=epoch, fence_sentinel=True
    )
