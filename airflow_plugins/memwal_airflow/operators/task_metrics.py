"""Tasks' metrics, sent through Airflow's own: StatsD, Datadog or OpenTelemetry, as configured.

A plain StatsD has no tags, so the names say it all; tags repeat it and add the DAG and the task.
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
    """Measure what a try's job did, from its summary; nothing for a dry run.

    `memwal.JOB.OUTCOME.runs` counts tables. `.rows_inserted`, `.commits`, `.bytes_read` and so on
    are the counts of the report. `memwal.JOB.OUTCOME.seconds` is the time of the whole job.
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
    """Measure what waits for a merge, as `memwal status` reports it.

    The metrics are `memwal.pending_generations.TABLE`, `memwal.pending_bytes.TABLE` and
    `memwal.oldest_pending_seconds.TABLE`; unknown values are not sent.
    """
    shown = mask_address(table)
    for gauge in _GAUGES:
        if (value := status.get(gauge)) is not None:
            name = _name(gauge, shown[-_TABLE_CHARACTERS_MAX:])
            stats.gauge(name, value, tags={**tags, "table": shown})


def _name(*parts: Any) -> str:
    """Build a metric's name; a dot inside a part would add a level."""
    whole = ".".join(str(part).replace(".", "_").replace("-", "_") for part in parts)
    return stats.normalize_name_for_stats(f"memwal.{whole}", log_warning=False)
