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
from memwal.jobs.repair.model import Action, Damage, Evidence, PutSentinel
from memwal.jobs.repair.model import ShardEvidence as Shard
from memwal.jobs.repair.shards import list_rows, plan_flush
from memwal.model import ShardManifest
from memwal.text import format_age

NAME = "wal_entry"
_CHECKS = ("WAL continuous above the replay position", "WAL")


def find(evidence: Evidence) -> Iterator[Damage]:
    """Entries of every shard whose manifest is sound."""
    for shard in evidence.shards:
        if shard.view is not None and not shard.newer:
            yield from _judge(evidence, shard, shard.view.manifest)


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
    for position in sorted({*torn, *gone}):
        epoch = _choose_epoch(shard, manifest, position)
        mended[position] = _make_sentinel(position, epoch)
    flush = plan_flush(manifest, list(mended.values()))
    last = max((p for p in {*torn, *gone} if p > max(flushed, first - 1)), default=0)
    for position in sorted({*torn, *gone}):
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
        )
        if position > max(flushed, first - 1):
            after = (flush,) if flush is not None and position == last else ()
            found = _judge_lost(evidence, shard, replace(found, effects=(sentinel, *after)), torn)
        yield found


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
        evidence="nothing else has its rows: it is put aside, so that those behind it are read",
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
