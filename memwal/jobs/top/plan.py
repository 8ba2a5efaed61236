"""What `top` shows: a row for each table, the rates, the order, and what keys do. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memwal.errors import MemWalError
from memwal.jobs.watch.plan import Lag, Need, Target, Waiting, find_need, order_tables
from memwal.model import LeaseClaim, TableView

RATE_SECONDS = 60.0
_ROUND_SECONDS = 1.0
# What object stores charge for a request, as in the dashboard.
_LISTED_DOLLARS, _READ_DOLLARS = 0.005 / 1000, 0.0004 / 1000
DOLLARS = {"list": _LISTED_DOLLARS, "put": _LISTED_DOLLARS, "get": _READ_DOLLARS}
_MONTH_SECONDS = 30 * 86_400


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One table. What is not known is None.

    `queue` is the table's place among those that need a round and that nobody works on. `running`
    is the job that holds the lease, since `running_seconds`. `cause` is why the table could not be
    looked at; `error` says that, or what keeps it from being merged.
    """

    table: str
    version: int | None = None
    pending_generations: int | None = None
    pending_bytes: int | None = None
    oldest_pending_seconds: float | None = None
    oldest_unindexed_seconds: float | None = None
    freshness_seconds: float | None = None
    index_lag_generations: int | None = None
    reclaimable_bytes: int | None = None
    rows_per_second: float | None = None
    needs: tuple[str, ...] = ()
    queue: int | None = None
    running: str | None = None
    holder: str | None = None
    running_seconds: float | None = None
    error: str | None = None
    cause: MemWalError | None = None

    @property
    def lag_seconds(self) -> float | None:
        """How far it is behind its writers, merged and indexed."""
        known = (self.oldest_pending_seconds, self.oldest_unindexed_seconds)
        return max((seconds for seconds in known if seconds is not None), default=None)

    @property
    def is_late(self) -> bool:
        """Whether that is more than its target."""
        return (self.lag_seconds or 0.0) > (self.freshness_seconds or math.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """All that is known now, with `problem` why nothing newer is; `dollars` are those of a month.

    `source` is the address of the metrics that it is from; None where tables were looked at.
    """

    source: str | None = None
    rows: Sequence[Row] = ()
    rows_per_second: float | None = None
    requests_per_second: float | None = None
    dollars: float | None = None
    problem: MemWalError | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted up to now, at several times; the last `RATE_SECONDS` give the rate."""

    samples: tuple[tuple[float, float], ...] = ()

    def add(self, at: float, total: float | None) -> Counted:
        """With the present total; one that fell, or is not known, begins anew."""
        if total is None:
            return Counted()
        kept = [sample for sample in self.samples if sample[0] >= at - RATE_SECONDS]
        if kept and total < kept[-1][1]:
            kept = []
        return Counted((*kept, (at, total)))

    def grow(self, at: float, more: float | None) -> Counted:
        """The same, with what was counted since the last time."""
        last = self.samples[-1][1] if self.samples else 0.0
        return self.add(at, None if more is None else last + more)

    @property
    def rate(self) -> float | None:
        """How much a second; None before there are two samples."""
        if len(self.samples) < 2:
            return None
        (began, first), (ended, last) = self.samples[0], self.samples[-1]
        return (last - first) / (ended - began) if ended > began else None


def price(requests: Mapping[str, float]) -> float:
    """What so many requests cost, in dollars."""
    return sum(count * DOLLARS.get(name, 0.0) for name, count in requests.items())


def price_month(dollars_per_second: float | None) -> float | None:
    """What a month costs at this rate."""
    return None if dollars_per_second is None else dollars_per_second * _MONTH_SECONDS


def count_merged(before: TableView | None, after: TableView) -> int | None:
    """The rows of the generations that were merged between two looks; None if not recorded."""
    if before is None:
        return 0
    listed = {
        (shard.shard_id, found.generation): found.physical_rows
        for view in (before, after)
        for shard in view.shards
        for found in shard.manifest.flushed_generations
    }
    then, now = before.mem_wal.merged, after.mem_wal.merged
    rows = [
        count
        for (shard, generation), count in listed.items()
        if then.get(shard, 0) < generation <= now.get(shard, 0)
    ]
    known = [count for count in rows if count is not None]
    return sum(known) if len(known) == len(rows) else None


def make_row(
    lag: Lag,
    need: Need | None,
    lease: LeaseClaim | None,
    *,
    rows_per_second: float | None,
    now: float,
    now_nanos: int,
) -> Row:
    """The row of a table that was looked at. `lease` is the newest claim, whatever its state."""
    is_held = lease is not None and not lease.released and lease.expires_at_nanos > now_nanos
    held = lease if is_held else None
    held_nanos = None if held is None else max(0, now_nanos - held.acquired_at_nanos)
    return Row(
        table=lag.table,
        version=lag.version,
        pending_generations=lag.pending_generations,
        pending_bytes=lag.pending_bytes,
        oldest_pending_seconds=lag.pending_seconds(now) or 0.0,
        oldest_unindexed_seconds=lag.unindexed_seconds(now) or 0.0,
        freshness_seconds=lag.freshness_seconds,
        index_lag_generations=max(lag.index_lag_generations.values(), default=0),
        reclaimable_bytes=lag.reclaimable_bytes,
        rows_per_second=rows_per_second,
        needs=() if need is None else need.jobs,
        running=None if held is None else held.job,
        holder=None if held is None else held.holder,
        running_seconds=None if held_nanos is None else held_nanos / 1e9,
        error=next((str(error) for error in lag.problems.values()), None),
    )


def judge_need(lag: Lag, target: Target, *, now: float, every_seconds: float) -> Need | None:
    """What a watch that has just been started would do on the table."""
    return find_need(
        lag, target, (), now=now, look_seconds=every_seconds, round_seconds=_ROUND_SECONDS
    )


def queue_up(rows: Sequence[Row], waiting: Sequence[Waiting], *, now: float) -> list[Row]:
    """The rows with their places in the queue, in which a watch would take the tables."""
    free = {row.table for row in rows if row.running is None}
    order = order_tables((table for table in waiting if table.table in free), now=now)
    places = {table: place for place, table in enumerate(order, start=1)}
    return [replace(row, queue=places.get(row.table)) for row in rows]


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric, as Prometheus's text has it."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_rows(samples: Sequence[Sample]) -> list[Row]:
    """The rows that a watch's metrics tell; who holds a lease is not among them."""
    found: dict[str, dict[str, list[Sample]]] = {}
    for sample in samples:
        if (table := sample.labels.get("table")) is not None:
            found.setdefault(table, {}).setdefault(sample.name, []).append(sample)
    return [_read_row(table, found[table]) for table in sorted(found)]


def _read_row(table: str, found: Mapping[str, Sequence[Sample]]) -> Row:
    def read(name: str) -> float | None:
        return max((sample.value for sample in found.get(f"memwal_{name}", ())), default=None)

    def count(name: str) -> int | None:
        value = read(name)
        return int(value) if value is not None and math.isfinite(value) else None

    failures = found.get("memwal_consecutive_failures", ())
    error = next((f"{f.labels.get('reason')}, {f.value:.0f} times" for f in failures), None)
    never = read("last_look_timestamp_seconds") == 0
    return Row(
        table=table,
        pending_generations=count("pending_generations"),
        pending_bytes=count("pending_bytes"),
        oldest_pending_seconds=read("oldest_pending_seconds"),
        oldest_unindexed_seconds=read("oldest_unindexed_seconds"),
        freshness_seconds=read("freshness_target_seconds"),
        index_lag_generations=count("index_lag_generations"),
        reclaimable_bytes=count("reclaimable_bytes"),
        queue=count("queue_place"),
        running="another run" if (held := read("lease_held_seconds")) is not None else None,
        running_seconds=held,
        error=error or ("not looked at yet" if never else None),
    )


def sum_samples(samples: Sequence[Sample], name: str, **labels: str) -> dict[str, float]:
    """The values of a counter, of the series with these labels, by operation."""
    total: dict[str, float] = {}
    for sample in samples:
        if sample.name == name and labels.items() <= sample.labels.items():
            operation = sample.labels.get("operation", "")
            total[operation] = total.get(operation, 0.0) + sample.value
    return total


# ---- order, filter, keys

SORTS: Mapping[str, Callable[[Row], Any]] = {
    "lag": lambda row: row.lag_seconds,
    "table": lambda row: row.table,
    "pending": lambda row: row.pending_generations,
    "bytes": lambda row: row.pending_bytes,
    "index": lambda row: row.index_lag_generations,
    "garbage": lambda row: row.reclaimable_bytes,
    "rows": lambda row: row.rows_per_second,
    "queue": lambda row: row.queue,
    "running": lambda row: row.running_seconds,
}
"""The columns to sort by: names and places from the first, all else from the largest."""
_FROM_FIRST = ("table", "queue")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the screen is to show: sorted, filtered by a text, from a row on.

    `typing`: the filter is being typed.
    """

    sort: str = "lag"
    reverse: bool = False
    text: str = ""
    typing: bool = False
    first: int = 0


def choose_rows(rows: Sequence[Row], asked: Asked) -> list[Row]:
    """The rows that match, in order: those that could not be read first, unknown values last."""
    text, value = asked.text.lower(), SORTS[asked.sort]
    found = [row for row in rows if text in row.table.lower()]
    found.sort(key=lambda row: row.table)
    known = [row for row in found if value(row) is not None]
    known.sort(key=value, reverse=(asked.sort not in _FROM_FIRST) != asked.reverse)
    unknown = [row for row in found if value(row) is None]
    unread = [row for row in unknown if row.cause is not None]
    return [*unread, *known, *(row for row in unknown if row.cause is None)]


def press(asked: Asked, key: str, *, rows: int, lines: int) -> Asked | None:
    """What is asked for after a key; None to quit. `lines` of the `rows` fit on the screen."""
    if asked.typing:
        return _type(asked, key)
    moves = {"j": 1, "down": 1, "k": -1, "up": -1, " ": lines, "page down": lines,
             "page up": -lines, "home": -rows, "end": rows}  # fmt: skip
    if key in moves:
        first = min(asked.first + moves[key], rows - lines)
        return replace(asked, first=max(0, first))
    match key:
        case "q":
            return None
        case "s":
            names = list(SORTS)
            following = names[(names.index(asked.sort) + 1) % len(names)]
            return replace(asked, sort=following, reverse=False, first=0)
        case "r":
            return replace(asked, reverse=not asked.reverse, first=0)
        case "/":
            return replace(asked, typing=True)
        case "escape":
            return replace(asked, text="", first=0)
    return asked


def _type(asked: Asked, key: str) -> Asked:
    match key:
        case "enter":
            return replace(asked, typing=False)
        case "escape":
            return replace(asked, typing=False, text="", first=0)
        case "backspace":
            return replace(asked, text=asked.text[:-1], first=0)
    if len(key) == 1 and key.isprintable():
        return replace(asked, text=asked.text + key, first=0)
    return asked
