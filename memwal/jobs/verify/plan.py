"""Checks of a table at rest, one function for each. Pure: facts in, a verdict out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pydantic import Field

from memwal import invariants
from memwal.format import layout
from memwal.format.replay import WalEntry, replay
from memwal.model import (
    ShardId,
    ShardManifest,
    ShardSpec,
    ShardView,
    SharedKey,
    TableView,
    VersionManifest,
)
from memwal.report import Section
from memwal.rows.progress import find_holes, first_due, is_at_rest, refuse_hole
from memwal.text import count_of, iso_time, name_some

_NAMED_MAX = 20
# Checks of all shards' manifests, generations and WALs.
_OF_SHARDS = (
    "generations contiguous",
    "listed generations",
    "one key, one shard",
    "shard snapshot",
    "WAL continuous above the replay position",
    "newest fence sentinel",
    "pending generations belong to this MemWAL index",
)
_SNAPSHOT_FIELDS = (
    "shard_spec_id",
    "writer_epoch",
    "current_generation",
    "replay_after_wal_entry_position",
    "wal_entry_position_last_seen",
    "flushed_generations",
)


class Check(Section):
    """One line of `verify`. `invariant` is the number of one, None for other checks.

    `ok` is None when there was nothing to judge by, or the check was not made. `refused` is set
    when a limit forbade it, `error` when looking failed.
    """

    invariant: int | None
    name: str
    ok: bool | None
    detail: str
    refused: bool = Field(default=False, exclude=True)
    error: Any = Field(default=None, exclude=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationFacts:
    """What opening a listed generation showed. `error` is None when it opened."""

    shard_id: ShardId
    generation: int
    claimed_rows: int | None
    physical_rows: int | None
    error: str | None = None

    @property
    def problem(self) -> str | None:
        """What is wrong with it; None if nothing is."""
        if self.error is None and self.claimed_rows not in (None, self.physical_rows):
            return f"has {self.physical_rows} rows, its manifest claims {self.claimed_rows}"
        return self.error


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivateIndexFacts:
    """How many of a generation's rows its private key index has; None if that can't be told."""

    shard_id: ShardId
    generation: int
    physical_rows: int | None
    indexed_rows: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class WalFacts:
    """A shard's WAL: its positions, and the epochs of its fence sentinels and of entries with rows.

    `broken` describes entries that can't be read, `refused` those that are too large to read.
    `entries` are the stored entries one by one, whether they can be read or not.
    """

    shard_id: ShardId
    positions: tuple[int, ...]
    sentinel_epochs: frozenset[int]
    row_epochs: frozenset[int] = frozenset()
    broken: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    entries: tuple[WalEntry, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Hint:
    """A hint at the newest version of what is in a folder. `found` is None if it can't be read.

    The shard's manifests are meant, or the table's where `shard_id` is None.
    """

    path: str
    shard_id: ShardId | None
    found: int | None
    newest: int

    @property
    def problem(self) -> str | None:
        """What is wrong with it. To point at an older version is not: hints may lag behind."""
        if self.found is None:
            return f"{self.path} can't be read"
        if self.found > self.newest:
            return f"{self.path} says version {self.found}, the newest is {self.newest}"
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFault:
    """What is wrong with a stored file.

    `name` is what it belongs to: an index, a checkpoint. `is_newer`: another format is written in
    it, so a newer memwal may read it.
    """

    path: str
    problem: str
    name: str = ""
    is_newer: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CatchUpFacts:
    """The coverage behind one index's catch-up claim.

    `claimed_at_fragment` is the highest fragment id of the version in which the claim was recorded,
    None when no retained version shows that.
    """

    index: str
    claim: Mapping[ShardId, int]
    uncovered_fragments: tuple[int, ...]
    claimed_at_fragment: int | None


def has_fallen(before: VersionManifest, after: VersionManifest) -> bool:
    """Whether merge progress fell from one version to the next."""
    if before.mem_wal is None:
        return False
    if after.mem_wal is None:
        return True
    merged = after.mem_wal.merged
    return any(merged.get(shard, -1) < g for shard, g in before.mem_wal.merged.items())


def find_recording(
    history: Sequence[VersionManifest], index: str, claim: Mapping[ShardId, int]
) -> int | None:
    """The version that recorded an index's claim; None if it may be older than the history."""
    recorded: int | None = None
    for manifest in reversed(history):
        state = manifest.mem_wal
        if state is None or dict(state.index_catchup.get(index, {})) != dict(claim):
            return recorded
        recorded = manifest.version
    return None


def _verdict(
    number: int | None, name: str, problems: Sequence[str], fine: str, left_open: str = ""
) -> Check:
    """Without problems, `left_open` says why nothing can be told."""
    ok = None if left_open and not problems else not problems
    detail = "; ".join(problems) or left_open or fine
    return Check(invariant=number, name=name, ok=ok, detail=detail)


def check_manifests(view: TableView) -> Check:
    """Invariant 10: every shard's latest manifest can be read and trusted."""
    problems = [str(broken.error) for broken in view.broken]
    return _verdict(10, "shard manifests", problems, f"{len(view.shards)} readable")


def find_newer(
    shard: ShardManifest, merged_generation: int, hinted: int | None, named: int, wal: WalFacts
) -> tuple[str, ...]:
    """What shows that a shard had a newer manifest than the newest that is there.

    `hinted` is the version in its hint, `named` the newest that a snapshot or a checkpoint names.
    """
    where, found = f"shard {shard.shard_id}: its newest manifest is version {shard.version}", []
    if hinted is not None and hinted > shard.version:
        found.append(f"{where}, its hint says {hinted}")
    if named > shard.version:
        found.append(f"{where}, a snapshot or a checkpoint was made of version {named}")
    if merged_generation >= shard.current_generation:
        found.append(
            f"{where}, which has come to generation {shard.current_generation}; "
            f"{merged_generation} is merged"
        )
    highest = max(wal.sentinel_epochs | wal.row_epochs, default=0)
    if highest > shard.writer_epoch:
        found.append(
            f"{where}, of writer epoch {shard.writer_epoch}; an entry of its WAL has {highest}"
        )
    return tuple(found)


def check_newest(problems: Sequence[str], shards: int) -> Check:
    """Invariant 3: nothing shows that a shard had a newer manifest."""
    return _verdict(
        3, "newest shard manifests", problems, f"nothing is ahead of {count_of(shards, 'shard')}"
    )


def find_bare_shards(view: TableView, inside: Mapping[ShardId, Collection[str]]) -> list[ShardId]:
    """The shards that have a WAL or generations, and no manifest: none of that is read."""
    known = set(view.shard_ids)
    return sorted(
        shard
        for shard, names in inside.items()
        if shard not in known
        and any(n == "wal" or layout.parse_generation_folder(n) is not None for n in names)
    )


def check_bare_shards(shards: Sequence[ShardId]) -> Check:
    """Every shard has a manifest: it is written before anything else, and deleted last."""
    problems = [f"{layout.shard_folder(shard)} has no manifest" for shard in shards]
    return _verdict(10, "a manifest for each shard", problems, "none is without")


def check_hints(hints: Sequence[Hint]) -> Check:
    """A hint that can't be read, or points beyond the newest version, misleads who trusts it."""
    problems = [hint.problem for hint in hints if hint.problem is not None]
    return _verdict(None, "hints", problems, f"none of {len(hints)} leads astray")


def check_files(name: str, faults: Sequence[FileFault], fine: str) -> Check:
    """Nothing is wrong with files of a kind."""
    problems = [f"{fault.path}: {fault.problem}" for fault in faults]
    return _verdict(None, name, name_some(problems, _NAMED_MAX, "of the kind"), fine)


def limit_to_readable(checks: Sequence[Check], view: TableView) -> Sequence[Check]:
    """The checks, of which those of all shards are not made where a shard can't be read."""
    if not view.broken:
        return checks
    lacking = f"not of {count_of(len(view.broken), 'shard')} that can't be read; of the others: "
    return [
        check.model_copy(update={"ok": None, "detail": lacking + check.detail})
        if check.ok and check.name in _OF_SHARDS
        else check
        for check in checks
    ]


def check_progress_history(
    history: Sequence[VersionManifest], rewound: Collection[int], shards: Sequence[ShardView]
) -> Check:
    """Invariant 3: progress never fell along the retained versions, ascending.

    In `rewound` versions a user turned time back, which is no fault. Nor is it that a version lost
    the MemWAL index, if no shard in `shards` still needs its progress; nor what was put right.
    Where versions have expired, one may have been such: that is left open.
    """
    problems, left_open = list[str](), ""
    due = {shard.shard_id: first_due(shard) for shard in shards}
    for before, after in pairwise(history):
        if after.version in rewound or before.mem_wal is None:
            continue
        if after.mem_wal is None:
            if any(due.get(shard, 0) <= g for shard, g in before.mem_wal.merged.items()):
                problems.append(f"version {after.version} lost the MemWAL index")
            continue
        try:
            invariants.check_progress(before.mem_wal.merged, after.mem_wal.merged)
        except invariants.InvariantBroken as broken:
            if find_raised(history, after.version, before.mem_wal.merged) is None:
                if after.version == before.version + 1:
                    problems.append(f"version {after.version}: {broken}")
                else:
                    left_open = f"{broken}, or a restore before {after.version} has expired"
    turned = f" (turned back on purpose at {', '.join(map(str, sorted(rewound)))})"
    fine = f"never fell in {len(history)} retained versions{turned if rewound else ''}"
    return _verdict(3, "merge progress", problems, fine, left_open)


def find_raised(
    history: Sequence[VersionManifest], fell_at: int, wanted: Mapping[ShardId, int]
) -> int | None:
    """The version that put fallen progress right, before any merge built on it; None if none did.

    In between it has to stay as low as it fell: a merge that begins there again folds old rows over
    newer ones.
    """
    states = [m for m in history if m.version >= fell_at]
    fell = states[0].mem_wal
    if fell is None:
        return None
    low = {s: fell.merged.get(s, 0) for s, g in wanted.items() if fell.merged.get(s, 0) < g}
    for manifest in states[1:]:
        merged = {} if manifest.mem_wal is None else manifest.mem_wal.merged
        if all(merged.get(shard, 0) >= wanted[shard] for shard in low):
            return manifest.version
        if any(merged.get(shard, 0) != generation for shard, generation in low.items()):
            return None
    return None


def check_contiguous(shards: Sequence[ShardView]) -> Check:
    """Invariant 2: every generation that was allotted above a watermark is listed."""
    problems = [str(refuse_hole(shard, hole)) for shard in shards for hole in find_holes(shard)]
    return _verdict(2, "generations contiguous", problems, "no hole above any watermark")


def check_generations(facts: Sequence[GenerationFacts]) -> Check:
    """Invariant 1 needs every listed generation to open and to have the rows it claims."""
    problems = [
        f"shard {found.shard_id} generation {found.generation}: {found.problem}"
        for found in facts
        if found.problem is not None
    ]
    return _verdict(1, "listed generations", problems, f"{len(facts)} open, rows as claimed")


def warn_of_private_indexes(facts: Sequence[PrivateIndexFacts]) -> tuple[str, ...]:
    """Warn of generations whose private key index lacks rows.

    That is no damage to the table, but pylance's own reads go wrong. pylance 14.0.2 leaves such
    indexes when it flushes in the background (lance issue 9035).
    """
    return tuple(
        f"shard {found.shard_id} generation {found.generation}: its private key index (_pk_index) "
        f"has {found.indexed_rows} of {found.physical_rows} rows. Until it is merged, pylance's "
        f"own LSM reads {'show older rows beside newer ones' if found.indexed_rows else 'fail'}; "
        "memwal's reads and merges don't use it. `memwal merge` puts it right"
        for found in facts
        if found.physical_rows is not None
        and found.indexed_rows is not None
        and found.indexed_rows < found.physical_rows
    )


def check_catch_up(view: TableView, facts: Sequence[CatchUpFacts]) -> Check:
    """Invariant 6 rests on catch-up claims: none above the merges, none without coverage."""
    problems = [text for found in facts for text in find_false_claims(view, found)]
    judged = sum(found.claimed_at_fragment is not None for found in facts)
    unproven = "none is above the merges, and the versions that recorded them have expired"
    fine = f"{judged} of {len(facts)} agree with the fragments they were recorded for"
    left_open = unproven if facts and not judged else ""
    return _verdict(6, "index catch-up claims", problems, fine, left_open)


def find_false_claims(view: TableView, found: CatchUpFacts) -> list[str]:
    """What is wrong with an index's catch-up claim."""
    problems = []
    for shard, generation in found.claim.items():
        merged = view.mem_wal.merged.get(shard, 0)
        if generation > merged:
            problems.append(
                f"index {found.index} claims generation {generation} of shard {shard}, "
                f"merged is {merged}"
            )
    level = found.claimed_at_fragment
    caught_up = all(
        found.claim.get(shard, 0) >= merged for shard, merged in view.mem_wal.merged.items()
    )
    if level is not None and found.claim and caught_up:
        missing = [f for f in found.uncovered_fragments if f <= level]
        if missing:
            problems.append(
                f"index {found.index} claims to be caught up but does not cover fragments {missing}"
            )
    return problems


def check_wal(shards: Sequence[ShardView], wals: Mapping[ShardId, WalFacts]) -> Check:
    """Replay needs every WAL position above the covered one (spec: WAL Replay)."""
    problems: list[str] = []
    for shard in shards:
        wal = wals[shard.shard_id]
        problems += wal.broken or list_replay_problems(shard.manifest, wal)
        expected = shard.manifest.replay_after_wal_entry_position + 1
        for position in (p for p in wal.positions if p >= expected):
            if position != expected:
                problems.append(
                    f"shard {shard.shard_id}: WAL position {expected} is missing before {position}"
                )
            expected = position + 1
    name = "WAL continuous above the replay position"
    refused = [text for wal in wals.values() for text in wal.refused]
    if refused and not problems:
        return Check(invariant=None, name=name, ok=None, detail="; ".join(refused), refused=True)
    return _verdict(None, name, problems, "no gap")


def list_replay_problems(manifest: ShardManifest, wal: WalFacts) -> list[str]:
    """Why a replay of the entries up to the first gap must not be trusted.

    An epoch above the manifest's is no reason here: that is `find_newer`'s. Nor is what a writer
    left whom a restore shut out: its generations are not this table's.
    """
    epochs = {manifest.writer_epoch, *wal.sentinel_epochs, *wal.row_epochs}
    there = {entry.position for entry in wal.entries}
    tip = manifest.replay_after_wal_entry_position + 1
    while tip in there:
        tip += 1
    judged = replace(manifest, writer_epoch=max(epochs))
    reached = [entry for entry in wal.entries if entry.position < tip]
    problems = [
        f"position {entry.position} is covered, and generation {entry.generation} is not flushed"
        for entry in wal.entries
        if entry.position <= manifest.replay_after_wal_entry_position
        and (entry.generation or 0) >= manifest.current_generation
        and manifest.writer_epoch - (entry.writer_epoch or 0) < layout.LEAP_MIN
    ]
    problems += replay(judged, reached).problems
    return [f"shard {manifest.shard_id}: {text}" for text in problems]


def check_sentinels(shards: Sequence[ShardView], wals: Mapping[ShardId, WalFacts]) -> Check:
    """Invariant 7: the sentinel of each shard's current epoch is in place.

    A claim of the first epoch writes none (seen on pylance 14). An epoch without rows may not have
    written its sentinel yet: garbage keeps the highest position, so rows of it would show.
    """
    lacking = [
        (s.shard_id, s.manifest.writer_epoch, wals[s.shard_id])
        for s in shards
        if s.manifest.writer_epoch >= 2
        and s.manifest.writer_epoch not in wals[s.shard_id].sentinel_epochs
    ]
    problems = [
        f"shard {shard}: the fence sentinel of writer epoch {epoch} was lost"
        for shard, epoch, wal in lacking
        if epoch in wal.row_epochs
    ]
    name = "newest fence sentinel"
    claimed = "; ".join(
        f"shard {shard}: writer epoch {epoch} was claimed, without a sentinel so far: its writer "
        "is about to write it, or died; the next writer's claim makes up for it"
        for shard, epoch, _ in lacking
    )
    return _verdict(7, name, problems, "in place on every shard", claimed)


def check_one_shard(found: SharedKey | None, rows: int, rows_max: int) -> Check:
    """One key, one shard (spec: Shard): otherwise nothing says which of its rows is newer.

    `found` is a key that two shards have, if any, among `rows` rows of generations; more than
    `rows_max` rows are not compared.
    """
    name = "one key, one shard"
    if rows > rows_max:
        detail = f"{rows:,} rows are too many to compare their keys ({rows_max})"
        return Check(invariant=None, name=name, ok=None, detail=detail)
    problems = [] if found is None else [str(found)]
    fine = f"no key of {count_of(rows, 'row')} in generations is in two shards"
    return _verdict(None, name, problems, fine)


def check_double_keys(doubles: Sequence[str] | None, rows: int) -> Check:
    """No key is in the base twice: where nothing newer hides it, reads show it as often.

    `doubles` are the keys that are, for people; None if the rows were too many to compare.
    """
    name = "one row a key in the base"
    if doubles is None:
        detail = f"{rows:,} rows are too many to compare their keys"
        return Check(invariant=None, name=name, ok=None, detail=detail)
    named = name_some(doubles, _NAMED_MAX, "of them")
    problems = [f"{count_of(len(doubles), 'key')} more than once: {'; '.join(named)}"]
    return _verdict(None, name, problems if doubles else (), f"of {count_of(rows, 'row')}")


def check_spec_ids(history: Sequence[VersionManifest], shards: Sequence[ShardView]) -> Check:
    """A spec id stands for one shard spec (spec: Shard Spec) while shards have work under it."""
    problems: list[str] = []
    known: dict[int, ShardSpec] = {}
    for version in history:
        specs = () if version.mem_wal is None else version.mem_wal.shard_specs
        if version.mem_wal is None:
            known = {}  # the next MemWAL index counts anew
        ids = [spec.spec_id for spec in specs]
        twice = {spec_id for spec_id in ids if ids.count(spec_id) > 1}
        problems += [f"version {version.version} has spec id {i} twice" for i in sorted(twice)]
        for spec in (s for s in specs if s.spec_id not in twice):
            if known.setdefault(spec.spec_id, spec) != spec:
                problems.append(
                    f"version {version.version} gives spec id {spec.spec_id} to another spec than "
                    "versions before it"
                )
            known[spec.spec_id] = spec
    fields = {spec_id: {f.field_id for f in spec.fields} for spec_id, spec in known.items()}
    for manifest in (shard.manifest for shard in shards if not is_at_rest(shard)):
        spec_id = manifest.shard_spec_id
        foreign = {name for name, _ in manifest.shard_field_entries} - fields.get(spec_id, set())
        if foreign and spec_id in fields:
            problems.append(
                f"shard {manifest.shard_id} has values of {', '.join(sorted(foreign))}, which its "
                f"spec {spec_id} does not have: the id was given to another one since"
            )
    fine = f"{count_of(len(known), 'spec')}, each with its own"
    return _verdict(None, "shard spec ids", problems, fine)


def check_snapshot(
    view: TableView, found: Sequence[ShardManifest] | None, then: Mapping[ShardId, ShardManifest]
) -> Check:
    """The shard snapshot agrees with the shard manifests that it was made from.

    `found` are its rows, None without a snapshot; `then` are the manifest versions that the rows
    name, as far as they are still stored.
    """
    if found is None:
        return _verdict(None, "shard snapshot", (), "none was taken")
    now = {shard.shard_id: shard for shard in view.shards}
    problems = []
    if len(found) != view.mem_wal.num_shards:
        problems.append(
            f"it has {count_of(len(found), 'shard')}, the index says {view.mem_wal.num_shards}"
        )
    broken = {shard.shard_id for shard in view.broken}
    for row in (row for row in found if row.shard_id not in broken):
        current, of = now.get(row.shard_id), then.get(row.shard_id)
        if current is None:
            problems.append(f"shard {row.shard_id} is in it, and has no manifest")
        elif row.version > current.manifest.version:
            problems.append(
                f"shard {row.shard_id}: it has manifest {row.version}, the newest is "
                f"{current.manifest.version}"
            )
        elif of is not None:
            problems += [
                f"shard {row.shard_id}: {name} is {_show(getattr(row, name))}, manifest "
                f"{row.version} says {_show(getattr(of, name))}"
                for name in _SNAPSHOT_FIELDS
                if _show(getattr(row, name)) != _show(getattr(of, name))
            ]
    taken_at = iso_time(view.mem_wal.snapshot_ts_millis * 10**6)
    fine = f"{count_of(len(found), 'shard')} as of {taken_at}, as their manifests said"
    return _verdict(None, "shard snapshot", name_some(problems, _NAMED_MAX, "of the kind"), fine)


def _show(value: object) -> str:
    """A manifest's field as text; of generations, only what a snapshot has of them."""
    if not isinstance(value, tuple):
        return str(value)
    return ", ".join(f"{g.generation} ({g.path})" for g in value) or "none"


def check_lineage(problems: Sequence[str]) -> Check:
    """Invariant 1: pending generations were flushed after the MemWAL index was made."""
    name = "pending generations belong to this MemWAL index"
    return _verdict(1, name, problems, "none is older than the index")


def check_strangers(outside: Collection[str], inside: Mapping[ShardId, Collection[str]]) -> Check:
    """Invariant 9: `_mem_wal/` contains only shards and what belongs to them."""
    problems = [f"{layout.MEM_WAL}/{name}" for name in sorted(outside)]
    for shard, names in inside.items():
        for name in sorted(names):
            if name in ("manifest", "wal") or layout.parse_generation_folder(name) is not None:
                continue
            problems.append(f"{layout.shard_folder(shard)}/{name}")
    return _verdict(9, "nothing foreign under _mem_wal", problems, "only shards")
