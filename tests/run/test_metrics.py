"""What is measured: names, units and values as Prometheus reads them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import memwal.run.metrics
from memwal.errors import LostRace, Unsupported
from memwal.ingest.report import IngestTableReport
from memwal.jobs.index_catchup.plan import IndexCatchupReport, IndexCatchupTableReport
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.merge.report import MergeTableReport, ShardReport
from memwal.model import Cursor, ShardId, TableState
from memwal.report import JobOnTable, JobReport, TableReport
from memwal.run.metrics.sink import METRICS, NO_METRICS, count_report, name_failure
from memwal.run.metrics.start import start_metrics
from memwal.run.metrics.telemetry import Telemetry, make_shown_reader

SECOND = 10**9
NOW = 1000 * SECOND


@pytest.fixture
def metrics() -> Telemetry:
    registry = CollectorRegistry()
    return Telemetry(
        readers=[make_shown_reader(registry)], registry=registry, now_nanos=lambda: NOW
    )


def samples(metrics: Telemetry) -> dict[tuple[str, tuple[str, ...]], float]:
    found = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (s.name, tuple(s.labels[name] for name in sorted(s.labels))): s.value
        for family in found
        for s in family.samples
    }


def merged(**fields: object) -> MergeTableReport:
    shard = ShardReport(
        shard_id=ShardId("s"), outcome="done", rows_inserted=5, rows_updated=2, conflicts=3
    )
    return MergeTableReport.model_validate(
        {"table": "t", "outcome": "done", "shards": (shard,), **fields}
    )


def test_a_known_sequence_reads_as_it_is_specified(metrics: Telemetry) -> None:
    gauges = TableState(
        looked_at_nanos=NOW - SECOND, pending_generations=2, pending_bytes=64,
        oldest_pending_at_nanos=NOW - 90 * SECOND, oldest_unindexed_at_nanos=NOW - 100 * SECOND,
        index_lag_generations={"i": 3}, reclaimable_bytes=0, freshness_target_seconds=60.0,
        abandoned_shards=1, unflushed_shards=1, oldest_unflushed_at_nanos=NOW - 8 * SECOND,
        lease_held_at_nanos=NOW - 7 * SECOND,
        last_backup_at_nanos=NOW - 3 * SECOND,
        version=9,
        cursors=[Cursor(name="mart", version=7, moved_at_nanos=NOW - 50 * SECOND, holder="me")],
        failures=4, reason="LostRace",
    )  # fmt: skip
    metrics.record_state("t", gauges)
    requests = {"get": 4, "retries": 1}
    done = JobReport(job="merge", outcome="done", tables=(merged(),), requests=requests)
    metrics.record_report(done)
    metrics.record_worker_replaced("died")
    wanted = """\
memwal_abandoned_shards{table="t"} 1.0
memwal_conflicts_total{job="merge"} 3.0
memwal_consecutive_failures{reason="LostRace",table="t"} 4.0
memwal_cursor_age_seconds{cursor="mart",table="t"} 50.0
memwal_cursor_lag_versions{cursor="mart",table="t"} 2.0
memwal_freshness_target_seconds{table="t"} 60.0
memwal_index_lag_generations{index="i",table="t"} 3.0
memwal_last_backup_timestamp_seconds{table="t"} 997.0
memwal_last_look_timestamp_seconds{table="t"} 999.0
memwal_lease_held_seconds{table="t"} 7.0
memwal_oldest_pending_seconds{table="t"} 90.0
memwal_oldest_unindexed_seconds{table="t"} 100.0
memwal_pending_bytes{table="t"} 64.0
memwal_pending_generations{table="t"} 2.0
memwal_reclaimable_bytes{table="t"} 0.0
memwal_requests_total{operation="get"} 4.0
memwal_retries_total 1.0
memwal_rows_total{job="merge",kind="inserted"} 5.0
memwal_rows_total{job="merge",kind="updated"} 2.0
memwal_runs_total{job="merge",outcome="done"} 1.0
memwal_unflushed_seconds{table="t"} 8.0
memwal_worker_replacements_total{reason="died"} 1.0
"""
    text = metrics.exposition().decode()
    assert sorted(re.findall("^[^#].*\n", text, re.MULTILINE)) == wanted.splitlines(keepends=True)
    shown = set(re.findall("^# TYPE (\\S+)", text, re.MULTILINE))
    assert shown == {m.name for m in METRICS} - {"memwal_freshness_seconds"}


def test_a_cursor_that_is_read_after_the_table_is_not_ahead_of_it(metrics: Telemetry) -> None:
    ahead = Cursor(name="mart", version=3, moved_at_nanos=NOW, holder="me")
    metrics.record_state("t", TableState(version=2, cursors=[ahead]))
    assert 'memwal_cursor_lag_versions{cursor="mart",table="t"} 0.0' in (
        metrics.exposition().decode()
    )


def test_freshness_has_buckets_from_a_tenth_of_a_second_to_a_day(metrics: Telemetry) -> None:
    for seconds in (0.05, 0.3, 59.0, 7200.0, 1e6, -5.0):
        metrics.record_freshness("merged", seconds)
    buckets = {k[1][0]: v for k, v in samples(metrics).items() if k[0].endswith("_bucket")}
    assert [buckets[le] for le in ("0.1", "0.5", "60.0", "3600.0", "14400.0", "86400.0", "+Inf")] \
        == [2, 3, 4, 4, 5, 5, 6]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "label"),
    [('a "b"\nback\\slash {x=1,y} €', None), ("", None), ("no\udcfftext", "no\\udcfftext")],
)
def test_any_table_name_is_a_label(metrics: Telemetry, name: str, label: str | None) -> None:
    metrics.record_state(name, TableState(looked_at_nanos=SECOND, pending_generations=1))
    assert samples(metrics)["memwal_pending_generations", (label or name,)] == 1


def test_what_is_not_known_is_not_shown_as_nothing(metrics: Telemetry) -> None:
    never = TableState(looked_at_nanos=0, failures=1, reason="NotATable")
    metrics.record_state("t", never)
    assert samples(metrics) == {
        ("memwal_consecutive_failures", ("NotATable", "t")): 1,
        ("memwal_last_look_timestamp_seconds", ("t",)): 0,
    }
    metrics.record_state("t", TableState(looked_at_nanos=SECOND, pending_generations=3))
    names = {name for name, _ in samples(metrics)}
    assert "memwal_pending_bytes" not in names
    assert "memwal_oldest_pending_seconds" not in names, "something waits, nobody knows since when"
    metrics.record_state("t", TableState(looked_at_nanos=SECOND, pending_generations=0))
    assert samples(metrics)["memwal_oldest_pending_seconds", ("t",)] == 0


def test_gauges_of_a_table_end_with_its_watch_and_follow_its_reason(metrics: Telemetry) -> None:
    failing = TableState(looked_at_nanos=SECOND, failures=1, reason="Refused")
    metrics.record_state("t", failing)
    metrics.record_state("u", failing)
    assert ("memwal_consecutive_failures", ("Refused", "t")) in samples(metrics)
    metrics.record_state("t", TableState(looked_at_nanos=SECOND))
    metrics.forget_table("u")
    metrics.forget_table("never seen")
    assert {labels for _, labels in samples(metrics)} == {("t",)}


def test_many_tables_have_a_series_each_and_counters_have_none_of_a_table(
    metrics: Telemetry,
) -> None:
    """OpenTelemetry adds up what is above 2,000 under no name, unless it is told otherwise."""
    gauges = TableState(looked_at_nanos=SECOND, pending_generations=1)
    for number in range(2_100):
        metrics.record_state(f"t{number}", gauges)
    metrics.record_table("merge", merged(table="counted"), {"get": 1})
    text = metrics.exposition().decode()
    assert text.count("memwal_pending_generations{") == 2_100
    assert "overflow" not in text
    assert "counted" not in text


def counted(report: JobReport) -> dict[str, float]:
    """Each counter by its name's first word and its labels' values."""
    found = count_report(report).items()
    return {
        " ".join([name.split("_")[1], *(v for _, v in labels)]): n for (name, labels), n in found
    }


def test_a_chain_counts_for_each_of_its_jobs() -> None:
    index = IndexCatchupReport(
        name="i", outcome="done", method="append", unindexed_rows_before=9, unindexed_rows_after=2,
        conflicts=1,
    )  # fmt: skip
    catchup = IndexCatchupTableReport(table="t", outcome="done", indexes=(index,))
    reports = {"merge": merged(outcome="partial"), "index-catchup": catchup}
    jobs = tuple(JobOnTable(job=job, report=report) for job, report in reports.items())
    table = MaintainTableReport(table="t", outcome="partial", jobs=jobs)
    requests = {"put": 2, "list": 0}
    report = JobReport(job="maintain", outcome="partial", tables=(table,), requests=requests)
    assert counted(report) == {
        "runs maintain partial": 1, "runs merge partial": 1, "runs index-catchup done": 1,
        "rows merge inserted": 5, "rows merge updated": 2, "rows index-catchup indexed": 7,
        "conflicts merge": 3, "conflicts index-catchup": 1, "requests put": 2,
    }  # fmt: skip


def test_a_dry_run_commits_no_rows_and_an_ingest_counts_its_own() -> None:
    dry = JobReport(job="merge", outcome="done", dry_run=True, tables=(merged(),))
    assert counted(dry) == {"runs merge done": 1}
    assert counted(JobReport(job="merge", outcome="failed")) == {"runs merge failed": 1}
    ingested = IngestTableReport(
        table="t", outcome="done", rows=900, rows_deleted=2, rows_rejected=3, rows_written=9,
    )  # fmt: skip
    assert counted(JobReport(job="ingest", outcome="done", tables=(ingested,))) == {
        "runs ingest done": 1, "rows ingest written": 7, "rows ingest deleted": 2,
        "rows ingest rejected": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"outcome": "done"}, None),
        ({"outcome": "failed", "cause": LostRace("x")}, "LostRace"),
        ({"outcome": "failed", "exit_code": 1, "cause": ValueError("x")}, "MemWalError"),
        ({"outcome": "held", "exit_code": 4}, "LeaseHeld"),
    ],
)
def test_a_failure_s_reason_is_one_of_few_words(
    fields: dict[str, object], reason: str | None
) -> None:
    assert name_failure(TableReport.model_validate({"table": "t", **fields})) == reason


def no_warning(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where `lance-memwal[metrics]` is not installed."""
    monkeypatch.setitem(memwal.run.metrics.__dict__, "telemetry", None)
    monkeypatch.delattr(memwal.run.metrics, "telemetry")
    monkeypatch.setitem(__import__("sys").modules, "memwal.run.metrics.telemetry", None)


def test_without_the_extra_who_asks_hears_what_to_install(
    monkeypatch: pytest.MonkeyPatch, without_extra: None
) -> None:
    for name in ("METRICS_EXPORTER", "SDK_DISABLED", "EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(f"OTEL_{name}", raising=False)
    with pytest.raises(Unsupported, match=r"pip install 'lance-memwal\[metrics\]'"):
        start_metrics(shown=True, warn=no_warning)
    assert start_metrics(shown=False, warn=no_warning) is NO_METRICS
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://h:1")
    warnings: list[str] = []
    warn: Callable[[str], None] = warnings.append
    assert start_metrics(shown=False, warn=warn) is NO_METRICS
    assert len(warnings) == 1 and "lance-memwal[metrics]" in warnings[0]
    with monkeypatch.context() as disabled:
        disabled.setenv("OTEL_SDK_DISABLED", "true")
        assert start_metrics(shown=False, warn=no_warning) is NO_METRICS
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert start_metrics(shown=False, warn=no_warning) is NO_METRICS
