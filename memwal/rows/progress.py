"""What a shard's merge progress says, and where it can't be right: holes, former indexes, clones.

Former merges are generations that an earlier MemWAL index of a table had merged, and that were
collected. They are recorded when a table comes to rest (`former_merges.py` of `run/` and
`store/records/`), or shown by older versions (`store/records/former_merges.py`), and fill what
would else be holes of shards of which the present index knows nothing. By a record garbage also
deletes what was dropped then.

Holes are generations that are missing from a shard: allotted, and neither merged nor listed. One
rule: merge, maintain and read refuse by it, verify and status tell it.

A writer lists a generation and raises `current_generation` past it in one manifest version, so a
generation that is still in memory, or being flushed, has the number `current_generation` itself,
however long that takes (pylance 14.0.2 flushes one at a time; every manifest version that it left
under kills and full memtables says so). Every number below was allotted to rows that were put. What
then is neither listed nor merged has either never got onto the list (a flush failed and the writer
went on: lance issue 8293), or was taken off by another program: memwal drops merged generations
only. The manifest version that got past a generation tells the two apart.

A MemWAL index that is initialised again knows of no progress, and every generation that was merged
and collected before looks missing. It is no hole where the version that is looked at descends from
one that had it merged.

Inherited progress came with a copied index and is not of the shards beside it. Lance's clones and
branches copy the MemWAL index with its progress, and not `_mem_wal/`. A writer there starts at
generation 1, often under the same shard ids: what it flushes up to the inherited progress counts as
merged, is in no read, and would be collected. So does what a writer flushes into a shard whose
folder was deleted.

In a sound shard `current_generation` is above the merged one: a writer raises it past a generation
in the manifest that lists it. And what is merged was flushed before the version that called it so.
A shard that breaks either is a stranger to the progress. `store/shards/inherited.py` finds out, and
every view has such a shard among those that can't be used (`BrokenShard`), so that each job leaves
it alone, and each read refuses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from memwal.errors import Refused
from memwal.model import (
    BrokenShard,
    MemWalState,
    ShardId,
    ShardManifest,
    ShardView,
    TableView,
    VersionManifest,
)
from memwal.text import count_of, name_some

CLOCKS_APART_NANOS = 600 * 10**9
"""How far the clocks of writers and mergers may be apart."""
_NAMED_MAX = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class SettledShard:
    """A version of the table has all of a shard's generations up to `generation`.

    The digest of its manifest proves that it is still the same shard: if its folder was deleted, a
    shard starts again at generation 1.
    """

    generation: int
    manifest_version: int
    manifest_digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SettledRecord:
    """What was settled of each shard at a version of the table."""

    record_id: str
    version: int
    shards: Mapping[ShardId, SettledShard]


def find_settled(shards: Iterable[ShardView]) -> dict[ShardId, SettledShard]:
    """What the version of these shards has of each, by its own index or by one before."""
    return {
        shard.shard_id: SettledShard(
            generation=min(first_due(shard), shard.manifest.current_generation) - 1,
            manifest_version=shard.manifest.version,
            manifest_digest=digest_manifest(shard.manifest.raw),
        )
        for shard in shards
        if min(first_due(shard), shard.manifest.current_generation) > 1
    }


def digest_manifest(data: bytes) -> str:
    """The SHA-256 digest of a stored manifest, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def needs_proof(shard: ShardView) -> bool:
    """Whether generations are missing of a shard that the MemWAL index knows nothing of."""
    return not shard.merged_generation and any(find_holes(shard))


def is_unrecorded(shard: ShardView) -> bool:
    """Whether only older versions and manifests show what is settled of the shard."""
    return shard.settled_generation > 0 and shard.settled_by is None


def find_proven(
    manifest: ShardManifest,
    record: SettledRecord,
    digest: Callable[[ShardId, int], str | None],
) -> int:
    """Up to which generation a record proves this very shard settled; 0 when it proves nothing.

    `digest` returns the digest of a stored manifest version, None when there is none.
    """
    shard_id, found = manifest.shard_id, record.shards.get(manifest.shard_id)
    if found is None:
        return 0
    known = manifest.version == found.manifest_version and manifest.raw
    now = digest_manifest(manifest.raw) if known else digest(shard_id, found.manifest_version)
    return min(found.generation, _last_gone(manifest)) if now == found.manifest_digest else 0


def settle(shard: ShardView, generation: int, by: int | None = None) -> ShardView:
    """The shard with what is settled of it. `by` is the manifest version that a record cites."""
    upto = min(generation, _last_gone(shard.manifest))
    return replace(shard, settled_generation=upto, settled_by=by)


def _last_gone(manifest: ShardManifest) -> int:
    """The last generation below all listed ones; listed and later ones are never settled."""
    listed = (g.generation for g in manifest.flushed_generations)
    return min(listed, default=manifest.current_generation) - 1


class Cause(Enum):
    """How a hole came about."""

    DRAINED = "drained"
    """It was listed: another program took it off the list without marking it as merged."""
    NEVER_LISTED = "never_listed"
    """Its flush failed, and its writer went on."""
    UNKNOWN = "unknown"
    """The shard's earlier manifests don't tell, or tell both of parts of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hole:
    """Generations `first` to `last`, which are missing."""

    first: int
    last: int
    cause: Cause = Cause.UNKNOWN

    def __str__(self) -> str:
        if self.first == self.last:
            return f"generation {self.first}"
        return f"generations {self.first} to {self.last}"


def find_holes(shard: ShardView) -> Iterator[Hole]:
    """The shard's holes above its merge progress, ascending."""
    expected = first_due(shard)
    for generation in shard.pending:
        if generation.generation > expected:
            yield _make_hole(shard, expected, generation.generation - 1)
        expected = generation.generation + 1
    if shard.manifest.current_generation > expected:
        yield _make_hole(shard, expected, shard.manifest.current_generation - 1)


def first_due(shard: ShardView) -> int:
    """The first generation that is neither merged nor settled; all below it are."""
    return max(shard.merged_generation, shard.settled_generation) + 1


def is_at_rest(shard: ShardView) -> bool:
    """Whether all that was allotted is merged, and collected."""
    listed = shard.manifest.flushed_generations
    return not listed and first_due(shard) >= shard.manifest.current_generation


def _make_hole(shard: ShardView, first: int, last: int) -> Hole:
    told = {shard.listed_before.get(number) for number in (first, last)}
    cause = Cause.UNKNOWN
    if told == {True}:
        cause = Cause.DRAINED
    elif told == {False}:
        cause = Cause.NEVER_LISTED
    return Hole(first=first, last=last, cause=cause)


def refuse_hole(shard: ShardView, hole: Hole) -> Refused:
    """The error of a hole; its message is what status and verify tell of it, too."""
    return Refused("MW-H01", hole_text(shard, hole))


def hole_text(shard: ShardView, hole: Hole) -> str:
    """What an operator needs to know about a hole, and what passing over it would mean."""
    them = "it" if hole.first == hole.last else "them"
    found = missing_text(shard, hole)
    if hole.cause is Cause.DRAINED:
        # An index that knows the shard was not initialised since.
        again = ", or the table's MemWAL was initialised again without `memwal quiesce` before"
        again = "" if shard.merged_generation else again
        return (
            f"{found}: another program took {hole} off the list without marking {them} as merged, "
            f"which memwal never does{again}. If the table has the rows, nothing is missing, and "
            f"--allow-holes goes on (`memwal merge`, `memwal read`). If not, keep a copy of {them} "
            "first: folders that are left go once a merge has passed. Let one program maintain a "
            "table"
        )
    if hole.cause is Cause.NEVER_LISTED:
        return (
            f"{found}, nor in any before: a flush failed, and the writer went on. "
            "`memwal inspect wal` shows whether the WAL still has the rows; --allow-holes goes on "
            "without them"
        )
    return (
        f"{found}: look for a failed flush, a restored table, or another program that maintains it "
        "(`memwal inspect shard`), and pass --allow-holes once you know that nothing is missing"
    )


def missing_text(shard: ShardView, hole: Hole) -> str:
    """Which generations are missing, and from which manifest."""
    return (
        f"shard {shard.shard_id}: {hole} {'is' if hole.first == hole.last else 'are'} neither "
        f"merged nor listed in manifest version {shard.manifest.version}"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StrangerShard(BrokenShard):
    """A shard below progress up to `inherited_generation` that is not its own."""

    inherited_generation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where the progress of a version comes from, as far down as it can be traced.

    `merged` is that of the oldest version of which it comes without a gap. `cloned`: Lance made
    that version by copying another table's, or a branch.
    """

    merged: Mapping[ShardId, int]
    at_nanos: int
    version: int
    cloned: bool


def is_below(manifest: ShardManifest, merged_generation: int) -> bool:
    """Whether the shard has not even come to the generation that is called merged."""
    return manifest.current_generation <= merged_generation


def may_hide(shard: ShardView) -> bool:
    """Whether generations that the table lacks may hide below the progress.

    A writer that starts anew lists its first, until it is collected; so do few sound shards.
    """
    listed = shard.manifest.flushed_generations
    return shard.merged_generation > 0 and min((g.generation for g in listed), default=0) == 1


def is_doubtful(
    shard_id: ShardId, flushed_at_nanos: int, state: MemWalState, oldest: VersionManifest | None
) -> bool:
    """Whether a first generation may be younger than its merge, going by the cheapest facts.

    Every merge makes the entry anew; the `oldest` retained version is older than what is not known.
    """
    if oldest is None or is_younger(flushed_at_nanos, state):
        return True
    merged = {} if oldest.mem_wal is None else oldest.mem_wal.merged
    is_old = oldest.timestamp_nanos - flushed_at_nanos > CLOCKS_APART_NANOS
    return merged.get(shard_id, 0) > 0 and not is_old


def is_younger(flushed_at_nanos: int, state: MemWalState) -> bool:
    """Whether a generation may be younger than the MemWAL index entry, which every merge makes."""
    created = state.created_at_millis
    return created is None or flushed_at_nanos > (created + 1) * 10**6


def is_sure(flushed_at_nanos: int, at_nanos: int) -> bool:
    """Whether a generation is younger than its merge by more than clocks are apart."""
    return flushed_at_nanos - at_nanos > CLOCKS_APART_NANOS


def find_untouched(view: TableView) -> dict[ShardId, int]:
    """Progress of shards that have no folder: of a clone, before anybody writes to it."""
    there = set(view.shard_ids)
    return {s: g for s, g in view.mem_wal.merged.items() if g > 0 and s not in there}


def warn_untouched(view: TableView) -> tuple[str, ...]:
    """What an operator should know of a clone that nobody has written to yet."""
    found = find_untouched(view)
    if not found:
        return ()
    some = ", ".join(name_some(sorted(found), _NAMED_MAX, "more"))
    shards = count_of(len(found), "shard")
    return (
        f"the MemWAL index has progress of {shards} without a folder here ({some}): "
        "the table is a clone, a branch, or a copy without _mem_wal. What a writer puts there "
        f"would count as merged and be lost: `memwal init {view.uri} --adopt-clone` first",
    )


def check_progress(view: TableView) -> None:
    """Raise Refused where progress of the view is not that of one of its shards."""
    for shard in view.broken:
        if isinstance(shard, StrangerShard):
            raise shard.error


def refuse_inherited(shard_id: ShardId, merged_generation: int) -> Refused:
    """The error of a shard whose rows hide, or would, below progress that is not its own."""
    return Refused(
        "MW-H06",
        f"shard {shard_id}: the MemWAL index calls generations up to {merged_generation} merged, "
        "and that is not of this shard: the table is a clone, a branch, or a copy without its "
        "_mem_wal, where writers start at generation 1. Their rows are not in the table, and would "
        "be taken for merged. `memwal init TABLE --adopt-clone` lets go of that progress, and "
        "brings the rows back",
    )


def check_claim(
    shard_id: ShardId, manifest: ShardManifest | None, merged: Mapping[ShardId, int]
) -> None:
    """Raise Refused where a writer's first generation would count as merged.

    `manifest` is the shard's latest, None where there is none; `merged` was read before it.
    """
    generation = merged.get(shard_id, 0)
    if generation and (manifest is None or is_below(manifest, generation)):
        raise refuse_inherited(shard_id, generation)


def check_lineage(shard: ShardView, flushed_at_nanos: int, mem_wal_since_nanos: int | None) -> None:
    """Raise Refused when the oldest pending generation is older than the table's MemWAL index.

    That happens after an overwrite or a restore to before MemWAL was initialised: progress is gone,
    `_mem_wal/` stays, and merging would bring dead rows back. `mem_wal_since_nanos` is when the
    index has provably existed from, None when no retained version proves it.
    """
    if mem_wal_since_nanos is not None and mem_wal_since_nanos <= flushed_at_nanos:
        return
    oldest = shard.pending[0].generation
    if mem_wal_since_nanos is None:
        raise Refused(
            "MW-H04",
            f"shard {shard.shard_id}: no retained version of the table shows whether its MemWAL "
            f"index existed when generation {oldest} was flushed: either versions were expired "
            "while the shard had never been merged, or the table was overwritten or restored and "
            "initialised again. If it was not, its rows are live: pass --allow-reinitialised. If "
            "it was, they are dead; keep them until you know",
        )
    raise Refused(
        "MW-H05",
        f"shard {shard.shard_id}: the table's MemWAL index was initialised after generation "
        f"{oldest} was flushed: the table was overwritten or restored and initialised again, and "
        "merging would bring dead rows back. Pass --allow-reinitialised only if those rows are "
        "wanted",
    )
