"""Every metric: its name, labels, unit and meaning."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """A metric as it is registered, and as the reference has it. `unit` is UCUM; empty: a count."""

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    labels: tuple[str, ...]
    unit: str
    text: str


METRICS = (
    Metric("gauge", "memwal_pending_generations", ("table",), "",
           "Flushed generations that the base table lacks."),
    Metric("gauge", "memwal_pending_bytes", ("table",), "By",
           "In-memory bytes of flushed generations that the base table lacks."),
    Metric("gauge", "memwal_oldest_pending_seconds", ("table",), "s",
           "Age of the oldest generation that the base table lacks; 0 where there is none."),
    Metric("gauge", "memwal_oldest_unindexed_seconds", ("table",), "s",
           "Age of the oldest merged generation that an index lacks; 0 where there is none."),
    Metric("gauge", "memwal_index_lag_generations", ("table", "index"), "",
           "How many generations the index is behind the merges, at its worst shard."),
    Metric("gauge", "memwal_reclaimable_bytes", ("table",), "By",
           "In-memory bytes of generations that are merged and covered by every index."),
    Metric("gauge", "memwal_freshness_target_seconds", ("table",), "s",
           "The lag that watch keeps the table under."),
    Metric("gauge", "memwal_abandoned_shards", ("table",), "",
           "Shards with unflushed rows whose writer is silent."),
    Metric("gauge", "memwal_lease_held_seconds", ("table",), "s",
           "For how long others have held the lease, and committed nothing; absent if none does."),
    Metric("gauge", "memwal_last_backup_timestamp_seconds", ("table",), "s",
           "The moment that the newest backup has, in seconds since 1970; 0: none is known."),
    Metric("gauge", "memwal_cursor_lag_versions", ("table", "cursor"), "",
           "Versions of the table after that of the cursor, by which changes are followed."),
    Metric("gauge", "memwal_cursor_age_seconds", ("table", "cursor"), "s",
           "Since when its consumer has not moved the cursor."),
    Metric("gauge", "memwal_consecutive_failures", ("table", "reason"), "",
           "Rounds or looks that failed in a row; absent where the last one did not."),
    Metric("gauge", "memwal_last_look_timestamp_seconds", ("table",), "s",
           "When a look at the table last succeeded, in seconds since 1970; 0: never."),
    Metric("gauge", "memwal_queue_place", ("table",), "",
           "The table's place among those that wait for a worker of watch; absent if it does not."),
    Metric("gauge", "memwal_merged_rows", ("table",), "",
           "Rows that watch has merged into the table since it started."),
    Metric("histogram", "memwal_freshness_seconds", ("stage",), "s",
           "From a generation's flush until it was merged, or indexed."),
    Metric("counter", "memwal_runs_total", ("job", "outcome"), "",
           "Runs of a job on a table, dry runs too."),
    Metric("counter", "memwal_rows_total", ("job", "kind"), "",
           "Rows that runs committed."),
    Metric("counter", "memwal_requests_total", ("operation",), "",
           "Requests to object stores, without Lance's own."),
    Metric("counter", "memwal_retries_total", (), "",
           "Requests to object stores that had to be repeated."),
    Metric("counter", "memwal_conflicts_total", ("job",), "",
           "Commits that lost a race and were planned again."),
    Metric("counter", "memwal_worker_replacements_total", ("reason",), "",
           "Worker processes of watch that were replaced."),
)  # fmt: skip
"""Every metric, as it stands in Prometheus's text too: nothing adds a unit or `_total` to it."""

FRESHNESS_BUCKETS_SECONDS = (
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
    3600.0, 14400.0, 86400.0,
)  # fmt: skip
