"""What the page shows of what the feed knows. Pure: no clock, no file, no network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from memwal.jobs.status.report import ShardStatusReport, StatusTableReport
from memwal_airflow.page import plots
from memwal_airflow.page.answers import Look, Run, is_broken, read_lease
from memwal_airflow.page.feed import Seen
from memwal_airflow.page.health import STATES, Health, HealthLimits, judge_health
from memwal_airflow.task_runs import build_task_paths

SHARDS_PAGE_MAX = 200
RUNS_SHOWN_MAX = 100
WARNINGS_SHOWN_MAX = 20
Json = dict[str, Any]
# What is shown of a table before its first look.
_NOTHING = StatusTableReport(table="", outcome="")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardQuery:
    """Which shards of a table to show."""

    text: str = ""
    only: str = "all"
    sort: str = "pending"
    offset: int = 0
    limit: int = 50


def show_overview(seen: Seen, now: datetime, limits: HealthLimits) -> Json:
    """All tables, the worst first, and how many there are in each state."""
    lines = [show_line(look, now, limits) for look in seen.looks]
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
        "planned_at": iso(seen.planned_at),
        "looked_at": iso(_looked_at(seen)),
        "busy": seen.busy,
        "left_out": seen.tables_left_out,
        "counts": counts,
        "tables": lines,
    }


def _looked_at(seen: Seen) -> datetime | None:
    """Since when every table has been looked at, but for those whose last look failed."""
    well = [look.status_at for look in seen.looks if look.status_at and look.error is None]
    return min(well, default=None)


def show_line(look: Look, now: datetime, limits: HealthLimits) -> Json:
    """One table in the overview."""
    status, totals = look.status or _NOTHING, look.totals
    lease = read_lease(status, now)
    return {
        "name": look.name,
        "uri": look.uri,
        **_show_freshness(look, judge_health(look, now, limits)),
        "pending": asdict(totals.pending) if totals else None,
        "oldest_pending_at": iso(totals.oldest_pending_at) if totals else None,
        "shards": totals.shards if totals else None,
        "index_lag": _show_index_lag(status),
        **status.model_dump(include={"storage", "reclaimable"}),
        "snapshot_at": status.snapshot.taken_at if status.snapshot else None,
        "lease": lease.model_dump() if lease else None,
        "last_run": show_run(look.runs[0]) if look.runs else None,
        # Two points a run, so that many runs are enough.
        "trend": plots.trend(_backlog(look, runs_max=plots.TREND_POINTS_MAX)),
    }


def show_table(
    look: Look, now: datetime, limits: HealthLimits, query: ShardQuery, root: str = ""
) -> Json:
    """Everything about one table, with one page of its shards; `root` is Airflow's own path."""
    status = look.status or _NOTHING
    return {
        "now": iso(now),
        **show_line(look, now, limits),
        **status.model_dump(include={"version", "rows", "primary_key", "snapshot"}),
        "warnings": status.warnings[:WARNINGS_SHOWN_MAX],
        "checkpoints": [found.model_dump(exclude={"cut", "tag"}) for found in status.checkpoints],
        "indexes": [index.model_dump(exclude={"caught_up"}) for index in status.indexes],
        "shard_page": shard_page(look, query),
        "runs": [show_run(run, root) for run in look.runs[:RUNS_SHOWN_MAX]],
        "runs_unreadable": look.runs_unreadable,
        "runs_error": look.runs_error,
        "backlog": _backlog(look),
        "throughput": plots.throughput(look.runs),
    }


def _show_freshness(look: Look, health: Health) -> Json:
    """How the table is, and how old and how sure that is."""
    return {
        "health": asdict(health),
        "looked_at": iso(look.status_at),
        "looking": look.looking,
        "error": look.error,
        "error_at": iso(look.error_at),
        "unreachable_since": iso(look.unreachable_since),
        "next_try_at": iso(look.next_try_at),
    }


def _backlog(look: Look, runs_max: int | None = None) -> list[Any]:
    runs = look.runs[:runs_max]
    return plots.backlog(runs, iso(look.status_at), look.totals.pending if look.totals else None)


def _show_index_lag(status: StatusTableReport) -> Json | None:
    """The index that is furthest behind. None where there is no index."""
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
    """One page of the shards that fit the query, and how many there are."""
    shards = look.status.shards if look.status else ()
    total = look.totals.shards if look.totals else 0
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
    """One shard. `flushed_generation` is the newest one that its writer has flushed."""
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


def show_run(run: Run, root: str = "") -> Json:
    """One run, with what it did in a few words, and where Airflow shows the task that started it:
    `run_path` and `log_path` beside the task's ids.
    """
    task = run.get("airflow")
    shown = task and {**task, **build_task_paths(task, root)}
    return {
        **{key: run.get(key) for key in _RUN_FIELDS},
        "did": _list_deeds(run),
        "airflow": shown,
    }


_RUN_FIELDS = (
    *("run_id", "job", "outcome", "exit_code", "started_at", "finished_at"),
    *("seconds", "engine", "holder", "error"),
)
# What is shown of a job's summary: key, and the unit that the page puts behind the number.
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


def _list_deeds(run: Run) -> list[Json]:
    summary = run.get("summary") or {}
    deeds = [{"value": summary[key], "unit": unit} for key, unit in _DEEDS if summary.get(key)]
    before, after = summary.get("fragments_before"), summary.get("fragments_after")
    if before is not None and after is not None:
        deeds.insert(0, {"value": before, "unit": "fragments:to", "to": after})
    return deeds


def iso(time: datetime | None) -> str | None:
    """ISO text, to the millisecond."""
    return None if time is None else time.isoformat(timespec="milliseconds")
