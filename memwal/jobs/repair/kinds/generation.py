"""A listed generation that does not open or lacks rows, and one that is allotted and not listed.

Evidence: the merge progress, for one that the table has already; else the WAL.

Gate: for one that is merged, none: its rows are in the table. For others the WAL has to have as
many rows of it, and of each generation after it, as the manifest counts.

Cure: the next manifest without it where it is merged; no writer is fenced by that. Otherwise the
shard is set back to the generation before it, and the WAL flushed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from memwal.format import layout
from memwal.jobs.repair.model import Action, Damage, Evidence, PutManifest, ShardEvidence
from memwal.jobs.repair.shards import SetBack, list_rows, set_back
from memwal.jobs.verify.plan import GenerationFacts
from memwal.model import FlushedGeneration, ShardView
from memwal.rows.progress import find_holes, first_due
from memwal.text import count_of, name_some

NAME = "generation"
_KEYS_NAMED_MAX = 100
_CHECKS = ("listed generations", "generations contiguous", "one key, one shard", "folders")


def find(evidence: Evidence) -> Iterator[Damage]:
    """Generations of every shard whose manifest is sound."""
    for shard in evidence.shards:
        if shard.view is not None and not shard.newer:
            yield from _judge(evidence, shard, shard.view)


def _judge(evidence: Evidence, shard: ShardEvidence, view: ShardView) -> Iterator[Damage]:
    bad = {facts.generation: _describe(facts) for facts in shard.listed if _is_bad(facts)}
    due = first_due(view)
    if merged := {number: text for number, text in bad.items() if number < due}:
        yield _drop(evidence, shard, view, merged)
    wanted = {number: text for number, text in bad.items() if number >= due}
    for hole in find_holes(view):
        text = "it is neither listed nor merged"
        wanted |= dict.fromkeys(range(hole.first, hole.last + 1), text)
    start = _find_start(shard, view)
    whole = [number for number in wanted if number >= start]
    set_to = _set_back(shard, view, min(whole), bad) if whole else None
    for number, text in sorted(wanted.items()):
        yield _make(shard, view, number, text, set_to if number >= start else None)


def _is_bad(facts: GenerationFacts) -> bool:
    return facts.error is not None or facts.claimed_rows not in (None, facts.physical_rows)


def _describe(facts: GenerationFacts) -> str:
    if facts.error is not None:
        return facts.error
    return f"it has {facts.physical_rows} rows, its manifest claims {facts.claimed_rows}"


def _find_start(shard: ShardEvidence, view: ShardView) -> int:
    """The lowest generation from which on the WAL has every row of each."""
    rows = Counter[int]()
    for entry in list_rows(shard):
        rows[entry.generation or 0] += entry.rows or 0
    claimed = {g.generation: g.physical_rows for g in view.manifest.flushed_generations}
    start = view.manifest.current_generation
    while start > first_due(view):
        number, wanted = start - 1, claimed.get(start - 1)
        if not rows[number] or (wanted is not None and rows[number] != wanted):
            break
        start = number
    return start


def _set_back(
    shard: ShardEvidence, view: ShardView, first: int, bad: dict[int, str]
) -> SetBack | None:
    listed = [g for g in view.manifest.flushed_generations if g.generation < first]
    kept = [g for g in listed if g.generation not in bad or g.generation >= first_due(view)]
    return set_back(shard, view.manifest, kept, first)


def _make(
    shard: ShardEvidence, view: ShardView, number: int, text: str, found: SetBack | None
) -> Damage:
    listed = {g.generation: g for g in view.manifest.flushed_generations}
    damage = Damage(
        kind=NAME,
        shard_id=shard.shard_id,
        path=_find_path(shard, listed.get(number), number),
        action=Action.LEAVE,
        finding=f"generation {number}: {text}",
        evidence="the WAL does not have all of its rows, or of those that were flushed after it",
        lost=(_tell_lost(shard, listed.get(number), number),),
        checks=_CHECKS,
        objects=() if number not in listed else (_find_path(shard, listed[number], number),),
    )
    if found is None or found.lost:
        return damage
    return replace(
        damage,
        action=Action.MEND,
        evidence=found.evidence,
        lost=(),
        fences=True,
        effects=found.effects,
    )


def _find_path(shard: ShardEvidence, generation: FlushedGeneration | None, number: int) -> str:
    if generation is None:
        return f"{layout.shard_folder(shard.shard_id)}: generation {number}"
    return layout.generation_folder(shard.shard_id, generation.path, number)


def _tell_lost(shard: ShardEvidence, generation: FlushedGeneration | None, number: int) -> str:
    left = sum(e.rows or 0 for e in list_rows(shard) if e.generation == number)
    rows = None if generation is None else generation.physical_rows
    text = f"generation {number} of shard {shard.shard_id}"
    text += "" if rows is None else f", {count_of(rows, 'row')}"
    text += f"; its WAL entries have {left} of its rows" if left else ""
    if keys := shard.keys.get(number):
        text += f"; keys {', '.join(name_some(keys, _KEYS_NAMED_MAX, 'more'))}"
    return text


def _drop(
    evidence: Evidence, shard: ShardEvidence, view: ShardView, merged: dict[int, str]
) -> Damage:
    manifest, first = view.manifest, min(merged)
    listed = {g.generation: g for g in manifest.flushed_generations}
    proposed = replace(
        manifest,
        version=manifest.version + 1,
        flushed_generations=tuple(g for n, g in listed.items() if n not in merged),
    )
    numbers = ", ".join(map(str, sorted(merged)))
    names = sorted(
        checkpoint.name
        for checkpoint in evidence.checkpoints
        for cut in checkpoint.shards
        if cut.shard_id == shard.shard_id and any(g.generation in merged for g in cut.pending)
    )
    return Damage(
        kind=NAME,
        shard_id=shard.shard_id,
        path=layout.generation_folder(shard.shard_id, listed[first].path, first),
        action=Action.SALVAGE if names else Action.MEND,
        finding=f"generation {numbers}: {'; '.join(merged.values())}",
        evidence=f"merged at version {evidence.view.version}, so the table has its rows: it is "
        "taken off the list",
        lost=tuple(f"checkpoint {name!r} can't be read any more" for name in names),
        effects=(PutManifest(manifest=proposed),),
        checks=_CHECKS,
        objects=tuple(
            layout.generation_folder(shard.shard_id, listed[n].path, n) for n in sorted(merged)
        ),
    )
