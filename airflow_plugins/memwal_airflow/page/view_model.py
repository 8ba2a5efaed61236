"""What the page shows, out of what the feed knows. Pure: no clock, no file, no network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from memwal.jobs.status.report import ShardStatusReport, StatusTableReport
from memwal.report import LeaseReport
from memwal_airflow.page import plots
from memwal_airflow.page.answers import Look, Run, is_broken, moment
from memwal_airflow.page.feed import Seen
from memwal_airflow.page.health import (
    STATES,
    Health,
    HealthLimits,
    health_of,
)

SHARDS_PAGE_MAX = 200
RUNS_SHOWN_MAX = 100
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardQuery:
    """Which shards of a table to show."""

    text: str = ""
    only: str = "all"
    sort: str = "pending"
    offset: int = 0
    limit: int = 50


def overview(seen: Seen, now: datetime, limits: HealthLimits) -> Json:
    """All tables, the worst first, and how many there are in each state."""
    lines = [table_line(look, now, limits) for look in seen.looks]
    rank = {state: place for place, state in enumerate(STATES)}
    lines.sort(
        key=lambda line: (
            rank[line["health"]["state"]],
            -line["pending"]["generations"] if line["pending"] else 0,
            line["name"],
        )
    )
    counts = dict.fromkeys(STATES, 0)
    for line in lines:
        counts[line["health"]["state"]] += 1
    return {
        "now": iso(now),
        "problem": seen.problem,
        "looked_at": iso(seen.planned_at),
        "busy": seen.busy,
        "left_out": seen.tables_left_out,
        "counts": counts,
        "tables": lines,
    }


def table_line(look: Look, now: datetime, limits: HealthLimits) -> Json:
    """One table in the overview."""
    status, totals = look.status, look.totals
    return {
        "name": look.name,
        "uri": look.uri,
        **_freshness(look, health_of(look, now, limits)),
        "pending": asdict(totals.pending) if totals else None,
        "oldest_pending_at": iso(totals.oldest_pending_at) if totals else None,
        "shards": totals.shards if totals else None,
        "index_lag": _index_lag(status),
        "storage": _storage(status),
        "reclaimable": status.reclaimable.model_dump() if status and status.reclaimable else None,
        "snapshot_at": status.snapshot.taken_at if status and status.snapshot else None,
        "lease": _lease(status.lease if status else None, now),
        "last_run": run_line(look.runs[0]) if look.runs else None,
        # Two points a run, so that many runs are enough.
        "trend": plots.trend(_backlog(look, runs_max=plots.TREND_POINTS_MAX)),
    }


def table_page(look: Look, now: datetime, limits: HealthLimits, query: ShardQuery) -> Json:
    """Everything about one table, with one page of its shards."""
    status = look.status
    return {
        "now": iso(now),
        **table_line(look, now, limits),
        "version": status.version if status else None,
        "rows": status.rows if status else None,
        "primary_key": list(status.primary_key) if status else [],
        "warnings": list(status.warnings[:20]) if status else [],
        "indexes": [index.model_dump(exclude={"caught_up"}) for index in status.indexes]
        if status
        else [],
        "snapshot": status.snapshot.model_dump() if status and status.snapshot else None,
        "shard_page": shard_page(look, query),
        "runs": [run_line(run) for run in look.runs[:RUNS_SHOWN_MAX]],
        "runs_unreadable": look.runs_unreadable,
        "runs_error": look.runs_error,
        "backlog": _backlog(look),
        "throughput": plots.throughput(look.runs),
    }


def _freshness(look: Look, health: Health) -> Json:
    """How the table is, and how old and how sure that is."""
    return {
        "health": {"state": health.state, "reasons": list(health.reasons)},
        "looked_at": iso(look.status_at),
        "looking": look.looking,
        "error": look.error,
        "error_at": iso(look.error_at),
    }


def _backlog(look: Look, runs_max: int | None = None) -> list[Any]:
    runs = look.runs[:runs_max]
    return plots.backlog(runs, iso(look.status_at), look.totals.pending if look.totals else None)


def _index_lag(status: StatusTableReport | None) -> Json | None:
    """The index that is furthest behind. None where there is no index."""
    if status is None or not status.indexes:
        return None
    lags = [index.lag_generations for index in status.indexes]
    known = [lag for lag in lags if lag is not None]
    return {
        "indexes": len(lags),
        "generations": max(known) if known else None,
        "unrecorded": len(lags) - len(known),
        "unindexed_rows": max((index.unindexed_rows or 0 for index in status.indexes), default=0),
    }


def _storage(status: StatusTableReport | None) -> Json | None:
    if status is None or status.storage is None:
        return None
    storage = status.storage
    return {
        "base": storage.base_bytes,
        "pending": storage.pending_bytes,
        "reclaimable": storage.reclaimable_bytes,
        "wal": storage.wal_bytes,
    }


def _lease(lease: LeaseReport | None, now: datetime) -> Json | None:
    """The newest claim. One that ran out since the look is shown as expired."""
    if lease is None:
        return None
    expires = moment(lease.expires_at)
    over = lease.state == "held" and expires is not None and expires <= now
    return {**lease.model_dump(), "state": "expired" if over else lease.state}


def shard_page(look: Look, query: ShardQuery) -> Json:
    """One page of the shards that fit the query, and how many there are."""
    shards = look.status.shards if look.status else ()
    total = look.totals.shards if look.totals else 0
    text = query.text.strip().lower()
    only = _ONLY.get(query.only, _ONLY["all"])
    fitting = [s for s in shards if only(s) and (not text or text in _haystack(s))]
    fitting.sort(key=_SORTS.get(query.sort, _SORTS["pending"]))
    offset = max(0, min(query.offset, max(len(fitting) - 1, 0)))
    limit = max(1, min(query.limit, SHARDS_PAGE_MAX))
    return {
        "total": total,
        "fitting": len(fitting),
        "left_out": total - len(shards),
        "offset": offset,
        "limit": limit,
        "shards": [shard_line(shard) for shard in fitting[offset : offset + limit]],
    }


def shard_line(shard: ShardStatusReport) -> Json:
    """One shard. `flushed_generation` is the newest one that its writer has flushed."""
    current = shard.current_generation
    pending = shard.pending_generations
    return {
        "shard_id": shard.shard_id,
        "status": shard.status,
        "broken": is_broken(shard),
        "error": shard.error,
        "writer_epoch": shard.writer_epoch,
        "flushed_generation": None if current is None else max(current - 1, 0),
        "merged_generation": shard.merged_generation,
        "pending": len(pending),
        "pending_from": min(pending, default=None),
        "pending_to": max(pending, default=None),
        "pending_bytes": shard.pending_bytes,
        "pending_rows": shard.pending_rows,
        "oldest_pending_at": shard.oldest_pending_flushed_at,
        "wal_entries": shard.wal_entries,
        "wal_bytes": shard.wal_bytes,
        "unflushed": shard.unflushed_wal_entries,
        "abandoned": shard.abandoned,
        "due_reasons": list(shard.due_reasons),
    }


def _haystack(shard: ShardStatusReport) -> str:
    return f"{shard.shard_id} {shard.status or ''}".lower()


def is_sealed(shard: ShardStatusReport) -> bool:
    """Whether the shard takes no more writes."""
    return (shard.status or "").upper() == "SEALED"


_ONLY: dict[str, Callable[[ShardStatusReport], bool]] = {
    "all": lambda shard: True,
    "pending": lambda shard: bool(shard.pending_generations),
    "due": lambda shard: bool(shard.due_reasons),
    "sealed": is_sealed,
    "abandoned": lambda shard: shard.abandoned,
    "broken": is_broken,
}
_SORTS: dict[str, Callable[[ShardStatusReport], Any]] = {
    "pending": lambda s: (not is_broken(s), -len(s.pending_generations), s.shard_id),
    "bytes": lambda s: (-(s.pending_bytes or 0), s.shard_id),
    "oldest": lambda s: (s.oldest_pending_flushed_at or "~", s.shard_id),
    "wal": lambda s: (-(s.wal_bytes or s.wal_entries or 0), s.shard_id),
    "id": lambda s: s.shard_id,
}


def run_line(run: Run) -> Json:
    """One run, with what it did in a few words."""
    return {
        "run_id": run["run_id"],
        "job": run["job"],
        "outcome": run["outcome"],
        "exit_code": run.get("exit_code"),
        "started_at": run["started_at"],
        "finished_at": run["finished_at"],
        "seconds": run.get("seconds"),
        "engine": run.get("engine"),
        "holder": run.get("holder"),
        "error": run.get("error"),
        "did": _did(run),
    }


# What a job's summary is worth in a line: key, and the unit that the page puts behind the number.
_DEEDS = (
    ("generations", "generations"),
    ("rows_inserted", "inserted"),
    ("rows_updated", "updated"),
    ("rows_deleted", "deleted"),
    ("indexes", "indexes"),
    ("rows_indexed", "rows indexed"),
    ("dropped", "dropped"),
    ("deleted", "deleted"),
    ("bytes_freed", "bytes:freed"),
    ("versions_expired", "versions expired"),
    ("bytes_rewritten", "bytes:rewritten"),
    ("num_shards", "shards"),
    ("repairs", "repairs"),
)


def _did(run: Run) -> list[Json]:
    summary = run.get("summary") or {}
    deeds = [{"value": summary[key], "unit": unit} for key, unit in _DEEDS if summary.get(key)]
    before, after = summary.get("fragments_before"), summary.get("fragments_after")
    if before is not None and after is not None:
        deeds.insert(0, {"value": before, "unit": "fragments:to", "to": after})
    return deeds


def iso(time: datetime | None) -> str | None:
    """ISO text, to the millisecond."""
    return None if time is None else time.isoformat(timespec="milliseconds")


def table_names(looks: Iterable[Look]) -> frozenset[str]:
    """The names that an action may be asked for."""
    return frozenset(look.name for look in looks)
