"""Chooses what a merging read reads, and cuts it into tasks. Pure.

The rules are those of the spec's section "LSM Tree Merging Read". Within a shard, the newest row of
a key wins: the highest generation, then the highest row address in it; the base table is older than
every generation. A winner that is a tombstone means that the key is deleted. Generations at or
below the version's own watermark are skipped (pylance reads them again, and then hides what changed
in the base since). Shards are not compared with each other, since a key lives in one of them; every
shard's keys hide the base's rows.

A filter is applied to winners only: applied earlier, it would bring back an older row of a key
whose newest row does not match.

A task reads a few fragments of the base, or a few generations. Small ones share a task, since
starting a task costs as much as reading some megabytes. None is split, so the largest fragment
makes the largest task.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from typing import TypeVar

from memwal.errors import Refused
from memwal.model import FlushedGeneration, ShardId, ShardView, TableView
from memwal.read.plan.request import (
    Nearest,
    ReadRequest,
    Search,
    check_request,
    choose_columns,
    write_predicate,
)
from memwal.rows.expire import find_horizon
from memwal.rows.progress import find_holes, hole_text, missing_text
from memwal.text import count_of

T = TypeVar("T")


class Incomplete(Refused):
    """A generation that the version needs is not listed any more, and not merged in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRead:
    """A shard's part: `generations` to read, newest first; `skipped` are merged in the version."""

    shard_id: ShardId
    merged_generation: int
    generations: tuple[FlushedGeneration, ...]
    skipped: tuple[FlushedGeneration, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunedShard:
    """A shard that is left out, and why it can't hold a row that matches."""

    shard_id: ShardId
    reason: str
    generations: tuple[FlushedGeneration, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadPlan:
    """What one read reads: the base at `version`, and generations of shards.

    `columns` are returned, in that order; `hidden` are further key columns that are read. `keys`,
    unless None, are the only ones wanted; `predicate` combines the filter with their condition, and
    with that of rows that have not expired, as SQL for Lance.
    """

    uri: str
    version: int
    primary_key: tuple[str, ...]
    columns: tuple[str, ...]
    hidden: tuple[str, ...]
    shards: tuple[ShardRead, ...]
    pruned: tuple[PrunedShard, ...] = ()
    keys: tuple[tuple[object, ...], ...] | None = None
    filter: str | None = None
    predicate: str | None = None
    expired_before: str | None = None
    limit: int | None = None
    nearest: Nearest | None = None
    search: Search | None = None

    @property
    def scanned(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (*self.columns, *self.hidden)

    @property
    def generations(self) -> int:
        """How many generations are read."""
        return sum(len(shard.generations) for shard in self.shards)


def plan_read(
    view: TableView,
    request: ReadRequest,
    pruned: Mapping[ShardId, str] | None = None,
    *,
    now_nanos: int,
) -> ReadPlan:
    """Plan a read of `view`, whose version is the one asked for.

    Rows that have expired at `now_nanos` are left out; of a version that is asked for, those that
    had when it was committed, so that it stays as it was. `pruned` are shards that hold no version
    of any row that can match, with the reasons. Raises Usage for a request that does not fit the
    table, Incomplete when a generation that the version needs is missing, the error of a shard that
    can't be read, and what `find_expire` raises.
    """
    for broken in view.broken:
        raise broken.error
    check_request(view, request)
    columns = choose_columns(view, request)
    reasons = pruned or {}
    cut_nanos = now_nanos if request.version is None else view.manifest.timestamp_nanos
    horizon = find_horizon(view, cut_nanos)
    shards = tuple(s for s in view.shards if s.shard_id not in reasons)
    if not request.allow_holes:
        for shard in shards:
            check_whole(view, shard, of_version=request.version)
    return ReadPlan(
        uri=view.uri,
        version=view.version,
        primary_key=view.primary_key,
        columns=columns,
        hidden=tuple(key for key in view.primary_key if key not in columns),
        shards=tuple(_read_shard(shard) for shard in shards),
        pruned=tuple(
            PrunedShard(shard_id=s.shard_id, reason=reasons[s.shard_id], generations=s.pending)
            for s in view.shards
            if s.shard_id in reasons
        ),
        keys=request.keys,
        filter=request.filter,
        predicate=write_predicate(view.primary_key, request, horizon),
        expired_before=None if horizon is None else horizon.before.isoformat(),
        limit=request.limit,
        nearest=request.nearest,
        search=request.search,
    )


def describe_mixed(plan: ReadPlan, request: ReadRequest) -> tuple[str, ...]:
    """A warning when an older version is read with pending generations without asking for that."""
    if request.version is None or request.merged_only is not None or not plan.generations:
        return ()
    pending = count_of(plan.generations, "generation")
    return (
        f"version {plan.version} is read with {pending} listed now "
        "that it has not merged: rows that were written after it may be among them. "
        "--merged-only (merged_only=True) leaves them out, --no-merged-only (merged_only=False) "
        "says that they are meant; a checkpoint keeps a moment whole",
    )


def _read_shard(shard: ShardView) -> ShardRead:
    newest_first = tuple(reversed(shard.pending))
    return ShardRead(
        shard_id=shard.shard_id,
        merged_generation=shard.merged_generation,
        generations=newest_first,
        skipped=tuple(
            g for g in shard.manifest.flushed_generations if g.generation <= shard.merged_generation
        ),
    )


def check_whole(view: TableView, shard: ShardView, *, of_version: int | None) -> None:
    """Raise Incomplete unless every flushed generation is merged at the version, or listed.

    A generation that a later version merged, and that was collected since, is such a hole: the rows
    that it changed would be read with older values.
    """
    for hole in find_holes(shard):
        where = f"{view.uri}: version {view.version} would come out with older values of some rows"
        if of_version is None:
            raise Incomplete("MW-H01", f"{where}: {hole_text(shard, hole)}")
        raise Incomplete(
            "MW-H02",
            f"{where}: {missing_text(shard, hole)}; a later version has merged what is missing, "
            "and it was collected: read a later version",
        )


GenerationRead = tuple[ShardId, FlushedGeneration | None]
"""A generation of a shard; None stands for its unflushed rows, which are newer than any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadTask:
    """What one task reads: fragments of the base by id, or generations; if it `searches`, all."""

    fragments: tuple[int, ...] = ()
    generations: tuple[GenerationRead, ...] = ()
    searches: bool = False


def plan_tasks(
    plan: ReadPlan,
    fragments: Sequence[tuple[int, int | None]],
    task_bytes: int,
    *,
    whole_shards: bool = False,
    unflushed: Mapping[ShardId, int] | None = None,
) -> tuple[ReadTask, ...]:
    """The tasks of a read, generations first: they may be collected once they are merged.

    `fragments` are the base's, with their sizes in bytes; one that is not known (None) counts as
    `task_bytes`, which is about what a task reads at most, unless one fragment or generation alone
    is larger. With `whole_shards`, a shard's generations stay together, in one task of their own.
    `unflushed` has the sizes of the shards' unflushed rows, which are read like a generation.
    """
    if plan.search is not None or plan.nearest is not None:
        return (ReadTask(searches=True),)
    sizes = unflushed or {}
    shards = [list_sources(shard, sizes) for shard in plan.shards]
    if whole_shards:
        return (
            *(ReadTask(generations=found) for found in shards if found),
            *(ReadTask(fragments=found) for found in _pack(fragments, task_bytes)),
        )
    generations = [
        (one, sizes[one[0]] if one[1] is None else one[1].in_memory_bytes)
        for shard in shards
        for one in shard
    ]
    return (
        *(ReadTask(generations=found) for found in _pack(generations, task_bytes)),
        *(ReadTask(fragments=found) for found in _pack(fragments, task_bytes)),
    )


def list_sources(
    shard: ShardRead, unflushed: Container[ShardId] = ()
) -> tuple[GenerationRead, ...]:
    """The sources of a shard's pending rows, newest first."""
    first = ((shard.shard_id, None),) if shard.shard_id in unflushed else ()
    return (*first, *((shard.shard_id, g) for g in shard.generations))


def _pack(items: Sequence[tuple[T, int | None]], task_bytes: int) -> Iterator[tuple[T, ...]]:
    """Pack adjacent items into groups of about the same size."""
    sizes = [task_bytes if size is None else size for _, size in items]
    groups = max(1, ceil(sum(sizes) / task_bytes))
    aim = sum(sizes) / groups
    seen, places = 0, []
    for size in sizes:
        # An item's middle decides its group, which keeps groups even, whatever the sizes.
        places.append(int((seen + size / 2) / aim) if aim else 0)
        seen += size
    for _, found in groupby(zip(places, items, strict=True), key=lambda pair: pair[0]):
        yield tuple(item for _, (item, _) in found)
