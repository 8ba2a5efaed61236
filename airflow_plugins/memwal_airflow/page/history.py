"""A table's run records as the page shows them: filtered, one page at a time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memwal_airflow.operators.task_runs import build_task_paths
from memwal_airflow.page.answers import Run
from memwal_airflow.page.details import RUNS_MAX, Detail
from memwal_airflow.page.feed import FeedLimits
from memwal_airflow.page.plots import iso

RUNS_PAGE_MAX = 200
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunQuery:
    """Which runs of a table to show; "" matches any, and `run_id` may be the beginning of an id."""

    job: str = ""
    outcome: str = ""
    run_id: str = ""
    offset: int = 0
    limit: int = 25

    def needs_older(self, runs: Sequence[Run]) -> bool:
        """Whether the query may need older runs than those of the look."""
        narrowed = self.job or self.outcome or self.run_id
        full = len(runs) >= FeedLimits.runs_max
        return full and bool(narrowed or self.offset + self.limit > len(runs))


def run_page(newest: Sequence[Run], older: Detail, query: RunQuery, root: str = "") -> Json:
    """Return one page of the runs that match the query.

    `jobs` and `outcomes` say how many runs there are of each, as far as is known; `more` says
    whether there are further records that have not been asked for yet.
    """
    runs = join(newest, older.runs)
    fitting = [
        run
        for run in runs
        if query.job in ("", run["job"])
        and query.outcome in ("", run["outcome"])
        and run["run_id"].startswith(query.run_id)
    ]
    limit = max(1, min(query.limit, RUNS_PAGE_MAX))
    # Until all records are known, a page may be empty for now.
    offset = query.offset if older.looking else min(query.offset, max(len(fitting) - 1, 0))
    return {
        "total": len(runs),
        "fitting": len(fitting),
        "offset": offset,
        "limit": limit,
        "jobs": dict(sorted(Counter(run["job"] for run in runs).items())),
        "outcomes": dict(sorted(Counter(run["outcome"] for run in runs).items())),
        "more": len(newest) >= FeedLimits.runs_max and older.at is None,
        "looking": older.looking,
        "looked_at": iso(older.at),
        "error": older.error,
        "cut_at": RUNS_MAX if len(older.runs) >= RUNS_MAX else None,
        "runs": [show_run(run, root) for run in fitting[offset : offset + limit]],
    }


def join(newest: Sequence[Run], older: Sequence[Run]) -> list[Run]:
    """Join both lists, each record once, newest first."""
    found = {(run["run_id"], run["job"], run["finished_at"]): run for run in (*newest, *older)}
    return sorted(found.values(), key=lambda run: str(run["finished_at"]), reverse=True)


def show_run(run: Run, root: str = "") -> Json:
    """Show one run, with a few words on what it did.

    For the task that started it there are `run_path` and `log_path` in Airflow, beside its ids.
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
# What is shown of a job's summary: the key, and the unit that the page puts after the number.
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
