"""Finds what is damaged, and says by what it is mended, or what to do instead. Pure.

Each kind of damage says what proves how it was (the evidence), what forbids mending it (the gate),
and what mends it. What is proposed is done by `apply` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from memwal.errors import Corruption, MemWalError
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
    Replace,
    ShardEvidence,
    TakeSnapshot,
)
from memwal.jobs.rescue.plan import check_known, size_memtable
from memwal.jobs.verify.plan import Check, FileFault, find_raised
from memwal.model import ShardId, ShardManifest, ShardStatus
from memwal.text import count_of, format_age, name_some

_NAMED_MAX = 10
# Names of checks.
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
_ASIDE = (layout.LEASE, layout.RUNS, layout.RESCUES, layout.SETTLED, f"{layout.MAINTENANCE}/cache")
_PUT_ASIDE = (*(f"{folder}/" for folder in _ASIDE), SNAPSHOT_RECORD)
_MERGED = "it is merged, so the table has its rows; garbage takes it off the list in time"
_BACKUP = "only a backup can have it: give --from BACKUP, or restore one"
# A hint is written unchecked: so many versions above the newest are looked for in a backup.
_VERSIONS_MAX = 1000
_NEWEST_LOST = (
    "a commit was begun from version {}, so one that followed may be gone, which only a backup can "
    "have: give --from BACKUP, or restore one. If none followed, delete the hint"
)
_PROGRESS = "the MemWAL index's merge progress"
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
            found.append(_make(OTHER, check.name, check.detail, advice, (check.name,), lost=lost))
    return found


def _make(
    kind: str, path: str, finding: str, why: str, checks: Sequence[str], **more: Any
) -> Damage:
    return Damage(kind=kind, path=path, finding=finding, evidence=why, checks=tuple(checks), **more)


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
        shard_id = shard.shard_id
        for listed in shard.manifest.flushed_generations:
            number = listed.generation
            if (facts := bad.get((shard_id, number))) is None:
                continue
            lost = f"generation {number} of shard {shard_id}, {facts.claimed_rows} rows"
            is_merged = number <= shard.merged_generation
            yield _make_file(
                layout.generation_folder(shard_id, listed.path, number),
                f"generation {number}: {facts.problem}",
                ("listed generations", "one key, one shard", "folders"),
                _MERGED if is_merged else _BACKUP,
                lost=() if is_merged else (lost,),
                shard_id=shard_id,
            )
    for fault in evidence.version_faults:
        version = layout.parse_table_manifest_name(fault.path.rpartition("/")[2]) or 0
        why = _BACKUP
        lost = f"what was committed as version {version}"
        if version < evidence.view.version:
            why += ". Without one, move it away: nobody can read it"
            lost = f"version {version} can't be read"
        checks = ("merge progress and catch-up", "newest version")
        yield _make_file(fault.path, fault.problem, checks, why, lost=(lost,))
    for fault in evidence.file_faults:
        yield judge_file(fault.path, fault.problem)


def judge_file(path: str, problem: str) -> Damage:
    """The damage of a file of the base, or of a folder that a checkpoint needs."""
    check = "checkpoints" if path.startswith(f"{layout.MEM_WAL}/") else "base table's files"
    lost = f"{path} {problem}: reads that need it fail"
    return _make_file(path, problem, (check,), _BACKUP, lost=(lost,))


def _make_file(path: str, finding: str, checks: Sequence[str], why: str, **more: Any) -> Damage:
    return _make("file", path, finding, why, checks, objects=(path,), **more)


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
        finding, checks = fault.problem.partition("; ")[0], ("records", "checkpoints")
        yield _make("record", fault.path, finding, why, checks, effects=effects)


def _judge_record(evidence: Evidence, fault: FileFault) -> tuple[str, tuple[Effect, ...]]:
    digest = evidence.digests.get(fault.path)
    if fault.is_newer:
        return "a newer memwal may have written it: use that", ()
    if fault.path.startswith(_OF_CHECKPOINTS):
        return "drop the checkpoint, or move its record away; what it kept is kept no longer", ()
    if not fault.path.startswith(_PUT_ASIDE) or digest is None:
        return "something is kept or resumed by it, and nothing else says what it said", ()
    if layout.parse_lease_claim(fault.path) is not None:
        age = (evidence.now_nanos - evidence.times.get(fault.path, 0)) / 1e9
        if age < CLAIM_SECONDS_MIN:
            held = f"it was written {format_age(age)} ago: whoever holds the lease may be at work"
            return f"{held}; run again when it is ten minutes old", ()
    aside = Replace(path=fault.path, by=None, digest=digest)
    more = (TakeSnapshot(),) if fault.path == SNAPSHOT_RECORD else ()
    return "nothing is proven by it: it is put aside", (aside, *more)


# ---- shards' manifests


def find_manifests(evidence: Evidence) -> Iterator[Damage]:
    """A shard's newest manifest that is damaged, or that is missing though something shows it.

    Evidence: the newest manifest that can be read, and the WAL. A folder that it does not list is
    not listed: it may be of a flush that never ended. Gate: the WAL has every row that was flushed
    since, and can be replayed: its columns are the table's.

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
        finding = "; ".join(shard.newer) or str(shard.error or "there is no manifest of the shard")
        why, lost, effects = _find_cure(shard)
        yield _make(
            "shard_manifest",
            layout.shard_manifest_path(shard.shard_id, max(1, shard.highest)),
            shard.damaged.get(shard.highest, finding),
            why,
            _OF_MANIFESTS,
            shard_id=shard.shard_id,
            lost=lost,
            effects=effects,
        )


def _find_cure(shard: ShardEvidence) -> tuple[str, tuple[str, ...], tuple[Effect, ...]]:
    """By what it is mended, or what to do instead; what is lost by then; the effects."""
    left = (_name_left(shard),)
    if (base := shard.base) is None:
        return RESTORE, left, ()
    if base.version == shard.highest and not shard.newer:
        is_damage = isinstance(shard.error, Corruption) or shard.error is None
        return (RESTORE, left, ()) if is_damage else ("that is no damage; see the message", (), ())
    manifest, lost = set_back(shard, base)
    judged = replay(manifest, shard.entries)
    if lost or judged.problems or judged.refused:
        return RESTORE, lost or left, ()
    try:
        if judged.unflushed:
            check_known(base, shard.unfit, judged)
    except MemWalError as error:
        return str(error), left, ()
    listed = count_of(len(manifest.flushed_generations), "generation")
    why = (
        f"from manifest version {base.version}; {listed} listed as before; its WAL has the rest, "
        f"{count_of(judged.rows, 'row')}, which are flushed again"
    )
    return why, (), tuple(_list_effects(shard, base, manifest, judged.unflushed))


def _list_effects(
    shard: ShardEvidence,
    base: ShardManifest,
    manifest: ShardManifest,
    unflushed: Sequence[WalEntry],
) -> Iterator[Effect]:
    highest = shard.highest_name
    for version in range(highest + 1, manifest.version):
        path = layout.shard_manifest_path(shard.shard_id, version)
        yield PutStopper(path=path, at_nanos=shard.times.get(highest, 0))
    yield PutManifest(manifest=manifest)
    if unflushed and manifest.status is not ShardStatus.SEALED:
        yield Flush(shard_id=shard.shard_id, memtable=size_memtable(manifest, unflushed))
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
    if entry.fence_sentinel:
        return False
    return entry.position > replayed if entry.generation is None else entry.generation >= floor


def _choose_version(shard: ShardEvidence) -> int:
    """The first version above all that are stored, or that a record names or the hint says."""
    known = max(shard.highest_name, shard.named_version)
    hint = shard.hint or 0
    return max(known, hint if hint - known <= _LEAP_MAX else 0) + 1


def _choose_epoch(shard: ShardEvidence, base: ShardManifest) -> int:
    """An epoch above all that were given: each version that is missing may have been a claim."""
    missing = max(shard.highest, shard.hint or 0, shard.named_version) - base.version
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
            fell = f"version {after.version} lowered shard {shard} from {generation} to {fell_to}"
            yield _make("progress", _PROGRESS, fell, why, ("merge progress",))
    if raised:
        fell = ", ".join(f"shard {shard} from {g}" for shard, g in raised.items())
        effect = RaiseProgress(version=evidence.view.version, merged=raised)
        yield _make(
            "progress",
            _PROGRESS,
            f"merge progress fell: {fell}",
            "an earlier version has these generations, and no restore or overwrite followed",
            ("merge progress",),
            effects=(effect,),
        )


def _has_stayed(evidence: Evidence, since: int, shard: ShardId, at: int) -> bool:
    """Whether each version since then has that progress."""
    states = (m.mem_wal for m in evidence.history if m.version >= since)
    return all(state is not None and state.merged.get(shard, 0) == at for state in states)


def find_snapshot(evidence: Evidence) -> Iterator[Damage]:
    """A shard snapshot that can't be read, or contradicts the manifests that it was made from.

    Evidence: the manifests of all shards. Gate: each can be read, and none is in doubt. It is taken
    again, as `memwal snapshot` does it.
    """
    doubtful = ", ".join(shard.shard_id for shard in evidence.shards)
    why = "taken again from the manifests of all shards"
    if doubtful:
        why = f"the shards' manifests have to be mended first: {doubtful}"
    path, effects = "the MemWAL index's shard snapshot", () if doubtful else (TakeSnapshot(),)
    for check in evidence.checks:
        if check.name == "shard snapshot" and check.ok is False:
            yield _make("snapshot", path, check.detail, why, (check.name,), effects=effects)


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
        data = layout.encode_version_hint(hint.newest)
        why = f"version {hint.newest} is the newest that is there"
        more: dict[str, Any] = {"effects": (Replace(path=hint.path, by=data, digest=digest),)}
        ahead = range(hint.newest + 1, (hint.found or 0) + 1)[:_VERSIONS_MAX]
        if hint.shard_id is None and ahead and hint.newest in evidence.committed:
            why = _NEWEST_LOST.format(hint.newest)
            gone = (name for version in ahead for name in layout.table_manifest_names(version))
            more = {
                "lost": (f"what was committed after version {hint.newest}",),
                "objects": tuple(f"{layout.VERSIONS}/{name}" for name in gone),
            }
        yield _make(
            "hint", hint.path, hint.problem, why, ("hints",), shard_id=hint.shard_id, **more
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
