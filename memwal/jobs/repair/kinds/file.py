"""A file that only a backup can bring back: of the base, of a generation, a version's manifest.

Evidence: a backup, if one is given. Only a comparison with a backup finds a file of the base that
is damaged at its full length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memwal.format import layout
from memwal.jobs.repair.model import Damage, Evidence
from memwal.jobs.verify.plan import FileFault, GenerationFacts
from memwal.model import ShardView

NAME = "file"
_BACKUP = "only a backup can have it: give --from BACKUP, or restore one"
_VERSIONS = ("merge progress and catch-up", "newest version")
_GENERATIONS = ("listed generations", "one key, one shard", "folders")


def find(evidence: Evidence) -> Iterator[Damage]:
    """Files that are gone or damaged."""
    bad = {(f.shard_id, f.generation): f for f in evidence.generations if not _is_whole(f)}
    for shard in evidence.view.shards:
        for generation in shard.manifest.flushed_generations:
            if facts := bad.get((shard.shard_id, generation.generation)):
                folder = layout.generation_folder(
                    shard.shard_id, generation.path, generation.generation
                )
                yield _judge_generation(shard, facts, folder)
    for fault in evidence.version_faults:
        version = int(fault.name)
        damage = _make(fault, f"what was committed as version {version}", _VERSIONS)
        if version < evidence.view.version:
            advice = f"{damage.evidence}. Without one, move it away: nobody can read it"
            damage = replace(damage, evidence=advice, lost=(f"version {version} can't be read",))
        yield damage
    for fault in evidence.file_faults:
        yield judge_file(fault)


def judge_file(fault: FileFault) -> Damage:
    """The damage of a file of the base, or of a folder that a checkpoint needs."""
    lost = f"{fault.path} {fault.problem}: reads that need it fail"
    of_checkpoint = fault.path.startswith(f"{layout.MEM_WAL}/")
    return _make(fault, lost, ("checkpoints",) if of_checkpoint else ("base table's files",))


def _make(fault: FileFault, lost: str, checks: tuple[str, ...]) -> Damage:
    return Damage(
        kind=NAME,
        path=fault.path,
        finding=fault.problem,
        evidence=_BACKUP,
        lost=(lost,),
        checks=checks,
        objects=(fault.path,),
    )


def _is_whole(facts: GenerationFacts) -> bool:
    return facts.error is None and facts.claimed_rows in (None, facts.physical_rows)


def _judge_generation(shard: ShardView, facts: GenerationFacts, folder: str) -> Damage:
    number, rows = facts.generation, facts.claimed_rows
    problem = facts.error or f"it has {facts.physical_rows} rows, its manifest claims {rows}"
    is_merged = number <= shard.merged_generation
    return Damage(
        kind=NAME,
        shard_id=shard.shard_id,
        path=folder,
        finding=f"generation {number}: {problem}",
        evidence="it is merged, so the table has its rows; garbage takes it off the list in time"
        if is_merged
        else _BACKUP,
        lost=() if is_merged else (f"generation {number} of shard {shard.shard_id}, {rows} rows",),
        checks=_GENERATIONS,
        objects=(folder,),
    )
