"""A shard's newest manifest that is damaged, or that is missing though something shows it.

Evidence: the manifests before it, or the shard's row in the shard snapshot, whichever is newer;
generations that a checkpoint or the snapshot names, if their folders open; and the WAL. What was
flushed after all of these is flushed again from the WAL. A folder that nothing names is not listed:
it may be of a flush that never ended.

Gate: some manifest or row has to be there, or a sound shard beside this one, as nothing else says
to which spec a shard belongs.

A manifest that is missing between others makes those below it look like a stalled writer's. If the
newest manifest has all that the highest of them has, they are not, and a stopper takes the name.

Cure: another manifest, as the version after the highest that is stored or recorded, with a higher
epoch. What is damaged stays where it is: nobody reads any but the newest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memwal.errors import Corruption
from memwal.format import layout
from memwal.jobs.repair.model import (
    Action,
    Damage,
    Evidence,
    PutStopper,
    ShardEvidence,
    describe_span,
)
from memwal.jobs.repair.shards import list_rows, set_back
from memwal.model import FlushedGeneration, ShardId, ShardManifest
from memwal.text import name_some

NAME = "shard_manifest"
_NAMED_MAX = 10
_CHECKS = (
    "shard manifests",
    "newest shard manifests",
    "a manifest for each shard",
    "shard snapshot",
    "hints",
)


def find(evidence: Evidence) -> Iterator[Damage]:
    """Every shard whose newest manifest can't be used, or is not the newest that there was."""
    errors = {ShardId(b.shard_id): b.error for b in evidence.view.broken}
    for shard in evidence.shards:
        if shard.view is None or shard.newer:
            yield _judge(evidence, shard, errors.get(shard.shard_id))
        elif shard.manifests.stored and evidence.broken(_CHECKS[0]) is not None:
            yield from _judge_gap(shard, shard.view.manifest)


def _judge(evidence: Evidence, shard: ShardEvidence, error: Exception | None) -> Damage:
    highest = shard.manifests.highest
    finding = "; ".join(shard.newer) or str(error or "there is no manifest of the shard")
    if highest in shard.manifests.damaged:
        finding = shard.manifests.damaged[highest]
    path = layout.shard_manifest_path(shard.shard_id, max(1, highest))
    left = Damage(
        kind=NAME,
        shard_id=shard.shard_id,
        path=path,
        action=Action.LEAVE,
        finding=finding,
        evidence="",
        checks=_CHECKS,
    )
    if highest and highest not in shard.manifests.damaged and not shard.newer:
        is_damage = isinstance(error, Corruption) or error is None
        why = "nothing shows a newer manifest" if is_damage else "that is no damage"
        return replace(left, evidence=f"{why}; see the message")
    base = _choose_base(evidence, shard)
    if base is None:
        why = "no manifest of the shard can be read, and nothing else says to which spec it belongs"
        manifests = layout.shard_manifest_path(shard.shard_id, 1).rpartition("/")[0]
        return replace(
            left,
            evidence=f"{why}: --from BACKUP, or restore one. Without any, ingest the rows of "
            "generations, which are Lance tables, before the folder is moved away",
            lost=(_name_left(shard),),
            objects=(manifests,),
        )
    listed, floor = _list_generations(shard, base)
    found = set_back(shard, base, listed, floor)
    if found is None:
        why = "its WAL entries don't say to which generation they belong"
        return replace(left, evidence=why)
    return replace(
        left,
        action=Action.SALVAGE if found.lost else Action.MEND,
        evidence=f"{_describe_base(shard, base)}; {found.evidence}",
        objects=tuple(layout.wal_entry_path(shard.shard_id, p) for p in found.gone),
        lost=found.lost,
        loses_rows=bool(found.lost),
        fences=True,
        effects=found.effects,
    )


def _name_left(shard: ShardEvidence) -> str:
    """What a shard has beside its manifests, and nobody reads without one."""
    folders = ", ".join(name_some(sorted(shard.folders), _NAMED_MAX, "more")) or "none"
    rows = list_rows(shard)
    entries = describe_span([e.position for e in rows]) if rows else "none"
    return (
        f"shard {shard.shard_id}: generations {folders}; rows of WAL entries {entries}, as far as "
        f"they are not merged (up to generation {shard.merged})"
    )


def _judge_gap(shard: ShardEvidence, newest: ShardManifest) -> Iterator[Damage]:
    stored = shard.manifests.stored
    gone = [v for v in range(min(stored), max(stored)) if v not in stored]
    before = [v for v in shard.manifests.readable if gone and v < gone[0]]
    if not before:
        return
    last = shard.manifests.readable[max(before)]
    listed = {(g.generation, g.path) for g in newest.flushed_generations}
    more = [
        g.generation
        for g in last.flushed_generations
        if g.generation > shard.merged and (g.generation, g.path) not in listed
    ]
    counters = ("writer_epoch", "current_generation", "replay_after_wal_entry_position")
    leads_up = not more and all(getattr(last, n) <= getattr(newest, n) for n in counters)
    stoppers = tuple(
        PutStopper(shard_id=shard.shard_id, version=v, at_nanos=shard.manifests.times.get(v - 1, 0))
        for v in gone
    )
    found = f"version {newest.version} has all that version {last.version} has"
    yield Damage(
        kind=NAME,
        shard_id=shard.shard_id,
        path=layout.shard_manifest_path(shard.shard_id, gone[0]),
        action=Action.MEND if leads_up else Action.LEAVE,
        finding=f"manifest version {describe_span(gone)} is missing below version {newest.version}",
        evidence=f"{found}: nothing of it is needed, and a stopper takes its name"
        if leads_up
        else f"version {last.version} has what version {newest.version} lacks: see the message",
        effects=stoppers if leads_up else (),
        checks=_CHECKS,
    )


def _choose_base(evidence: Evidence, shard: ShardEvidence) -> ShardManifest | None:
    """The newest state that is known whole; what a shard without one must have begun with."""
    newest, row = shard.manifests.newest_readable, shard.snapshot
    if row is not None and (newest is None or row.version > newest.version):
        return row
    return newest if newest is not None else _make_first(evidence, shard.shard_id)


def _make_first(evidence: Evidence, shard_id: ShardId) -> ShardManifest | None:
    beside = [s.view.manifest for s in evidence.shards if s.view is not None]
    ids = {manifest.shard_spec_id for manifest in beside}
    if any(manifest.shard_field_entries for manifest in beside) or len(ids) > 1:
        return None
    specs = evidence.view.mem_wal.shard_specs
    if not ids and any(spec.fields for spec in specs):
        return None
    ids = ids or {spec.spec_id for spec in specs} or {0}
    if len(ids) > 1:
        return None
    (spec_id,) = ids
    return ShardManifest(
        shard_id=shard_id, version=0, writer_epoch=0, current_generation=1, shard_spec_id=spec_id
    )


def _list_generations(
    shard: ShardEvidence, base: ShardManifest
) -> tuple[list[FlushedGeneration], int]:
    """What the base lists and still matters, what others name after it, and the first unknown."""
    listed = [
        g
        for g in base.flushed_generations
        if g.generation > shard.merged or g.path in shard.folders
    ]
    named = {g.generation: g for g in shard.kept if g.path in shard.opened}
    floor = max(base.current_generation, shard.merged + 1)
    while floor in named:
        listed.append(named[floor])
        floor += 1
    return listed, floor


def _describe_base(shard: ShardEvidence, base: ShardManifest) -> str:
    if base.version == 0:
        return "from its WAL alone"
    if base is shard.snapshot:
        return f"from the shard snapshot, made of manifest version {base.version}"
    return f"from manifest version {base.version}"
