"""Finds what is damaged, and says by what it is mended, or what to do instead. Pure.

Each kind of damage says what proves how it was (the evidence), what forbids mending it (the gate),
and what mends it. What is proposed is done by `apply` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

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
    RaiseProgress,
    ReleaseClaim,
    Replace,
    ShardEvidence,
    TakeSnapshot,
)
from memwal.jobs.rescue.plan import size_memtable
from memwal.jobs.verify.plan import Check, FileFault, GenerationFacts, Hint, find_raised
from memwal.model import ShardId, ShardManifest, ShardStatus, ShardView
from memwal.text import count_of, format_age, name_some

_NAMED_MAX = 10
_OF_MANIFESTS = (
    "shard manifests",
    "newest shard manifests",
    "a manifest for each shard",
    "shard snapshot",
    "hints",
)
# A hint is written unchecked: one so far above what is stored is not what a writer came to.
_LEAP_MAX = 10_000

OTHER = "other"
"""The kind of what `verify` finds and no kind of damage names."""
CLAIM_SECONDS_MIN = 600
SNAPSHOT_RECORD = f"{layout.MAINTENANCE}/snapshot.json"
_OF_CHECKPOINTS = (f"{layout.CHECKPOINTS}/", "_refs/tags/")
_PUT_ASIDE = (
    f"{layout.LEASE}/",
    f"{layout.RUNS}/",
    f"{layout.RESCUES}/",
    f"{layout.SETTLED}/",
    f"{layout.MAINTENANCE}/cache/",
    SNAPSHOT_RECORD,
)
_BACKUP = "only a backup can have it: give --from BACKUP, or restore one"
# A hint is written unchecked: so many versions above the newest are looked for in a backup.
_VERSIONS_MAX = 1000
_INDEX = "a repair does not mend it: drop the index, and create it again from the rows"
_ADVICE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "indexes open": (_INDEX, ()),
    "index catch-up claims": (_INDEX, ()),
    "tags": ("a repair does not mend it: delete the tag", ()),
    "newest fence sentinel": ("the next writer that opens the shard puts another one", ()),
    "WAL continuous above the replay position": (
        f"{RESTORE}. The last entry, if it is torn: `memwal rescue --drop-torn`",
        ("the rows of these entries and of those behind them, as far as no generation has them",),
    ),
}
"""By check: what to do, and what is lost by then."""
_OTHERWISE = (RESTORE, ("what was written since that backup",))


def find_damage(evidence: Evidence) -> list[Damage]:
    """All that is damaged, in the order of mending."""
    found = [damage for find in KINDS for damage in find(evidence)]
    told = {name for damage in found for name in damage.checks}
    for check in evidence.checks:
        if check.ok is False and check.name not in told:
            advice, lost = _ADVICE.get(check.name, _OTHERWISE)
            found.append(
                Damage(
                    kind=OTHER,
                    path=check.name,
                    finding=check.detail,
                    evidence=advice,
                    lost=lost,
                    checks=(check.name,),
                )
            )
    return found


def was_looked_for(damage: Damage, checks: Sequence[Check]) -> bool:
    """Whether these checks tell if there is such damage: none that would report it was not made."""
    made = {check.name: check.error is None and not check.refused for check in checks}
    failed = any(check.error is not None for check in checks)
    return all(made.get(name, not failed) for name in damage.checks)


# ---- files


def find_files(evidence: Evidence) -> Iterator[Damage]:
    """Files that only a backup can bring back: of the base, a generation, a version's manifest.

    Evidence: a backup, if one is given. Only a comparison with a backup finds a file of the base
    that is damaged at its full length.
    """
    bad = {(f.shard_id, f.generation): f for f in evidence.generations if f.problem is not None}
    for shard in evidence.view.shards:
        for generation in shard.manifest.flushed_generations:
            if facts := bad.get((shard.shard_id, generation.generation)):
                folder = layout.generation_folder(
                    shard.shard_id, generation.path, generation.generation
                )
                yield _judge_generation(shard, facts, folder)
    for fault in evidence.version_faults:
        version = int(fault.name)
        damage = _make_file(
            fault,
            f"what was committed as version {version}",
            ("merge progress and catch-up", "newest version"),
        )
        if version < evidence.view.version:
            advice = f"{damage.evidence}. Without one, move it away: nobody can read it"
            lost = (f"version {version} can't be read",)
            damage = damage.model_copy(update={"evidence": advice, "lost": lost})
        yield damage
    for fault in evidence.file_faults:
        yield judge_file(fault)


def judge_file(fault: FileFault) -> Damage:
    """The damage of a file of the base, or of a folder that a checkpoint needs."""
    lost = f"{fault.path} {fault.problem}: reads that need it fail"
    of_checkpoint = fault.path.startswith(f"{layout.MEM_WAL}/")
    return _make_file(fault, lost, ("checkpoints",) if of_checkpoint else ("base table's files",))


def _make_file(fault: FileFault, lost: str, checks: tuple[str, ...]) -> Damage:
    return Damage(
        kind="file",
        path=fault.path,
        finding=fault.problem,
        evidence=_BACKUP,
        lost=(lost,),
        checks=checks,
        objects=(fault.path,),
    )


def _judge_generation(shard: ShardView, facts: GenerationFacts, folder: str) -> Damage:
    number, rows = facts.generation, facts.claimed_rows
    is_merged = number <= shard.merged_generation
    return Damage(
        kind="file",
        shard_id=shard.shard_id,
        path=folder,
        finding=f"generation {number}: {facts.problem}",
        evidence="it is merged, so the table has its rows; garbage takes it off the list in time"
        if is_merged
        else _BACKUP,
        lost=() if is_merged else (f"generation {number} of shard {shard.shard_id}, {rows} rows",),
        checks=("listed generations", "one key, one shard", "folders"),
        objects=(folder,),
    )


# ---- memwal's own documents


def find_records(evidence: Evidence) -> Iterator[Damage]:
    """Documents of memwal's own that can't be read, or a checkpoint's that is not there.

    Evidence: the document. Gate: no newer memwal wrote it. A lease claim has to be ten minutes old:
    its holder writes it anew every minute, so that one that is alive would have. Other documents
    than those that are named here are left alone: something is believed, kept or resumed by them.

    It is moved into quarantine. A lease claim is replaced by one of its number that is released, so
    that no number is given twice.
    """
    for fault in evidence.record_faults:
        why, effects = _judge_record(evidence, fault)
        yield Damage(
            kind="record",
            path=fault.path,
            finding=fault.problem.partition("; ")[0],
            evidence=why,
            effects=effects,
            checks=("records", "checkpoints"),
        )


def _judge_record(evidence: Evidence, fault: FileFault) -> tuple[str, tuple[Effect, ...]]:
    digest = evidence.digests.get(fault.path)
    if fault.is_newer:
        return "a newer memwal may have written it: use that", ()
    if fault.path.startswith(_OF_CHECKPOINTS):
        return "drop the checkpoint, or move its record away; what it kept is kept no longer", ()
    if not fault.path.startswith(_PUT_ASIDE) or digest is None:
        return "something is kept or resumed by it, and nothing else says what it said", ()
    why = "nothing is proven by it: it is put aside"
    token = layout.parse_lease_claim(fault.path)
    if token is not None:
        age = (evidence.now_nanos - evidence.times.get(fault.path, 0)) / 1e9
        if age < CLAIM_SECONDS_MIN:
            held = f"it was written {format_age(age)} ago: whoever holds the lease may be at work"
            return f"{held}; run again when it is ten minutes old", ()
        return why, (ReleaseClaim(token=token, digest=digest),)
    aside = Replace(path=fault.path, data=None, digest=digest)
    return why, (aside, TakeSnapshot()) if fault.path == SNAPSHOT_RECORD else (aside,)


# ---- shards' manifests


def find_manifests(evidence: Evidence) -> Iterator[Damage]:
    """A shard's newest manifest that is damaged, or that is missing though something shows it.

    Evidence: the newest manifest that can be read, and the WAL. A folder that it does not list is
    not listed: it may be of a flush that never ended. Gate: the WAL has every row that was flushed
    since, and can be replayed.

    Cure: the shard is set back. Its next manifest lists the generations of the one that can be
    read, and replay begins with the first WAL entry of a later one, of which each says to which it
    belongs. pylance's own writer then flushes them again, in folders of other names. The manifest
    has a higher epoch than any writer can have been given, so that none goes on from the former
    state, and a version above all that anything recorded, so that nothing shows a newer one.
    Stoppers take the names below it first: who probes upwards from an older version comes to it,
    and a stalled writer has no name to go on at. What is damaged stays where it is: nobody reads
    any but the newest.
    """
    for shard in evidence.shards:
        yield _judge_manifests(shard)


def _judge_manifests(shard: ShardEvidence) -> Damage:
    stored = shard.manifests
    finding = "; ".join(shard.newer) or str(shard.error or "there is no manifest of the shard")
    left = Damage(
        kind="shard_manifest",
        shard_id=shard.shard_id,
        path=layout.shard_manifest_path(shard.shard_id, max(1, stored.highest)),
        finding=stored.damaged.get(stored.highest, finding),
        evidence=RESTORE,
        lost=(_name_left(shard),),
        checks=_OF_MANIFESTS,
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


# ---- progress and the snapshot


def find_progress(evidence: Evidence) -> Iterator[Damage]:
    """Merge progress that a commit lowered, and nothing has put right since.

    Evidence: the retained versions. Rows of generations that a version had stay in all that follow,
    if no restore or overwrite is among them. Gate: no version that may have been one has expired,
    and since it fell, progress has stayed as low: a merge that began there again has folded older
    rows over newer ones, and raising it would call that whole. Then the next merges fold the rest
    again, in order.

    It is mended by a commit of the MemWAL index alone, with the former progress.
    """
    raised: dict[ShardId, int] = {}
    for before, after in pairwise(evidence.history):
        if after.version in evidence.rewound or before.mem_wal is None or after.mem_wal is None:
            continue
        former, now = before.mem_wal.merged, after.mem_wal.merged
        low = {shard: g for shard, g in former.items() if now.get(shard, 0) < g}
        if not low or find_raised(evidence.history, after.version, former):
            continue
        for shard, generation in low.items():
            fell_to = now.get(shard, 0)
            if after.version > before.version + 1:
                why = "a version in between has expired, which may have been a restore"
            elif _has_stayed(evidence, after.version, shard, fell_to):
                raised[shard] = max(generation, raised.get(shard, 0))
                continue
            else:
                why = "merges have built on it since: `memwal merge` folds the rest again, in order"
            yield _make_progress(
                f"version {after.version} lowered shard {shard} from {generation} to {fell_to}", why
            )
    if raised:
        fell = (f"shard {shard} from {generation}" for shard, generation in raised.items())
        yield _make_progress(
            f"merge progress fell: {', '.join(fell)}",
            "an earlier version has these generations, and no restore or overwrite followed",
            RaiseProgress(version=evidence.view.version, merged=raised),
        )


def _has_stayed(evidence: Evidence, since: int, shard: ShardId, at: int) -> bool:
    """Whether each version since then has that progress."""
    states = (m.mem_wal for m in evidence.history if m.version >= since)
    return all(state is not None and state.merged.get(shard, 0) == at for state in states)


def _make_progress(finding: str, why: str, *effects: RaiseProgress) -> Damage:
    return Damage(
        kind="progress",
        path="the MemWAL index's merge progress",
        finding=finding,
        evidence=why,
        effects=effects,
        checks=("merge progress",),
    )


def find_snapshot(evidence: Evidence) -> Iterator[Damage]:
    """A shard snapshot that can't be read, or contradicts the manifests that it was made from.

    Evidence: the manifests of all shards. Gate: each can be read, and none is in doubt. It is taken
    again, as `memwal snapshot` does it.
    """
    if (check := evidence.broken("shard snapshot")) is None:
        return
    doubtful = ", ".join(shard.shard_id for shard in evidence.shards)
    yield Damage(
        kind="snapshot",
        path="the MemWAL index's shard snapshot",
        finding=check.detail,
        evidence=f"the shards' manifests have to be mended first: {doubtful}"
        if doubtful
        else "taken again from the manifests of all shards",
        effects=() if doubtful else (TakeSnapshot(),),
        checks=("shard snapshot",),
    )


# ---- hints


def find_hints(evidence: Evidence) -> Iterator[Damage]:
    """Hints at the newest version that can't be read, or point beyond it.

    Evidence: the listing of what is there. Gate: the shard's newest manifest is not itself in
    doubt; and for the table, no commit was begun from its newest version: if one was, the version
    that it made may be what the hint points at, and is lost. The hint is made to say the newest
    version that is there. A writer that moves on meanwhile overwrites it.
    """
    doubtful = {shard.shard_id for shard in evidence.shards}
    for hint in evidence.hints:
        digest = evidence.digests.get(hint.path)
        if hint.problem is None or digest is None or hint.shard_id in doubtful:
            continue
        ahead = hint.found is not None and hint.found > hint.newest
        if hint.shard_id is None and ahead and hint.newest in evidence.committed:
            yield _tell_lost(hint, hint.problem)
            continue
        data = layout.encode_version_hint(hint.newest)
        yield Damage(
            kind="hint",
            shard_id=hint.shard_id,
            path=hint.path,
            finding=hint.problem,
            evidence=f"version {hint.newest} is the newest that is there",
            effects=(Replace(path=hint.path, data=data, digest=digest),),
            checks=("hints",),
        )


def _tell_lost(hint: Hint, problem: str) -> Damage:
    last = min(hint.found or 0, hint.newest + _VERSIONS_MAX)
    gone = [layout.table_manifest_names(v) for v in range(hint.newest + 1, last + 1)]
    return Damage(
        kind="hint",
        path=hint.path,
        finding=problem,
        evidence=f"a commit was begun from version {hint.newest}, so one that followed may be "
        "gone, which only a backup can have: give --from BACKUP, or restore one. If none followed, "
        "delete the hint",
        lost=(f"what was committed after version {hint.newest}",),
        checks=("hints",),
        objects=tuple(f"{layout.VERSIONS}/{name}" for names in gone for name in names),
    )


KINDS: Sequence[Callable[[Evidence], Iterable[Damage]]] = (
    find_files,
    find_records,
    find_manifests,
    find_progress,
    find_snapshot,
    find_hints,
)
"""In the order of mending: what is made from something comes after it."""
