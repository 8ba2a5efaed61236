"""Decides what a merging read reads. Pure.

The rules are those of the spec's section "LSM Tree Merging Read". Within a shard, the newest row of
a key wins: the highest generation, then the highest row address in it; the base table is older than
every generation. A winner that is a tombstone means that the key is deleted. Generations at or
below the version's own watermark are skipped (pylance reads them again, and then hides what changed
in the base since). Shards are not compared with each other, since a key lives in one of them; every
shard's keys hide the base's rows.

A filter is asked of winners only: asked earlier, it would bring back an older row of a key whose
newest one it does not match.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memwal.errors import Refused, Usage
from memwal.model import FlushedGeneration, ShardId, ShardView, TableView
from memwal.rows import sql
from memwal.rows.holes import find_holes, hole_text, missing_text

# Lance's own columns, which differ between the base table and a generation that holds the same row.
_SYSTEM_COLUMNS = re.compile(r"\b(_row\w+|_tombstone)\b", re.IGNORECASE)

DISTANCE = "_distance"


class Incomplete(Refused):
    """A generation that the version needs is not listed any more, and not merged in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nearest:
    """The k rows whose vector is nearest to `vector`.

    `metric` is `l2`, `cosine` or `dot`; None is that of the column's index, or `l2` without one.
    `nprobes` is how many partitions of an index are looked into; None leaves it to Lance.
    """

    column: str
    vector: tuple[float, ...]
    k: int = 10
    metric: str | None = None
    nprobes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRequest:
    """What is asked for. None is no bound: all columns, all rows, the latest version.

    `keys` are values in the primary key's order. `nearest` and `keys` go with a filter, which
    both are restricted by.
    """

    columns: tuple[str, ...] | None = None
    filter: str | None = None
    limit: int | None = None
    keys: tuple[tuple[object, ...], ...] | None = None
    nearest: Nearest | None = None
    version: int | None = None
    holes_allowed: bool = False
    reinitialised_allowed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRead:
    """A shard's part: `generations` newest first, `skipped` those that the version has merged."""

    shard_id: ShardId
    merged_generation: int
    generations: tuple[FlushedGeneration, ...]
    skipped: tuple[FlushedGeneration, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunedShard:
    """A shard that is left out whole, and why it can hold no row that matches."""

    shard_id: ShardId
    reason: str
    generations: tuple[FlushedGeneration, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadPlan:
    """What one read reads: the base at `version`, and generations of shards.

    `columns` are shown, in that order; `hidden` are key columns that are read besides. `keys` are
    the only ones wanted, if there are any; `predicate` is the filter with their condition, as SQL
    for Lance.
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
    limit: int | None = None
    nearest: Nearest | None = None

    @property
    def scanned(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (*self.columns, *self.hidden)

    @property
    def generations(self) -> int:
        """How many generations are read."""
        return sum(len(shard.generations) for shard in self.shards)


def plan_read(
    view: TableView, request: ReadRequest, pruned: Mapping[ShardId, str] | None = None
) -> ReadPlan:
    """Decide a read of `view`, whose version is the one asked for.

    `pruned` are shards that hold no version of any row that can match, with the reason. Raises
    Usage for a request that does not fit the table, Incomplete when a generation is missing that
    the version needs, and what is wrong with a shard that can't be read.
    """
    for broken in view.broken:
        raise broken.error
    columns = _columns(view, request)
    _check_bounds(view, request)
    reasons = pruned or {}
    shards = tuple(s for s in view.shards if s.shard_id not in reasons)
    if not request.holes_allowed:
        for shard in shards:
            check_whole(view, shard, of_version=request.version)
    return ReadPlan(
        uri=view.uri,
        version=view.version,
        primary_key=view.primary_key,
        columns=columns,
        hidden=tuple(key for key in view.primary_key if key not in columns),
        shards=tuple(_shard(shard) for shard in shards),
        pruned=tuple(
            PrunedShard(shard_id=s.shard_id, reason=reasons[s.shard_id], generations=s.pending)
            for s in view.shards
            if s.shard_id in reasons
        ),
        keys=request.keys,
        filter=request.filter,
        predicate=predicate_of(view.primary_key, request),
        limit=request.limit,
        nearest=request.nearest,
    )


def _shard(shard: ShardView) -> ShardRead:
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

    One that was merged by a later version and collected since is such a hole: the rows that it
    changed would come out with older values.
    """
    for hole in find_holes(shard):
        where = f"{view.uri}: version {view.version} would come out with older values of some rows"
        if of_version is None:
            raise Incomplete(f"{where}: {hole_text(shard, hole)}")
        raise Incomplete(
            f"{where}: {missing_text(shard, hole)}; a later version has merged what is missing, "
            "and it was collected: read a later version"
        )


def _columns(view: TableView, request: ReadRequest) -> tuple[str, ...]:
    known = [column.name for column in view.columns]
    if request.columns is None:
        return tuple(known)
    for name in request.columns:
        if name not in known:
            raise Usage(
                f"{view.uri}: version {view.version} has no column {name!r}; it has "
                f"{', '.join(known)}"
            )
    if not request.columns or len(set(request.columns)) < len(request.columns):
        raise Usage("columns must be named, each of them once")
    return request.columns


def _check_bounds(view: TableView, request: ReadRequest) -> None:
    if request.limit is not None and request.limit < 0:
        raise Usage(f"limit {request.limit} is negative")
    if request.filter is not None:
        check_filter(view, request.filter)
    if request.keys is not None and not view.primary_key:
        raise Usage(f"{view.uri}: the table has no primary key to look keys up by")
    for key in request.keys or ():
        if len(key) != len(view.primary_key):
            raise Usage(f"a key needs a value for each of {', '.join(view.primary_key)}")
    nearest = request.nearest
    if nearest is None:
        return
    if nearest.column not in [column.name for column in view.columns]:
        raise Usage(f"{view.uri}: there is no column {nearest.column!r} to search")
    if nearest.k < 1:
        raise Usage(f"k {nearest.k} is not positive")
    if DISTANCE in (request.columns or ()):
        raise Usage(f"{DISTANCE} is added by itself")


def check_filter(view: TableView, text: str) -> None:
    """Raise Usage for a filter that means different things in the base and in a generation."""
    if not text.strip():
        raise Usage("the filter is empty")
    names = {column.name.lower() for column in view.columns}
    found = _SYSTEM_COLUMNS.search(text)
    if found is not None and found[0].lower() not in names:
        raise Usage(
            f"a filter can't use {found[0]!r}: a row has another value there in a generation than "
            "in the base table"
        )
    if not _closed(text):
        raise Usage(f"the filter's parentheses or quotes are not closed: {text}")


def _closed(text: str) -> bool:
    """Whether parentheses are balanced outside of quotes; Lance takes `a) OR (b`."""
    depth, quote = 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        else:
            depth += (char == "(") - (char == ")")
            if depth < 0:
                return False
    return depth == 0 and not quote


def predicate_of(primary_key: Sequence[str], request: ReadRequest) -> str | None:
    """The filter and the keys' condition as one SQL text."""
    # The line break ends a comment at the filter's end.
    parts = [] if request.filter is None else [f"({request.filter}\n)"]
    if request.keys is not None:
        condition = sql.keys_in(primary_key, request.keys) if request.keys else "false"
        parts.insert(0, condition)
    return " AND ".join(parts) or None
