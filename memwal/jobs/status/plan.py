"""Judges what a status shows: shards due or abandoned, and conditions of `--fail-if`. Pure.

A shard is due when any trigger crosses: how many generations are pending, how many bytes, or how
old the oldest of them is. So a quiet shard is never starved by a count.
"""

from __future__ import annotations

import operator
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import count

from memwal.errors import Corruption, Usage
from memwal.format.layout import SYSTEM_INDEXES
from memwal.format.replay import ENTRY_BYTES_MIN, select_above
from memwal.indexes import covering_indexes
from memwal.model import (
    FlushedGeneration,
    ShardFiles,
    ShardId,
    ShardManifest,
    ShardStatus,
    ShardView,
    StoredFile,
    TableState,
    TableView,
    sum_known,
)
from memwal.text import name_some, parse_bytes, parse_seconds

SHARDS_NAMED_MAX = 20
_DAMAGED = "its WAL is damaged: {}. `memwal rescue TABLE --dry-run` says what to do"
_SETTLED_NANOS = 60 * 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class DueLimits:
    """When a shard is due. Bytes are in-memory bytes as the writer recorded them."""

    due_generations_min: int = 4
    due_bytes_min: int = 64 * 1024 * 1024
    due_age_seconds_min: float = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class AbandonedLimits:
    """How long a shard with unflushed rows must be silent to be called abandoned."""

    abandoned_after_seconds: float = 3600.0


def find_due_reasons(shard: ShardView, limits: DueLimits, now_nanos: int) -> tuple[str, ...]:
    """Why the shard is due, one text for each trigger; empty when it is not due.

    A SEALED shard never is, since no merge would take it. An unknown size or age crosses no trigger
    of its own; the other triggers still count.
    """
    pending = shard.pending
    if not pending or shard.manifest.status is ShardStatus.SEALED:
        return ()
    reasons = []
    if len(pending) >= limits.due_generations_min:
        reasons.append(f"{len(pending)} pending generations >= {limits.due_generations_min}")
    size = sum(g.in_memory_bytes or 0 for g in pending)
    if size >= limits.due_bytes_min:
        reasons.append(f"{size} pending bytes >= {limits.due_bytes_min}")
    flushed = shard.oldest_pending_flushed_at_nanos
    if flushed is not None:
        age = (now_nanos - flushed) / 1e9
        if age >= limits.due_age_seconds_min:
            reasons.append(
                f"the oldest pending generation is {age:.0f} s old >= "
                f"{limits.due_age_seconds_min:g} s"
            )
    return tuple(reasons)


def find_due_shards(
    view: TableView, limits: DueLimits, now_nanos: int
) -> Mapping[ShardId, tuple[str, ...]]:
    """The shards that are due, with the reasons.

    A table without a primary key has none, as it can't be merged.
    """
    if not view.primary_key:
        return {}
    found = {s.shard_id: find_due_reasons(s, limits, now_nanos) for s in view.shards}
    return {shard: reasons for shard, reasons in found.items() if reasons}


def describe_due_shards(shards: Mapping[ShardId, Sequence[str]]) -> tuple[str, ...]:
    """The shards' reasons, one line a shard, up to `SHARDS_NAMED_MAX` shards."""
    lines = [f"shard {shard[:8]}…: {'; '.join(reasons)}" for shard, reasons in shards.items()]
    return name_some(lines, SHARDS_NAMED_MAX, "shards")


@dataclass(frozen=True, kw_only=True, slots=True)
class WalSize:
    """A shard's WAL as a listing shows it; its numbers are None if it was not listed.

    The first of its entries that are in no generation was put at `unflushed_at_nanos`. `abandoned`
    means that it has such entries and no writer has put anything for long.
    `manifests` counts the objects that are its manifests. `wal_problem` tells of an entry that is
    missing or torn. `former` are the sizes in bytes of generations of a former MemWAL index that
    wait for garbage.
    """

    wal_entries: int | None = None
    wal_bytes: int | None = None
    unflushed_wal_entries: int | None = None
    unflushed_at_nanos: int | None = None
    idle_seconds: float | None = None
    abandoned: bool = False
    manifests: int | None = None
    wal_problem: str | None = None
    former: tuple[int, ...] = ()


def measure_wal(
    manifest: ShardManifest,
    files: ShardFiles | None,
    limits: AbandonedLimits,
    now_nanos: int,
    is_covered: Callable[[int, StoredFile], bool],
) -> WalSize:
    """Measure a shard's WAL by its listing.

    `is_covered` tells whether a generation has an entry, and may raise Corruption: pylance
    understates the replay position at times (see `format.replay`), so generations may have some of
    the entries above it. As a rule it is called for the first of these alone, and for the last one
    of a shard that has been silent for a while.
    """
    if files is None:
        return WalSize()
    listed = files.wal
    newest = max((info.modified_at_nanos for _, info in listed), default=None)
    idle = None if newest is None else max(0.0, (now_nanos - newest) / 1e9)
    silent = min(_SETTLED_NANOS / 1e9, limits.abandoned_after_seconds)
    problem = _find_problem(manifest, listed, now_nanos)

    def waits(entry: tuple[int, StoredFile]) -> bool:
        nonlocal problem
        try:
            return not is_covered(*entry)
        except Corruption:
            if now_nanos - entry[1].modified_at_nanos > _SETTLED_NANOS:
                problem = problem or f"position {entry[0]} can't be read"
            return True

    unflushed = select_above(manifest, listed)
    if unflushed and idle is not None and idle >= silent and not waits(unflushed[-1]):
        unflushed = []
    if unflushed and not waits(unflushed[0]):
        unflushed = unflushed[bisect_left(unflushed, True, lo=1, key=waits) :]
    return WalSize(
        wal_entries=len(listed),
        wal_bytes=sum(info.size_bytes for _, info in listed),
        unflushed_wal_entries=len(unflushed),
        unflushed_at_nanos=unflushed[0][1].modified_at_nanos if unflushed else None,
        idle_seconds=None if idle is None else round(idle, 1),
        abandoned=bool(unflushed) and idle is not None and idle >= limits.abandoned_after_seconds,
        manifests=files.manifests,
        wal_problem=None if problem is None else _DAMAGED.format(problem),
        former=tuple(files.former.values()),
    )


def _find_problem(
    manifest: ShardManifest, listed: Sequence[tuple[int, StoredFile]], now_nanos: int
) -> str | None:
    """What names and sizes alone tell of missing and torn entries; None for nothing.

    Only entries that are old enough count: a listing is no snapshot, so one put meanwhile may show
    up without an earlier one.
    """
    first = manifest.replay_after_wal_entry_position + 1
    stored = {position for position, _ in listed}
    settled = [
        (position, info)
        for position, info in listed
        if position >= first and now_nanos - info.modified_at_nanos > _SETTLED_NANOS
    ]
    highest = max((position for position, _ in settled), default=0)
    if (tip := next(p for p in count(first) if p not in stored)) < highest:
        return f"position {tip} is missing, but {highest} was written"
    torn = [position for position, info in settled if info.size_bytes < ENTRY_BYTES_MIN]
    return f"position {torn[0]} is torn" if torn else None


def count_lag(merged: Mapping[ShardId, int], recorded: Mapping[ShardId, int] | None) -> int | None:
    """How far the index is behind, in generations, at its worst shard.

    None when something is merged but no progress of the index is recorded: absent is not caught up.
    """
    if not merged:
        return 0
    if recorded is None:
        return None
    return max(generation - recorded.get(shard, 0) for shard, generation in merged.items())


def count_lags(view: TableView) -> dict[str, int]:
    """How far each index is behind; one without recorded progress, by all that is merged."""
    recorded, merged = view.mem_wal.index_catchup, view.mem_wal.merged
    names = {entry.name for entry in view.manifest.indexes} - SYSTEM_INDEXES
    return {name: count_lag(merged, recorded.get(name, {})) or 0 for name in sorted(names)}


def find_reclaimable(view: TableView) -> list[FlushedGeneration]:
    """Listed generations that are merged and covered by every index that must cover them."""
    names = covering_indexes(view.manifest, view.mem_wal)
    covered = {s.shard_id: view.mem_wal.caught_up_to(s.shard_id, names) for s in view.shards}
    return [
        generation
        for shard in view.shards
        for generation in shard.manifest.flushed_generations
        if generation.generation <= covered[shard.shard_id]
    ]


def take_state(view: TableView, now_nanos: int, wals: Iterable[WalSize] = ()) -> TableState:
    """How a table stands by a view, and by its shards' WALs as far as they were listed."""
    pending = [generation for shard in view.shards for generation in shard.pending]
    times = [s.oldest_pending_flushed_at_nanos for s in view.shards if s.pending]
    known = [time for time in times if time is not None]
    wals = list(wals)
    abandoned = [None if wal.wal_entries is None else int(wal.abandoned) for wal in wals]
    waiting = [wal.unflushed_at_nanos for wal in wals if wal.unflushed_at_nanos is not None]
    reclaimable = [g.in_memory_bytes for g in find_reclaimable(view)]
    reclaimable += [size for wal in wals for size in wal.former]
    return TableState(
        looked_at_nanos=now_nanos,
        version=view.version,
        shards=len(view.shards),
        broken_shards=len(view.broken),
        pending_generations=len(pending),
        pending_bytes=sum_known(g.in_memory_bytes for g in pending),
        oldest_pending_at_nanos=min(known) if known and len(known) == len(times) else None,
        index_lag_generations=count_lags(view),
        reclaimable_generations=len(reclaimable),
        reclaimable_bytes=sum_known(reclaimable),
        abandoned_shards=sum_known(abandoned),
        unflushed_shards=None if None in abandoned else len(waiting),
        oldest_unflushed_at_nanos=min(waiting, default=None),
    )


def _parse_count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError(f"{text!r}: expected a count, such as 10")
    return int(text)


_NUMBERS: Mapping[str, Callable[[str], float]] = {
    "pending_generations": _parse_count,
    "pending_bytes": parse_bytes,
    "oldest_pending_seconds": parse_seconds,
    "index_lag_generations": _parse_count,
    "reclaimable_bytes": parse_bytes,
    "abandoned_shards": _parse_count,
    "unflushed_seconds": parse_seconds,
    "backup_age_seconds": parse_seconds,
}
_SHORT = {"backup-age": "backup_age_seconds"}
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One condition of `--fail-if`; `text` is as it was typed."""

    text: str
    word: str
    operator: str
    number: float

    def holds(self, value: float | None) -> bool:
        """Whether the condition holds for the value; it holds for an unknown one (None)."""
        return value is None or _OPERATORS[self.operator](value, self.number)

    def describe(self, value: float | None) -> str:
        """Say in one line that the condition holds, with the value."""
        found = "is not known, which counts as holding" if value is None else f"is {value:,}"
        return f"--fail-if {self.text!r}: {self.word} {found}"


def find_word(condition: str) -> str:
    """The word of a condition's text."""
    return parse_condition(condition).word


def parse_condition(text: str) -> Condition:
    """Parse `WORD OPERATOR NUMBER`, such as `pending_bytes > 1GiB`.

    Raises Usage for anything else, naming the words or operators that there are.
    """
    match = re.fullmatch(r"\s*([^\s<>=!]*)\s*([<>=!]*)\s*(.*?)\s*", text, re.DOTALL)
    word, sign, number = match.groups() if match else ("", "", "")
    word = _SHORT.get(word, word)
    if word not in _NUMBERS:
        near = get_close_matches(word, _NUMBERS, 1)
        meant = f" (is {near[0]} meant?)" if near else ""
        words = ", ".join(_NUMBERS)
        raise Usage(f"--fail-if {text!r}: unknown word {word!r}{meant}; the words are {words}")
    if sign not in _OPERATORS:
        raise Usage(
            f"--fail-if {text!r}: unknown operator {sign!r}; expected one of "
            f"{' '.join(_OPERATORS)} between {word} and a number"
        )
    try:
        parsed = _NUMBERS[word](re.sub(r"(?<=[0-9]) +(?=[A-Za-z])", "", number))
    except ValueError as error:
        raise Usage(f"--fail-if {text!r}: {error}") from None
    return Condition(text=text.strip(), word=word, operator=sign, number=parsed)
