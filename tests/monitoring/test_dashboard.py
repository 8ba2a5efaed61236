"""The dashboard and the alerts in a real Prometheus.

It scrapes two endpoints that tell something of everything, and a real watch at work.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

import memwal
from memwal.clock import SystemClock
from memwal.jobs.watch.metrics import Pulse, serve
from memwal.model import Cursor, TableState
from memwal.report import DONE, FAILED, TableReport
from memwal.run.metrics.sink import METRICS, Counts, Metrics
from memwal.run.metrics.start import start_metrics
from tests.monitoring.server import Prometheus
from tests.monitoring.test_rules import FILE as RULES_FILE
from tests.monitoring.test_rules import RULES
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.nursery import Started, start_memwal

pytestmark = pytest.mark.nightly

FILE = Path(memwal.__file__).parent / "monitoring" / "dashboard.json"
DASHBOARD = json.loads(FILE.read_text())
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"]}
SECRET = "not-to-be-told"


def fill(metrics: Metrics) -> None:
    """Something of everything, as a watch that has seen all kinds of trouble."""
    now = SystemClock().now_nanos()
    for table in ("orders", "s3://lake/events"):
        gauges = TableState(
            looked_at_nanos=now,
            pending_generations=3,
            pending_bytes=3_000_000,
            oldest_pending_at_nanos=now - 400 * 10**9,
            oldest_unindexed_at_nanos=now - 500 * 10**9,
            index_lag_generations={"text": 2, "id": 0},
            reclaimable_bytes=20 * 1024**3,
            freshness_target_seconds=60.0,
            abandoned_shards=1,
            unflushed_shards=1,
            oldest_unflushed_at_nanos=now - 4000 * 10**9,
            lease_held_at_nanos=now - 4000 * 10**9,
            last_backup_at_nanos=now - 3 * 86_400 * 10**9,
            version=9,
            cursors=[Cursor(name="mart", version=5, moved_at_nanos=now - 2 * 10**14, holder="me")],
            failures=3,
            reason="Corruption",
        )
        metrics.record_state(table, gauges)
    for stage in ("merged", "indexed"):
        metrics.record_freshness(stage, 1.5)
    requests = {"list": 5, "get": 7, "put": 2, "delete": 1, "retries": 1}
    for outcome in (DONE, FAILED):
        metrics.record_table("merge", TableReport(table="orders", outcome=outcome), requests)
    labels = {"job": "merge", "kind": "inserted", "reason": "grew"}
    for metric in METRICS:
        if metric.name.removeprefix("memwal_") in ("rows_total", "conflicts_total"):
            key = tuple((name, labels[name]) for name in sorted(metric.labels))
            metrics.add(Counts({(metric.name, key): 1}))
    metrics.record_worker_replaced("grew")


@dataclass(frozen=True)
class RealWatch:
    """`memwal watch` on a real table that is written, in a process of its own."""

    process: Started
    place: str
    table: Table


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealWatch]:
    folder = tmp_path_factory.mktemp("watched")
    table = builders.make_table(folder / "table", rows=range(20), shards=2, indexed=True)
    for shard in table.shards:
        table.flush(shard, Put([100], 1))
    cursor = Cursor(name="mart", version=1, moved_at_nanos=SystemClock().now_nanos(), holder="me")
    table.stores.cursors.put(cursor)
    config = folder / "memwal.toml"
    config.write_text(f'[tables.real]\nuri = "{table.uri}"\n')
    options = ("--config", config, "--metrics-port", "0", "--every", "0.2s", "--freshness", "2s")
    secret = {"MEMWAL_STORAGE_OPTIONS": json.dumps({"aws_secret_access_key": SECRET})}
    with start_memwal("watch", "real", *options, env=os.environ | secret) as process:
        told = re.search(r"http://(\S+)/metrics", process.stderr.readline())
        assert told is not None
        yield RealWatch(process, told[1], table)
        process.kill()


@pytest.fixture(scope="module")
def server(
    prometheus: Path, watch: RealWatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    clock = SystemClock()
    metrics = start_metrics(shown=True, warn=pytest.fail)
    fill(metrics)
    pulse = Pulse(clock, 5)
    with (
        serve(metrics.exposition, pulse, port=0) as one,
        serve(metrics.exposition, pulse, port=0) as other,
    ):
        targets = [*(urlsplit(url).netloc for url in (one, other)), watch.place]
        folder = tmp_path_factory.mktemp("prometheus")
        with Prometheus(prometheus, folder, [RULES_FILE], targets) as server:
            wait_for(lambda: server.query("min(count_over_time(up[5s])) > 3"))
            yield server
    metrics.close()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def fill_in(expression: str, table: str = ".*") -> str:
    """As Grafana does with its variables."""
    return expression.replace("$__rate_interval", "10s").replace("$table", table)


def test_it_scrapes_every_metric_by_its_name(server: Prometheus) -> None:
    assert server.query("up") == [(labels, 1.0) for labels, _ in server.query("up")]
    found = {name for name in server.ask("label/__name__/values") if name.startswith("memwal_")}
    told = {re.sub("_(bucket|sum|count)$", "", n) if "freshness_s" in n else n for n in found}
    assert told == {metric.name for metric in METRICS}


def test_a_panel_shows_something_and_of_the_table_that_was_chosen(server: Prometheus) -> None:
    targets = [target for panel in PANELS.values() for target in panel["targets"]]
    assert len(targets) > len(PANELS)
    for target in targets:
        names = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        series = server.query(fill_in(target["expr"]))
        assert series and all(names <= labels.keys() for labels, _ in series), target
        chosen = server.query(fill_in(target["expr"], "orders"))
        assert {labels.get("table") for labels, _ in chosen} <= {"orders", None}, target


def test_jobs_keep_their_names_beside_prometheus_s_own(server: Prometheus) -> None:
    """The label `job` of a metric is `exported_job` once it is scraped, unless that is told off."""
    stored = server.query('count by (job, exported_job) (memwal_runs_total{job!="memwal-2"})')
    assert {tuple(sorted(labels.items())) for labels, _ in stored} == {
        (("exported_job", "merge"), ("job", "memwal-0")),
        (("job", "merge"),),
    }
    expression = fill_in(PANELS["Runs"]["targets"][0]["expr"])
    runs = {labels["run"] for labels, _ in server.query(expression)}
    assert "merge" in runs and not any(run.startswith("memwal") for run in runs)


def test_the_alerts_can_be_judged(server: Prometheus) -> None:
    (group,) = server.ask("rules")["groups"]
    wait_for(lambda: all(r["health"] == "ok" for r in server.ask("rules")["groups"][0]["rules"]))
    # All but those of watches that are gone or blind are about to fire, whatever is scraped twice.
    waiting = {alert["labels"]["alertname"] for alert in server.ask("alerts")["alerts"]}
    blind = {"MemwalTableUnseen", "MemwalTableNeverSeen", "MemwalWatchGone"}
    assert waiting == set(RULES) - blind
    assert len(group["rules"]) == len(RULES)


def test_a_real_watch_is_seen_at_work(server: Prometheus, watch: RealWatch) -> None:
    def value(expression: str) -> float | None:
        found = server.query(expression)
        return found[0][1] if found else None

    of_it = '{job="memwal-2", table="real"}'
    wait_for(lambda: value(f"memwal_pending_generations{of_it}") == 0)
    wait_for(lambda: value(f"memwal_index_lag_generations{of_it}") == 0)
    assert value(f"memwal_freshness_target_seconds{of_it}") == 2
    cursor = of_it.replace("}", ', cursor="mart"}')
    assert (value(f"memwal_cursor_lag_versions{cursor}") or 0) > 0
    assert 0 < (value(f"memwal_cursor_age_seconds{cursor}") or 0) < 300
    assert value(f"time() - memwal_last_look_timestamp_seconds{of_it}") < 5
    merges = 'memwal_runs_total{job="memwal-2", exported_job="merge", outcome="done"}'
    before = value(merges)
    assert before
    for shard in watch.table.shards:
        watch.table.flush(shard, Put([200], 2))
    for stage in ("merged", "indexed"):
        told = f'memwal_freshness_seconds_count{{job="memwal-2", stage="{stage}"}}'
        wait_for(lambda told=told: (value(told) or 0) >= 2)
    wait_for(lambda: (value(merges) or 0) > before)
    assert value('memwal_requests_total{job="memwal-2", operation="list"}')
    assert value('memwal_rows_total{job="memwal-2", exported_job="merge", kind="inserted"}')


def test_its_probes_are_answered_until_it_ends(server: Prometheus, watch: RealWatch) -> None:
    for path in ("healthz", "metrics"):
        with urlopen(f"http://{watch.place}/{path}", timeout=10) as answer:
            text = answer.read().decode()
            assert (answer.status, text == "ok\n") == (200, path != "metrics")
            assert SECRET not in text and watch.table.uri not in text
    watch.process.send_signal(signal.SIGTERM)
    assert watch.process.wait(60) == 0
    with pytest.raises(URLError):
        urlopen(f"http://{watch.place}/healthz", timeout=10)
    wait_for(lambda: server.query("up == 0"))
