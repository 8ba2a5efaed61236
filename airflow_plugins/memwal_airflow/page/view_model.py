"""Turns what the feed knows into what the page shows. Pure: no clock, no file, no network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from memwal.jobs.garbage.request import CURSOR_AGE_SECONDS
from memwal.jobs.status.report import ShardStatusReport, StatusTableReport
from memwal.report import CursorReport
from memwal_airflow.page import plots
from memwal_airflow.page.alerts import list_alerts, show_target
from memwal_airflow.page.answers import Look, is_broken, parse_time, read_lease
from memwal_airflow.page.details import Detail
from memwal_airflow.page.feed import Seen
from memwal_airflow.page.health import STATES, Health, HealthLimits, judge_health
from memwal_airflow.page.history import RunQuery, run_page, show_run
from memwal_airflow.page.plots import iso

SHARDS_PAGE_MAX = 200
Json = dict[str, Any]
# What is shown of a table before its first look.
_NOTHING = StatusTableReport(table="", outcome="")
_NEWEST_RUNS = RunQuery()
_NONE_OLDER = Detail()


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardQuery:
    """Which shards of a table to show."""

    text: str = ""
    only: str = "all"
    sort: str = "pending"
    offset: int = 0
    limit: int = 50


def show_overview(seen: Seen, now: datetime, limits: HealthLimits) -> Json:
    """Show all tables, the worst first, and how many there are in each state."""
    lines = [show_line(look, now, limits) for look in seen.looks]
    rank = {state: place for place, state in enumerate(STATES)}
    lines.sort(
        key=lambda line: (
            rank[line["health"]["state"]],
            -((line["pending"] or {}).get("generations") or 0),
            line["name"],
        )
    )
    counts = dict.fromkeys(STATES, 0)
    for line in lines:
        counts[line["health"]["state"]] += 1
    return {
        "now": iso(now),
        "problem": seen.problem,
        "missing": asdict(seen.missing) if seen.missing else None,
        "planned_at": iso(seen.planned_at),
        "looked_at": iso(_looked_at(seen)),
        "busy": seen.busy,
        "left_out": seen.tables_left_out,
        "counts": counts,
        "tables": lines,
    }


def _looked_at(seen: Seen) -> datetime | None:
    """Return the oldest of the tables' last looks, except for tables whose last look failed."""
    well = [look.status_at for look in seen.looks if look.status_at and look.error is None]
    return min(well, default=None)


def show_line(look: Look, now: datetime, limits: HealthLimits) -> Json:
    """Show one table as a line of the overview."""
    status = look.status or _NOTHING
    lease = read_lease(status, now)
    return {
        "name": look.name,
        "uri": look.uri,
        **_show_freshness(look, judge_health(look, now, limits)),
        "pending": _show_pending(status) if look.status else None,
        "oldest_pending_at": iso(look.oldest_pending_at),
        "shards": look.num_shards,
        "index_lag": _show_index_lag(status),
        **status.model_dump(include={"reclaimable"}),
        "storage": _show_storage(status),
        "snapshot_at": status.snapshot.taken_at if status.snapshot else None,
        "lease": lease.model_dump() if lease else None,
        "last_run": show_run(look.runs[0]) if look.runs else None,
        # Each run makes two points, so this many runs are more than enough.
        "trend": plots.trend(_backlog(look, runs_max=plots.TREND_POINTS_MAX)),
    }


def show_table(
    look: Look,
    now: datetime,
    limits: HealthLimits,
    query: ShardQuery,
    root: str = "",
    runs: RunQuery = _NEWEST_RUNS,
    older: Detail = _NONE_OLDER,
) -> Json:
    """Show everything about one table, with one page of its shards and one of its runs.

    `root` is Airflow's own path; `older` holds older run records than those of the look, as far as
    they have been asked for.
    """
    status = look.status or _NOTHING
    return {
        "now": iso(now),
        **show_line(look, now, limits),
        **status.model_dump(include={"version", "rows", "primary_key", "snapshot", "backup"}),
        "alerts": list_alerts(look, judge_health(look, now, limits)),
        "freshness": show_target(look, now),
        "checkpoints": [found.model_dump(exclude={"cut", "tag"}) for found in status.checkpoints],
        "cursors": [_show_cursor(found) for found in status.cursors],
        "indexes": [index.model_dump(exclude={"caught_up"}) for index in status.indexes],
        "shard_page": shard_page(look, query),
        "run_page": run_page(look.runs, older, runs, root),
        "last_garbage": next((show_run(r) for r in look.runs if r["job"] == "garbage"), None),
        "runs_unreadable": look.runs_unreadable,
        "runs_error": look.runs_error,
        "backlog": _backlog(look),
        "throughput": plots.throughput(look.runs),
    }


def _show_cursor(found: CursorReport) -> Json:
    """Show a cursor, and until when it keeps versions if nobody moves it."""
    moved = parse_time(found.moved_at)
    kept = timedelta(seconds=CURSOR_AGE_SECONDS)
    return {
        **found.model_dump(include={"name", "version", "behind", "moved_at", "holder"}),
        "expires_at": iso(moved + kept if moved else None),
    }


def _show_freshness(look: Look, health: Health) -> Json:
    """Show the table's health, and how old and how certain the data behind it are."""
    return {
        "health": {
            "state": health.state,
            "reasons": list(health.reasons),
            "marks": list(health.marks),
        },
        "looked_at": iso(look.status_at),
        "looking": look.looking,
        "error": look.error,
        "error_at": iso(look.error_at),
        "unreachable_since": iso(look.unreachable_since),
        "next_try_at": iso(look.next_try_at),
    }


def _backlog(look: Look, runs_max: int | None = None) -> list[Any]:
    runs = look.runs[:runs_max]
    pending = None if look.status is None else _show_pending(look.status)
    return plots.backlog(runs, iso(look.status_at), pending)


def _show_pending(status: StatusTableReport) -> Json:
    return {"generations": status.pending_generations, "bytes": status.pending_bytes}


def _show_storage(status: StatusTableReport) -> Json | None:
    """Show bytes by kind: stored ones, and those of generations in memory."""
    if status.storage is None:
        return None
    sizes = status.model_dump(include={"pending_bytes", "reclaimable_bytes"})
    return {**status.storage.model_dump(), **sizes}


def _show_index_lag(status: StatusTableReport) -> Json | None:
    """Show the index that is furthest behind; None if there is no index."""
    if not status.indexes:
        return None
    lags = [index.lag_generations for index in status.indexes]
    known = [lag for lag in lags if lag is not None]
    return {
        "indexes": len(lags),
        "generations": max(known) if known else None,
        "unrecorded": len(lags) - len(known),
        "unindexed_rows": max((index.unindexed_rows or 0 for index in status.indexes), default=0),
    }


def shard_page(look: Look, query: ShardQuery) -> Json:
    """Return one page of the shards that match the query, and how many match."""
    shards = look.status.shards if look.status else ()
    total = look.num_shards or 0
    text = query.text.strip().lower()
    only = _ONLY.get(query.only, _ONLY["all"])
    fitting = [s for s in shards if only(s) and text in f"{s.shard_id} {s.status or ''}".lower()]
    fitting.sort(key=_SORTS.get(query.sort, _SORTS["pending"]))
    offset = max(0, min(query.offset, max(len(fitting) - 1, 0)))
    limit = max(1, min(query.limit, SHARDS_PAGE_MAX))
    return {
        "total": total,
        "fitting": len(fitting),
        "left_out": total - len(shards),
        "offset": offset,
        "limit": limit,
        "shards": [show_shard(shard) for shard in fitting[offset : offset + limit]],
    }


_SHARD_FIELDS = {
    *("shard_id", "status", "error", "writer_epoch", "merged_generation", "pending_bytes"),
    *("pending_rows", "wal_entries", "wal_bytes", "abandoned", "due_reasons"),
}


def show_shard(shard: ShardStatusReport) -> Json:
    """Show one shard; `flushed_generation` is the newest that its writer has flushed."""
    current = shard.current_generation
    pending = shard.pending_generations
    return {
        **shard.model_dump(include=_SHARD_FIELDS),
        "broken": is_broken(shard),
        "flushed_generation": None if current is None else max(current - 1, 0),
        "pending": len(pending),
        "pending_from": min(pending, default=None),
        "pending_to": max(pending, default=None),
        "oldest_pending_at": shard.oldest_pending_flushed_at,
        "unflushed": shard.unflushed_wal_entries,
    }


_ONLY: dict[str, Callable[[ShardStatusReport], bool]] = {
    "all": lambda shard: True,
    "pending": lambda shard: bool(shard.pending_generations),
    "due": lambda shard: bool(shard.due_reasons),
    "sealed": lambda shard: (shard.status or "").upper() == "SEALED",
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
