"""What tasks measure, by Airflow's own metrics: StatsD, Datadog or OpenTelemetry, as it is set up.

The names hold what a plain StatsD has no tags for; tags say the same, and the DAG and the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk.observability import stats

from memwal.config import mask_address

_TABLE_CHARACTERS_MAX = 100
_GAUGES = ("pending_generations", "pending_bytes", "oldest_pending_seconds")


def measure_job(job: str, found: Mapping[str, Any], tags: Mapping[str, Any]) -> None:
    """What a try's job came to, from its summary. Nothing of a dry run.

    `memwal.JOB.OUTCOME.runs` counts tables, so do `.rows_inserted`, `.commits`, `.bytes_read` and
    the other counts of a report; `memwal.JOB.OUTCOME.seconds` is the time of the whole job.
    """
    if found.get("dry_run"):
        return
    outcome = found["outcome"] or "unreported"
    whole = {**tags, "job": job, "outcome": outcome}
    if found.get("seconds") is not None:
        stats.timing(
            _name(job, outcome, "seconds"), timedelta(seconds=found["seconds"]), tags=whole
        )
    if not found["tables"]:
        stats.incr(_name(job, outcome, "runs"), tags=whole)
    for table in found["tables"]:
        for part in (table, *table.get("jobs", ())):
            labels = {**tags, "job": part.get("job", job), "outcome": part["outcome"]}
            for measure, count in {"runs": 1, **part.get("counts", {})}.items():
                name = _name(labels["job"], labels["outcome"], measure)
                stats.incr(name, count, tags=labels)


def measure_backlog(table: str, status: Mapping[str, Any], tags: Mapping[str, Any]) -> None:
    """What waits for a merge, as `memwal status` tells: `memwal.pending_generations.TABLE`,
    `memwal.pending_bytes.TABLE`, `memwal.oldest_pending_seconds.TABLE`. Unknown: nothing.
    """
    shown = mask_address(table)
    for gauge in _GAUGES:
        if (value := status.get(gauge)) is not None:
            name = _name(gauge, shown[-_TABLE_CHARACTERS_MAX:])
            stats.gauge(name, value, tags={**tags, "table": shown})


def _name(*parts: Any) -> str:
    """A metric's name; a dot in a part would be another level."""
    whole = ".".join(str(part).replace(".", "_").replace("-", "_") for part in parts)
    return stats.normalize_name_for_stats(f"memwal.{whole}", log_warning=False)
