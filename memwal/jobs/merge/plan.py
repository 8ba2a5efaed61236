"""Chooses which generations are folded next, and which are committed together, and how. Pure.

A commit folds a prefix of a shard's pending generations, oldest first, and marks the last one.

Why folding needs a guard
-------------------------
Two mergers may work on one shard. When both commit, Lance refuses the one whose mark is not higher.
But a merger that folds (m, a] is not stopped by another's commit of a shorter part (m, b], b < a,
unless Lance sees the two touch a common row. On 14.0.2 the second commit was then seen to land on
rows that it never saw. It doubles keys that both insert (always with the index join, and for keys
of 8-bit, 16-bit or boolean type, for which Lance compares no inserted keys), or leaves a key that
the first inserted and the second's fold deletes. Two things prevent that:

- a fold of ONE generation: any other commit on the shard marks at least as high, so that ours is
  refused (marks only fall when a snapshot refresh without the lease is killed before its repair);
- an anchor: a key of the first folded generation that none of the fold's generations deletes. Every
  shorter fold writes it too, so the two commits conflict, provided that Lance notices: always when
  the key is in the base (same row); when it is new, only on comparable types.

The index join is never used: its commits carry no filter of inserted keys, so a key that a user
inserts into the base beside the merge would be doubled (seen). The scan join notices that, except
for the types above. Writing keys to the base that are also pending in the MemWAL is against the
spec (one key, one shard) and can also bring a deleted key back.

Which shards share a commit
---------------------------
Each commit scans the base's key column and makes a version, and of concurrent commits that insert
many keys only one lands. So where many shards have little work each, their prefixes go into one
commit, which marks them all. It lands with all marks or with none, and Lance refuses it for any
reason for which it would refuse one of them alone. So it is guarded when each fold in it is.

Shards that hold the same key (against the spec: one key, one shard) are merged one by one, since
its rows would have no order within one commit. So are shards that delete keys in a pass of their
own, and those of tables with a row-merge policy, which computes rows from the base's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from memwal import invariants
from memwal.errors import MemWalError, Refused, Unsupported
from memwal.format.layout import find_shard
from memwal.format.unknown import check_details
from memwal.jobs.merge.request import MergeBounds, MergeRequest
from memwal.model import FlushedGeneration, ShardId, ShardStatus, ShardView, TableView, sum_known
from memwal.rows.keys import new_keys_are_compared
from memwal.rows.memory import Memory, held_bytes, needed_bytes
from memwal.rows.progress import find_holes, first_due, refuse_hole
from memwal.text import format_mb


class Deletes(Enum):
    """How tombstoned keys are deleted from the base table."""

    NONE = "none"
    SAME_COMMIT = "same_commit"
    PASS_BEFORE = "pass_before"


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeLimits:
    """Bounds of a merge run. Bytes are in-memory bytes as the writer recorded them."""

    generations_per_commit_max: int = 64
    shards_per_commit_max: int = 64
    bytes_per_commit_max: int = 256 * 1024 * 1024
    memory_bytes_max: int | None = None
    conflict_attempts_max: int = 40
    conflict_seconds_max: float = 600.0
    conflict_wait_seconds_max: float = 5.0
    fault_attempts_max: int = 3
    tombstones_in_commit_max: int = 10_000

    @property
    def deletes_with_rows_max(self) -> int:
        """How many keys a commit that also writes rows may delete.

        They are deleted by a predicate, which takes memory for each key.
        """
        memory = Memory(bytes_max=self.memory_bytes_max)
        return min(self.tombstones_in_commit_max, memory.predicate_keys_max)


@dataclass(frozen=True, kw_only=True, slots=True)
class NextCommit:
    """The prefix that the next commit folds, oldest first."""

    generations: tuple[FlushedGeneration, ...]

    @property
    def mark(self) -> int:
        """The generation that the commit records as merged."""
        return self.generations[-1].generation

    @property
    def in_memory_bytes(self) -> int | None:
        """The generations' size as the writer recorded it; None when any size is missing."""
        return sum_known(g.in_memory_bytes for g in self.generations)


def choose_generations(shard: ShardView, request: MergeBounds) -> tuple[FlushedGeneration, ...]:
    """Pending generations that the request covers, oldest first."""
    until = request.until_generation
    return tuple(g for g in shard.pending if until is None or g.generation <= until)


def bound_request(shard: ShardView, request: MergeRequest) -> MergeRequest | None:
    """The request, up to what it covers of the shard at this moment; None if it covers nothing."""
    work = choose_generations(shard, request)
    return replace(request, until_generation=work[-1].generation) if work else None


def check_table(view: TableView) -> None:
    """Raise Unsupported for a table that can't be merged.

    That is a table in the legacy format, without a primary key, with a key column whose name
    pylance 14.0.2's merge-insert can't take, or with a MemWAL index that is not known in full.
    """
    check_details(view)
    if not view.primary_key:
        raise Unsupported(
            "MW-K02",
            f"{view.uri}: the table has no primary key; merging it would need an atomic way to add "
            "rows exactly once, which there is not yet",
        )
    if view.is_legacy:
        raise Unsupported(
            "MW-K10",
            f"{view.uri}: its files are in Lance's legacy format, to which nothing can be merged. "
            "Close its writers and write it anew, pending rows included: `memwal rescue`, then "
            f"`memwal read {view.uri} --output rows.parquet`, `lance.write_dataset` of that to a "
            "new place, and `memwal init` there",
        )
    for name in view.primary_key:
        if "`" in name or '"' in name:
            raise Unsupported(
                "MW-K03",
                f"{view.uri}: the key column {name!r} has a quote in its name, which Lance's "
                "merge-insert can't take",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftShard:
    """A shard that a run leaves as it is, for lack of work or because of `error`."""

    shard_id: ShardId
    merged_generation: int = 0
    error: Exception | None = None


def choose_shards(
    view: TableView, asked: Sequence[str], request: MergeRequest
) -> tuple[tuple[ShardView, ...], tuple[LeftShard, ...]]:
    """The shards with work, and those left alone, among those asked for (by default all).

    A shard may be given by the first characters of its id. Raises Usage for one that the table
    does not have, and Unsupported as `check_table`. A table without a MemWAL has none.
    """
    if not view.has_mem_wal and not asked:
        return (), ()
    check_table(view)
    known = set(view.shard_ids)
    chosen = {find_shard(shard, known, view.uri) for shard in asked} or known
    work = []
    left = [LeftShard(shard_id=ShardId(b.shard_id), error=b.error) for b in view.broken]
    for shard in view.shards:
        idle = LeftShard(shard_id=shard.shard_id, merged_generation=shard.merged_generation)
        try:
            check_shard(shard, request)
            if choose_generations(shard, request):
                work.append(shard)
            else:
                left.append(idle)
        except MemWalError as error:
            left.append(replace(idle, error=error))
    return (
        tuple(shard for shard in work if shard.shard_id in chosen),
        tuple(shard for shard in left if shard.shard_id in chosen),
    )


def check_shard(shard: ShardView, request: MergeRequest) -> None:
    """Raise Refused when the shard must not be merged.

    That is when it is SEALED and has work (invariant 4), or has a hole right above the watermark
    (invariant 2).
    """
    work = choose_generations(shard, request)
    if work and shard.manifest.status is ShardStatus.SEALED:
        raise Refused(
            "MW-M05",
            f"shard {shard.shard_id} is SEALED: its table is being dropped; unseal it first if "
            f"its {len(work)} pending generations are still wanted",
        )
    check_next(shard, request)


def check_next(shard: ShardView, request: MergeRequest) -> None:
    """Raise Refused when the next generation is missing, unless the request doesn't cover it."""
    hole = next(find_holes(shard), None)
    if hole is None or hole.first > first_due(shard) or request.allow_holes:
        return
    if request.until_generation is None or hole.first <= request.until_generation:
        raise refuse_hole(shard, hole)


@dataclass(kw_only=True, slots=True)
class Room:
    """What one commit has taken in so far, within the limits. The first item always fits."""

    limits: MergeLimits
    size_bytes: int = 0
    held_bytes: int = 0
    generations: int = 0
    shards: int = 0

    def take(self, size_bytes: int, *, generations: int, shards: int, held_bytes: int = 0) -> bool:
        """Take in that much more if it fits; returns whether it did."""
        memory = Memory(bytes_max=self.limits.memory_bytes_max)
        fits = not self.generations or (
            self.size_bytes + size_bytes <= self.limits.bytes_per_commit_max
            and self.generations + generations <= self.limits.generations_per_commit_max
            and self.shards + shards <= self.limits.shards_per_commit_max
            and memory.holds(self.held_bytes + held_bytes)
        )
        if fits:
            self.size_bytes += size_bytes
            self.held_bytes += held_bytes
            self.generations += generations
            self.shards += shards
        return fits


def hold(generations: Iterable[FlushedGeneration]) -> int:
    """The bytes of memory that these generations take in a commit, as far as that is known."""
    return sum(held_bytes(g.in_memory_bytes, g.physical_rows) for g in generations)


def check_memory(shard: ShardView, first: FlushedGeneration, limits: MergeLimits) -> None:
    """Raise Refused for a generation too large to merge within the memory limit."""
    memory = Memory(bytes_max=limits.memory_bytes_max)
    held = hold([first])
    if memory.holds(held):
        return
    size = first.in_memory_bytes or 0
    fits = format_mb(memory.spare_bytes * size // held)
    raise Refused(
        "MW-E11",
        f"shard {shard.shard_id}: generation {first.generation} has {format_mb(size)} of rows, and "
        f"merging it takes about {format_mb(needed_bytes(held))} of memory; "
        f"--memory-max leaves a task {format_mb(limits.memory_bytes_max or 0)}, "
        + (f"enough for up to {fits} of such rows" if memory.spare_bytes else "enough for none"),
    )


def plan_commit(shard: ShardView, request: MergeRequest, limits: MergeLimits) -> NextCommit | None:
    """The next prefix within the limits, of at least one generation; None when nothing is left.

    The prefix ends before a hole, which the next call then refuses. A generation of unknown size
    fills a commit: absent is not zero. Raises Refused as `check_shard` and `check_memory`.
    """
    check_shard(shard, request)
    chosen: list[FlushedGeneration] = []
    room = Room(limits=limits)
    for generation in choose_generations(shard, request):
        size = generation.in_memory_bytes
        size = limits.bytes_per_commit_max if size is None else size
        follows = not chosen or generation.generation == chosen[-1].generation + 1
        if not chosen:
            check_memory(shard, generation, limits)
        if not (follows or request.allow_holes) or not room.take(
            size, generations=1, shards=0, held_bytes=hold([generation])
        ):
            break
        chosen.append(generation)
    if not chosen:
        return None
    invariants.check_merge_order(
        first_due(shard) - 1,
        [g.generation for g in chosen],
        holes_allowed=request.allow_holes,
    )
    return NextCommit(generations=tuple(chosen))


def plan_commits(
    shard: ShardView, request: MergeRequest, limits: MergeLimits
) -> tuple[NextCommit, ...]:
    """Every commit that a run would make of what is pending now. Raises Refused as `plan_commit`.

    A commit may still be cut to one generation when its keys are known (`choose_deletes`).
    """
    commits: list[NextCommit] = []
    bounded = bound_request(shard, request) or request
    while (plan := plan_commit(shard, bounded, limits)) is not None:
        commits.append(plan)
        shard = replace(shard, merged_generation=plan.mark)
    check_next(shard, request)
    return tuple(commits)


def size_work(work: Sequence[ShardView], request: MergeRequest, limits: MergeLimits) -> int:
    """The in-memory bytes of the shards' work; an unknown size counts as a full commit."""
    sizes = (g.in_memory_bytes for shard in work for g in choose_generations(shard, request))
    return sum(limits.bytes_per_commit_max if size is None else size for size in sizes)


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldFacts:
    """What is known of a fold when its commit is shaped."""

    generations: int
    live_rows: int
    tombstones: int
    anchored: bool
    anchored_in_base: bool
    key_types: tuple[str, ...]
    deletes_with_rows: bool = False
    """Whether tombstoned keys must be deleted in the commit of the rows, however many they are."""
    double_keys: int = 0
    """How many keys with a live row the base holds more than once."""


def is_guarded(facts: FoldFacts) -> bool:
    """Whether a racing shorter fold surely conflicts with this one (see the module docstring)."""
    if facts.anchored_in_base and not facts.double_keys:  # else the delete pass may take it out
        return True
    return facts.generations == 1 or (facts.anchored and new_keys_are_compared(facts.key_types))


def choose_deletes(facts: FoldFacts, limits: MergeLimits) -> Deletes | None:
    """How to commit the fold; None when it can't be guarded and has to be cut to one generation.

    Keys are deleted in the commit that writes the rows, so that no version has one without the
    other. Deletes without rows use a join; deletes beside rows use a predicate, which costs up to
    0.1 ms a key. Too many for that are deleted by a join in a commit before. So are keys that the
    base holds more than once, as an update would leave as many rows as it found.
    """
    if not is_guarded(facts):
        return None
    if facts.double_keys:
        return Deletes.PASS_BEFORE
    if facts.tombstones == 0:
        return Deletes.NONE
    few = facts.tombstones <= limits.deletes_with_rows_max
    together = facts.deletes_with_rows or not facts.live_rows or few
    return Deletes.SAME_COMMIT if together else Deletes.PASS_BEFORE


SHARED_BYTES_MAX = 128 * 1024 * 1024
"""The most in-memory bytes of a shared commit, whose rows are all held at once."""


def limit_bytes(limits: MergeLimits) -> int:
    """How many in-memory bytes the rows of a shared commit may have."""
    return min(limits.bytes_per_commit_max, SHARED_BYTES_MAX)


def group_shards(
    view: TableView, work: Sequence[ShardView], request: MergeRequest, limits: MergeLimits
) -> tuple[tuple[ShardId, ...], ...]:
    """Group the shards with work: each group shares its commits.

    A shard stays alone if it may need a quarter of a shared commit or more, if its size is not
    certain (the rows of a shared commit are all held at once), or if it has a hole, which is then
    reported for that shard alone. With a row-merge policy, every shard stays alone.
    """
    if view.policy_text is not None:
        return tuple((shard.shard_id,) for shard in work)
    small_bytes = limit_bytes(limits) // 4
    small: list[tuple[ShardId, int, int, int]] = []
    made: list[tuple[ShardId, ...]] = []
    for shard in work:
        pending = choose_generations(shard, request)
        sizes = [None if g.estimated else g.in_memory_bytes for g in pending]
        total = sum(size or 0 for size in sizes)
        if None in sizes or total >= small_bytes or any(find_holes(shard)):
            made.append((shard.shard_id,))
        else:
            small.append((shard.shard_id, total, hold(pending), len(pending)))
    made.extend(_fill_bins(small, limits))
    return tuple(made)


def choose_plans(
    plans: Mapping[ShardId, NextCommit], limits: MergeLimits
) -> Mapping[ShardId, NextCommit]:
    """The first plans that fit into one commit together; those of unknown size are left out."""
    sized = [
        (shard, plan.in_memory_bytes, hold(plan.generations), len(plan.generations))
        for shard, plan in plans.items()
        if plan.in_memory_bytes is not None and plan.in_memory_bytes <= limit_bytes(limits)
    ]
    first = next(iter(_fill_bins(sized, limits)), ())
    return {shard: plans[shard] for shard in first}


def _fill_bins(
    sized: Iterable[tuple[ShardId, int, int, int]], limits: MergeLimits
) -> list[tuple[ShardId, ...]]:
    """Put shards, in order, into bins that each keep within a commit's limits."""
    bins: list[list[ShardId]] = []
    limits = replace(limits, bytes_per_commit_max=limit_bytes(limits))
    room = Room(limits=limits)
    for shard, size, held, generations in sized:
        taken = {"generations": generations, "shards": 1, "held_bytes": held}
        if not bins or not room.take(size, **taken):
            bins.append([])
            room = Room(limits=limits, size_bytes=size, **taken)
        bins[-1].append(shard)
    return [tuple(shards) for shards in bins]


def choose_folds(facts: Mapping[ShardId, FoldFacts], limits: MergeLimits) -> tuple[ShardId, ...]:
    """The shards whose folds may share a commit: each is guarded, and all have few tombstones."""
    room = limits.deletes_with_rows_max
    chosen = []
    for shard, fact in facts.items():
        if fact.deletes_with_rows or fact.tombstones > room or not is_guarded(fact):
            continue
        room -= fact.tombstones
        chosen.append(shard)
    return tuple(chosen)
