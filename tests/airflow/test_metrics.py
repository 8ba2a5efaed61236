"""What a StatsD server hears of the jobs, through Airflow's own metrics."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory
from memwal_airflow.operators.task_metrics import measure_backlog, measure_job

from tests.airflow.airflow_server import InProcessAirflow
from tests.airflow.dag_runs import run_shipped

pytestmark = pytest.mark.integration

Hear = Callable[[], dict[str, str]]


@pytest.fixture
def hear(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hear]:
    """What memwal's metrics were since the last call: name without Airflow's prefix -> value."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(server.getsockname()[1]))

        def read() -> dict[str, str]:
            heard = {}
            while True:
                try:
                    name, _, value = server.recv(65_536).decode().partition(":")
                except BlockingIOError:
                    return heard
                if name.startswith("airflow.memwal."):
                    heard[name.removeprefix("airflow.memwal.")] = value

        # As a worker does for each task.
        stats.initialize(factory=get_stats_factory(), export_legacy_names=True)
        yield read
        monkeypatch.undo()
        stats.initialize(factory=get_stats_factory(), export_legacy_names=True)


@pytest.mark.nightly
def test_a_run_tells_what_waited_and_what_came_of_it(
    airflow_home: InProcessAirflow, hear: Hear
) -> None:
    airflow_home.tables.make("orders", shards=2, generations=2, settings={"due_generations_min": 1})
    airflow_home.tables.make("events", generations=1).break_shard()
    assert run_shipped(airflow_home, "memwal_merge").state == "failed"
    heard = hear()
    assert heard["pending_generations.orders"] == "4|g"
    assert int(heard["pending_bytes.orders"].removesuffix("|g")) > 0
    assert "pending_generations.events" not in heard, "not known of every shard"
    assert heard["merge.done.runs"] == heard["merge.failed.runs"] == "1|c"
    assert heard["merge.done.generations"] == "4|c"
    for measure in ("commits", "rows_inserted", "bytes_read"):
        assert int(heard[f"merge.done.{measure}"].removesuffix("|c")) > 0
    assert heard["merge.done.seconds"].endswith("|ms")


def test_a_dry_run_counts_as_nothing_and_a_lost_report_as_such(hear: Hear) -> None:
    table = {"table": "t", "outcome": "done", "counts": {"commits": 2}}
    found = {"outcome": "done", "seconds": 1.5, "dry_run": True, "tables": [table]}
    measure_job("merge", found, {})
    assert hear() == {}
    part = {**table, "job": "index-catchup", "counts": {}}
    measure_job("maintain", {**found, "dry_run": False, "tables": [{**table, "jobs": [part]}]}, {})
    assert hear() == {
        "maintain.done.seconds": "1500.000000|ms",
        "maintain.done.runs": "1|c",
        "maintain.done.commits": "2|c",
        "index_catchup.done.runs": "1|c",
    }
    measure_job("merge", {"outcome": None, "tables": []}, {"dag_id": "d"})
    assert hear() == {"merge.unreported.runs": "1|c"}


def test_no_table_s_name_makes_another_metric(hear: Hear) -> None:
    measure_backlog("s3://key:secret@lake/a.b c:1|c\n" + "x" * 500, {"pending_bytes": 3}, {})
    measure_backlog("ü.x", {"pending_bytes": 4, "pending_generations": None}, {})
    heard = hear()
    assert heard == {f"pending_bytes.{'x' * 100}": "3|g", "pending_bytes.__x": "4|g"}
