"""Every metric: its name, labels, unit and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A metric as it is registered, and as METRICS.md lists it. `unit` is UCUM; empty: a count."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...] = ()
    unit: str = ""
    text: str


METRICS = (
    Metric(
        name="memwal_pending_generations",
        kind="gauge",
        labels=("table",),
        text="Flushed generations that the base table lacks.",
    ),
    Metric(
        name="memwal_pending_bytes",
        kind="gauge",
        labels=("table",),
        unit="By",
        text="In-memory bytes of flushed generations that the base table lacks.",
    ),
    Metric(
        name="memwal_oldest_pending_seconds",
        kind="gauge",
        labels=("table",),
        unit="s",
        text="Age of the oldest generation that the base table lacks; 0 where there is none.",
    ),
    Metric(
        name="memwal_oldest_unindexed_seconds",
        kind="gauge",
        labels=("table",),
        unit="s",
        text="Age of the oldest merged generation that an index lacks; 0 where there is none.",
    ),
    Metric(
        name="memwal_index_lag_generations",
        kind="gauge",
        labels=("table", "index"),
        text="How many generations the index is behind the merges, at its worst shard.",
    ),
    Metric(
        name="memwal_reclaimable_bytes",
        kind="gauge",
        labels=("table",),
        unit="By",
        text="In-memory bytes of generations that are merged and covered by every index.",
    ),
    Metric(
        name="memwal_freshness_target_seconds",
        kind="gauge",
        labels=("table",),
        unit="s",
        text="The lag that watch keeps the table under.",
    ),
    Metric(
        name="memwal_abandoned_shards",
        kind="gauge",
        labels=("table",),
        text="Shards with unflushed rows whose writer is silent.",
    ),
    Metric(
        name="memwal_lease_held_seconds",
        kind="gauge",
        labels=("table",),
        unit="s",
        text="For how long others have held the lease, and committed nothing; absent if none does.",
    ),
    Metric(
        name="memwal_consecutive_failures",
        kind="gauge",
        labels=("table", "reason"),
        text="Rounds or looks that failed in a row; absent where the last one did not.",
    ),
    Metric(
        name="memwal_last_look_timestamp_seconds",
        kind="gauge",
        labels=("table",),
        unit="s",
        text="When a look at the table last succeeded, in seconds since 1970; 0: never.",
    ),
    Metric(
        name="memwal_freshness_seconds",
        kind="histogram",
        labels=("stage",),
        unit="s",
        text="From a generation's flush until it was merged, or indexed.",
    ),
    Metric(
        name="memwal_runs_total",
        kind="counter",
        labels=("job", "outcome"),
        text="Runs of a job on a table, dry runs too.",
    ),
    Metric(
        name="memwal_rows_total",
        kind="counter",
        labels=("job", "kind"),
        text="Rows that runs committed.",
    ),
    Metric(
        name="memwal_requests_total",
        kind="counter",
        labels=("operation",),
        text="Requests to object stores, without Lance's own.",
    ),
    Metric(
        name="memwal_retries_total",
        kind="counter",
        text="Requests to object stores that had to be repeated.",
    ),
    Metric(
        name="memwal_conflicts_total",
        kind="counter",
        labels=("job",),
        text="Commits that lost a race and were planned again.",
    ),
    Metric(
        name="memwal_worker_replacements_total",
        kind="counter",
        labels=("reason",),
        text="Worker processes of watch that were replaced.",
    ),
)
"""Every metric, as it stands in Prometheus's text too: nothing adds a unit or `_total` to it."""

FRESHNESS_BUCKETS_SECONDS = (
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
    3600.0, 14400.0, 86400.0,
)  # fmt: skip
